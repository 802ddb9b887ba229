"""Held-back problems, answered by the engine that samplers use, and scored."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blake3 import blake3

from node.environments.base import Environment, Problem
from node.environments.mix import MixEnvironment, label_of
from node.environments.registry import load_environment
from node.inference.engine import Request, Weights, generate
from node.inference.settings import DEFAULT, EngineSettings
from node.inference.torch_engine import TorchEngine
from node.inference.turns import bounds_of, play
from node.training.settings import TrainerSettings
from protocol.budgets import told_in_evaluation
from protocol.run import RunSpec
from protocol.sampling import uniforms

_EVALUATION = "intellect-node evaluation draw v1"
_SAMPLE = "intellect-node evaluation sample v1"


def evaluation_engine(settings: TrainerSettings) -> EngineSettings:
    """How the evaluator computes: on a GPU that no process of the learner has, or else on the first."""
    place = settings.evaluation_device if settings.evaluation_device != "auto" else settings.device
    gpus = torch.cuda.device_count() if place != "cpu" else 0
    if gpus == 0 and place != "cuda":
        device, natural = "cpu", "float32"
    else:
        learners = settings.world_size if settings.device != "cpu" else 0
        device, natural = f"cuda:{learners if gpus > learners else 0}", "bfloat16"
    return EngineSettings(
        device=device, dtype=natural if settings.evaluation_dtype == "auto" else settings.evaluation_dtype
    )


class Evaluator:
    """An engine of its own, and the environments of a run."""

    def __init__(self, run: RunSpec, assets: Path, settings: EngineSettings = DEFAULT) -> None:
        self._run = run
        self._engine = TorchEngine(assets / "model", settings)
        tokenizer = self._engine.tokenizer
        self._environment: Environment = load_environment(run.environment, assets, tokenizer)
        self._others = {one.title: load_environment(one, assets, tokenizer) for one in run.evaluation.environments}

    def read(self, image: Path) -> Weights:
        """A policy's weights. Raises ModelError."""
        return self._engine.read(str(image))

    def evaluate(self, weights: Weights, step: int) -> dict[str, Any]:
        """Mean reward of one rollout for each problem of a sample, and the standard error of that mean.

        Sample and random numbers follow from seed and step. eval_reward is of what the run trains on; evaluation
        environments stand beside it, each under its label.
        """
        self._engine.load(weights)
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
        rollouts = play(partial(generate, self._engine), environment, problems, requests, temperature, bounds)
        return problems, environment.score(problems, [rollout.transcript for rollout in rollouts])

    def _prompt(self, environment: Environment, turn: int, problem: Problem) -> list[int]:
        """With the text of a length budget, where the run has budgets: as in training."""
        text = told_in_evaluation(self._run, problem.prompt, turn)
        return environment.prompt_tokens(replace(problem, prompt=text))

    def close(self) -> None:
        for environment in (self._environment, *self._others.values()):
            environment.close()


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
