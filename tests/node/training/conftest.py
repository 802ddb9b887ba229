"""A learner on the tiny model, and rows of made-up rollouts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from node.training.batch import BatchRow
from node.training.learner import Learner
from node.training.settings import TrainerSettings
from protocol.recipe import Recipe

LIMIT = 40


def made_up_rows(count: int = 24, seed: int = 0, longest: int = 24, group: int = 4) -> list[BatchRow]:
    """Groups of `group` outputs of 1 to `longest` + 1 tokens, some of them right."""
    random = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        output = [*random.integers(2, 12, size=int(random.integers(0, longest))).tolist(), 1]
        logprobs = (-2.5 + random.normal(size=len(output)) * 0.3).tolist()
        rows.append(BatchRow(i // group, [3, 4, 12][: 1 + i % 3], output, logprobs, float(random.random() < 0.4), 0))
    return rows


@pytest.fixture
def make_learner(tiny_assets: Path) -> Callable[..., Learner]:
    from safetensors.torch import load_file

    from node.inference.torch_engine import build_model
    from node.training.lora import StartAdapter

    weights = load_file(tiny_assets / "model" / "model.safetensors")

    def make(recipe: Recipe | None = None, **settings: Any) -> Learner:
        learner = Learner(
            build_model(tiny_assets / "model"),
            recipe or Recipe(),
            1.0,
            TrainerSettings(**settings),
            max_output_tokens=LIMIT,
        )
        if learner.frozen:
            learner.load_frozen(weights)
        learner.load_weights(StartAdapter(learner.parameters, 0) if learner.frozen else weights)
        if learner.beside.needs_reference:
            learner.beside.set_reference(build_model(tiny_assets / "model"), weights)
        return learner

    return make
