"""Fetch blobs from whoever has them, and serve ours.

A blob's piece list comes first and is checked against the root; then runs of pieces are asked of
several sources at once, and each piece is checked by its hash before it counts. Wrong bytes blame
their sender and are fetched elsewhere. What has arrived is served on at once, and survives a
restart. Any number of callers that want the same blob share one transfer.

Requests on `PROTOCOL` (msgpack): AskInfo, AskPieces. Answers: one byte, 0 for "I do not have that",
1 otherwise; then for AskInfo a HaveInfo, for AskPieces at least one piece, perhaps fewer than asked.
"""

import math
import random
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import structlog
import trio

from node.network.errors import (
    BlobTooLarge,
    BlobUnavailable,
    NetworkError,
    PeerMisbehaved,
    PeerUnavailable,
    RequestTimedOut,
)
from node.network.interface import Network
from node.network.reputation import Reputation
from node.network.store import BlobStore, Partial
from protocol.blobs import MAX_BLOB_SIZE, MAX_INFO_BYTES, MAX_PIECES, BlobInfo, decode_info, encode_info
from protocol.errors import ProtocolError
from protocol.identity import Address

log = structlog.get_logger(__name__)

PROTOCOL = "/intellect-node/blob/1"
MAX_REQUEST = 256
RUN_BYTES = 2 * 1024**2
"""Bytes asked for at once (one piece, if a piece is bigger)."""
WORKERS = 4
"""Requests in flight per source."""
MAX_SOURCES = 16
INFO_TIMEOUT = 20.0
STAGGER = 0.3
"""Seconds between asking one source for the piece list and asking the next one, too."""
IMPATIENCE = 2.0
"""Seconds, at least, after which an idle source may fetch, too, what another one is still delivering."""
RUN_TIMEOUT = (30.0, 120.0)
"""Seconds that a run may take, at least and at most; between them, it depends on the usual pace."""
MAX_COPIES = 2
MAX_IN_FLIGHT = 12
"""Runs being fetched by this node at once, over all blobs: bounds memory, and keeps each one swift."""
IDLE = 0.5
"""Seconds after which a source without work looks again by itself."""
REFRESH = 1.0
"""Seconds between two looks at what an incomplete source has."""
_ANSWER_LIMIT = MAX_INFO_BYTES + MAX_PIECES // 8 + 256

_MISSING = b"\x00"
_FOUND = b"\x01"


class AskInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="info"):
    """What is blob `root`, and which of its pieces do you have?"""

    root: bytes


class AskPieces(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="pieces"):
    """Send `count` pieces of `root` from number `first` on."""

    root: bytes
    first: int
    count: int


class HaveInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """info: an encoded BlobInfo; have: a bit per piece, lowest bit first, or empty for all of them."""

    info: bytes
    have: bytes = b""


