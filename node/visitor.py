"""A visitor reads a pool's policies without joining it: an ephemeral key, the chain's list of members, their blobs.

It follows the trainer's signed announcements as a member does, so what it holds in the end is verified just as well; it
stakes nothing, says nothing and is gone afterwards. What it has fetched stays in `directory` for the next visit.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog
import trio

from contracts.bindings import Member
from node.blobs.door import BlobDoor
from node.blobs.exchange import BlobExchange
from node.blobs.http.fetch import HttpBlobs
from node.blobs.http.sources import HttpSource
from node.blobs.store import BlobStore
from node.blobs.transfer import Progress
from node.chain.client import ChainClient
from node.chain.profile import NetworkProfile
from node.errors import StateError
from node.network.host import Libp2pNetwork
from node.run.assets import image_limit
from node.state.locks import FileLock
from node.swarm.board import Board
from node.swarm.membership import Membership
from node.weights.errors import PolicyUnknown
from node.weights.fetch import PolicyFollower
from node.weights.keeper import HeldPolicy, PolicyShelf
from node.weights.records import PolicyRecords
from protocol.identity import Address, NodeKey
from protocol.messages import PolicyAnnounced
from protocol.run import MAX_RUN_BYTES, RunSpec, decode_run
from protocol.statements import Domain

log = structlog.get_logger()
HEARD_WITHIN = 60.0
MEMBERS_WITHIN = 20.0
ASSET_TIMEOUT = 600.0
FIRST_SILENCE = 1.5
"""Seconds without a newer announcement after which the newest one heard of is taken for the newest there is."""
MODEL = "model/"
Report = Callable[[Progress], None]


class Visit(msgspec.Struct, frozen=True):
    """policy: verified; assets: the model's files other than weights, by their name in a model directory."""

    policy: HeldPolicy
    trainer: Address
    run: RunSpec
    assets: dict[str, Path]


class Visitor:
    """One visit. directory: where blobs are kept; quota: bytes; sources: HTTP sources, asked before the members."""

    def __init__(
        self,
        profile: NetworkProfile,
        pool: int,
        directory: Path,
        *,
        quota: int,
        sources: Sequence[HttpSource] = (),
        report: Report = lambda _: None,
    ) -> None:
        self._profile = profile
        self._pool = pool
        self._directory = directory
        self._quota = quota
        self._sources = tuple(sources)
        self._report = report

    async def fetch(self, step: int | None = None) -> Visit:
        """The policy of `step`, the newest by default. Raises IntellectError: no chain, no members, no such policy."""
        lock = FileLock(self._directory / "lock")
        await trio.to_thread.run_sync(lambda: self._directory.mkdir(parents=True, exist_ok=True))
        if not lock.acquire():
            raise StateError(
                f"{self._directory} is in use", f"process {lock.holder} fetches into it", "wait for it, or give --cache"
            )
        try:
            return await self._fetch(step)
        finally:
            lock.release()

    async def _fetch(self, step: int | None) -> Visit:
        chain = ChainClient(self._profile)
        try:
            await chain.connect()
            pool = await chain.pool(self._pool)
            members = await self._members(chain)
        finally:
            chain.close()
        if not members:
            raise PolicyUnknown(
                f"pool {self._pool} has no members", "nobody is there who could have its policies", "try another pool"
            )
        key = NodeKey.generate()
        network = Libp2pNetwork(key, "/ip4/127.0.0.1/tcp/0")
        membership = Membership(key.address, network, pool.manager, pool.validators)
        domain = Domain(self._profile.chain_id, self._profile.contracts.swarm)
        board = Board(network, key, domain, self._pool, membership)
        store = await trio.to_thread.run_sync(BlobStore, self._directory / "blobs", self._quota)
        exchange = _Reporting(BlobExchange(network, store), self._report)
        blobs = BlobDoor(store, exchange, HttpBlobs(store), self._sources)
        async with trio.open_nursery() as nursery:
            await nursery.start(network.run)
            for member in members:
                membership.joined(member.node, member.contact)
            nursery.start_soon(board.run)
            run = await self._run(blobs, pool.run_root, membership)
            shelf = PolicyShelf(1, store)
            follower = PolicyFollower(
                board.subscribe(PolicyAnnounced),
                blobs,
                store,
                shelf,
                pool.run_root,
                lambda author: [author, *membership.addresses()],
                image_limit(run),
                workshop=self._directory / "building",
                records=PolicyRecords(self._directory / "held"),
                newest=step is None,
            )
            nursery.start_soon(follower.run)
            policy = await self._wanted(follower, shelf, step)
            assets = await self._assets(blobs, run, membership)
            nursery.cancel_scope.cancel()
        return Visit(policy, pool.manager, run, assets)

    async def _members(self, chain: ChainClient) -> list[Member]:
        """Those who are in; a pool or a local chain that has just started may need a moment to show them."""
        members: list[Member] = []
        with trio.move_on_after(MEMBERS_WITHIN):
            while True:
                members = [one for one in await chain.members(self._pool) if not (one.evicted or one.left)]
                if members:
                    break
                await trio.sleep(1.0)
        return members

    async def _run(self, blobs: BlobDoor, root: bytes, membership: Membership) -> RunSpec:
        path = await blobs.fetch(root, membership.addresses(), max_size=MAX_RUN_BYTES, timeout=HEARD_WITHIN)
        return decode_run(await trio.to_thread.run_sync(path.read_bytes))

    async def _wanted(self, follower: PolicyFollower, shelf: PolicyShelf, step: int | None) -> HeldPolicy:
        with trio.move_on_after(HEARD_WITHIN):
            while follower.newest_step < 0 or (step is not None and follower.root_of(step) is None):  # noqa: ASYNC110
                await trio.sleep(0.05)
        if follower.newest_step < 0:
            raise PolicyUnknown(
                "no policy was announced",
                f"none of pool {self._pool}'s members repeated one within {HEARD_WITHIN:g} s",
                "is anybody of them running? try again later",
            )
        if step is None:
            await trio.sleep(FIRST_SILENCE)
            newest = follower.newest_step
            return await shelf.newer_than(newest - 1)
        root = follower.root_of(step)
        held = await follower.get(root, ASSET_TIMEOUT * 6) if root else None
        if held is None:
            known = follower.steps
            raise PolicyUnknown(
                f"the policy of step {step} cannot be had",
                f"the members announce steps {known[0]} to {known[-1]}" if known else "nobody announces any",
                "fetch one of those, or leave --step out for the newest",
            )
        return held

    async def _assets(self, blobs: BlobDoor, run: RunSpec, membership: Membership) -> dict[str, Path]:
        """The model's configuration and tokenizer, not its first weights."""
        wanted = [a for a in run.assets if a.path.startswith(MODEL) and not a.path.endswith(".safetensors")]
        wanted = [asset for asset in wanted if not asset.path.endswith(".safetensors.index.json")]
        found: dict[str, Path] = {}
        for asset in wanted:
            root = bytes.fromhex(asset.root)
            path = await blobs.fetch(root, membership.addresses(), max_size=asset.size, timeout=ASSET_TIMEOUT)
            found[asset.path.removeprefix(MODEL)] = path
        return found


class _Reporting:
    """An exchange that says how far each fetch is."""

    def __init__(self, exchange: BlobExchange, report: Report) -> None:
        self._exchange = exchange
        self._report = report

    async def fetch(
        self, root: bytes, sources: Sequence[Address], *, max_size: int, timeout: float, priority: int = 0
    ) -> Path:
        return await self._exchange.fetch(
            root, sources, max_size=max_size, timeout=timeout, priority=priority, progress=self._report
        )
