"""One blob on its way: the piece list first, checked against the root, then pieces from many sources at once.

Every piece is hashed before it counts. Wrong bytes blame their sender at once: its other requests are dropped and
go elsewhere. Sources that fetch the same blob tell each other what they have. What has arrived survives a restart.

Knows tasks, requests and the clock; which piece to ask of whom is decided by `scheduling.download`.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import structlog
import trio

from node.blobs import wire as wire
from node.blobs.errors import BlobTooLarge, BlobUnavailable
from node.blobs.partial import Partial
from node.blobs.scheduling import bitfield
from node.blobs.scheduling.bitfield import Flags
from node.blobs.scheduling.download import Download, Flight
from node.blobs.scheduling.upload import Reciprocity
from node.blobs.store import BlobStore
from node.network.budget import TokenBucket
from node.network.errors import NetworkError, PeerMisbehaved, PeerUnavailable, RequestTimedOut
from node.network.interface import Network
from node.recent import Recent
from protocol.blobs import BlobInfo, decode_info
from protocol.errors import UNREADABLE, ProtocolError
from protocol.identity import Address

log = structlog.get_logger(__name__)


MAX_ACTIVE = 24
"""Sources that are asked at once; more may join by telling us that they fetch the same."""
MAX_RELAYED = 4
"""Sources up to which one behind a relay is asked, too."""
MAX_JOINED = 40
MAX_CANDIDATES = 1024
INFO_TIMEOUT = 20.0
TELL_TIMEOUT = 10.0
STAGGER = 0.3
"""Seconds between asking one source for the piece list and asking the next one, too."""
RUN_TIMEOUT = (60.0, 120.0)
"""Seconds that a request may take, at least and at most; between them, it depends on the usual pace. The first two
pieces, side by side, take 40 s at 13 KB/s, which is one connection at 5 % loss and 300 ms."""
TICK = 0.1
TELL_EVERY = 0.5
"""Seconds between two exchanges of maps with a source, for a blob of few pieces; more with many."""
TELL_PIECES = 8192
MISSED = (0.25, 10.0)
"""Seconds that a source which lacks the blob is left alone: at first, and at most."""
GIVE_UP_AFTER = 4
"""Misses after which a source makes room for one that was not tried."""
MAX_IN_FLIGHT = 32 * 1024**2
"""Bytes asked for by this node at once, over all blobs: bounds memory."""
LANE_DEPTH = 2
"""Requests in flight for each lane: one is sent while the next is on its way."""
SMALL = 4 * 1024**2
"""Blobs up to this size never wait for more urgent ones."""
HEADWAY = 2.0
"""Seconds without a new piece after which an urgent blob no longer holds up the others."""
REPORT_EVERY = 0.2
RATE_WINDOW = 3.0
UNITS = ((10**9, "GB"), (10**6, "MB"), (1000, "kB"), (1, "bytes"))


class Progress(msgspec.Struct, frozen=True):
    """How far a blob is. size, done: bytes; rate: bytes per second; peers: sources that are delivering."""

    root: bytes
    size: int
    done: int
    rate: float
    peers: int


Report = Callable[[Progress], None]


class Pace:
    """How long a request usually takes here: on a busy machine nothing is late that would be late on an idle one."""

    def __init__(self) -> None:
        self._usual = 0.0

    def took(self, seconds: float) -> None:
        self._usual = 0.8 * self._usual + 0.2 * seconds

    @property
    def timeout(self) -> float:
        # Ten times the usual: on a machine with much other work nothing is late that everything there would be.
        return min(RUN_TIMEOUT[1], max(RUN_TIMEOUT[0], 10 * self._usual))


class Downloads:
    """What a node's transfers share: whom to trust, how much may be asked for at once, and which blob goes first."""

    def __init__(self, network: Network, store: BlobStore, download_limit: float) -> None:
        self.network = network
        self.store = store
        self.reputation = Reputation()
        self.reciprocity: Reciprocity[Address] = Reciprocity()
        self.pace = Pace()
        self.received = Recent[Address, int](MAX_CANDIDATES, refresh=True)
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


