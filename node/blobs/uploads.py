"""Upload slots and the upload limit: when each request for pieces gets its turn.

Knows tasks and the clock; who goes first is decided by `swarm.upload`.
"""

from collections.abc import Callable

import trio

from node.blobs.scheduling.upload import Reciprocity, Ticket, UploadQueue
from node.network.budget import TokenBucket
from protocol.identity import Address

MAX_WAIT = 20.0
"""Seconds that a request may wait for its turn."""
LOOK = 1.0
"""Seconds between two looks for slots that stalled takers hold."""


class Turn:
    """An upload slot; `end` gives it back, and may be called again. waited: seconds."""

    def __init__(self, waited: float, end: Callable[[], None]) -> None:
        self.waited = waited
        self.end = end


class Uploads:
    """limit: bytes per second, 0 for no limit; abreast: answers to a peer that fit into one slot."""

    def __init__(
        self, reciprocity: Reciprocity[Address], slots: int, limit: float, abreast: Callable[[Address], int]
    ) -> None:
        self._queue = UploadQueue(reciprocity, slots=slots, abreast=abreast)
        self._bucket = TokenBucket(limit, limit / 4) if limit > 0 else None
        self._granted: dict[Ticket[Address], trio.Event] = {}
        self._burdens: dict[Ticket[Address], Callable[[Address], float]] = {}

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    @property
    def choke_seconds(self) -> float:
        """When somebody who is choked should ask again."""
        return self._queue.choke_seconds()

    async def turn(self, peer: Address, size: int, burden: Callable[[Address], float] | None = None) -> Turn | None:
        """Wait for a slot to send `size` bytes; None: choked, now or after waiting too long.

        burden: of a peer; who has more of it comes later, whatever it owes us.
        """
        ticket = self._queue.offer(peer, size, trio.current_time())
        if ticket is None:
            return None
        self._granted[ticket] = granted = trio.Event()
        if burden is not None:
            self._burdens[ticket] = burden
        try:
            if not await self._wait(granted):
                self._end(ticket)
                return None
            if self._bucket is not None:
                await trio.sleep(self._bucket.reserve(size, trio.current_time()))
                self._queue.begins(ticket, trio.current_time())
        except BaseException:
            self._end(ticket)
            raise
        return Turn(trio.current_time() - ticket.at, lambda: self._end(ticket))

    async def _wait(self, granted: trio.Event) -> bool:
        self._grant()
        with trio.move_on_after(MAX_WAIT):
            while not granted.is_set():
                with trio.move_on_after(LOOK):
                    await granted.wait()
                self._grant()
        return granted.is_set()

    def _grant(self) -> None:
        burden = self._burden if self._burdens else None
        while (ticket := self._queue.next(trio.current_time(), burden)) is not None:
            self._granted[ticket].set()

    def _burden(self, ticket: Ticket[Address]) -> float:
        burden = self._burdens.get(ticket)
        return burden(ticket.peer) if burden else 0.0

    def _end(self, ticket: Ticket[Address]) -> None:
        self._queue.withdraw(ticket, trio.current_time())
        self._granted.pop(ticket, None)
        self._burdens.pop(ticket, None)
        self._grant()
