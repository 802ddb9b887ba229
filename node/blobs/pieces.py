"""A blob whose piece list is known: which pieces are asked of whom, and what comes of it.

Every piece is hashed before it counts. Sources that fetch the same blob tell each other what they have.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec
import trio

from node.blobs import wire as wire
from node.blobs.circle import Circle, SourceContact
from node.blobs.errors import BlobUnavailable
from node.blobs.headway import Headway
from node.blobs.partial import Partial
from node.blobs.scheduling import bitfield
from node.blobs.scheduling.bitfield import Flags
from node.blobs.scheduling.download import Download, Flight
from node.network.errors import PeerMisbehaved, RequestTimedOut
from node.network.interface import Network
from protocol.blobs import BlobInfo
from protocol.identity import Address

TELL_EVERY = 0.5
"""Seconds between two exchanges of maps with a source, for a blob of few pieces; more with many."""


RUN_TIMEOUT = (60.0, 120.0)
"""Seconds that a request may take, at least and at most; between them, it depends on the usual pace. The first two
pieces, side by side, take 40 s at 13 KB/s, which is one connection at 5 % loss and 300 ms."""


class RequestPace:
    """How long a request usually takes here: on a busy machine nothing is late that would be late on an idle one."""

    def __init__(self) -> None:
        self._usual = 0.0

    def took(self, seconds: float) -> None:
        self._usual = 0.8 * self._usual + 0.2 * seconds

    @property
    def timeout(self) -> float:
        # Ten times the usual: on a machine with much other work nothing is late that everything there would be.
        return min(RUN_TIMEOUT[1], max(RUN_TIMEOUT[0], 10 * self._usual))


class PeerLine(Protocol):
    """What is left of a node's line (`transfer.Downloads`)."""

    network: Network
    pace: RequestPace

    def asked(self, size: int) -> None: ...
    def answered(self, size: int) -> None: ...
    def got(self, source: Address, size: int, now: float) -> None: ...


class BlobTransfer(Protocol):
    """Whose blob it is (`transfer.Transfer`)."""

    root: bytes
    nursery: trio.Nursery | None

    async def request(self, source: Address, ask: wire.Request, limit: int, timeout: float) -> memoryview: ...
    def may_ask(self, now: float) -> bool: ...
    def judge(self, source: Address, error: Exception) -> None: ...
    def blame(self, source: Address, why: str) -> None: ...
    def wake(self) -> None: ...


