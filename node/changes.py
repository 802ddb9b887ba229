"""Waits for what several causes may bring about: whoever changes something tells, and all who wait look again."""

from collections.abc import Callable

import trio


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
