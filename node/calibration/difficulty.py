"""How hard each problem of a data set is for the run's start model: pass@k by sampling, for the offline filter.

Problems are asked as the run's workers ask them: where the run has length budgets, a problem's answers take its targets
in turns, each with the text and the cut of its own. What counts is the task's own score, not what the length takes from
the reward: a problem must not look hard because an answer to it was long.

Knows the run's engine and environment; leaves files and progress to its caller. Computes: not for the event loop.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from blake3 import blake3

from node.environments.base import Environment, Problem, decided, mean_of
from node.environments.registry import load_environment
from node.inference.engine import GenerationRequest, generate
from node.inference.lora import start_policy
from node.inference.torch_engine import TorchEngine, build_model, image_names
from node.inference.turns import bounds_of, play
from protocol.budgets import output_limit, told
from protocol.run import RunSpec
from protocol.sampling import uniforms

_SEED = "intellect-node difficulty draw v1"


class Difficulty:
    """The start model and the problems of a run. assets: directory of its files."""

    def __init__(self, run: RunSpec, assets: Path) -> None:
        """Raises ModelError."""
        self._run = run
        weights = start_policy(assets, image_names(build_model(assets / "model", "meta")))
        self._engine = TorchEngine(assets / "model")
        self._engine.load(weights)
        self._environment: Environment = load_environment(run.environment, assets, self._engine.tokenizer)

    @property
    def count(self) -> int:
        """Problems of both kinds: to train on, and held back."""
        return self._environment.size + self._environment.held_back

    def problems(self) -> Iterator[Problem]:
        """All of them, those to train on first."""
        yield from (self._environment.problem(number) for number in range(self._environment.size))
        yield from (self._environment.held_back_problem(number) for number in range(self._environment.held_back))

    def rates(self, problems: Iterable[Problem], samples: int) -> Iterator[tuple[str, float | None]]:
        """(problem id, share of `samples` answers that are right), in order; the same at every call. Of the answers
        that this machine could judge; None where these are too few."""
        left = iter(problems)
        while batch := list(islice(left, 16)):  # problems that are sampled together
            yield from self._measure(batch, samples)

    def close(self) -> None:
        self._environment.close()

    def _measure(self, problems: list[Problem], samples: int) -> Iterator[tuple[str, float | None]]:
        requests = [request for problem in problems for request in self._requests(problem, samples)]
        asked = [problem for problem in problems for _ in range(samples)]
        temperature, bounds = self._run.rollout.temperature, bounds_of(self._run, self._environment)
        rollouts = play(partial(generate, self._engine), self._environment, asked, requests, temperature, bounds)
        scores = decided(self._environment, asked, [rollout.transcript for rollout in rollouts])
        for place, problem in enumerate(problems):
            own = scores[place * samples : (place + 1) * samples]
            yield problem.problem_id, mean_of([None if score is None else float(score > 0.5) for score in own])

    def _requests(self, problem: Problem, samples: int) -> Iterator[GenerationRequest]:
        most = self._run.rollout.max_output_tokens
        # From the problem alone: its random numbers do not depend on which problems are asked beside it.
        seed = blake3(problem.problem_id.encode(), derive_key_context=_SEED).digest()
        drawn = uniforms(seed, samples * most).reshape(samples, most)
        targets = self._run.length_budget.targets or (None,)
        prompts = [self._prompt(problem, target) for target in targets]
        for number, row in enumerate(drawn):
            turn = number % len(targets)
            yield GenerationRequest(prompts[turn], row[: output_limit(self._run, targets[turn])])

    def _prompt(self, problem: Problem, target: int | None) -> list[int]:
        if target is None:
            return self._environment.prompt_tokens(problem)
        text = told(self._run.length_budget, problem.prompt, target)
        return self._environment.prompt_tokens(replace(problem, prompt=text))
