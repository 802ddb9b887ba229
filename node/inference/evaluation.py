"""Held-back problems, answered by whatever generates, and scored: the figures of a policy.

One rollout for each problem of a sample; sample and random numbers follow from the run's seed and the step, so the same
policy at the same step has the same figures wherever it is evaluated. Knows no engine and no weights.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from blake3 import blake3

from node.environments.base import Environment, Problem, decided, mean_of
from node.environments.mix import MixEnvironment, label_of
from node.inference.engine import GenerationRequest
from node.inference.proofs import unproven
from node.inference.turns import Generate, PlayedRollout, bounds_of, play
from protocol.budgets import output_limit, shaped, target_in_evaluation, told
from protocol.run import RunSpec
from protocol.sampling import uniforms

_EVALUATION = "intellect-node evaluation draw v1"
_SAMPLE = "intellect-node evaluation sample v1"


@dataclass(frozen=True, slots=True)
class EvaluatedAnswer:
    """A held-back problem and its answer. task: what the environment scored; reward: what that is worth in the run,
    with the length that was asked for (target) in it. Both are None where this machine could not tell."""

    problem: Problem
    rollout: PlayedRollout
    task: float | None
    reward: float | None
    target: int | None


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
        self.answered: list[EvaluatedAnswer] = []
        """The last evaluation's, of what the run trains on."""

    def figures(self, step: int) -> dict[str, Any]:
        """Mean reward, and the standard error of that mean. eval_reward is of what the run trains on, shaped by its
        length budgets as in training; evaluation environments stand beside it, each under its label, by their own
        score. An answer that this machine could not judge is in no mean, and too many of them leave a mean out."""
        self.answered = self.answered_in(step)
        table = self._by_label()
        # Others never enter eval_reward: the run's goal goes by it, and a second benchmark must not move a run's end.
        for label, environment in self._others.items():
            (answered,) = self._answered(environment, step, label)
            table[label] = mean_of([one.task for one in answered])
        rewards = [one.reward for one in self.answered]
        known = [reward for reward in rewards if reward is not None]
        found: dict[str, Any] = {
            "eval_problems": len(known),
            "eval_undecided": len(rewards) - len(known),
            "eval_held_back": self._environment.held_back,
        }
        if mean_of(rewards) is not None:
            found["eval_reward"], found["eval_error"] = mean_and_error(known)
        found |= lengths_of(self.answered) if self._run.length_budget.targets else {}
        by_label = {label: mean for label, mean in table.items() if mean is not None}
        return found | ({"eval_reward_by_environment": by_label} if len(table) > 1 else {})

    def answered_in(self, step: int) -> list[EvaluatedAnswer]:
        """What the problems that a step draws are answered."""
        return self.answered_by([b""], step)[0]

    def answered_by(self, adapters: Sequence[bytes], step: int) -> list[list[EvaluatedAnswer]]:
        """The same of each of several adapters that the engine holds, all of them at a time; b"" is its base."""
        return self._answered(self._environment, step, "", adapters)

    def _by_label(self) -> dict[str, float | None]:
        rewards: dict[str, list[float | None]] = {}
        for one in self.answered:
            rewards.setdefault(label_of(self._run.environment, one.problem.problem_id), []).append(one.reward)
        return {label: mean_of(own) for label, own in sorted(rewards.items())}

    def _answered(
        self, environment: Environment, step: int, label: str, adapters: Sequence[bytes] = (b"",)
    ) -> list[list[EvaluatedAnswer]]:
        """What each adapter answered an environment's problems. label: empty for what the run trains on; others draw
        numbers of their own."""
        limit = self._run.rollout.max_output_tokens
        place = self._run.recipe.seed.to_bytes(8, "little", signed=True) + step.to_bytes(8, "little") + label.encode()
        # Not from the policy's root: two recipes with one seed are compared on equal problems at every step.
        chosen = sample(held_back_parts(environment), self._run.evaluation.problems, _key(place, _SAMPLE))
        drawn = uniforms(_key(place, _EVALUATION), len(chosen) * limit).reshape(len(chosen), limit)
        problems = [environment.held_back_problem(number) for number in chosen]
        targets = [target_in_evaluation(self._run, turn) for turn in range(len(chosen))]
        requests = [
            GenerationRequest(self._prompt(environment, problem, target), numbers[: output_limit(self._run, target)])
            for problem, target, numbers in zip(problems, targets, drawn, strict=True)
        ]
        # All adapters in one call: their requests share a decoder, row beside row.
        asked, everyone = problems * len(adapters), [replace(one, adapter=a) for a in adapters for one in requests]
        temperature, bounds = self._run.rollout.temperature, bounds_of(self._run, environment)
        rollouts = play(self._generate, environment, asked, everyone, temperature, bounds, keep=unproven)
        self.samples += len(rollouts)
        scores = decided(environment, asked, [one.transcript for one in rollouts], most=len(rollouts) // 10)
        found = [self._worth(*one) for one in zip(asked, rollouts, scores, targets * len(adapters), strict=True)]
        return [found[at * len(problems) : (at + 1) * len(problems)] for at in range(len(adapters))]

    def _worth(
        self, problem: Problem, rollout: PlayedRollout, task: float | None, target: int | None
    ) -> EvaluatedAnswer:
        if task is None:
            return EvaluatedAnswer(problem, rollout, None, None, target)
        reward = task if target is None else shaped(self._run.length_budget, task, rollout.sampled, target)
        return EvaluatedAnswer(problem, rollout, float(task), float(reward), target)

    def answers(self, decode: Callable[[Sequence[int]], str]) -> list[dict[str, Any]]:
        """Some of the last evaluation in words, bounded. length: sampled tokens; finished: ended by the policy
        itself."""
        most_text = 2000  # characters of each text
        return [
            {
                "problem": one.problem.problem_id[:most_text],
                "prompt": self._text(one.problem, one.target)[:most_text],
                "answer": decode(one.rollout.output)[:most_text],
                "reward": one.reward,
                "length": one.rollout.sampled,
                "target": one.target,
                "finished": one.rollout.finished,
            }
            for one in self._shown()
        ]

    def _shown(self) -> list[EvaluatedAnswer]:
        """Spread over all; every step one further, or all would have the same target where those come in turns."""
        shown = 8  # answers that are kept for people
        width = max(1, -(-len(self.answered) // shown))
        return [self.answered[at + at // width % width] for at in range(0, len(self.answered) - width + 1, width)]

    def _text(self, problem: Problem, target: int | None) -> str:
        """With the text of a length budget, where the run has budgets: as in training."""
        return problem.prompt if target is None else told(self._run.length_budget, problem.prompt, target)

    def _prompt(self, environment: Environment, problem: Problem, target: int | None) -> list[int]:
        return environment.prompt_tokens(replace(problem, prompt=self._text(problem, target)))


def lengths_of(answered: Sequence[EvaluatedAnswer]) -> dict[str, Any]:
    """How far answers are from the lengths that they were asked for, in tokens; the correlation of the two (None where
    one of them does not vary); mean length and mean error of each target; and the task's own score beside them."""
    targets = np.array([one.target or 0 for one in answered], dtype=np.float64)
    lengths = np.array([one.rollout.sampled for one in answered], dtype=np.float64)
    errors = np.abs(lengths - targets)
    varies = len(answered) > 1 and targets.std() > 0 and lengths.std() > 0
    each = sorted(set(targets))
    return {
        "eval_task_reward": mean_of([one.task for one in answered]),
        "eval_length_error": float(errors.mean()),
        "eval_length_correlation": float(np.corrcoef(targets, lengths)[0, 1]) if varies else None,
        "eval_length_by_target": {f"{target:.0f}": float(lengths[targets == target].mean()) for target in each},
        "eval_length_error_by_target": {f"{target:.0f}": float(errors[targets == target].mean()) for target in each},
    }


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and its standard error; None of a single value."""
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return float(np.mean(values)), error


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
