"""A light client reads a pool's policies without joining it: an ephemeral key, members by the chain, their blobs.

It follows the trainer's signed announcements as a member does, so what it holds in the end is verified just as well; it
stakes nothing, says nothing and is gone afterwards. What it has fetched stays in `directory` for the next time.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import structlog
import trio

from contracts import bindings
from node.blobs.errors import SourceFailed
from node.blobs.headway import Report
from node.blobs.http.fetch import fetch_listing
from node.blobs.http.sources import HttpSource
from node.chain.client import ChainClient
from node.chain.errors import ChainError
from node.chain.profile import NetworkProfile
from node.changes import every, seen
from node.errors import StateError
from node.member import Participant, open_guest
from node.run.assets import image_limit
from node.state.files import as_named
from node.state.locks import FileLock
from node.swarm.jury import Jury
from node.swarm.terms import LeaderTerms
from node.weights.errors import PolicyUnknown
from node.weights.fetch import PolicyFollower
from node.weights.policy_cache import HeldPolicy, PolicyCache
from node.weights.records import PolicyRecords
from node.weights.workshop import written_out
from protocol.identity import Address
from protocol.run import MAX_RUN_BYTES, RunSpec, decode_run

log = structlog.get_logger()
MODEL = "model/"


class Waits(msgspec.Struct, frozen=True):
    """Seconds. heard: in which something must be heard; look: for which a newer policy is waited for, before it is
    asked whether one may still come; silence: without a newer announcement, after which the newest one heard of is
    taken for the newest there is; asset: for a tokenizer or a configuration, megabytes at most, from members that may
    be slow and far; listing: between two questions to each source of a list."""

    heard: float = 60.0
    look: float = 1.0
    silence: float = 1.5
    asset: float = 600.0
    listing: float = 2.0


class PolicySnapshot(msgspec.Struct, frozen=True):
    """policy: verified; assets: the model's files other than weights, by their name in a model directory; image: the
    policy's own, of one that is followed, until the next is told."""

    policy: HeldPolicy
    trainer: Address
    run: RunSpec
    assets: dict[str, Path]
    image: Path | None = None


def check_announced(run: RunSpec) -> None:
    """Raise PolicyUnknown of a run whose policies nobody announces: a light client hears of none."""
    if run.diloco is not None:
        raise PolicyUnknown(
            "policies of a run with rounds ([diloco]) cannot be fetched by a light client",
            "they are the outer states of its rounds, which every member makes by itself and nobody announces",
            "ask the run's owner, whose node writes the model; or join the pool",
        )


