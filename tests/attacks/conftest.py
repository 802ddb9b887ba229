"""A tiny trained model with a history of five steps, and one honest validator."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from protocol.run import EnvironmentSpec, EvaluationSpec, Recipe, RolloutSpec, RunSpec, VerificationSpec

STEPS_KEPT = 5


@pytest.fixture(scope="session")
def run() -> RunSpec:
    return RunSpec(
        name="attacked",
        environment=EnvironmentSpec(name="sort", args={"digits": 3, "held_back": 64}),
        rollout=RolloutSpec(
            group_size=4, prompts_per_step=8, prompts_per_file=4, max_prompt_tokens=8, max_output_tokens=8
        ),
        recipe=Recipe(learning_rate=1e-3),
        evaluation=EvaluationSpec(problems=8),
        verification=VerificationSpec(toploc_k=32, engines=("*/*/*",)),
    )


@pytest.fixture(scope="session")
def turns_run(run: RunSpec) -> RunSpec:
    """The same problems in three tries, for the same model."""
    environment = EnvironmentSpec(name="retry", args={"digits": 3, "held_back": 64, "tries": 3})
    rollout = msgspec.structs.replace(run.rollout, max_output_tokens=16)
    return msgspec.structs.replace(run, environment=environment, rollout=rollout)


@pytest.fixture(scope="session")
def assets(run: RunSpec, made_once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """model/ after training, and images/0 .. 4 of its last steps, the newest last."""
    import torch

    from node.environments.registry import load_environment
    from node.inference.tokenizer import LocalTokenizer
    from node.training.warmstart import SORT_ALPHABET, create_model, warm_start

    def train(assets: Path) -> None:
        model = create_model(assets / "model", SORT_ALPHABET, seed=7, hidden=64, layers=2)
        environment = load_environment(run.environment, assets, LocalTokenizer(assets / "model"))
        warm_start(assets / "model", model, environment, seed=0, target=0.05, check_every=10, max_steps=120)
        images = assets / "images"
        images.mkdir()
        for step in range(STEPS_KEPT):
            warm_start(assets / "model", model, environment, seed=step, target=2.0, max_steps=1, learning_rate=3e-4)
            (images / str(step)).write_bytes((assets / "model" / "model.safetensors").read_bytes())

    torch.set_num_threads(1)
    return made_once("attacked", train)


@pytest.fixture(scope="session")
def roots() -> list[bytes]:
    """The names of the policies in images/."""
    return [bytes([step]) * 32 for step in range(STEPS_KEPT)]


@pytest.fixture(scope="session")
def random() -> np.random.Generator:
    return np.random.default_rng(0)
