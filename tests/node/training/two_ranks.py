"""One step on two sharded gloo ranks under each of six sets of settings: what the settings were, and what it came to.

The sets are a covering array: any two settings occur in all four combinations. The ranks are forks, since importing
torch would take longer than all they do.
"""

import io
import json
import os
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from node.inference.torch_engine import build_model
from node.training.image import stream_image
from node.training.learner import Learner
from node.training.settings import TrainerSettings
from node.training.sharding import without_memory
from node.training.world import World, join_world, leave_world
from protocol.recipe import preset
from tests.node.training.conftest import LIMIT, made_up_rows
from tests.node.training.forks import end_of, fork

SWITCHES = (
    "packing",
    "activation_checkpointing",
    "offload_activations",
    "offload_parameters",
    "reshard_after_forward",
    "fp32_logits",
    "bfloat16",
)


def arrays() -> list[dict[str, bool]]:
    """Nothing is on in the first set, and each setting in another three of the five others (Kleitman and Spencer)."""
    threes = list(combinations(range(1, 6), 3))
    return [{name: number in on for name, on in zip(SWITCHES, threes, strict=False)} for number in range(6)]


def settings_of(switches: dict[str, bool]) -> TrainerSettings:
    dtype = "bfloat16" if switches["bfloat16"] else "float32"
    chosen = {name: on for name, on in switches.items() if name != "bfloat16"}
    return TrainerSettings(world_size=2, dtype=dtype, micro_batch_tokens=40, logit_cells=100, **chosen)


def step(model_dir: Path, settings: TrainerSettings, world: World) -> dict[str, Any]:
    with without_memory(world):
        model = build_model(model_dir)
    recipe = preset("dppo", grad_clip=1e9, entropy_bonus=0.01, learning_rate=1e-2)
    learner = Learner(model, recipe, 1.0, settings, world, LIMIT)
    learner.load_weights(load_file(model_dir / "model.safetensors"))
    told = learner.step(made_up_rows(12), 3)
    file = io.BytesIO()
    image = stream_image(learner.shapes, learner.tensors(), file)
    return {**{name: told[name] for name in ("loss", "grad_norm", "entropy", "micro_batches")}, "size": image.size}


def rank(number: int, scratch: Path, model_dir: Path) -> None:
    """What one of them does; the first writes what it found."""
    os.environ.update(RANK=str(number), WORLD_SIZE="2", LOCAL_RANK=str(number))
    torch.set_num_threads(1)
    store = f"file://{scratch / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=number, world_size=2)
    world = join_world(TrainerSettings(world_size=2, device="cpu"))
    found = [{"switches": switches, **step(model_dir, settings_of(switches), world)} for switches in arrays()]
    if world.first:
        (scratch / "found.json").write_text(json.dumps(found))
    leave_world(world)


def both(scratch: Path, model_dir: Path) -> list[dict[str, Any]]:
    """Fork the two, and what they found. Raises AssertionError where one fails."""
    children = [fork(rank, number, scratch, model_dir) for number in range(2)]
    assert [end_of(child) for child in children] == [0, 0]
    return json.loads((scratch / "found.json").read_text())
