"""Fetch blobs from whoever has them, and serve ours.

Any number of callers that want the same blob share one transfer. Pieces are served on as soon as they are verified,
also of blobs that are not complete. Uploads take turns in a few slots, those first who owe us least. A blob
of our own that nobody else has yet is super-seeded.

Knows the store, the transfers and their callers; what is said stands in `wire`, how a blob is fetched in
`transfer`, who is served next in `scheduling`.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import trio

from node.blobs import wire as wire
from node.blobs.circle import Reputation
from node.blobs.errors import BlobTooLarge, BlobUnavailable
from node.blobs.headway import BlobProgress, Report
from node.blobs.partial import Partial
from node.blobs.scheduling import bitfield
from node.blobs.scheduling.bitfield import Flags
from node.blobs.scheduling.upload import Reciprocity, SuperSeed, UploadQueue, UploadTicket
from node.blobs.store import BlobStore
from node.blobs.transfer import Downloads, Transfer
from node.bounded_dict import BoundedDict
from node.network.budget import TokenBucket
from node.network.interface import Network, SentResponse
from protocol.blobs import MAX_BLOB_SIZE, BlobInfo, encode_info
from protocol.identity import Address


class UploadTurn:
    """An upload slot; `end` gives it back, and may be called again. waited: seconds."""

    def __init__(self, waited: float, end: Callable[[], None]) -> None:
        self.waited = waited
        self.end = end


MAX_ANSWER = 4 * 1024**2
"""Bytes sent at once (one piece, if a piece is bigger)."""
MAX_SEEDS = 16


class ExchangeLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """upload, download: bytes per second of pieces, 0 for no limit; slots: answers that are sent at once."""

    upload: float = 0
    download: float = 0
    slots: int = 4


class Score(msgspec.Struct, frozen=True):
    """What a peer did for us, and we for it. received, sent: bytes; lies: wrong pieces; debt: recent bytes it owes."""

    received: int = 0
    sent: int = 0
    lies: int = 0
    debt: float = 0.0


class BlobExchange:
    """Serves the store's blobs to peers, and fetches what the store lacks. report: told how far each fetch is."""

    def __init__(
        self, network: Network, store: BlobStore, limits: ExchangeLimits | None = None, report: Report | None = None
    ) -> None:
        limits = limits or ExchangeLimits()
        self._store = store
        self._report = report
        self._downloads = Downloads(network, store, limits.download)
        self._uploads = Uploads(
            self._downloads.reciprocity, limits.slots, limits.upload, lambda peer: max(network.lanes(peer), 1)
        )
        self._seeds = BoundedDict[bytes, SuperSeed[Address]](MAX_SEEDS)
        self._fetched = BoundedDict[bytes, None](4096)
        self._sent = BoundedDict[Address, int](4096, refresh=True)
        network.serve(wire.PROTOCOL, self._answer, max_request=wire.MAX_REQUEST)

    @property
    def reputation(self) -> Reputation:
        return self._downloads.reputation

    def under_way(self) -> list[BlobProgress]:
        """How far each blob is that is being fetched now, those of unknown size left out."""
        return [found for transfer in self._downloads.transfers.values() if (found := transfer.progress())]

    def scores(self) -> dict[Address, Score]:
        """What every peer that we exchanged pieces with did."""
        now, downloads = trio.current_time(), self._downloads

        def score(peer: Address) -> Score:
            received, sent = downloads.received.get(peer, 0), self._sent.get(peer, 0)
            return Score(received, sent, downloads.reputation.lies(peer), downloads.reciprocity.debt(peer, now))

        return {
            peer: score(peer) for peer in downloads.received.keys() | self._sent.keys() | downloads.reputation.liars()
        }

    async def fetch(
        self,
        root: bytes,
        sources: Sequence[Address],
        *,
        max_size: int = MAX_BLOB_SIZE,
        timeout: float,
        priority: int = 0,
        progress: Report | None = None,
    ) -> Path:
        """The file of blob `root`, after fetching what is missing of it. timeout: seconds.

        sources: who may have it; the first is asked in any case. Sources that turn out not to have it are asked
        again, ever less often, until the timeout. priority: a blob goes before those of less, as long as it makes
        headway. progress: called a few times per second, the exchange's `report` by default; must return at once.
        Raises BlobUnavailable (nobody delivered it in time), BlobTooLarge, StoreFull.
        """
        progress = progress or self._report
        await self._store.whole(root)  # a blob of before is compared first, and that takes as long as it takes
        with trio.move_on_after(timeout):
            while not self._store.has(root):
                transfer = self._downloads.transfers.get(root)
                if transfer is None:
                    await self._lead(root, sources, max_size, priority, progress)
                else:
                    await self._follow(transfer, sources, priority, progress)
        if not self._store.has(root):
            raise BlobUnavailable(root, f"not complete after {timeout:g} s, from {len(sources)} source(s)")
        path = self._store.path(root)
        # The blob may have been fetched by a caller that allowed more.
        if (size := path.stat().st_size) > max_size:
            raise BlobTooLarge(root, size, max_size)
        return path

    async def _lead(
        self, root: bytes, sources: Sequence[Address], max_size: int, priority: int, progress: Report | None
    ) -> None:
        transfer = Transfer(self._downloads, root, max_size, priority)
        self._downloads.transfers[root] = transfer
        transfer.circle.add(sources)
        if progress is not None:
            transfer.headway.listen(progress)
        try:
            await transfer.run()
            self._fetched[root] = None
        finally:
            del self._downloads.transfers[root]
            transfer.end()

    async def _follow(
        self, transfer: Transfer, sources: Sequence[Address], priority: int, progress: Report | None
    ) -> None:
        """Share somebody else's transfer; if that caller is cancelled, one of us leads next."""
        transfer.circle.add(sources)
        transfer.priority = max(transfer.priority, priority)
        if progress is not None:
            transfer.headway.listen(progress)
        try:
            await transfer.ended.wait()
        finally:
            if progress is not None:
                transfer.headway.unlisten(progress)

    # -- serving -----------------------------------------------------------------------------------

    async def _answer(self, asker: Address, request: bytes) -> bytes | SentResponse:
        ask = wire.read_request(request)
        if isinstance(ask, wire.AskInfo):
            return await self._info(ask.root)
        if isinstance(ask, wire.HaveReply):
            return self._told(asker, ask)
        info = self._known(ask.root)
        if info is None:
            return wire.MISSING
        if isinstance(ask, wire.AskAny):
            return await self._any(asker, ask, info)
        return await self._pieces(asker, ask, info)

    async def _info(self, root: bytes) -> bytes | SentResponse:
        info = self._known(root)
        if info is None:
            return wire.MISSING
        transfer = self._fetching(root)
        have = transfer.have() if transfer else None
        if have is not None:
            said = wire.HaveInfo(encode_info(info), bitfield.pack(have))
        elif info.size <= wire.INLINE:
            try:
                data = await self._store.read_pieces(root, range(len(info.pieces)))
            except BlobUnavailable:
                return wire.MISSING
            said = wire.HaveInfo(encode_info(info), data=data)
        else:
            said = wire.HaveInfo(encode_info(info), chooses=self._seed(root, info) is not None)
        return SentResponse(wire.FOUND + msgspec.msgpack.encode(said), bulk=True)

    def _told(self, asker: Address, tell: wire.HaveReply) -> bytes:
        """Another node fetches a blob, too: remember what it has, say what we have."""
        info = self._known(tell.root)
        if info is None:
            return wire.MISSING
        theirs = bitfield.unpack(tell.have, len(info.pieces))
        transfer = self._fetching(tell.root)
        have = transfer.have() if transfer else None
        if transfer is not None and have is not None:
            said = wire.HaveMap(bitfield.pack(have))
            transfer.told(asker, theirs)
        else:
            seed = self._seed(tell.root, info)
            if seed is not None:
                seed.seen(asker, theirs)
            said = wire.HaveMap(chooses=seed is not None)
        return wire.FOUND + msgspec.msgpack.encode(said)

    async def _pieces(self, asker: Address, ask: wire.AskPieces, info: BlobInfo) -> bytes | SentResponse:
        # Without repetitions: one piece asked for a thousand times would be an answer of a thousand pieces.
        wanted = list(dict.fromkeys(ask.pieces))[: _most(info)]
        if not wanted or any(not 0 <= piece < len(info.pieces) for piece in wanted):
            return wire.MISSING
        have = self._have(ask.root)
        # Looked at before the queue: a request that cannot be answered must not take a turn.
        if have is not None and not have[wanted].any():
            return wire.MISSING
        turn = await self._uploads.turn(asker, sum(info.span(piece)[1] for piece in wanted), self._burden(ask.root))
        if turn is None:
            return wire.choked(self._uploads.choke_seconds)
        have = self._have(ask.root)  # it may have grown, or gone, while we waited
        return await self._send(asker, ask.root, info, [each for each in wanted if have is None or have[each]], turn)

    async def _any(self, asker: Address, ask: wire.AskAny, info: BlobInfo) -> bytes | SentResponse:
        skip = bitfield.unpack(ask.skip, len(info.pieces))
        count = min(ask.count, _most(info))
        if count < 1 or self._seed(ask.root, info) is None:
            return wire.MISSING
        # Charged for all that it may get: which pieces those are is known only once its turn has come.
        turn = await self._uploads.turn(asker, count * info.piece_size, self._burden(ask.root))
        if turn is None:
            return wire.choked(self._uploads.choke_seconds)
        seed = self._seed(ask.root, info)
        pieces = seed.choose(asker, skip, count) if seed else np.zeros(0, np.int64)
        return await self._send(asker, ask.root, info, pieces.tolist(), turn)

    async def _send(
        self, asker: Address, root: bytes, info: BlobInfo, pieces: list[int], turn: UploadTurn
    ) -> bytes | SentResponse:
        seed = self._seeds.get(root)
        chosen = np.asarray(pieces, np.int64)
        try:
            body = await self._read(root, pieces, turn.waited) if pieces else b""
        except BlobUnavailable:  # evicted, or completed, while we waited
            body = b""
        except BaseException:
            turn.end()
            raise
        if not body:
            turn.end()
            if seed is not None:
                seed.lost(asker, chosen)
            return wire.MISSING
        if seed is not None:
            seed.given(asker, chosen)

        def sent(delivered: bool) -> None:
            turn.end()
            if delivered:
                self._count(asker, sum(info.span(piece)[1] for piece in pieces))
            # It was cut off: those pieces have not left the house, and somebody else must get them.
            elif seed is not None:
                seed.lost(asker, chosen)

        return SentResponse(body, sent, bulk=True)

    async def _read(self, root: bytes, pieces: list[int], waited: float) -> bytes:
        """The answer with these pieces."""
        header = wire.pieces_header(pieces, waited)
        transfer = self._fetching(root)
        partial: Partial | None = transfer.pieces.partial if transfer and transfer.pieces else None
        return await (partial.read_pieces(pieces, header) if partial else self._store.read_pieces(root, pieces, header))

    def _count(self, peer: Address, size: int) -> None:
        self._sent[peer] = self._sent.get(peer, 0) + size

    def _fetching(self, root: bytes) -> Transfer | None:
        transfer = self._downloads.transfers.get(root)
        return transfer if transfer and transfer.pieces and not self._store.has(root) else None

    def _known(self, root: bytes) -> BlobInfo | None:
        transfer = self._fetching(root)
        return transfer.pieces.partial.info if transfer and transfer.pieces else self._store.info(root)

    def _have(self, root: bytes) -> Flags | None:
        """The map of an incomplete blob; None for a complete one."""
        transfer = self._fetching(root)
        return transfer.have() if transfer else None

    def _seed(self, root: bytes, info: BlobInfo) -> SuperSeed[Address] | None:
        """How we give away a blob of our own, as long as some of it has never left; None if askers choose."""
        # Blobs of fewer pieces are not super-seeded.
        if root in self._fetched or len(info.pieces) < 16 or not self._store.has(root):
            return None
        seed = self._seeds.get(root)
        if seed is None:
            seed = self._seeds[root] = SuperSeed(len(info.pieces), random.getrandbits(32))
        return seed if seed.active else None

    def _burden(self, root: bytes) -> Callable[[Address], float] | None:
        seed = self._seeds.get(root)
        return seed.burden if seed and seed.active else None


