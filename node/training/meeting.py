"""The ranks of several machines agree before they begin: same program, same run, the settings of machine 0.

They speak through the store of torchrun's rendezvous, since process groups need the settings first. Rank 0 reads what
all have said and answers once; so every machine has the same error, and says it.
"""

from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
import torch
from torch._C._distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from node.training.errors import TrainingError
from node.training.length import same_but_for_length
from node.training.settings import TrainerSettings

_OWN = ("nodes", "node_rank", "world_size", "rendezvous", "rendezvous_seconds", "rendezvous_id", "interface", "threads")
"""What a machine keeps of its own settings."""


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rank says. machine: its node_rank; program, torch: versions; run: its directory's, empty if it has none;
    gpus: how many torch sees."""

    machine: int
    nodes: int
    program: str
    torch: str
    name: str
    run: bytes
    gpus: int


class Welcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What rank 0 answers. complaint: what, why and remedy, empty if there is none; run: canonical bytes."""

    complaint: tuple[str, ...]
    run: bytes
    settings: TrainerSettings


def hello(settings: TrainerSettings, run: bytes) -> Hello:
    try:
        program = version("intellect-node")
    except PackageNotFoundError:
        program = "not installed"
    gpus = torch.cuda.device_count()
    return Hello(settings.node_rank, settings.nodes, program, str(torch.__version__), settings.rendezvous_id, run, gpus)


def open_store() -> Store:
    """That of the rendezvous, as torchrun's environment says."""
    # Machines load torch at their own pace.
    store, _, _ = next(iter(rendezvous("env://", timeout=timedelta(seconds=600.0))))
    return store


def meet(settings: TrainerSettings, run: bytes, store: Any, rank: int, size: int) -> Welcome:
    """The run, and this machine's settings for it. run: what the own directory has of it, on machine 0 the whole;
    store: of the rendezvous (bytes may be set, whatever torch's stubs say).

    Raises TrainingError if the machines do not fit together.
    """
    store.set(f"hello/{rank}", msgspec.msgpack.encode(hello(settings, run)))
    if rank == 0:
        # A store answers `get` once somebody has set the name, so this waits for every rank.
        said = [msgspec.msgpack.decode(store.get(f"hello/{one}"), type=Hello) for one in range(size)]
        store.set("welcome", msgspec.msgpack.encode(Welcome(objection(said), run, _common(settings, said))))
    answer = msgspec.msgpack.decode(store.get("welcome"), type=Welcome)
    if answer.complaint:
        raise TrainingError(*answer.complaint)
    # All else is of machine 0, so that every machine computes alike.
    own = {name: getattr(settings, name) for name in _OWN}
    return msgspec.structs.replace(answer, settings=msgspec.structs.replace(answer.settings, **own))


def _common(settings: TrainerSettings, said: list[Hello]) -> TrainerSettings:
    """GPUs only if every machine has some."""
    if settings.device != "auto":
        return settings
    return msgspec.structs.replace(settings, device="cuda" if all(one.gpus for one in said) else "cpu")


def objection(said: list[Hello]) -> tuple[str, ...]:
    """What, why and remedy of the first reason for which these ranks must not train together; empty if there is none.

    said: in the order of ranks, machine 0 first.
    """
    first = said[0]
    for other in said[1:]:
        where = f"machine {other.machine}"
        for what, mine, theirs in (
            ("intellect-node", first.program, other.program),
            ("torch", first.torch, other.torch),
        ):
            if mine != theirs:
                why = f"machine 0 has {what} {mine}, {where} has {theirs}"
                return "the machines' programs differ", why, "install the same version on every machine"
        if (first.nodes, first.name) != (other.nodes, other.name):
            why = f"machine 0 is one of {first.nodes} called {first.name!r}, {where} one of {other.nodes} called "
            remedy = "give every machine the same trainer.nodes, trainer.rendezvous and trainer.rendezvous_id"
            return "the machines belong to different trainers", f"{why}{other.name!r}", remedy
        if other.run and not same_but_for_length(other.run, first.run):
            why = f"the directory of {where} holds another run than machine 0 trains"
            return "the machines' runs differ", why, f"name another directory on {where}: --dir DIR"
    return ()
