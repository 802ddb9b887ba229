"""This machine as the planner sees it, and the plan of a run on it. Blocking: reads small files."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node import limits
from node.training.planner import (
    CHOSEN,
    GpuCard,
    NothingFits,
    PlannedMachine,
    TrainingPlan,
    TrainingWork,
    memory_of,
    plan,
)
from node.training.settings import TrainerSettings
from node.training.sizing import shape_of
from protocol.run import MODEL, RunSpec
from protocol.sections import TEACHER

if TYPE_CHECKING:
    from node.hardware import Hardware
    from node.hardware.builds import Builds

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


def machine_of(hardware: "Hardware", builds: "Builds | None" = None, variable: str | None = None) -> PlannedMachine:
    """The cards that torch may use here. builds: of torch, looked up where they are left out; variable: what
    CUDA_VISIBLE_DEVICES says, of this process by default."""
    from node.hardware.builds import torch_builds  # with the node's settings: a learner's process needs none of them

    builds = torch_builds() if builds is None else builds
    vendor = "nvidia" if builds.torch_cuda else "amd" if builds.torch_rocm else ""
    gpus = [gpu for gpu in hardware.gpus if gpu.vendor == vendor]
    cards = [GpuCard(str(at), gpu.name, gpu.memory, gpu.free) for at, gpu in enumerate(gpus)]
    return PlannedMachine(visible(cards, os.environ.get(VISIBLE) if variable is None else variable), hardware.memory)


def plan_here(
    run: RunSpec, assets: Path, said: Mapping[str, Any], machine: PlannedMachine, *, samples: bool
) -> TrainingPlan:
    """assets: directory of the run's files; samples: whether an engine is wanted, too. Raises TrainingError, among them
    NothingFits."""
    teacher = shape_of(assets / TEACHER) if run.distill and not run.distill.tasks else None
    return plan(machine, TrainingWork.of(run, shape_of(assets / MODEL), samples=samples, teacher=teacher), said)


def only(cards: Sequence[str]) -> dict[str, str]:
    """Variables by which a child sees these cards and no others; nothing for none: it computes where it is told to."""
    return {VISIBLE: ",".join(cards), ORDER: "PCI_BUS_ID"} if cards else {}


def visible(cards: Sequence[GpuCard], variable: str | None) -> tuple[GpuCard, ...]:
    """Those that CUDA_VISIBLE_DEVICES leaves; None: all. One that is named otherwise than by number counts as the
    smallest."""
    if variable is None:
        return tuple(cards)
    left = list[GpuCard]()
    for token in (part.strip() for part in variable.split(",")):
        known = [card for card in cards if card.token == token]
        if token.startswith(("GPU-", "MIG-")) and cards:
            known = [min(cards, key=lambda card: card.usable)._replace(token=token)]
        # As CUDA has it: what follows one that there is not is not seen either.
        if not known:
            break
        left += known
    return tuple(left)


def with_less(run: RunSpec, assets: Path, settings: TrainerSettings, *, gpu: bool) -> str:
    """In words, what the planner would have a rank do with a sixth less memory than these settings count; what it would
    name where nothing fits."""
    work = TrainingWork.of(run, shape_of(assets / MODEL), samples=False)
    room = int(memory_of(work, settings, gpu=gpu).device * 5 / 6)
    cards = tuple(GpuCard(str(at), "card", room, room) for at in range(settings.world_size)) if gpu else ()
    machine = PlannedMachine(cards, limits.memory().total if gpu else room)
    try:
        found = plan(machine, replace(work, evaluates=False)).settings
    except NothingFits as error:
        return error.remedy.removeprefix("this would fit: ")
    changed = {name: getattr(found, name) for name in CHOSEN if getattr(found, name) != getattr(settings, name)}
    return ", ".join(f"trainer.{name} = {str(value).lower()}" for name, value in changed.items())