def _most(info: BlobInfo) -> int:
    """Pieces sent at once."""
    return max(1, min(wire.MAX_ASKED, MAX_ANSWER // info.piece_size))


MAX_WAIT = 20.0
"""Seconds that a request may wait for its turn."""


class Uploads:
    """limit: bytes per second, 0 for no limit; abreast: answers to a peer that fit into one slot."""

    def __init__(
        self, reciprocity: Reciprocity[Address], slots: int, limit: float, abreast: Callable[[Address], int]
    ) -> None:
        self._queue = UploadQueue(reciprocity, slots=slots, abreast=abreast)
        self._bucket = TokenBucket(limit, limit / 4) if limit > 0 else None
        self._granted: dict[UploadTicket[Address], trio.Event] = {}
        self._burdens: dict[UploadTicket[Address], Callable[[Address], float]] = {}

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    @property
    def choke_seconds(self) -> float:
        """When somebody who is choked should ask again."""
        return self._queue.choke_seconds()

    async def turn(
        self, peer: Address, size: int, burden: Callable[[Address], float] | None = None
    ) -> UploadTurn | None:
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
        return UploadTurn(trio.current_time() - ticket.at, lambda: self._end(ticket))

    async def _wait(self, granted: trio.Event) -> bool:
        self._grant()
        with trio.move_on_after(MAX_WAIT):
            while not granted.is_set():
                with trio.move_on_after(1.0):  # seconds between two looks for slots that stalled takers hold
                    await granted.wait()
                self._grant()
        return granted.is_set()

    def _grant(self) -> None:
        burden = self._burden if self._burdens else None
        while (ticket := self._queue.next(trio.current_time(), burden)) is not None:
            self._granted[ticket].set()

    def _burden(self, ticket: UploadTicket[Address]) -> float:
        burden = self._burdens.get(ticket)
        return burden(ticket.peer) if burden else 0.0

    def _end(self, ticket: UploadTicket[Address]) -> None:
        self._queue.withdraw(ticket, trio.current_time())
        self._granted.pop(ticket, None)
        self._burdens.pop(ticket, None)
        self._grant()
