"""A really tiny model and a run for it, made once."""

import importlib.util
import os
from pathlib import Path

import pytest

from protocol.run import EnvironmentSpec, EvaluationSpec, Recipe, RolloutSpec, RunSpec, VerificationSpec

os.environ.setdefault("OMP_NUM_THREADS", "1")
collect_ignore = [] if importlib.util.find_spec("torch") else ["inference", "training"]


@pytest.fixture(scope="session")
def tiny_assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Assets of a run: model/ with an untrained Qwen3 of 2 layers and 64 dimensions that knows digits."""
    import torch

    from node.training.warmstart import SORT_ALPHABET, create_model

    torch.set_num_threads(1)
    assets = tmp_path_factory.mktemp("tiny") / "assets"
    create_model(assets / "model", SORT_ALPHABET, seed=7, hidden=64, layers=2)
    return assets


@pytest.fixture(scope="session")
def tiny_run() -> RunSpec:
    return RunSpec(
        name="tiny",
        environment=EnvironmentSpec(name="sort", args={"digits": 3, "held_back": 64}),
        rollout=RolloutSpec(
            group_size=4, prompts_per_step=4, prompts_per_file=2, max_prompt_tokens=8, max_output_tokens=40
        ),
        recipe=Recipe(steps=7, decay_steps=7, learning_rate=1e-3),
        evaluation=EvaluationSpec(problems=8),
        verification=VerificationSpec(toploc_k=32),
    )
