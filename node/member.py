"""What every participant of a pool has: a key, a network, the members and their rights, the board, and blobs.

A daemon, a light client and a test's seat are made of the same parts. Knows how they fit together and what is up before
what; leaves what is done with them to those who have them.
"""

import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
import structlog
import trio

from contracts.bindings import MemberRecord as MemberInfo
from contracts.bindings import PoolInfo
from node.blobs.errors import BadSource, SourceFailed
from node.blobs.exchange import BlobExchange, ExchangeLimits
from node.blobs.headway import Report
from node.blobs.http.fetch import HttpBlobs
from node.blobs.http.sources import HttpSource, parse_source
from node.blobs.interface import Blobs
from node.blobs.store import BlobStore
from node.clock import Seconds
from node.network.contacts import parse_bootnode
from node.network.errors import BadContact, NetworkError
from node.network.host import Libp2pNetwork
from node.network.interface import Network
from node.swarm.board import Board
from node.swarm.claims import Claims, Prover
from node.swarm.dialback import DialBack
from node.swarm.membership import Membership, may_challenge
from protocol.identity import Address, NodeKey
from protocol.statements import Domain

if TYPE_CHECKING:
    from node.chain.client import ChainClient

log = structlog.get_logger()
MAX_BOOTNODES = 8
"""Of a pool: each is dialled."""
GUESTS_PLACE = "/ip4/127.0.0.1/tcp/0"
"""A guest calls, and is called by nobody. The port of a node that runs on this machine stays free."""


class BlobService(msgspec.Struct, frozen=True):
    """A node's blobs. door: where everybody obtains and adds them; behind it the own store and the peers' exchange."""

    door: Blobs
    store: BlobStore
    exchange: BlobExchange


class Participant:
    """One participant: speaks once `network` runs, hears the pool while `listen` runs. pool: its number on chain."""

    def __init__(
        self,
        key: NodeKey,
        domain: Domain,
        pool: int,
        network: Network,
        membership: Membership,
        blob_service: BlobService,
        wall: Seconds = time.time,
        prover: Prover | None = None,
    ) -> None:
        self.key = key
        self.domain = domain
        self.pool = pool
        self.network = network
        self.membership = membership
        self.blob_service = blob_service
        self.board = Board(network, key, domain, pool, membership, wall=wall)
        self.dialback = DialBack(network, membership.places.contacts_of)
        self.claims = Claims(network, partial(may_challenge, membership), prover)

    @property
    def blobs(self) -> Blobs:
        return self.blob_service.door

    async def listen(self) -> None:
        """Keep the board and the table of members up to date until cancelled. The chain's members should be known:
        what others say is refused."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.board.run)
            nursery.start_soon(self.membership.follow, self.board)
            nursery.start_soon(self.membership.places.maintain)


@asynccontextmanager
async def open_member(
    key: NodeKey,
    domain: Domain,
    pool: PoolInfo,
    network: Network,
    directory: Path,
    *,
    quota: int,
    limits: ExchangeLimits | None = None,
    sources: Sequence[HttpSource] = (),
    report: Report | None = None,
    bootnodes: Sequence[str] = (),
    prover: Prover | None = None,
) -> AsyncIterator[Participant]:
    """A member that is on the network until the block ends, and not yet listening.

    directory: of its blobs, `quota` bytes at most; sources: HTTP sources that are asked before the swarm;
    report: told how far each fetch is; bootnodes: multiaddrs that are dialled whatever the chain says; prover:
    multiplies for a node that claims a GPU. Raises PortInUse, ListenFailed, BadContact.
    """
    # The chain's word last: what a profile once shipped may be out of date.
    boot = {parse_bootnode(text).member: text for text in bootnodes} | _named_by(pool)
    membership = Membership(key.address, network, pool.manager, pool.validators, bootnodes=boot, quorum=pool.threshold)
    # In a thread: it looks through the directory, which may hold thousands of blobs.
    store = await trio.to_thread.run_sync(BlobStore, directory, quota)
    exchange = BlobExchange(network, store, limits, report)

    def announced() -> list[HttpSource]:
        """Asked each time: gateways come and go with their members' heartbeats."""
        return announced_gateways(membership, private=network.private)

    door = BlobFetcher(store, exchange, HttpBlobs(store), sources, announced)
    member = Participant(key, domain, pool.id, network, membership, BlobService(door, store, exchange), prover=prover)
    async with trio.open_nursery() as nursery:
        # Only once it listens: members to whom we announce ourselves dial at once.
        await nursery.start(network.run)
        yield member
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_guest(
    chain: "ChainClient",
    pool: PoolInfo,
    members: Sequence[MemberInfo],
    directory: Path,
    *,
    quota: int,
    sources: Sequence[HttpSource] = (),
    report: Report | None = None,
) -> AsyncIterator[Participant]:
    """Somebody who looks at a pool without joining it, and knows the members and who leads as the chain has them now.
    Raises ChainError."""
    # A key of the moment: members see a stranger, and the key of a node that runs does not appear twice.
    key = NodeKey.generate()
    network = Libp2pNetwork(key, GUESTS_PLACE, private=chain.profile.lan)
    async with open_member(
        key, chain.domain, pool, network, directory, quota=quota, sources=sources, report=report
    ) as member:
        await member.membership.terms.ask_who_leads(chain, pool.id)
        for one in members:
            member.membership.hands.joined(one.node, one.provider)
            member.membership.joined(one.node, one.contact)
        yield member