class _Contact:
    """When we last heard from a source about this blob, and how often it did not have it."""

    def __init__(self) -> None:
        self.heard_at = float("-inf")
        self.retry_at = float("-inf")
        self.misses = 0
        self.telling = False
        self.seeking = False

    def missed(self, now: float) -> None:
        if now < self.retry_at:
            # Several answers of one moment are one miss, or eight parallel requests would pause it for ten seconds.
            return  # requests that were under way together count once
        self.retry_at = now + min(MISSED[1], MISSED[0] * 2.0 ** min(self.misses, 16))
        self.misses += 1


class Transfer:
    """The fetching of one blob, for any number of callers. priority: the higher goes first."""

    def __init__(self, downloads: Downloads, root: bytes, max_size: int, priority: int) -> None:
        self.root = root
        self.priority = priority
        self.partial: Partial | None = None
        self.ended = trio.Event()
        self._downloads = downloads
        self._max_size = max_size
        self._download: Download[Address] | None = None
        self._candidates: dict[Address, None] = {}
        self._contacts: dict[Address, _Contact] = {}  # the active sources
        self._scopes: dict[Flight[Address], trio.CancelScope] = {}
        self._reports: list[Report] = []
        self._reported_at = float("-inf")
        self._arrivals: list[tuple[float, int]] = []
        self._headway_at = trio.current_time()
        self._failure: NetworkError | None = None
        self._news = trio.Event()
        self._opening = trio.Lock()
        self._taking = 0
        self._nursery: trio.Nursery | None = None

    # -- what others may ask and say ---------------------------------------------------------------

    @property
    def size(self) -> int:
        return self.partial.info.size if self.partial else 0

    @property
    def in_flight(self) -> int:
        return len(self._scopes)

    def urgent(self, now: float) -> bool:
        """Whether it needs the line, and uses it."""
        return self.size > SMALL and not self._done() and now - self._headway_at < HEADWAY

    def have(self) -> Flags | None:
        """The map of what is here; None before the piece list is known."""
        return self._download.have if self._download else None

    def add(self, sources: Iterable[Address]) -> None:
        """Use these sources, too: the first for sure, of the others as many as there is room for, at random; those
        that only a relay leads to last, and few of them: what is carried costs somebody else's line."""
        own, relayed = self._downloads.network.address, self._downloads.network.relayed()
        new = [source for source in dict.fromkeys(sources) if source != own and source not in self._candidates]
        # The first source is who named the blob and surely has it; shuffled, it might be the last one asked.
        tail = new[1:] if not self._candidates else new
        random.shuffle(tail)
        tail.sort(key=lambda source: source in relayed)
        for source in new[: len(new) - len(tail)] + tail:
            if len(self._candidates) < MAX_CANDIDATES:
                self._candidates[source] = None
                if len(self._contacts) < (MAX_RELAYED if source in relayed else MAX_ACTIVE):
                    self._activate(source)

    def listen(self, report: Report) -> None:
        self._reports.append(report)

    def unlisten(self, report: Report) -> None:
        if report in self._reports:
            self._reports.remove(report)

    def told(self, source: Address, have: Flags) -> None:
        """Another node that fetches this blob says what it has."""
        if source not in self._contacts:
            # Anybody may tell us a map: without this bound strangers would fill the table of sources.
            if len(self._contacts) >= MAX_JOINED:
                return
            self._activate(source)
        self._heard(source, have, chooses=False)

    # -- the story ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Return when the blob is complete. Raises BlobTooLarge, StoreFull; waits, otherwise, to be cancelled."""
        started = trio.current_time()
        info = self._downloads.store.partial_info(self.root)
        if info is not None:
            self._check_size(info)
            await self._open(info)
        if not self._done():
            await self._gather()
        if self._failure is not None:
            raise self._failure
        if self.partial is None:
            raise BlobUnavailable(self.root, "no source named its pieces")
        await self._downloads.store.finish(self.partial)
        self._report(trio.current_time(), force=True)
        seconds = round(trio.current_time() - started, 3)
        log.info("blob.fetched", root=self.root.hex(), size=self.size, seconds=seconds, sources=len(self._contacts))

    def end(self) -> None:
        """Wake everybody who waits for this transfer."""
        if self.partial is not None:
            self.partial.close()
        self.ended.set()

    async def _gather(self) -> None:
        async with trio.open_nursery() as self._nursery:
            for rank, source in enumerate(self._contacts):
                self._seek(source, STAGGER * rank)
            self._nursery.start_soon(self._tick)
            while not self._done():
                await self._news.wait()
            # Requests that are still under way would bring pieces that are here already.
            self._nursery.cancel_scope.cancel()
        self._nursery = None

    async def _tick(self) -> None:
        while True:
            now = trio.current_time()
            self._tell_around(now)
            self._rotate(now)
            for source in list(self._contacts):
                self._ask(source)
            self._report(now)
            await trio.sleep(TICK)

    def _done(self) -> bool:
        return self._failure is not None or (self._download is not None and self._download.complete)

    def _wake(self) -> None:
        """Something happened: whoever waits looks again."""
        self._news.set()
        self._news = trio.Event()

    # -- sources -----------------------------------------------------------------------------------

    def _activate(self, source: Address) -> None:
        self._candidates.setdefault(source, None)
        self._contacts[source] = _Contact()
        if self._download is not None:
            self._download.add(source)
        self._seek(source, STAGGER * len(self._contacts))

    def _rotate(self, now: float) -> None:
        """A source that keeps missing the blob makes room for one that was not tried."""
        spare = [each for each in self._candidates if each not in self._contacts]
        useless = [each for each, contact in self._contacts.items() if contact.misses >= GIVE_UP_AFTER]
        if spare and useless and not self._busy(useless[0]):
            # Only an idle one is dropped: the answer to a request under way may be the piece list.
            self._drop(useless[0])
            del self._candidates[useless[0]]
            # Not forgotten: it may have the blob later, for instance a peer that is fetching it now.
            self._candidates[useless[0]] = None  # to the end of the line
            self._activate(spare[0])
        elif not spare:
            # Nobody else is left to try: these are asked again, each once its pause is over.
            for source in useless:
                self._seek(source, 0.0)

    def _busy(self, source: Address) -> bool:
        contact = self._contacts[source]
        return contact.telling or contact.seeking or bool(self._download and self._download.busy(source))

    def _drop(self, source: Address) -> None:
        del self._contacts[source]
        if self._download is not None:
            for flight in self._download.remove(source):
                self._scopes[flight].cancel()

    def _heard(self, source: Address, have: Flags, *, chooses: bool) -> None:
        contact = self._contacts.get(source)
        if contact is None or self._download is None:
            return
        contact.heard_at = trio.current_time()
        contact.misses = 0
        contact.retry_at = float("-inf")
        self._download.add(source)
        self._download.learn(source, have, chooses=chooses)
        self._ask(source)

    def _ready(self, source: Address, now: float) -> bool:
        contact = self._contacts.get(source)
        return (
            contact is not None and contact.retry_at <= now and self._downloads.reputation.ready_at(source, now) <= now
        )

    def _judge(self, source: Address, error: Exception) -> None:
        """Whose fault an error is decides what follows; one that nobody foresaw is raised again."""
        now = trio.current_time()
        contact = self._contacts.get(source)
        if isinstance(error, wire.Choked):
            if self._download is not None:
                self._download.close(source, now + error.seconds)
        elif isinstance(error, BlobUnavailable):
            if contact is not None:
                contact.missed(now)
        elif isinstance(error, PeerUnavailable):
            self._downloads.reputation.failed(source, now)
        elif isinstance(error, (PeerMisbehaved, ProtocolError, *UNREADABLE)):
            self._blame(source, str(error))
        elif isinstance(error, NetworkError):  # ours: the store is full, the blob is too large
            # No source is at fault, so asking the next one would end the same way.
            self._failure = error
            self._wake()
        else:
            raise error

    def _blame(self, source: Address, why: str) -> None:
        """It lied: nothing more is asked of it for a while, and what it was asked for goes to others at once."""
        now = trio.current_time()
        seconds = self._downloads.reputation.lied(source, now)
        log.warning("blob.bad_source", peer=source, root=self.root.hex(), why=why, banned_seconds=seconds)
        if self._download is not None:
            self._download.close(source, now + seconds)
        for flight, scope in self._scopes.items():
            if flight.source == source:
                scope.cancel()

    # -- the piece list ----------------------------------------------------------------------------

    def _seek(self, source: Address, delay: float) -> None:
        if self._nursery is not None and self.partial is None and not self._contacts[source].seeking:
            self._contacts[source].seeking = True
            self._nursery.start_soon(self._seek_info, source, delay)

    async def _seek_info(self, source: Address, delay: float) -> None:
        """Ask `source` for the piece list until somebody has named it."""
        with trio.move_on_after(delay):
            while self.partial is None:
                await self._news.wait()
        while self.partial is None and source in self._contacts:
            now = trio.current_time()
            ready = max(self._contacts[source].retry_at, self._downloads.reputation.ready_at(source, now))
            if ready > now:
                with trio.move_on_after(ready - now):
                    await self._news.wait()
                continue
            try:
                await self._ask_info(source)
            except Exception as error:
                self._judge(source, error)
            if self.partial is None and self._contacts[source].misses >= GIVE_UP_AFTER:
                break
        if source in self._contacts:
            self._contacts[source].seeking = False

    async def _ask_info(self, source: Address) -> None:
        answer = await self._request(source, wire.AskInfo(self.root), wire.ANSWER_LIMIT, INFO_TIMEOUT)
        said = msgspec.msgpack.decode(answer, type=wire.HaveInfo)
        # Raises unless the list hashes to the root, so nothing that follows depends on the source's honesty.
        info = decode_info(said.info, self.root)
        self._check_size(info)
        have = _read_map(said.have, info)
        await self._open(info)
        if said.data and self.partial is not None:
            await self._take_whole(source, info, said.data)
        self._heard(source, have, chooses=said.chooses)
        if not self._done():
            self._tell_around(trio.current_time())
        self._wake()

    async def _take_whole(self, source: Address, info: BlobInfo, data: bytes) -> None:
        """A small blob that came with its list."""
        # Compared with the promised size before hashing: a larger body would be hashed for nothing.
        if self.partial is None or self._download is None or len(data) != info.size:
            raise PeerMisbehaved(source, f"{len(data)} bytes for a blob of {info.size}")
        self._taking += 1
        try:
            good = await self.partial.write_pieces(range(len(info.pieces)), memoryview(data))
        finally:
            self._taking -= 1
        self._download.take(good)
        self._downloads.got(source, len(data), trio.current_time())
        if len(good) < len(info.pieces):
            raise PeerMisbehaved(source, "the blob it sent has another hash")

    def _check_size(self, info: BlobInfo) -> None:
        if info.size > self._max_size:
            raise BlobTooLarge(self.root, info.size, self._max_size)

    async def _open(self, info: BlobInfo) -> None:
        async with self._opening:  # several sources may name the list at once
            if self.partial is not None:
                return
            partial = await self._downloads.store.open_partial(info)
            self._download = Download(info.size, info.piece_size, partial.flags(), random.getrandbits(32))
            for source in self._contacts:
                self._download.add(source)
            self.partial = partial
        self._headway_at = trio.current_time()

    # -- maps --------------------------------------------------------------------------------------

    def _tell_around(self, now: float) -> None:
        # While a whole blob is written, what others have of it matters to nobody.
        if self._download is None or self._nursery is None or self._taking:
            return
        every = TELL_EVERY * (1 + len(self._download.have) // TELL_PIECES)
        for source, contact in self._contacts.items():
            if contact.telling or not self._ready(source, now) or self._download.settled(source):
                continue
            idle = not self._download.busy(source)
            if now - contact.heard_at >= (every / 2 if idle else every):
                contact.telling = True
                self._nursery.start_soon(self._tell, source, contact)

    async def _tell(self, source: Address, contact: _Contact) -> None:
        """Say what we have, and hear what it has."""
        if self._download is None or self.partial is None:
            return
        try:
            tell = wire.Tell(self.root, bitfield.pack(self._download.have))
            answer = await self._request(source, tell, wire.MAX_MAP + 64, TELL_TIMEOUT)
            said = msgspec.msgpack.decode(answer, type=wire.HaveMap)
            self._heard(source, _read_map(said.have, self.partial.info), chooses=said.chooses)
        except Exception as error:
            self._judge(source, error)
        finally:
            contact.telling = False

    # -- pieces ------------------------------------------------------------------------------------

    def _ask(self, source: Address) -> None:
        """Send `source` as many requests as it should have now."""
        now = trio.current_time()
        if self._download is None or self._nursery is None or not self._ready(source, now):
            return
        # Without requests on every lane the extra connections of a lossy path would stay idle (network.md).
        if lanes := self._downloads.network.lanes(source):
            self._download.spread(source, lanes, LANE_DEPTH * lanes)
        while self._downloads.admits(self, now):
            flight = self._download.plan(source, now)
            if flight is None:
                return
            self._scopes[flight] = trio.CancelScope()
            self._downloads.asked(flight.size)
            self._nursery.start_soon(self._fly, flight)

    async def _fly(self, flight: Flight[Address]) -> None:
        """One request for pieces, from sending it to the pieces being on disk."""
        with self._under_way(flight) as scope, scope:
            try:
                await self._deliver(flight)
            except Exception as error:
                self._missed(flight, error)
                # A super-seeder that answers AskAny with nothing has only stopped choosing for us.
                if len(flight.pieces) or not isinstance(error, BlobUnavailable):  # it chooses no longer: no fault
                    self._judge(flight.source, error)
        self._ask(flight.source)
        if self._done():
            self._wake()

    @contextmanager
    def _under_way(self, flight: Flight[Address]) -> Iterator[trio.CancelScope]:
        try:
            yield self._scopes[flight]
        finally:
            del self._scopes[flight]
            self._downloads.answered(flight.size)
            if self._download is not None:
                # Its pieces go back to be asked of others, also where the request was cancelled.
                self._download.failed(flight)  # nothing to do if it has landed

    def _missed(self, flight: Flight[Address], error: Exception) -> None:
        """It has not got those pieces: its map was wrong, or it no longer chooses."""
        if self._download is None:
            return
        if isinstance(error, BlobUnavailable):
            self._download.lacks(flight)
        elif isinstance(error, RequestTimedOut):
            self._download.slowed(flight, trio.current_time())

    async def _deliver(self, flight: Flight[Address]) -> None:
        if self.partial is None or self._download is None:
            return
        info, source = self.partial.info, flight.source
        body = await self._ask_pieces(flight, info)
        pieces, data, waited = wire.read_pieces(body, info, flight.pieces, flight.count, source)
        good = await self.partial.write_pieces(pieces, data)
        now = trio.current_time()
        new = sum(info.span(piece)[1] for piece in good if not self._download.have[piece])
        # The same pieces may have been asked of a second source in the endgame: whoever was first cancels the other.
        for rival in self._download.landed(flight, good, len(data), waited, now):
            self._scopes[rival].cancel()
        if good:
            self._downloads.got(source, sum(info.span(piece)[1] for piece in good), now)
        if new:
            self._headway_at = now
            self._arrivals.append((now, new))
        if len(good) < len(pieces):
            bad = sorted(set(pieces) - set(good))
            # The good pieces before it count: the sender is banned, its honest bytes are not fetched twice.
            self._blame(source, f"piece {bad[0]} has another hash")

    async def _ask_pieces(self, flight: Flight[Address], info: BlobInfo) -> memoryview:
        if len(flight.pieces):
            ask: wire.Request = wire.AskPieces(self.root, tuple(flight.pieces.tolist()))
        else:
            skip = bitfield.pack(self._download.skip()) if self._download else b""
            ask = wire.AskAny(self.root, flight.count, skip)
        started, timeout = trio.current_time(), self._downloads.pace.timeout
        try:
            body = await self._request(flight.source, ask, wire.answer_limit(info, flight.count), timeout)
        except RequestTimedOut:
            # A timeout says only "longer than this". Counted as twice, it makes the next ones more patient.
            self._downloads.pace.took(2 * timeout)
            raise
        self._downloads.pace.took(trio.current_time() - started)
        return body

    async def _request(self, source: Address, ask: wire.Request, limit: int, timeout: float) -> memoryview:
        request = msgspec.msgpack.encode(ask)
        answer = await self._downloads.network.request(
            source, wire.PROTOCOL, request, max_response=limit + 1, timeout=timeout
        )
        return wire.read_answer(answer, source, self.root)

    # -- progress ----------------------------------------------------------------------------------

    def _report(self, now: float, *, force: bool = False) -> None:
        self._arrivals = [each for each in self._arrivals if now - each[0] <= RATE_WINDOW]
        if not self._reports or (now - self._reported_at < REPORT_EVERY and not force):
            return
        span = max(REPORT_EVERY, now - self._arrivals[0][0]) if self._arrivals else 1.0
        progress = self.progress(sum(size for _, size in self._arrivals) / span)
        if progress is None or (progress.done == progress.size and not force):
            return  # the end is told once
        self._reported_at = now
        for report in self._reports:
            report(progress)

    def progress(self, rate: float = 0.0) -> Progress | None:
        """How far it is by now; None before its size is known."""
        if self._download is None:
            return None
        return Progress(self.root, self.size, self._download.done, rate, self._download.delivering())


def _read_map(data: bytes, info: BlobInfo) -> Flags:
    """A map as it travels: empty for all of the pieces."""
    return bitfield.unpack(data, len(info.pieces)) if data else bitfield.full(len(info.pieces))


FIRST_BAN, LONGEST_BAN = 10.0, 3600.0
"""Seconds for wrong bytes. A lie is no accident: each piece was checked where it was written."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 10.0
"""Seconds for bytes that did not come, which a busy machine or a bad line explains."""
FORGIVEN_AFTER = 6 * 3600.0
MAX_PEERS = 4096


class _Record:
    def __init__(self) -> None:
        self.lies = 0
        self.failures = 0
        self.until = 0.0
        self.seen = 0.0


class Reputation:
    """Per peer: lies (wrong bytes) ban it for long, failures (no bytes) pause it briefly; both double."""

    def __init__(self) -> None:
        self._records = Recent[Address, _Record](MAX_PEERS, refresh=True)

    def lied(self, peer: Address, now: float) -> float:
        """Record wrong bytes; returns the ban in seconds."""
        record = self._record(peer, now)
        record.lies += 1
        ban = min(LONGEST_BAN, FIRST_BAN * 2.0 ** min(record.lies - 1, 16))
        # Doubles up to an hour, which the tenth lie reaches.
        record.until = max(record.until, now + ban)
        return ban

    def failed(self, peer: Address, now: float) -> None:
        """Record that it did not deliver."""
        record = self._record(peer, now)
        record.failures += 1
        record.until = max(record.until, now + min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(record.failures - 1, 16)))

    def delivered(self, peer: Address) -> None:
        """Record good bytes: its failures (not its lies) are forgotten."""
        if peer in self._records:
            self._records[peer].failures = 0

    def ready_at(self, peer: Address, now: float) -> float:
        """When it may be asked again; not after `now` if at once."""
        record = self._records.get(peer)
        if record is None or now - record.seen > FORGIVEN_AFTER:
            return now
        return max(now, record.until)

    def lies(self, peer: Address) -> int:
        """How often it has sent wrong bytes."""
        record = self._records.get(peer)
        return record.lies if record else 0

    def liars(self) -> frozenset[Address]:
        """Who has sent wrong bytes."""
        return frozenset(peer for peer, record in self._records.items() if record.lies)

    def _record(self, peer: Address, now: float) -> _Record:
        record = self._records.get(peer)
        if record is None or now - record.seen > FORGIVEN_AFTER:
            record = _Record()
        record.seen = now
        self._records[peer] = record
        return record


def describe(transfers: Sequence[Progress], members: int) -> str:
    """Several transfers for people: '38 of 120 MB from 3 members', or how many members are asked before any bytes."""
    total, done = sum(one.size for one in transfers), sum(one.done for one in transfers)
    givers = max((one.peers for one in transfers), default=0)
    count = max(givers, 1) if done else members
    told = f"{count} member" if count == 1 else f"{count} members"
    if not done:
        return f"asking {told}"
    unit, name = next(each for each in UNITS if total >= each[0])
    digits = 1 if unit == 10**9 else 0
    return f"{done / unit:.{digits}f} of {total / unit:.{digits}f} {name} from {told}"


def fraction(transfers: Sequence[Progress]) -> float | None:
    """0 to 1 over all of them; None while no size is known."""
    total = sum(one.size for one in transfers)
    return sum(one.done for one in transfers) / total if total else None