class PieceDownloads:
    """partial: where they are written; circle: who may have them."""

    def __init__(self, owner: BlobTransfer, line: PeerLine, circle: Circle, headway: Headway, partial: Partial) -> None:
        self.partial = partial
        info = partial.info
        self.plan: Download[Address] = Download(info.size, info.piece_size, partial.flags(), random.getrandbits(32))
        for source in circle.contacts:
            self.plan.add(source)
        self._owner = owner
        self._line = line
        self._circle = circle
        self._headway = headway
        self._scopes: dict[Flight[Address], trio.CancelScope] = {}
        self._taking = 0
        self._began = trio.current_time()

    @property
    def in_flight(self) -> int:
        return len(self._scopes)

    def leave(self, source: Address) -> None:
        """It is asked no more."""
        for flight in self.plan.remove(source):
            self._scopes[flight].cancel()

    def close(self, source: Address, until: float) -> None:
        """It lied: what it was asked for goes to others at once."""
        self.plan.close(source, until)
        for flight, scope in self._scopes.items():
            if flight.source == source:
                scope.cancel()

    # -- maps --------------------------------------------------------------------------------------

    def heard(self, source: Address, have: Flags, *, chooses: bool) -> None:
        """What a source has."""
        contact = self._circle.contacts.get(source)
        if contact is None:
            return
        contact.heard(trio.current_time())
        self.plan.add(source)
        self.plan.learn(source, have, chooses=chooses)
        self.ask(source)

    def tell_around(self, now: float) -> None:
        # While a whole blob is written, what others have of it matters to nobody.
        if self._owner.nursery is None or self._taking:
            return
        # Pieces of a blob of a few megabytes, which nobody seeds: where somebody has it whole, it is here before others
        # could help with it, and else they are asked a little later.
        few_pieces, begins = 16, now < self._began + TELL_EVERY
        if begins and len(self.plan.have) < few_pieces and any(map(self.plan.settled, self._circle.contacts)):
            return
        tell_pieces = 8192
        every = TELL_EVERY * (1 + len(self.plan.have) // tell_pieces)
        for source, contact in self._circle.contacts.items():
            if contact.telling or not self._circle.ready(source, now) or self.plan.settled(source):
                continue
            idle = not self.plan.busy(source)
            if now - contact.heard_at >= (every / 2 if idle else every):
                contact.telling = True
                self._owner.nursery.start_soon(self._tell, source, contact)

    async def _tell(self, source: Address, contact: SourceContact, *, tell_timeout: float = 10.0) -> None:
        """Say what we have, and hear what it has."""
        try:
            tell = wire.HaveReply(self._owner.root, bitfield.pack(self.plan.have))
            answer = await self._owner.request(source, tell, wire.MAX_MAP + 64, tell_timeout)
            said = msgspec.msgpack.decode(answer, type=wire.HaveMap)
            self.heard(source, read_map(said.have, self.partial.info), chooses=said.chooses)
        except Exception as error:
            self._owner.judge(source, error)
        finally:
            contact.telling = False

    # -- pieces ------------------------------------------------------------------------------------

    def ask(self, source: Address) -> None:
        """Send `source` as many requests as it should have now."""
        now, nursery = trio.current_time(), self._owner.nursery
        if nursery is None or not self._circle.ready(source, now):
            return
        # Without requests on every lane the extra connections of a lossy path would stay idle (network.md).
        if lanes := self._line.network.lanes(source):
            # Requests in flight for each lane: one is sent while the next is on its way.
            self.plan.spread(source, lanes, 2 * lanes)
        while self._owner.may_ask(now):
            flight = self.plan.plan(source, now)
            if flight is None:
                return
            self._scopes[flight] = trio.CancelScope()
            self._line.asked(flight.size)
            nursery.start_soon(self._fly, flight)

    async def take_whole(self, source: Address, data: bytes) -> None:
        """A small blob that came with its list."""
        info = self.partial.info
        # Compared with the promised size before hashing: a larger body would be hashed for nothing.
        if len(data) != info.size:
            raise PeerMisbehaved(source, f"{len(data)} bytes for a blob of {info.size}")
        self._taking += 1
        try:
            good = await self.partial.write_pieces(range(len(info.pieces)), memoryview(data))
        finally:
            self._taking -= 1
        self.plan.take(good)
        self._line.got(source, len(data), trio.current_time())
        if len(good) < len(info.pieces):
            raise PeerMisbehaved(source, "the blob it sent has another hash")

    async def _fly(self, flight: Flight[Address]) -> None:
        """One request for pieces, from sending it to the pieces being on disk."""
        with self._under_way(flight) as scope, scope:
            try:
                await self._deliver(flight)
            except Exception as error:
                self._missed(flight, error)
                # A super-seeder that answers AskAny with nothing has only stopped choosing for us.
                if len(flight.pieces) or not isinstance(error, BlobUnavailable):  # it chooses no longer: no fault
                    self._owner.judge(flight.source, error)
        self.ask(flight.source)
        if self.plan.complete:
            self._owner.wake()

    @contextmanager
    def _under_way(self, flight: Flight[Address]) -> Iterator[trio.CancelScope]:
        try:
            yield self._scopes[flight]
        finally:
            del self._scopes[flight]
            self._line.answered(flight.size)
            # Its pieces go back to be asked of others, also where the request was cancelled.
            self.plan.failed(flight)  # nothing to do if it has landed

    def _missed(self, flight: Flight[Address], error: Exception) -> None:
        """It has not got those pieces: its map was wrong, or it no longer chooses."""
        if isinstance(error, BlobUnavailable):
            self.plan.lacks(flight)
        elif isinstance(error, RequestTimedOut):
            self.plan.slowed(flight, trio.current_time())

    async def _deliver(self, flight: Flight[Address]) -> None:
        info, source = self.partial.info, flight.source
        body = await self._ask_pieces(flight, info)
        pieces, data, waited = wire.read_pieces(body, info, flight.pieces, flight.count, source)
        good = await self.partial.write_pieces(pieces, data)
        now = trio.current_time()
        new = sum(info.span(piece)[1] for piece in good if not self.plan.have[piece])
        # The same pieces may have been asked of a second source in the endgame: whoever was first cancels the other.
        for rival in self.plan.landed(flight, good, len(data), waited, now):
            self._scopes[rival].cancel()
        if good:
            self._line.got(source, sum(info.span(piece)[1] for piece in good), now)
        if new:
            self._headway.came(new, now)
        if len(good) < len(pieces):
            bad = sorted(set(pieces) - set(good))
            # The good pieces before it count: the sender is banned, its honest bytes are not fetched twice.
            self._owner.blame(source, f"piece {bad[0]} has another hash")

    async def _ask_pieces(self, flight: Flight[Address], info: BlobInfo) -> memoryview:
        root = self._owner.root
        if len(flight.pieces):
            ask: wire.Request = wire.AskPieces(root, tuple(flight.pieces.tolist()))
        else:
            ask = wire.AskAny(root, flight.count, bitfield.pack(self.plan.skip()))
        started, timeout = trio.current_time(), self._line.pace.timeout
        try:
            body = await self._owner.request(flight.source, ask, wire.answer_limit(info, flight.count), timeout)
        except RequestTimedOut:
            # A timeout says only "longer than this". Counted as twice, it makes the next ones more patient.
            self._line.pace.took(2 * timeout)
            raise
        self._line.pace.took(trio.current_time() - started)
        return body


def read_map(data: bytes, info: BlobInfo) -> Flags:
    """A map as it travels: empty for all of the pieces."""
    return bitfield.unpack(data, len(info.pieces)) if data else bitfield.full(len(info.pieces))