class LightClient:
    """One connection with a pool as one who only reads. directory: where blobs are kept; quota: bytes; sources: HTTP
    sources, asked before the members; alone: and no member is asked at all, for announcements neither."""

    _alone = False
    _waits = Waits()
    _silence = ""
    """Of gateways: why they show no policy that counts."""

    def __init__(
        self,
        profile: NetworkProfile,
        pool: int,
        directory: Path,
        *,
        quota: int,
        sources: Sequence[HttpSource] = (),
        alone: bool = False,
        report: Report = lambda _: None,
        waits: Waits | None = None,
    ) -> None:
        self._waits = waits or Waits()
        self._profile = profile
        self._pool = pool
        self._directory = directory
        self._quota = quota
        self._sources = tuple(sources)
        self._alone = alone
        self._listed = trio.Event()
        """Each source's list was asked for once."""
        self._report = report

    async def fetch(self, step: int | None = None) -> PolicySnapshot:
        """The policy of `step`, the newest by default. Raises IntellectError: no chain, no members, no such policy."""
        async with self._connected(newest=step is None) as (member, run, follower, policy_cache):
            policy = await self._wanted(follower, policy_cache, step)
            return await self._snapshot(member, run, follower, policy)

    @asynccontextmanager
    async def following(self, after: int = -1) -> AsyncIterator[trio.MemoryReceiveChannel[PolicySnapshot]]:
        """The newest policy, then each newer one as soon as it is verified; one that is overtaken may be left out. The
        channel ends after the run's last one.

        after: the step that is known already. Raises IntellectError as `fetch` does, and once the trainer has
        contradicted itself: nothing follows that could be believed, until somebody takes over.
        """
        # No buffer: what is not taken yet may be overtaken, and the newest is asked for only then.
        send, receive = trio.open_memory_channel[PolicySnapshot](0)
        async with (
            self._connected(newest=True) as (member, run, follower, policy_cache),
            trio.open_nursery() as nursery,
        ):
            store, places = member.blob_service.store, self._directory / "building"

            async def tell() -> None:
                known, told = after, ExitStack()
                if self._alone:  # what one gateway shows another one may contradict, before any of it counts
                    with trio.move_on_after(self._waits.heard):
                        await self._listed.wait()
                        # What was read last is on the board, and its readers come to it now.
                        await trio.sleep(self._waits.look)
                while known < run.recipe.steps:
                    policy = await self._soon(policy_cache, known)
                    if policy is None:
                        await self._heard(follower)
                        continue
                    known = policy.step
                    # Whoever follows reads a file, which stays until the next one is there.
                    image, before, told = await written_out(policy, store, places), told, ExitStack()
                    told.enter_context(store.holding([policy.manifest.image_root]))
                    snapshot = await self._snapshot(member, run, follower, policy)
                    await send.send(msgspec.structs.replace(snapshot, image=image))
                    before.close()
                # Not where it fails: an end of the channel would look like the run's.
                await send.aclose()

            nursery.start_soon(tell)
            yield receive
            nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def _connected(
        self, *, newest: bool
    ) -> AsyncIterator[tuple[Participant, RunSpec, PolicyFollower, PolicyCache]]:
        """The pool as a light client has it; the directory is its alone until the block ends."""
        lock = FileLock(self._directory / "lock")
        await trio.to_thread.run_sync(lambda: self._directory.mkdir(parents=True, exist_ok=True))
        # Two stores in one directory would each delete what the other holds, to keep to the quota.
        if not lock.acquire():
            raise StateError(
                f"{self._directory} is in use", f"process {lock.holder} fetches into it", "wait for it, or give --cache"
            )
        try:
            async with self._member(past=not newest) as (member, root), trio.open_nursery() as nursery:
                nursery.start_soon(member.listen)
                run = await self._run(member, root)
                check_announced(run)
                # One is enough: a light client hands nothing on, so there is nobody for whom it would keep older ones.
                policy_cache = PolicyCache(1, member.blob_service.store)
                jury = Jury(member.board, member.membership, run, member.pool, journal=None)
                follower = self._follower(member, policy_cache, root, jury, image_limit(run), newest=newest)
                nursery.start_soon(jury.run)
                nursery.start_soon(follower.run)
                yield member, run, follower, policy_cache
                nursery.cancel_scope.cancel()
        finally:
            lock.release()

    @asynccontextmanager
    async def _member(self, *, past: bool) -> AsyncIterator[tuple[Participant, bytes]]:
        """A member without a stake that knows the others and who leads, and the root of the pool's run. past: and who
        led before."""
        chain = ChainClient(self._profile)
        try:
            await chain.connect()
            pool = await chain.pool(self._pool)
            members = [] if self._alone else await self._members(chain)
            if self._alone:
                # Without members and bootnodes there is nobody whom the network could dial.
                pool = msgspec.structs.replace(pool, bootnodes=())
            elif not members:
                raise PolicyUnknown(
                    f"pool {self._pool} has no members",
                    "nobody is there who could have its policies",
                    "try another pool",
                )
            async with (
                open_guest(
                    chain,
                    pool,
                    members,
                    self._directory / "blobs",
                    quota=self._quota,
                    sources=self._sources,
                    report=self._report,
                ) as member,
                trio.open_nursery() as nursery,
            ):
                if past:
                    await member.membership.terms.ask_who_led(chain, self._pool)
                nursery.start_soon(self._ask_who_leads, chain, member.membership.terms)
                if self._alone:
                    nursery.start_soon(self._read_listings, member)
                yield member, pool.run_root
                nursery.cancel_scope.cancel()
        finally:
            chain.close()

    async def _ask_who_leads(self, chain: ChainClient, terms: LeaderTerms) -> None:
        """A connection may be longer than a term."""

        async def ask() -> None:
            try:
                await terms.ask_who_leads(chain, self._pool)
            except ChainError as error:
                log.info("light_client.chain_silent", why=error.why)

        await every(30.0, ask, at_once=False)

    async def _read_listings(self, member: Participant) -> None:
        """A gateway's list is a claim: only announcements in it count, as if a member had handed them over."""
        board = member.board

        async def read() -> None:
            for source in self._sources:
                try:
                    rows = await fetch_listing(source)
                    told = [bytes.fromhex(row.announcement) for row in rows if row.announcement]
                    await board.catching_up.take(member.key.address, told)
                    refused = f"; {board.counts['refused']} were refused" if board.counts["refused"] else ""
                    self._silence = f"{source.url} shows {len(told)} announcements of {len(rows)} policies{refused}"
                except SourceFailed as error:
                    self._silence = f"{error.what}: {error.why}"
            self._listed.set()

        await every(self._waits.listing, read)

    async def _snapshot(
        self, member: Participant, run: RunSpec, follower: PolicyFollower, policy: HeldPolicy
    ) -> PolicySnapshot:
        """What is told of a policy, looked at last: a contradiction that came while it was fetched may be about it."""
        assets = await self._assets(member, run)
        _refuse_contradiction(follower)
        return PolicySnapshot(policy, member.membership.trainer, run, assets)

    async def _members(self, chain: ChainClient) -> list[bindings.MemberRecord]:
        """Those who are in; a pool or a local chain that has just started may need a moment to show them."""
        members: list[bindings.MemberRecord] = []

        async def are_there() -> bool:
            nonlocal members
            members = [one for one in await chain.members(self._pool) if not (one.evicted or one.left)]
            return bool(members)

        with trio.move_on_after(20.0):
            await seen(are_there, 1.0)
        return members

    def _follower(
        self,
        member: Participant,
        policy_cache: PolicyCache,
        run_root: bytes,
        jury: Jury,
        image_limit: int,
        *,
        newest: bool,
    ) -> PolicyFollower:
        return PolicyFollower(
            jury.facts,
            jury.state.policies,
            member.blobs,
            member.blob_service.store,
            policy_cache,
            run_root,
            lambda author: [author, *member.membership.addresses()],
            image_limit,
            workshop=self._directory / "building",
            records=PolicyRecords(self._directory / "held"),
            newest=newest,
        )

    async def _run(self, member: Participant, root: bytes) -> RunSpec:
        sources = member.membership.addresses()
        path = await member.blobs.fetch(root, sources, max_size=MAX_RUN_BYTES, timeout=self._waits.heard)
        return decode_run(await trio.to_thread.run_sync(lambda: as_named(path.read_bytes(), root, "the run file")))

    async def _heard(self, follower: PolicyFollower, step: int | None = None) -> None:
        """Wait for an announcement: of that step, or of any. Raises PolicyUnknown where there is none that counts."""
        with trio.move_on_after(self._waits.heard):
            if self._alone:  # what one gateway shows another one may contradict, before any of it counts
                await self._listed.wait()
            found = lambda: follower.newest_step >= 0 and (step is None or follower.root_of(step) is not None)
            await seen(found, 0.05)
        _refuse_contradiction(follower)
        if follower.newest_step < 0:
            raise PolicyUnknown(
                "no policy was announced",
                self._silence or f"none of pool {self._pool}'s members repeated one within {self._waits.heard:g} s",
                "ask other gateways" if self._alone else "is anybody of them running? try again later",
            )

    async def _wanted(self, follower: PolicyFollower, policy_cache: PolicyCache, step: int | None) -> HeldPolicy:
        await self._heard(follower, step)
        if step is None:
            await trio.sleep(self._waits.silence)
            return await self._newest(follower, policy_cache)
        root = follower.root_of(step)
        # An hour: an old step may be gigabytes from one member that still has it.
        held = await follower.get(root, self._waits.asset * 6) if root else None
        if held is None:
            known = follower.steps
            raise PolicyUnknown(
                f"the policy of step {step} cannot be had",
                f"the members announce steps {known[0]} to {known[-1]}" if known else "nobody announces any",
                "fetch one of those, or leave --step out for the newest",
            )
        return held

    async def _newest(self, follower: PolicyFollower, policy_cache: PolicyCache) -> HeldPolicy:
        """The newest policy, or one that overtook it on its way."""
        heard = follower.newest_step
        while (policy := await self._soon(policy_cache, heard - 1)) is None:
            await self._heard(follower)
            newest = follower.newest_step
            if why := follower.refusal(newest):
                raise PolicyUnknown(
                    f"the newest policy, of step {newest}, is none", why, "try again once there is a newer one"
                )
        return policy

    async def _assets(self, member: Participant, run: RunSpec) -> dict[str, Path]:
        """The model's configuration and tokenizer, not its first weights."""
        wanted = [a for a in run.assets if a.path.startswith(MODEL) and not a.path.endswith(".safetensors")]
        # The index names the files of the first weights, which are not fetched; beside a policy it would mislead
        # whoever loads it.
        wanted = [asset for asset in wanted if not asset.path.endswith(".safetensors.index.json")]
        found: dict[str, Path] = {}
        for asset in wanted:
            sources = member.membership.addresses()
            root = bytes.fromhex(asset.root)
            path = await member.blobs.fetch(root, sources, max_size=asset.size, timeout=self._waits.asset)
            found[asset.path.removeprefix(MODEL)] = path
        return found

    async def _soon(self, policy_cache: PolicyCache, known: int) -> HeldPolicy | None:
        """A policy that is newer than step `known`; None if none comes soon."""
        with trio.move_on_after(self._waits.look):
            return await policy_cache.newer_than(known)
        return None


def _refuse_contradiction(follower: PolicyFollower) -> None:
    if follower.equivocation is not None:
        raise PolicyUnknown(
            "the trainer contradicted itself", follower.equivocation.what, "ask those who run it which policy counts"
        )
