"""The one door through which the node obtains blobs: its store, HTTP sources of the user's choice, the swarm, and
last the gateways that members announce in their signed heartbeats (for a node that peers cannot reach).

Whatever one way brought stays in the store's partial file, and the next way goes on from there.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import structlog
import trio

from node.blobs.errors import SourceFailed
from node.blobs.http.fetch import HttpBlobs
from node.blobs.http.sources import HttpSource
from node.blobs.store import BlobStore
from node.network.errors import NetworkError
from protocol.identity import Address

log = structlog.get_logger(__name__)

PATIENCE = 30.0
"""Seconds of a turn: of the peers, then of the announced gateways."""
MAX_GATEWAYS = 4
"""Announced gateways asked in one turn, chosen anew each time."""
LAST_CHANCE = 10.0
"""Seconds that the announced gateways have at least, however long the swarm has tried."""


class Swarm(Protocol):
    """Blobs from peers."""

    async def fetch(
        self, root: bytes, sources: Sequence[Address], *, max_size: int, timeout: float, priority: int = 0
    ) -> Path: ...


class BlobDoor:
    """first: asked before the swarm; announced: gateways of the members, asked after it."""

    def __init__(
        self,
        store: BlobStore,
        swarm: Swarm,
        http: HttpBlobs,
        first: Sequence[HttpSource] = (),
        announced: Callable[[], Sequence[HttpSource]] = tuple,
    ) -> None:
        self.add = store.add
        self._store = store
        self._swarm = swarm
        self._http = http
        self._first = tuple(first)
        self._announced = announced
        self._locks: dict[bytes, tuple[trio.Lock, int]] = {}

    async def fetch(
        self, root: bytes, sources: Sequence[Address], *, max_size: int, timeout: float, priority: int = 0
    ) -> Path:
        """The verified file of `root`. timeout: seconds; priority: see BlobExchange. Raises NetworkError, StoreFull."""
        deadline = trio.current_time() + timeout
        with self._lock(root) as lock:
            async with lock:  # one way at a time writes a blob's partial file
                if self._store.has(root):
                    return self._store.path(root)
                path = await self._by_http(root, self._first, max_size, deadline) if self._first else None
                return path or await self._by_swarm(root, sources, max_size, deadline, priority)

    async def _by_swarm(
        self, root: bytes, sources: Sequence[Address], max_size: int, deadline: float, priority: int
    ) -> Path:
        """From peers; where members announce gateways both take turns, so that none can stall the others."""
        while True:
            gateways = _some(self._announced())
            turn = min(deadline, trio.current_time() + PATIENCE) if gateways else deadline
            # Not zero: a timeout of zero would look for nothing at all.
            left = max(turn - trio.current_time(), 0.1)
            try:
                return await self._swarm.fetch(root, sources, max_size=max_size, timeout=left, priority=priority)
            except NetworkError:
                now = trio.current_time()
                ends = now + min(PATIENCE, max(deadline - now, LAST_CHANCE))
                path = await self._by_http(root, gateways, max_size, ends)
                if path is not None:
                    return path
                # The swarm gave up before its turn was over: it knows of nobody, so another turn would end the same
                # way.
                if now < turn or trio.current_time() >= deadline:
                    raise  # no source can be had, or the time is over

    async def _by_http(self, root: bytes, sources: Sequence[HttpSource], max_size: int, deadline: float) -> Path | None:
        if not sources:
            return None
        left = max(deadline - trio.current_time(), 0.1)
        try:
            return await self._http.fetch(root, sources, max_size=max_size, timeout=left)
        except SourceFailed as error:
            log.info("blob.not_by_http", root=root.hex()[:16], why=error.why)
            return None

    @contextmanager
    def _lock(self, root: bytes) -> Iterator[trio.Lock]:
        lock, users = self._locks.get(root, (trio.Lock(), 0))
        self._locks[root] = (lock, users + 1)
        try:
            yield lock
        finally:
            users = self._locks[root][1] - 1
            self._locks[root] = (lock, users)
            # Or a lock for each blob ever asked for would stay.
            if not users:
                del self._locks[root]


def _some(gateways: Sequence[HttpSource]) -> Sequence[HttpSource]:
    """At most MAX_GATEWAYS of them: anybody may announce one."""
    return random.sample(gateways, min(len(gateways), MAX_GATEWAYS))  # noqa: S311 - a choice, not a secret