class BlobExchange:
    """Serves the store's blobs to peers, and fetches what the store lacks."""

    def __init__(self, network: Network, store: BlobStore) -> None:
        self._network = network
        self._store = store
        self._transfers: dict[bytes, _Transfer] = {}
        self._in_flight = trio.CapacityLimiter(MAX_IN_FLIGHT)
        self._pace = _Pace()
        self.reputation = Reputation()
        network.serve(PROTOCOL, self._answer, max_request=MAX_REQUEST)

    async def fetch(
        self, root: bytes, sources: Sequence[Address], *, max_size: int = MAX_BLOB_SIZE, timeout: float
    ) -> Path:
        """The file of blob `root`, after fetching what is missing of it. timeout: seconds.

        Sources that turn out not to have it are asked again, ever less often, until the timeout.
        Raises BlobUnavailable (nobody delivered it in time), BlobTooLarge, StoreFull.
        """
        with trio.move_on_after(timeout):
            while not self._store.has(root):
                transfer = self._transfers.get(root)
                if transfer is None:
                    await self._lead(root, sources, max_size)
                else:
                    transfer.add(sources)
                    await transfer.ended.wait()  # if its leader was cancelled, one of us leads next
        if not self._store.has(root):
            raise BlobUnavailable(root, f"not complete after {timeout:g} s, from {len(sources)} source(s)")
        path = self._store.path(root)
        if (size := path.stat().st_size) > max_size:
            raise BlobTooLarge(root, size, max_size)
        return path

    async def _lead(self, root: bytes, sources: Sequence[Address], max_size: int) -> None:
        transfer = _Transfer(self._network, self._store, self.reputation, self._in_flight, self._pace, root, max_size)
        self._transfers[root] = transfer
        transfer.add(sources)
        try:
            await transfer.run()
        finally:
            del self._transfers[root]
            transfer.end()

    # -- serving -----------------------------------------------------------------------------------

    async def _answer(self, asker: Address, request: bytes) -> bytes:
        ask = msgspec.msgpack.decode(request, type=AskInfo | AskPieces)
        if isinstance(ask, AskInfo):
            return self._info(ask.root)
        return await self._pieces(ask)

    def _info(self, root: bytes) -> bytes:
        info = self._store.info(root)
        if info is not None:
            return _FOUND + msgspec.msgpack.encode(HaveInfo(encode_info(info)))
        partial = self._partial(root)
        if partial is None:
            return _MISSING
        have = _to_bits(partial.have, len(partial.info.pieces))
        return _FOUND + msgspec.msgpack.encode(HaveInfo(encode_info(partial.info), have))

    async def _pieces(self, ask: AskPieces) -> bytes:
        partial = self._partial(ask.root)
        info = partial.info if partial else self._store.info(ask.root)
        if info is None or not 0 <= ask.first < len(info.pieces):
            return _MISSING
        count = min(ask.count, _run_length(info), len(info.pieces) - ask.first)
        if partial is not None:
            count = next((n for n in range(count) if ask.first + n not in partial.have), count)
        if count < 1:
            return _MISSING
        offset = info.span(ask.first)[0]
        length = min(count * info.piece_size, info.size - offset)
        try:
            data = await (partial.read(offset, length) if partial else self._store.read(ask.root, offset, length))
        except BlobUnavailable:
            return _MISSING  # evicted, or completed, while we read
        return _FOUND + data

    def _partial(self, root: bytes) -> Partial | None:
        transfer = self._transfers.get(root)
        return transfer.partial if transfer and not self._store.has(root) else None


class _Pace:
    """How long a run usually takes here: on a busy machine nothing is late that would be late on an idle one."""

    def __init__(self) -> None:
        self._usual = 0.0

    def took(self, seconds: float) -> None:
        self._usual = 0.8 * self._usual + 0.2 * seconds

    @property
    def late(self) -> float:
        return max(IMPATIENCE, 4 * self._usual)

    @property
    def timeout(self) -> float:
        return min(RUN_TIMEOUT[1], max(RUN_TIMEOUT[0], 10 * self._usual))


class _Run:
    """Consecutive pieces that are being fetched, by one source or, when it is slow, by two."""

    def __init__(self, slot: int, first: int, count: int, source: Address, now: float) -> None:
        self.slot = slot
        self.first = first
        self.count = count
        self.sources = {source}
        self.since = now


