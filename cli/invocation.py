"""How this program was called, so that it can be called again: in the background, or by a service manager."""

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


async def until_signalled(work: Callable[[], Awaitable[object]], on_progress: Callable[[], None] | None = None) -> None:
    """Do the work; SIGINT and SIGTERM cancel it, and its cleaning up is not cut short. told: called for each signal.

    Raises KeyboardInterrupt if there was one.
    """
    import trio

    received: list[int] = []
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def handle() -> None:
                async for number in signals:
                    received.append(number)
                    if on_progress:
                        on_progress()
                    nursery.cancel_scope.cancel()

            nursery.start_soon(handle)
            await work()
            # Work that ended by itself leaves the listener, which never ends.
            nursery.cancel_scope.cancel()
    if received:
        raise KeyboardInterrupt


PROGRAM = "intellect-node"
IMPORTING = "importing the program, some seconds on a quiet machine"
"""What a daemon does before it can say more."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of the program. words: its command line; own_process: whether the process is the program's own, which a
    command may then fork."""

    words: Sequence[str]
    own_process: bool


def own_command() -> list[str]:
    """The words that start this very program, with whole paths: its script, or this Python with its module."""
    # The same installation again, whatever PATH holds in a service or a cron job.
    script = Path(sys.argv[0])
    if script.name == PROGRAM and os.access(script, os.X_OK):
        return [str(script.absolute())]
    return [sys.executable, "-m", "cli"]


def without(words: Sequence[str], *flags: str) -> list[str]:
    """The words of a command line, less some flags that take no value."""
    return [word for word in words if word not in flags]
