"""A validator's queue: files in the order in which they came, and on top what cannot wait."""

from collections import deque
from typing import Generic, TypeVar

import trio

T = TypeVar("T")
URGENT = 256


class FileQueue(Generic[T]):
    """A bounded queue with a fast lane. limit: how many ordinary items may lie there before `put` waits."""

    def __init__(self, limit: int) -> None:
        self._ordinary: deque[T] = deque()
        self._urgent: deque[T] = deque()
        self._room = trio.Semaphore(limit)
        self._filled = trio.Semaphore(0)

    def __len__(self) -> int:
        return len(self._ordinary) + len(self._urgent)

    async def put(self, item: T) -> None:
        """Add to the pile; waits while it is full."""
        await self._room.acquire()
        self._ordinary.append(item)
        self._filled.release()

    def hurry(self, item: T) -> bool:
        """Put on top; False if too much is urgent already."""
        if len(self._urgent) >= URGENT:
            return False
        self._urgent.append(item)
        self._filled.release()
        return True

    async def take(self) -> T:
        """The next item, urgent ones first."""
        await self._filled.acquire()
        if self._urgent:
            return self._urgent.popleft()
        self._room.release()
        return self._ordinary.popleft()
