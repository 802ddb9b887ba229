"""A validator's queue: files in the order that all validators keep, and on top what cannot wait; and how long each is
waited for."""

import heapq
import math
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio

T = TypeVar("T")
Place = tuple[int, int, bytes]
"""Where a file stands in the order that all validators keep: see Fetching."""


class FileQueue(Generic[T]):
    """A priority queue with a fast lane. Each ordinary item has a place; the lowest is taken first.

    Every author puts one item at a time and waits until it is taken, so the queue is bounded by their number. taken:
    told after each item that is.
    """

    def __init__(self, taken: Callable[[], object] = lambda: None) -> None:
        self._taken = taken
        self._ordinary: list[tuple[Place, int, T, trio.Event]] = []
        self._urgent: deque[T] = deque()
        self._filled = trio.Semaphore(0)
        self._put = 0  # breaks ties: items have no order

    def __len__(self) -> int:
        return len(self._ordinary) + len(self._urgent)

    async def put(self, place: Place, item: T) -> None:
        """Add an item; returns when it is taken."""
        taken = trio.Event()
        self._put += 1
        heapq.heappush(self._ordinary, (place, self._put, item, taken))
        self._filled.release()
        await taken.wait()

    def hurry(self, item: T) -> bool:
        """Put on top; False if too much is urgent already."""
        if len(self._urgent) >= 256:
            return False
        self._urgent.append(item)
        self._filled.release()
        return True

    async def take(self) -> T:
        """The next item, urgent ones first."""
        await self._filled.acquire()
        self._taken()
        if self._urgent:
            return self._urgent.popleft()
        _, _, item, taken = heapq.heappop(self._ordinary)
        taken.set()
        return item

    def has_passed(self, place: Place) -> bool:
        """Whether nothing waits here that comes before `place`."""
        return not self._ordinary or self._ordinary[0][0] > place


class InspectionQueue:
    """One look after the other. One that takes longer than `patience` seconds is left behind: it goes on by itself, and
    its author's next ones wait for it.

    Programs and algebra in answers may take their scorers as long as the run allows (audit.scoring_seconds), whoever
    wrote them: they hold up the files of their author, and nobody else's.
    """

    def __init__(self, nursery: trio.Nursery, patience: float = 10.0) -> None:
        self._nursery = nursery
        self._patience = patience
        self._behind: dict[Hashable, deque[Callable[[], Awaitable[None]]]] = {}

    async def take(self, author: Hashable, look: Callable[[], Awaitable[None]]) -> bool:
        """Look, now or when the author's others are over; False if too many of them wait already."""
        waiting = self._behind.get(author)
        if waiting is not None:
            if len(waiting) >= 64:  # looks at one author's files
                return False
            waiting.append(look)
            return True
        over = trio.Event()
        self._nursery.start_soon(self._look, author, look, over)
        # Two authors: beside their looks and the one that is waited for, an engine has a thread left
        # (node.inference.process).
        with trio.move_on_after(self._patience if len(self._behind) < 2 else math.inf):
            await over.wait()
        # The event is asked and not the scope: a look may end at the moment at which its patience does.
        if not over.is_set():
            self._behind[author] = deque()
        return True

    async def _look(self, author: Hashable, look: Callable[[], Awaitable[None]], over: trio.Event) -> None:
        await look()
        over.set()
        while waiting := self._behind.get(author):
            await waiting.popleft()()
        self._behind.pop(author, None)
