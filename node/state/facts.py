"""Facts of the journal that can be had again: encoded, typed, and gone where they cannot be read."""

from functools import partial
from typing import TypeVar

import msgspec

from node.state.journal import Journal
from node.state.kept import cached

T = TypeVar("T")


async def keep(journal: Journal, name: str, what: object) -> None:
    """Put a fact in the place of the one before; nothing where it is None. Raises StateError."""
    await journal.do(journal.remember, name, b"" if what is None else msgspec.msgpack.encode(what))


async def recall(journal: Journal, name: str, kind: type[T]) -> T | None:
    """What `keep` was given last, of this type; None for nothing. What cannot be read is none from then on. Raises
    StateError."""
    if not (raw := await journal.do(journal.recall, name)):
        return None
    found = cached(f"the journal's {name}", partial(msgspec.msgpack.decode, raw, type=kind))
    if found is None:
        await keep(journal, name, None)
    return found
