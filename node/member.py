"""What every participant of a pool has: a key, a network, the members and their rights, the board, and blobs.

A daemon, a visitor and a test's seat are made of the same parts. Knows how they fit together and what is up before
what; leaves what is done with them to those who have them.
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import structlog
import trio

from contracts.bindings import PoolInfo
from node.blobs.door import BlobDoor
from node.blobs.errors import BadSource
from node.blobs.exchange import BlobExchange, Limits
from node.blobs.http.fetch import HttpBlobs
from node.blobs.http.sources import HttpSource, parse_source
from node.blobs.interface import Blobs
from node.blobs.store import BlobStore
from node.blobs.transfer import Report
from node.clock import Seconds
from node.network.contacts import parse_bootnode
from node.network.errors import BadContact
from node.network.interface import Network
from node.swarm.board import Board
from node.swarm.claims import Claims
from node.swarm.dialback import DialBack
from node.swarm.membership import Membership
from protocol.identity import Address, NodeKey
from protocol.statements import Domain

log = structlog.get_logger()
MAX_BOOTNODES = 8
"""Of a pool: each is dialled."""


class Stock(msgspec.Struct, frozen=True):
    """A node's blobs. door: where everybody obtains and adds them; behind it the own store and the peers' exchange."""

    door: Blobs
    store: BlobStore
    exchange: BlobExchange


class Member:
    """One participant: speaks once `network` runs, hears the pool while `listen` runs. pool: its number on chain."""

    def __init__(
        self,
        key: NodeKey,
        domain: Domain,
        pool: int,
        network: Network,
        membership: Membership,
        stock: Stock,
        wall: Seconds = time.time,
    ) -> None:
        self.key = key
        self.domain = domain
        self.pool = pool
        self.network = network
        self.membership = membership
        self.stock = stock
        self.board = Board(network, key, domain, pool, membership, wall=wall)
        self.dialback = DialBack(network, membership.contacts_of)
        self.claims = Claims(network, membership.may_challenge)

    @property
    def blobs(self) -> Blobs:
        return self.stock.door

    async def listen(self) -> None:
        """Keep the board and the table of members up to date until cancelled. The chain's members should be known:
        what others say is refused."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.board.run)
            nursery.start_soon(self.membership.follow, self.board)
            nursery.start_soon(self.membership.tend)


@asynccontextmanager
async def open_member(
    key: NodeKey,
    domain: Domain,
    pool: PoolInfo,
    network: Network,
    directory: Path,
    *,
    quota: int,
    limits: Limits | None = None,
    sources: Sequence[HttpSource] = (),
    report: Report | None = None,
    bootnodes: Sequence[str] = (),
) -> AsyncIterator[Member]:
    """A member that is on the network until the block ends, and not yet listening.

    directory: of its blobs, `quota` bytes at most; sources: HTTP sources that are asked before the swarm;
    report: told how far each fetch is; bootnodes: multiaddrs that are dialled whatever the chain says. Raises
    PortInUse, ListenFailed, BadContact.
    """
    # The chain's word last: what a profile once shipped may be out of date.
    boot = {parse_bootnode(text).member: text for text in bootnodes} | _named_by(pool)
    membership = Membership(key.address, network, pool.manager, pool.validators, bootnodes=boot, quorum=pool.threshold)
    # In a thread: it looks through the directory, which may hold thousands of blobs.
    store = await trio.to_thread.run_sync(BlobStore, directory, quota)
    exchange = BlobExchange(network, store, limits, report)
    # A function, not a list: gateways come and go with their members' heartbeats.
    door = BlobDoor(store, exchange, HttpBlobs(store), sources, lambda: announced_gateways(membership))
    member = Member(key, domain, pool.id, network, membership, Stock(door, store, exchange))
    async with trio.open_nursery() as nursery:
        # Only once it listens: members to whom we announce ourselves dial at once.
        await nursery.start(network.run)
        yield member
        nursery.cancel_scope.cancel()


def _named_by(pool: PoolInfo) -> dict[Address, str]:
    """The bootnodes that a pool's manager put on chain; one that cannot be read is its mistake, not ours."""
    found: dict[Address, str] = {}
    for text in pool.bootnodes[:MAX_BOOTNODES]:
        try:
            found[parse_bootnode(text).member] = text
        except BadContact:
            log.info("pool.bad_bootnode", text=text[:200])
    return found


def announced_gateways(membership: Membership) -> list[HttpSource]:
    """The HTTP sources that members announce; a text that is none is somebody else's mistake."""
    found: list[HttpSource] = []
    for text in membership.gateways():
        try:
            found.append(parse_source(text))
        except BadSource as error:
            log.debug("gateway.announcement_refused", why=error.why)
    return found
