"""Chance that belongs to who draws: a liar's words change nobody's dice, nor the order of what they do not touch.

So what honest nodes say beside a liar is what they say without it, to the byte, wherever its words move nothing: runs
differ by what moved, and what was computed of the same bytes before is there (`remembered.py`).
"""

import random
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any
from unittest.mock import patch
from zlib import crc32

import trio
from trio._core import _run

from protocol.identity import Address
from tests.memory_network import Arriving, MemoryHub

DRAWS = ContextVar("DRAWS", default="nobody")
"""Whose task it is that draws."""


class SteadyHub(MemoryHub):
    """What is under way at the same time comes in an order that follows from what it is, and to whom."""

    def mix(self, due: list[Arriving], reader: Address) -> None:
        salt = crc32(reader.encode())
        due.sort(key=lambda one: crc32(one[3], salt))


class SteadyTurns(random.Random):
    """In the place of trio's own: which tasks go first follows from the time and from themselves."""

    def shuffle(self, x: Any) -> None:
        factor = 1 + 2 * (hash(trio.current_time()) & 0xFFFF)  # odd, so no two tasks meet
        x.sort(key=lambda task: task._counter * factor & 0xFFFF)


@contextmanager
def steady() -> Iterator[None]:
    """Within a run (`run_seeded`)."""
    dice: dict[str, random.Random] = {}

    def own() -> random.Random:
        who = DRAWS.get()
        return dice.setdefault(who, random.Random(who))

    drawn: dict[str, Any] = {
        "token_bytes": lambda count: own().randbytes(count),
        "randbelow": lambda below: own().randrange(below),
        "choice": lambda row: own().choice(row),
        "SystemRandom": own,
    }
    with ExitStack() as held:
        held.enter_context(patch.multiple(secrets, **drawn))
        held.enter_context(patch.object(_run, "_r", SteadyTurns()))
        yield
