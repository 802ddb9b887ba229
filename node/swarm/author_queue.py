"""Subscriptions with room for every author: one that floods loses its own news, not the others'."""

from collections import Counter, deque
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

import trio

from protocol.identity import Address

T = TypeVar("T")
ROOM = 8192
"""Unread news of one subscriber."""
ROOM_EACH = 1024
"""Unread news of one author: all that the board keeps of a validator. Eight at once would have to flood."""


class AuthorQueue(Generic[T]):
    """The channel is first in, first out, so its length says which authors are unread."""

    def __init__(self) -> None:
        self._send, self.channel = trio.open_memory_channel[T](ROOM)
        self._authors: deque[Address] = deque()
        self._unread: Counter[Address] = Counter()

    def offer(self, author: Address, news: T) -> bool:
        """False if there is no room for it. Raises BrokenResourceError when nobody reads any more."""
        if len(self._authors) >= ROOM_EACH:  # before that nobody can have filled its room
            self._note_read()
        if self._unread[author] >= ROOM_EACH:
            return False
        try:
            self._send.send_nowait(news)
        except trio.WouldBlock:
            return False
        self._authors.append(author)
        self._unread[author] += 1
        return True

    def _note_read(self) -> None:
        unread = self._send.statistics().current_buffer_used
        while len(self._authors) > unread:
            author = self._authors.popleft()
            self._unread[author] -= 1
            if not self._unread[author]:
                del self._unread[author]


class Authored(Protocol):
    """What is told."""

    @property
    def author(self) -> Address: ...


N = TypeVar("N", bound=Authored)


class Readers(Generic[N]):
    """Who subscribed to which kinds of news. lost: to readers that were too slow."""

    def __init__(self) -> None:
        self._readers: dict[type, list[AuthorQueue[N]]] = {}
        self.lost = 0

    def subscribe(self, kinds: Iterable[type], standing: Iterable[N]) -> trio.MemoryReceiveChannel[N]:
        """standing: what is told first."""
        reader = AuthorQueue[N]()
        for news in standing:
            self.lost += not reader.offer(news.author, news)
        for kind in kinds:
            self._readers.setdefault(kind, []).append(reader)
        return reader.channel

    def tell(self, kind: type, news: N) -> None:
        # A copy: readers that have gone are taken out on the way.
        for reader in list(self._readers.get(kind, ())):
            try:
                self.lost += not reader.offer(news.author, news)
            except trio.BrokenResourceError:
                self._readers[kind].remove(reader)
