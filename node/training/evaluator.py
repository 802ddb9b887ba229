"""The first rank's evaluation: held-back problems, answered by the engine that samplers use, and scored."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from node.environments.registry import load_environment
from node.inference.engine import generate
from node.inference.evaluation import Evaluation
from node.inference.settings import EngineSettings
from node.inference.torch_engine import TorchEngine
from protocol.run import RunSpec


class Evaluator:
    """The engine that samplers use, on the first rank's device."""

    def __init__(self, run: RunSpec, assets: Path, device: torch.device) -> None:
        self._engine = TorchEngine(assets / "model", EngineSettings(device=str(device)))
        tokenizer = self._engine.tokenizer
        environment = load_environment(run.environment, assets, tokenizer)
        others = {one.title: load_environment(one, assets, tokenizer) for one in run.evaluation.environments}
        self._environments = (environment, *others.values())
        self._evaluation = Evaluation(run, environment, others, partial(generate, self._engine))

    def evaluate(self, weights: Mapping[str, torch.Tensor], step: int) -> dict[str, Any]:
        """The figures of node.inference.evaluation for these weights."""
        self._engine.load(dict(weights))
        return self._evaluation.figures(step)

    def close(self) -> None:
        for environment in self._environments:
            environment.close()
