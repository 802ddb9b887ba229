"""What a node that was in a pool remembers of it, to come back while the chain does not answer. Blocking.

Only its own join, seen in a block, counts here, never the word of peers. Who was thrown out meanwhile learns it when
the chain answers.
"""

from pathlib import Path

import msgspec

from contracts.bindings import PoolInfo
from node.state.files import write_whole

NAME = "pool.json"
MAX_BYTES = 1 << 20


class Remembered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """label: chain, contract and number of the pool; pool: as the chain had it when this node joined."""

    label: str
    pool: PoolInfo


def remember(directory: Path, label: str, pool: PoolInfo) -> None:
    """This node is in the pool. Raises OSError."""
    write_whole(directory / NAME, msgspec.json.encode(Remembered(label, pool)))


def forget(directory: Path) -> None:
    """This node has left. Raises OSError."""
    (directory / NAME).unlink(missing_ok=True)


def recall(directory: Path, label: str) -> PoolInfo | None:
    """The pool that this node is still in, as far as it knows; None where it is in none, or in another one."""
    try:
        raw = (directory / NAME).read_bytes()
        found = msgspec.json.decode(raw, type=Remembered) if len(raw) <= MAX_BYTES else None
    except (OSError, msgspec.MsgspecError):
        return None
    return found.pool if found is not None and found.label == label else None