def _named_by(pool: PoolInfo) -> dict[Address, str]:
    """The bootnodes that a pool's manager put on chain; one that cannot be read is its mistake, not ours."""
    found: dict[Address, str] = {}
    for text in pool.bootnodes[:MAX_BOOTNODES]:
        try:
            found[parse_bootnode(text).member] = text
        except BadContact:
            log.info("pool.bad_bootnode", text=text[:200])
    return found


def announced_gateways(membership: Membership, *, private: bool) -> list[HttpSource]:
    """The HTTP sources that members announce; a text that is none is somebody else's mistake. private: whether they may
    be in networks of one's own."""
    found: list[HttpSource] = []
    for text in membership.places.gateways():
        try:
            found.append(parse_source(text, private=private))
        except BadSource as error:
            log.debug("gateway.announcement_refused", why=error.why)
    return found


MAX_GATEWAYS = 4
"""Announced gateways asked in one turn, chosen anew each time."""


class BlobSwarm(Protocol):
    """Blobs from peers."""

    async def fetch(
        self, root: bytes, sources: Sequence[Address], *, max_size: int, timeout: float, priority: int = 0
    ) -> Path: ...


class BlobFetcher:
    """The one door through which the node obtains blobs: its store, HTTP sources of the user's choice, the swarm, and
    last the gateways that members announce in their signed heartbeats (for a node that peers cannot reach). Whatever
    one way brought stays in the store's partial file, and the next way goes on from there.

    first: asked before the swarm; announced: gateways of the members, asked after it."""

    def __init__(
        self,
        store: BlobStore,
        swarm: BlobSwarm,
        http: HttpBlobs,
        first: Sequence[HttpSource] = (),
        announced: Callable[[], Sequence[HttpSource]] = tuple,
    ) -> None:
        self.add = store.add
        self.holding = store.holding
        self.arrived = store.arrived
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
                # Asked within the lock: whoever was before us in the line may have brought it.
                if await self._store.whole(root):
                    return self._store.path(root)
                path = await self._by_http(root, self._first, max_size, deadline) if self._first else None
                return path or await self._by_swarm(root, sources, max_size, deadline, priority)

    async def _by_swarm(
        self,
        root: bytes,
        sources: Sequence[Address],
        max_size: int,
        deadline: float,
        priority: int,
        *,
        patience: float = 30.0,
    ) -> Path:
        """From peers; where members announce gateways both take turns, so that none can stall the others."""
        while True:
            gateways = _some(self._announced())
            # Seconds of a turn: of the peers, then of the announced gateways.
            turn = min(deadline, trio.current_time() + patience) if gateways else deadline
            # Not zero: a timeout of zero would look for nothing at all.
            left = max(turn - trio.current_time(), 0.1)
            try:
                return await self._swarm.fetch(root, sources, max_size=max_size, timeout=left, priority=priority)
            except NetworkError:
                now = trio.current_time()
                # Seconds that the announced gateways have at least, however long the swarm has tried.
                ends = now + min(patience, max(deadline - now, 10.0))
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
    # Anew each time, not the first ones: a member that announces a dead gateway must not be everybody's choice.
    return random.sample(gateways, min(len(gateways), MAX_GATEWAYS))
