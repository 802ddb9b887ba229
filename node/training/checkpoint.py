"""Checkpoints of the learner: fp32 weights, AdamW's state and the step, as safetensors and JSON; no pickle.

A checkpoint directory appears by one rename and names the BLAKE3 of its tensors, so a half-written or
rotten one is passed over. Loading it gives the learner back bit for bit.
"""

import os
import shutil
from pathlib import Path

import msgspec
import torch
from blake3 import blake3
from safetensors.torch import load, save

from node.training.learner import Learner
from node.training.spool import sync_directory, write_whole

KEEP = 2
_SLOTS = ("exp_avg", "exp_avg_sq")


class CheckpointState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """step: the next optimiser step; updates: how many AdamW has made; tensors: BLAKE3 of tensors.safetensors."""

    step: int
    updates: int
    tensors: str
    version: int = 1


def save_checkpoint(directory: Path, learner: Learner, step: int) -> None:
    """Write directory/step-NNNNNN and delete all but the newest two."""
    target, partial = directory / f"step-{step:06d}", directory / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tensors = {f"weight/{name}": tensor.detach() for name, tensor in learner.parameters.items()}
    updates = 0
    for name, parameter in learner.parameters.items():
        slots = learner.optimizer.state.get(parameter)
        if slots:
            updates = int(slots["step"])
            tensors |= {f"{slot}/{name}": slots[slot] for slot in _SLOTS}
    data = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    write_whole(partial / "tensors.safetensors", data)
    state = CheckpointState(step, updates, blake3(data).hexdigest())
    write_whole(partial / "state.json", msgspec.json.encode(state))
    shutil.rmtree(target, ignore_errors=True)
    os.replace(partial, target)
    sync_directory(directory)
    for old in available_checkpoints(directory)[:-KEEP]:
        shutil.rmtree(directory / f"step-{old:06d}", ignore_errors=True)


def available_checkpoints(directory: Path) -> list[int]:
    """Their steps, ascending."""
    return sorted(int(path.name.removeprefix("step-")) for path in directory.glob("step-*") if path.is_dir())


def load_newest(directory: Path, learner: Learner) -> int | None:
    """Put the newest sound checkpoint into the learner; its step, None if there is none.

    Broken ones are deleted, or they would count as the newest when the next is written.
    """
    for step in reversed(available_checkpoints(directory)):
        path = directory / f"step-{step:06d}"
        if _load(path, learner):
            return step
        shutil.rmtree(path, ignore_errors=True)
    return None


@torch.no_grad()
def _load(path: Path, learner: Learner) -> bool:
    try:
        state = msgspec.json.decode((path / "state.json").read_bytes(), type=CheckpointState)
        data = (path / "tensors.safetensors").read_bytes()
    except (OSError, msgspec.MsgspecError):
        return False
    if blake3(data).hexdigest() != state.tensors:
        return False
    tensors = load(data)
    learner.load_weights({name: tensors[f"weight/{name}"] for name in learner.parameters})
    learner.optimizer.state.clear()
    if state.updates:
        for name, parameter in learner.parameters.items():
            slots = {slot: tensors[f"{slot}/{name}"] for slot in _SLOTS}
            learner.optimizer.state[parameter] = {"step": torch.tensor(float(state.updates)), **slots}
    return True
