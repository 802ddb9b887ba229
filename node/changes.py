"""Waits for what several causes may bring about: whoever changes something tells, and who waits looks again.

`Changes` wakes all who wait, and tells listeners; `Bell` wakes one, and keeps what rang while nobody waited. What no
event tells is done again and again (`every`), or looked at (`seen`). Several stories are told `side_by_side`.
"""

import math
from collections.abc import Awaitable, Callable
from inspect import isawaitable

import trio


def about(seconds: float) -> float:
    """trio's time in so many seconds, give or take a quarter of one where they are one or more. Waits of one process
    end together so: each that ends by itself is a turn of the loop, which costs more than most do in it. Processes
    have clocks of their own, so nothing ends everywhere at once."""
    until, grid = trio.current_time() + max(seconds, 0.0), 0.5
    return until if seconds < 2 * grid or until == math.inf else round(until / grid) * grid


class Changes:
    """Of one thing, or of several that are waited for together."""

    def __init__(self) -> None:
        self._told = trio.Event()
        self._listeners: list[Callable[[], object]] = []

    def tell(self, *_: object) -> None:
        self._told.set()
        self._told = trio.Event()
        for listener in self._listeners:
            listener()

    def follow(self, listener: Callable[[], object]) -> None:
        """Called after each change."""
        self._listeners.append(listener)

    @property
    def next(self) -> trio.Event:
        """To be taken before a look that waits for others: what changes meanwhile is not missed then."""
        return self._told

    async def until(self, so: Callable[[], bool]) -> None:
        """Return once it is so; looked at again with each change."""
        while not so():
            await self._told.wait()


class Bell:
    """Wakes the one who waits when something has changed. What rang before the wait is not lost."""

    def __init__(self) -> None:
        self._rang = trio.Event()

    def ring(self, *_: object) -> None:
        self._rang.set()

    async def wait(self, seconds: float = math.inf) -> None:
        """Until it rings, or `about` so many seconds have passed."""
        with trio.move_on_at(about(seconds)):
            await self._rang.wait()
        self._rang = trio.Event()


async def every(seconds: float | Callable[[], float], do: Callable[[], object], *, at_once: bool = True) -> None:
    """Do it now, or once the seconds have passed, and again `about` so many after it was done, until cancelled.
    do: awaited where it returns something to wait for."""
    while True:
        if at_once and isawaitable(done := do()):
            await done
        at_once = True
        await trio.sleep_until(about(seconds() if callable(seconds) else seconds))


async def side_by_side(*stories: Callable[[], Awaitable[object]]) -> None:
    """All of these beside each other; returns once the last of them is over."""
    async with trio.open_nursery() as nursery:
        for story in stories:
            nursery.start_soon(story)


async def seen(so: Callable[[], bool | Awaitable[bool]], seconds: float) -> None:
    """Returns once it is so, looked at every so many seconds: for what no event tells, as of a library, or of a peer
    that may hand over later what it does not now."""
    while not (await found if isawaitable(found := so()) else found):  # noqa: ASYNC110 - there is no event
        await trio.sleep(seconds)
