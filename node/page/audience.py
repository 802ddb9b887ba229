"""Who looks at the page, and the two things that are waited for: news, and somebody to tell."""

from collections.abc import Iterator
from contextlib import contextmanager

import trio

MAX_VIEWERS = 64


class Audience:
    """viewers: how many there are now."""

    def __init__(self) -> None:
        self.viewers = 0
        self._news = trio.Event()
        self._somebody = trio.Event()

    @property
    def is_full(self) -> bool:
        return self.viewers >= MAX_VIEWERS

    @contextmanager
    def viewer(self) -> Iterator[None]:
        """One more looks, as long as this lasts."""
        self.viewers += 1
        self._somebody.set()
        try:
            yield
        finally:
            self.viewers -= 1

    def tell(self) -> None:
        """There is news."""
        self._news.set()
        self._news = trio.Event()

    async def news(self) -> None:
        """Returns when there is some."""
        await self._news.wait()

    async def arrival(self) -> None:
        """Returns when somebody comes."""
        self._somebody = trio.Event()
        await self._somebody.wait()
