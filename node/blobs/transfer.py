"""One blob on its way: the piece list first, checked against the root, then pieces from many sources at once.

Wrong bytes blame their sender at once: its other requests are dropped and go elsewhere. What has arrived survives a
restart.

Knows tasks, requests and the clock. Whom to ask stands in `circle`, what for in `pieces`; which piece to ask of whom is
decided by `scheduling.download`.
"""

import msgspec
import structlog
import trio

from node.blobs import wire as wire
from node.blobs.circle import GIVE_UP_AFTER, Circle, Reputation
from node.blobs.errors import BlobTooLarge, BlobUnavailable
from node.blobs.headway import BlobProgress, Headway
from node.blobs.pieces import PieceDownloads, RequestPace, read_map
from node.blobs.scheduling.bitfield import Flags
from node.blobs.scheduling.upload import Reciprocity
from node.blobs.store import BlobStore
from node.bounded_dict import BoundedDict
from node.changes import every
from node.network.budget import TokenBucket
from node.network.errors import NetworkError, PeerMisbehaved, PeerUnavailable
from node.network.interface import Network
from protocol.blobs import BlobInfo, decode_info
from protocol.errors import UNREADABLE, ProtocolError
from protocol.identity import Address

log = structlog.get_logger(__name__)


MAX_PEERS = 1024
"""Of whom it is remembered how much they gave."""
STAGGER = 0.3
"""Seconds between asking one source for the piece list and asking the next one, too."""
TICK = 0.1
MAX_IN_FLIGHT = 32 * 1024**2
"""Bytes asked for by this node at once, over all blobs: bounds memory."""
SMALL = 4 * 1024**2
"""Blobs up to this size never wait for more urgent ones."""


class Downloads:
    """What a node's transfers share: whom to trust, how much may be asked for at once, and which blob goes first."""

    def __init__(self, network: Network, store: BlobStore, download_limit: float) -> None:
        self.network = network
        self.store = store
        self.reputation = Reputation()
        self.reciprocity: Reciprocity[Address] = Reciprocity()
        self.pace = RequestPace()
        self.received = BoundedDict[Address, int](MAX_PEERS, refresh=True)
        self.in_flight = 0
        self.transfers: dict[bytes, Transfer] = {}
        self._bucket = TokenBucket(download_limit, download_limit / 4) if download_limit > 0 else None

    def admits(self, transfer: "Transfer", now: float) -> bool:
        """Whether `transfer` may send another request."""
        if self._bucket is not None and self._bucket.delay(now) > 0:
            return False
        # A transfer without any request may always send one, or a large blob could starve the others.
        if self.in_flight >= MAX_IN_FLIGHT and transfer.in_flight:
            return False
        # Rollout files and manifests are small and hold up a step; they do not wait behind an image.
        return transfer.size <= SMALL or not any(
            other.priority > transfer.priority and other.urgent(now) for other in self.transfers.values()
        )

    def asked(self, size: int) -> None:
        self.in_flight += size
        if self._bucket is not None:
            self._bucket.charge(size)

    def answered(self, size: int) -> None:
        self.in_flight -= size

    def got(self, source: Address, size: int, now: float) -> None:
        self.reputation.delivered(source)
        self.reciprocity.received(source, size, now)
        self.received[source] = self.received.get(source, 0) + size


