"""How far a simulation is, for whoever waits: swarm time done, wall time spent, wall time still to come."""

import sys
import time
from collections.abc import Callable

import trio

EVERY = 5.0
"""Wall seconds between two lines."""
LOOK = 2.0
"""Swarm seconds between two looks at the wall."""


def line(done: float, whole: float, spent: float) -> str:
    """done, whole: swarm seconds; spent: wall seconds."""
    left = spent * (whole - done) / done
    return f"{done / 60:6.1f} of {whole / 60:.1f} min of swarm time, {spent:.0f} s spent, about {left:.0f} s to go"


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def report(whole: float, tell: Callable[[str], None] = _to_stderr) -> None:
    """Tell until cancelled. whole: swarm seconds of the simulation."""
    began = told = time.monotonic()
    while True:
        await trio.sleep(LOOK)
        now = time.monotonic()
        if now - told >= EVERY:
            tell(line(trio.current_time(), whole, now - began))
            told = now
