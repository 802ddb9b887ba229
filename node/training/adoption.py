"""A checkpoint of another trainer, handed from daemon to learner through the spool.

    adopt.msgpack      daemon -> learner: go on from this state; it stands until the learner has done so, or refused
    adopt-error.json   learner -> daemon: why it refused

The learner reads the bytes, compares them with the stated roots, and only then holds them. Without torch.
"""

from pathlib import Path

import msgspec

from node.state.files import link_or_copy, write_whole
from node.training.bells import ring
from node.training.spool import Spool
from protocol.errors import IntellectError

FOLDER = "handed"


class AdoptionOrder(msgspec.Struct, frozen=True):
    """card: a CheckpointCard as it came; files: of its tensors; roots: what the trainer stated of `step`."""

    step: int
    card: bytes
    files: tuple[str, ...]
    state_root: bytes
    policy_root: bytes


class AdoptionRefusal(msgspec.Struct, frozen=True):
    step: int
    why: str


def order(spool: Spool, step: int, card: bytes, files: tuple[Path, ...], roots: tuple[bytes, bytes]) -> None:
    """Ask the learner to go on from a state. files: kept here as long as it takes, whatever the store forgets; roots:
    of state and policy. Blocking."""
    folder = spool.root / FOLDER
    folder.mkdir(exist_ok=True)
    names = [folder / f"{number}.safetensors" for number in range(len(files))]
    for path, name in zip(files, names, strict=True):
        link_or_copy(path, name)
    # What an earlier order was refused for must not be read as the answer to this one.
    spool.adoption_error_path.unlink(missing_ok=True)
    made = AdoptionOrder(step, card, tuple(map(str, names)), *roots)
    write_whole(spool.adoption_path, msgspec.msgpack.encode(made))
    ring(spool.root)


def answered(spool: Spool) -> bool:
    return not spool.adoption_path.exists()


def end(spool: Spool) -> AdoptionRefusal | None:
    """Keep nothing of an order; why it was refused, None if it was not. Blocking."""
    spool.adoption_path.unlink(missing_ok=True)
    for path in (spool.root / FOLDER).glob("*.safetensors"):
        path.unlink()
    try:
        return msgspec.json.decode(spool.adoption_error_path.read_bytes(), type=AdoptionRefusal)
    except FileNotFoundError:
        return None


def read_order(spool: Spool) -> AdoptionOrder | None:
    """None where the daemon has changed its mind."""
    try:
        return msgspec.msgpack.decode(spool.adoption_path.read_bytes(), type=AdoptionOrder)
    except FileNotFoundError:
        return None


def refuse(spool: Spool, order: AdoptionOrder, error: IntellectError) -> None:
    # The reason first: an order that is gone is answered, and the daemon then looks for a reason.
    write_whole(spool.adoption_error_path, msgspec.json.encode(AdoptionRefusal(order.step, error.why)))
    spool.adoption_path.unlink(missing_ok=True)
    ring(spool.root)
