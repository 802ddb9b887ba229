"""Held-back problems, answered by whatever generates, and scored: the figures of a policy.

One rollout for each problem of a sample; sample and random numbers follow from the run's seed and the step, so the same
policy at the same step has the same figures wherever it is evaluated. Knows no engine and no weights.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from blake3 import blake3

from node.environments.base import Environment, Problem
from node.environments.mix import MixEnvironment, label_of
from node.inference.engine import Request
from node.inference.turns import Generate, Rollout, bounds_of, play
from protocol.budgets import told, told_in_evaluation
from protocol.run import RunSpec
from protocol.sampling import uniforms

SHOWN, MOST_TEXT = 8, 2000
"""Answers of an evaluation that are kept for people, and characters of each text."""
_EVALUATION = "intellect-node evaluation draw v1"
_SAMPLE = "intellect-node evaluation sample v1"


class Evaluation:
    """environment: what the run trains on; others: evaluation environments by their label; generate: answers."""

    def __init__(
        self, run: RunSpec, environment: Environment, others: Mapping[str, Environment], generate: Generate
    ) -> None:
        self._run = run
        self._environment = environment
        self._others = others
        self._generate = generate
        self.samples = 0
        self.answered: list[tuple[Problem, Rollout, float, int | None]] = []
        """Some of the last evaluation, of what the run trains on: with reward and the length that was asked for."""

    def figures(self, step: int) -> dict[str, Any]:
        """Mean reward, and the standard error of that mean. eval_reward is of what the run trains on; evaluation
        environments stand beside it, each under its label."""
        problems, scores = self._answered(self._environment, step, "")
        labels = [label_of(self._run.environment, problem.problem_id) for problem in problems]
        table = {
            label: float(np.mean([s for s, own in zip(scores, labels, strict=True) if own == label]))
            for label in sorted(set(labels))
        }
        for label, environment in self._others.items():
            table[label] = float(np.mean(self._answered(environment, step, label)[1]))
        found: dict[str, Any] = {
            "eval_reward": float(np.mean(scores)),
            "eval_error": float(np.std(scores, ddof=1) / np.sqrt(len(scores))) if len(scores) > 1 else None,
            "eval_problems": len(problems),
            "eval_held_back": self._environment.held_back,
        }
        return found | ({"eval_reward_by_environment": table} if len(table) > 1 else {})

    def _answered(self, environment: Environment, step: int, label: str) -> tuple[list[Problem], list[float]]:
        """The problems of an environment that are evaluated on, and what their answers scored. label: empty for what
        the run trains on; others draw numbers of their own."""
        limit = self._run.rollout.max_output_tokens
        place = self._run.recipe.seed.to_bytes(8, "little", signed=True) + step.to_bytes(8, "little") + label.encode()
        chosen = sample(held_back_parts(environment), self._run.evaluation.problems, _key(place, _SAMPLE))
        count = len(chosen)
        drawn = uniforms(_key(place, _EVALUATION), count * limit).reshape(count, limit)
        problems = [environment.held_back_problem(number) for number in chosen]
        prompts = [self._prompt(environment, turn, problem) for turn, problem in enumerate(problems)]
        requests = [Request(prompt, numbers) for prompt, numbers in zip(prompts, drawn, strict=True)]
        temperature, bounds = self._run.rollout.temperature, bounds_of(self._run, environment)
        rollouts = play(self._generate, environment, problems, requests, temperature, bounds)
        self.samples += len(rollouts)
        scores = environment.score(problems, [rollout.transcript for rollout in rollouts])
        if not label:
            targets = self._run.length_budget.targets or (None,)
            places = range(0, count, max(1, -(-count // SHOWN)))
            self.answered = [(problems[i], rollouts[i], scores[i], targets[i % len(targets)]) for i in places]
        return problems, scores

    def answers(self, decode: Callable[[Sequence[int]], str]) -> list[dict[str, Any]]:
        """The same in words, bounded. length: sampled tokens; finished: ended by the policy itself."""
        return [
            {
                "problem": problem.problem_id[:MOST_TEXT],
                "prompt": (problem.prompt if target is None else told(self._run.length_budget, problem.prompt, target))[
                    :MOST_TEXT
                ],
                "answer": decode(rollout.output)[:MOST_TEXT],
                "reward": float(reward),
                "length": rollout.sampled,
                "target": target,
                "finished": rollout.finished,
            }
            for problem, rollout, reward, target in self.answered
        ]

    def _prompt(self, environment: Environment, turn: int, problem: Problem) -> list[int]:
        """With the text of a length budget, where the run has budgets: as in training."""
        text = told_in_evaluation(self._run, problem.prompt, turn)
        return environment.prompt_tokens(replace(problem, prompt=text))


def held_back_parts(environment: Environment) -> list[Sequence[int]]:
    """Numbers of its held-back problems: of all, or of each part of a mix."""
    return environment.held_back_parts if isinstance(environment, MixEnvironment) else [range(environment.held_back)]


def sample(parts: Sequence[Sequence[int]], count: int, key: bytes) -> list[int]:
    """`count` of the numbers 0 to n - 1 (or all), ascending; of each part as many as the first `count` numbers have,
    each of its numbers equally likely. key: 32 bytes."""
    random = uniforms(key, sum(map(len, parts)))
    chosen: list[int] = []
    for numbers in parts:
        share = sum(number < count for number in numbers)
        order = np.argsort(random[list(numbers)], kind="stable")
        chosen += [numbers[place] for place in order[:share]]
    return sorted(chosen)


def _key(place: bytes, purpose: str) -> bytes:
    return blake3(place, derive_key_context=purpose).digest()
