"""The first rank's evaluation: held-back problems, answered by the engine that samplers use, and scored."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blake3 import blake3

from node.environments.base import Environment, Problem
from node.environments.mix import label_of
from node.environments.registry import load_environment
from node.inference.engine import Request
from node.inference.settings import EngineSettings
from node.inference.torch_engine import TorchEngine
from node.inference.turns import bounds_of, play
from protocol.budgets import told_in_evaluation
from protocol.run import RunSpec
from protocol.sampling import uniforms

_EVALUATION = "intellect-node evaluation draw v1"


class Evaluator:
    """The engine that samplers use, on the first rank's device."""

    def __init__(self, run: RunSpec, assets: Path, device: torch.device) -> None:
        self._run = run
        self._engine = TorchEngine(assets / "model", EngineSettings(device=str(device)))
        self._environment: Environment = load_environment(run.environment, assets, self._engine.tokenizer)

    def evaluate(self, weights: Mapping[str, torch.Tensor], step: int) -> dict[str, Any]:
        """Mean reward of one rollout per held-back problem; the random numbers follow from seed and step."""
        self._engine.load(dict(weights))
        count = min(self._run.evaluation.problems, self._environment.held_back)
        limit = self._run.rollout.max_output_tokens
        place = self._run.recipe.seed.to_bytes(8, "little", signed=True) + step.to_bytes(8, "little")
        drawn = uniforms(blake3(place, derive_key_context=_EVALUATION).digest(), count * limit).reshape(count, limit)
        problems = [self._environment.held_back_problem(i) for i in range(count)]
        requests = [Request(self._prompt(i, p), u) for i, (p, u) in enumerate(zip(problems, drawn, strict=True))]
        temperature, bounds = self._run.rollout.temperature, bounds_of(self._run, self._environment)
        rollouts = play(self._engine.generate, self._environment, problems, requests, temperature, bounds)
        scores = self._environment.score(problems, [rollout.transcript for rollout in rollouts])
        found: dict[str, Any] = {"eval_reward": float(np.mean(scores))}
        labels = [label_of(self._run.environment, problem.problem_id) for problem in problems]
        if len(set(labels)) > 1:
            found["eval_reward_by_environment"] = {
                label: float(np.mean([s for s, own in zip(scores, labels, strict=True) if own == label]))
                for label in sorted(set(labels))
            }
        return found

    def _prompt(self, number: int, problem: Problem) -> list[int]:
        """With the text of a length budget, where the run has budgets: as in training."""
        text = told_in_evaluation(self._run, problem.prompt, number)
        return self._environment.prompt_tokens(Problem(problem.problem_id, text, problem.answer))

    def close(self) -> None:
        self._environment.close()