class Transfer:
    """The fetching of one blob, for any number of callers. priority: the higher goes first."""

    def __init__(self, downloads: Downloads, root: bytes, max_size: int, priority: int) -> None:
        self.root = root
        self.priority = priority
        self.pieces: PieceDownloads | None = None
        """None before the piece list is known."""
        self.nursery: trio.Nursery | None = None
        self.ended = trio.Event()
        self.circle = Circle(downloads.network, downloads.reputation, self._begins, self._leaves)
        self.headway = Headway(self.progress, trio.current_time())
        self._downloads = downloads
        self._max_size = max_size
        self._whole: BlobInfo | None = None
        """Of a blob that came in one go, with its list."""
        self._named = False
        """Whether somebody has named the list."""
        self._failure: NetworkError | None = None
        self._news = trio.Event()
        self._opening = trio.Lock()

    # -- what others may ask and say ---------------------------------------------------------------

    @property
    def size(self) -> int:
        info = self._whole or (self.pieces.partial.info if self.pieces else None)
        return info.size if info else 0

    @property
    def in_flight(self) -> int:
        return self.pieces.in_flight if self.pieces else 0

    def urgent(self, now: float) -> bool:
        """Whether it needs the line, and uses it."""
        return self.size > SMALL and not self._done() and self.headway.moves(now)

    def have(self) -> Flags | None:
        """The map of what is here; None before the piece list is known."""
        return self.pieces.plan.have if self.pieces else None

    def told(self, source: Address, have: Flags) -> None:
        """Another node that fetches this blob says what it has."""
        if self.circle.join(source) and self.pieces is not None:
            self.pieces.heard(source, have, chooses=False)

    def progress(self, rate: float = 0.0) -> BlobProgress | None:
        """How far it is by now; None before its size is known."""
        if self._whole is not None:
            return BlobProgress(self.root, self.size, self.size, rate, 0)
        if self.pieces is None:
            return None
        plan = self.pieces.plan
        return BlobProgress(self.root, self.size, plan.done, rate, plan.delivering())

    # -- the story ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Return when the blob is complete. Raises BlobTooLarge, StoreFull; waits, otherwise, to be cancelled."""
        started = trio.current_time()
        info = self._downloads.store.partial_info(self.root)
        if info is not None:
            if info.size > self._max_size:
                raise BlobTooLarge(self.root, info.size, self._max_size)
            await self._open(info)
        if not self._done():
            await self._gather()
        if self._failure is not None:
            raise self._failure
        if self._whole is None:
            if self.pieces is None:
                raise BlobUnavailable(self.root, "no source named its pieces")
            await self._downloads.store.finish(self.pieces.partial)
        self.headway.report(trio.current_time(), force=True)
        seconds, sources = round(trio.current_time() - started, 3), len(self.circle.contacts)
        log.info("blob.fetched", root=self.root.hex(), size=self.size, seconds=seconds, sources=sources)

    def end(self) -> None:
        """Wake everybody who waits for this transfer."""
        if self.pieces is not None:
            self.pieces.partial.close()
        self.ended.set()

    async def _gather(self) -> None:
        async with trio.open_nursery() as self.nursery:
            for rank, source in enumerate(self.circle.contacts):
                self._seek(source, STAGGER * rank)
            self.nursery.start_soon(self._tick)
            while not self._done():
                await self._news.wait()
            # Requests that are still under way would bring pieces that are here already.
            self.nursery.cancel_scope.cancel()
        self.nursery = None

    async def _tick(self) -> None:
        def look() -> None:
            now, pieces = trio.current_time(), self.pieces
            if pieces is not None:
                pieces.tell_around(now)
            for source in self.circle.rotate(self._busy):
                self._seek(source, 0.0)
            if pieces is not None:
                for source in list(self.circle.contacts):
                    pieces.ask(source)
            self.headway.report(now)

        await every(TICK, look)

    def _done(self) -> bool:
        if self._failure is not None or self._whole is not None:
            return True
        return self.pieces is not None and self.pieces.plan.complete

    def wake(self) -> None:
        """Something happened: whoever waits looks again."""
        # A new event before anybody runs: a waiter that looks again and waits must not find the old one set.
        self._news.set()
        self._news = trio.Event()

    # -- sources -----------------------------------------------------------------------------------

    def _begins(self, source: Address, rank: int) -> None:
        if self.pieces is not None:
            self.pieces.plan.add(source)
        self._seek(source, STAGGER * rank)

    def _leaves(self, source: Address) -> None:
        if self.pieces is not None:
            self.pieces.leave(source)

    def _busy(self, source: Address) -> bool:
        contact = self.circle.contacts[source]
        return contact.telling or contact.seeking or bool(self.pieces and self.pieces.plan.busy(source))

    def may_ask(self, now: float) -> bool:
        return self._downloads.admits(self, now)

    def judge(self, source: Address, error: Exception) -> None:
        """Whose fault an error is decides what follows; one that nobody foresaw is raised again."""
        now = trio.current_time()
        contact = self.circle.contacts.get(source)
        if isinstance(error, wire.Choked):
            if self.pieces is not None:
                self.pieces.plan.close(source, now + error.seconds)
        elif isinstance(error, BlobUnavailable):
            if contact is not None:
                contact.missed(now)
        elif isinstance(error, PeerUnavailable):
            self._downloads.reputation.failed(source, now)
        elif isinstance(error, (PeerMisbehaved, ProtocolError, *UNREADABLE)):
            self.blame(source, str(error))
        elif isinstance(error, NetworkError):  # ours: the store is full, the blob is too large
            # No source is at fault, so asking the next one would end the same way.
            self._failure = error
            self.wake()
        else:
            raise error

    def blame(self, source: Address, why: str) -> None:
        """It lied: nothing more is asked of it for a while, and what it was asked for goes to others at once."""
        now = trio.current_time()
        seconds = self._downloads.reputation.lied(source, now)
        log.warning("blob.bad_source", peer=source, root=self.root.hex(), why=why, banned_seconds=seconds)
        if self.pieces is not None:
            self.pieces.close(source, now + seconds)

    # -- the piece list ----------------------------------------------------------------------------

    def _seek(self, source: Address, delay: float) -> None:
        if self.nursery is not None and not self._named and not self.circle.contacts[source].seeking:
            self.circle.contacts[source].seeking = True
            self.nursery.start_soon(self._seek_info, source, delay)

    async def _seek_info(self, source: Address, delay: float) -> None:
        """Ask `source` for the piece list until somebody has named it."""
        contacts = self.circle.contacts
        with trio.move_on_after(delay):
            while not self._named:
                await self._news.wait()
        while not self._named and source in contacts:
            now = trio.current_time()
            ready = max(contacts[source].retry_at, self._downloads.reputation.ready_at(source, now))
            if ready > now:
                with trio.move_on_after(ready - now):
                    await self._news.wait()
                continue
            try:
                await self._ask_info(source)
            except Exception as error:
                self.judge(source, error)
            if not self._named and contacts[source].misses >= GIVE_UP_AFTER:
                break
        if source in contacts:
            contacts[source].seeking = False

    async def _ask_info(self, source: Address) -> None:
        answer = await self.request(source, wire.AskInfo(self.root), wire.ANSWER_LIMIT, 20.0)
        said = msgspec.msgpack.decode(answer, type=wire.HaveInfo)
        # Raises unless the list hashes to the root, so nothing that follows depends on the source's honesty.
        info = decode_info(said.info, self.root)
        have = read_map(said.have, info)
        if info.size > self._max_size:
            raise BlobTooLarge(self.root, info.size, self._max_size)
        if said.data and await self._take_whole(source, info, said.data):
            return
        pieces = await self._open(info)
        if said.data:
            await pieces.take_whole(source, said.data)
        pieces.heard(source, have, chooses=said.chooses)
        if not self._done():
            pieces.tell_around(trio.current_time())
        self.wake()

    async def _take_whole(self, source: Address, info: BlobInfo, data: bytes) -> bool:
        """A small blob that came with its list, in one job; False where some of it was here before."""
        # Compared with the promised size before hashing: a larger body would be hashed for nothing.
        if len(data) != info.size:
            raise PeerMisbehaved(source, f"{len(data)} bytes for a blob of {info.size}")
        async with self._opening:
            if self.pieces is None and self._whole is None:
                if not await self._downloads.store.take_whole(info, memoryview(data)):
                    raise PeerMisbehaved(source, "the blob it sent has another hash")
                self._whole, self._named = info, True
                self._downloads.got(source, len(data), trio.current_time())
                self.wake()
        return self._whole is not None

    async def _open(self, info: BlobInfo) -> PieceDownloads:
        async with self._opening:  # several sources may name the list at once
            if self.pieces is None:
                partial = await self._downloads.store.open_partial(info)
                self.pieces = PieceDownloads(self, self._downloads, self.circle, self.headway, partial)
                self._named = True
                self.headway.begins(trio.current_time())
            return self.pieces

    async def request(self, source: Address, ask: wire.Request, limit: int, timeout: float) -> memoryview:
        request = msgspec.msgpack.encode(ask)
        answer = await self._downloads.network.request(
            source, wire.PROTOCOL, request, max_response=limit + 1, timeout=timeout
        )
        return wire.read_answer(answer, source, self.root)