class _Transfer:
    """One blob on its way."""

    def __init__(
        self,
        network: Network,
        store: BlobStore,
        reputation: Reputation,
        in_flight: trio.CapacityLimiter,
        pace: _Pace,
        root: bytes,
        max_size: int,
    ) -> None:
        self.partial: Partial | None = None
        self.ended = trio.Event()
        self._network = network
        self._store = store
        self._reputation = reputation
        self._in_flight = in_flight
        self._pace = pace
        self._root = root
        self._max_size = max_size
        self._sources: dict[Address, frozenset[int] | None] = {}  # which pieces it has; None: unknown, or all
        self._helpers: dict[Address, int] = {}
        self._slots: deque[int] = deque()  # stretches of _run_length pieces that nobody is fetching
        self._runs: list[_Run] = []  # those that somebody is
        self._failure: NetworkError | None = None
        self._news = trio.Event()
        self._opening = trio.Lock()
        self._nursery: trio.Nursery | None = None

    def add(self, sources: Iterable[Address]) -> None:
        """Use these sources, too."""
        for source in sources:
            if source not in self._sources and source != self._network.address and len(self._sources) < MAX_SOURCES:
                self._sources[source] = None
                self._hire(source)

    def _hire(self, source: Address) -> None:
        if self._nursery is not None:
            rank = list(self._sources).index(source)
            self._nursery.start_soon(self._lead, source, STAGGER * rank)

    async def run(self) -> None:
        """Return when the blob is complete. Raises BlobTooLarge, StoreFull; waits, otherwise, to be cancelled."""
        started = trio.current_time()
        info = self._store.partial_info(self._root)
        if info is not None and info.size > self._max_size:
            raise BlobTooLarge(self._root, info.size, self._max_size)
        if info is not None:
            await self._open(info)
        if self.partial is None or not self.partial.complete:
            await self._gather()
        if self._failure is not None:
            raise self._failure
        if self.partial is None:
            raise BlobUnavailable(self._root, "no source named its pieces")
        path = await self._store.finish(self.partial)
        log.info(
            "blob.fetched",
            root=self._root.hex(),
            size=self.partial.info.size,
            seconds=round(trio.current_time() - started, 3),
            sources=len(self._sources),
            path=path.name,
        )

    def end(self) -> None:
        """Wake everybody who waits for this transfer."""
        if self.partial is not None:
            self.partial.close()
        self.ended.set()

    async def _gather(self) -> None:
        async with trio.open_nursery() as self._nursery:
            for source in self._sources:
                self._hire(source)
            while not self._done():
                await self._news.wait()
            self._nursery.cancel_scope.cancel()
        self._nursery = None

    def _done(self) -> bool:
        return self._failure is not None or (self.partial is not None and self.partial.complete)

    def _tell(self) -> None:
        """Something happened: whoever waits looks again."""
        self._news.set()
        self._news = trio.Event()

    # -- one source --------------------------------------------------------------------------------

    async def _lead(self, source: Address, delay: float) -> None:
        """All that one source is asked for, until the blob is complete: the list if need be, then runs of pieces."""
        with trio.move_on_after(delay):
            while self.partial is None:
                await self._news.wait()
        asked_at = -math.inf
        while not self._done():
            if await self._pause(source):
                continue
            try:
                if self.partial is not None and await self._ask_run(source, self.partial):
                    self._get_help(source, self.partial)
                    continue
                unclear = self.partial is None or self._sources[source] is not None
                if unclear and trio.current_time() - asked_at > REFRESH:
                    asked_at = trio.current_time()
                    await self._ask_info(source)
                    self._tell()
                else:
                    with trio.move_on_after(IDLE):
                        await self._news.wait()
            except BlobUnavailable:  # it has not got those pieces; its list says which it has
                self._reputation.failed(source, trio.current_time())
                self._sources[source] = frozenset()
            except Exception as error:
                self._judge(source, error)

    async def _help(self, source: Address, partial: Partial) -> None:
        """Keep another request under way at a source that delivers, while there is something to ask for."""
        try:
            while not self._done() and self._welcome(source) and await self._ask_run(source, partial):
                pass
        except Exception as error:
            self._judge(source, error)
        finally:
            self._helpers[source] -= 1

    def _get_help(self, source: Address, partial: Partial) -> None:
        if self._nursery is None or not self._welcome(source):
            return
        while self._helpers.get(source, 0) < WORKERS - 1:
            self._helpers[source] = self._helpers.get(source, 0) + 1
            self._nursery.start_soon(self._help, source, partial)

    def _welcome(self, source: Address) -> bool:
        now = trio.current_time()
        return self._reputation.ready_at(source, now) <= now

    async def _pause(self, source: Address) -> bool:
        now = trio.current_time()
        ready = self._reputation.ready_at(source, now)
        await trio.sleep(ready - now)
        return ready > now

    def _judge(self, source: Address, error: Exception) -> None:
        """Whose fault an error is decides what follows; one that nobody foresaw is raised again."""
        if isinstance(error, PeerUnavailable | BlobUnavailable):
            self._reputation.failed(source, trio.current_time())
        elif isinstance(error, PeerMisbehaved | ProtocolError | msgspec.DecodeError):
            self._blame(source, str(error))
        elif isinstance(error, NetworkError):  # ours: the store is full, the blob is too large
            self._failure = error
            self._tell()
        else:
            raise error

    async def _ask_info(self, source: Address) -> bool:
        answer = await self._request(source, AskInfo(self._root), _ANSWER_LIMIT, INFO_TIMEOUT)
        have = msgspec.msgpack.decode(answer, type=HaveInfo)
        info = decode_info(have.info, self._root)
        if info.size > self._max_size:
            raise BlobTooLarge(self._root, info.size, self._max_size)
        self._sources[source] = _from_bits(have.have, len(info.pieces)) if have.have else None
        if self.partial is None:
            await self._open(info)
        return True

    async def _open(self, info: BlobInfo) -> None:
        async with self._opening:  # several sources may name the list at once
            if self.partial is not None:
                return
            self.partial = await self._store.open_partial(info)
        slots = list(range(-(-len(info.pieces) // _run_length(info))))
        random.shuffle(slots)  # so that nodes that fetch at the same time have different pieces to share
        self._slots.extend(slots)

    async def _ask_run(self, source: Address, partial: Partial) -> bool:
        """Fetch the next run from `source`; False if there is none that it could deliver."""
        async with self._in_flight:
            run = self._next_run(source, partial) or self._late_run(source)
            if run is None:
                return False
            try:
                ask = AskPieces(self._root, run.first, run.count)
                data = await self._timed_request(source, ask, run.count * partial.info.piece_size)
                good = await partial.write(run.first, data)
            finally:
                run.sources.discard(source)
                if not run.sources:
                    self._runs.remove(run)
                    self._slots.appendleft(run.slot)
        if good < 1 or len(data) != _length(partial.info, run.first, good):
            self._blame(source, f"piece {run.first + good} has another hash")
        else:
            self._reputation.delivered(source)
        self._tell()
        return True

    async def _timed_request(self, source: Address, ask: AskPieces, limit: int) -> bytes:
        started, timeout = trio.current_time(), self._pace.timeout
        try:
            data = await self._request(source, ask, limit, timeout)
        except RequestTimedOut:
            self._pace.took(2 * timeout)
            raise
        self._pace.took(trio.current_time() - started)
        return data

    def _next_run(self, source: Address, partial: Partial) -> _Run | None:
        """The missing pieces of the next slot of which this source has some."""
        have = self._sources[source]
        size, total = _run_length(partial.info), len(partial.info.pieces)
        for _ in range(len(self._slots)):
            slot = self._slots.popleft()
            missing = [i for i in range(slot * size, min(total, (slot + 1) * size)) if i not in partial.have]
            wanted = [i for i in missing if have is None or i in have]
            if wanted:
                count = next((n for n, i in enumerate(wanted) if i != wanted[0] + n), len(wanted))
                run = _Run(slot, wanted[0], count, source, trio.current_time())
                self._runs.append(run)
                return run
            if missing:
                self._slots.append(slot)
        return None

    def _late_run(self, source: Address) -> _Run | None:
        """What another source has been delivering for too long."""
        have = self._sources[source]
        for run in self._runs:
            late = trio.current_time() - run.since > self._pace.late and len(run.sources) < MAX_COPIES
            if late and source not in run.sources and (have is None or run.first in have):
                run.sources.add(source)
                return run
        return None

    async def _request(self, source: Address, ask: AskInfo | AskPieces, limit: int, timeout: float) -> bytes:
        request = msgspec.msgpack.encode(ask)
        answer = await self._network.request(source, PROTOCOL, request, max_response=limit + 1, timeout=timeout)
        if answer[:1] == _FOUND:
            return answer[1:]
        if answer == _MISSING:
            raise BlobUnavailable(self._root, f"{source} does not have it")
        raise PeerMisbehaved(source, "its answer is neither yes nor no")

    def _blame(self, source: Address, why: str) -> None:
        seconds = self._reputation.lied(source, trio.current_time())
        log.warning("blob.bad_source", peer=source, root=self._root.hex(), why=why, banned_seconds=seconds)


def _run_length(info: BlobInfo) -> int:
    """Pieces asked for, and sent, at once."""
    return max(1, RUN_BYTES // info.piece_size)


def _length(info: BlobInfo, first: int, count: int) -> int:
    """Bytes of `count` pieces from `first` on."""
    offset = info.span(first)[0]
    return min(count * info.piece_size, info.size - offset)


def _to_bits(indices: set[int], count: int) -> bytes:
    bits = bytearray(-(-count // 8))
    for index in indices:
        bits[index >> 3] |= 1 << (index & 7)
    return bytes(bits)


def _from_bits(bits: bytes, count: int) -> frozenset[int]:
    if len(bits) != -(-count // 8):
        raise ProtocolError("bad piece map", f"{len(bits)} bytes for {count} pieces")
    return frozenset(index for index in range(count) if bits[index >> 3] >> (index & 7) & 1)
