"""Follow the trainer's announcements: fetch, build, verify and keep each newest policy.

Several steps may be on their way at once: their blobs are fetched side by side, and a step whose base is not there yet
waits for it before it is built. What the trainer signed and what does not hold is refused and counted against him;
wrong bytes of a peer never come this far.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import structlog
import trio

from node.blobs.errors import StoreFailed, StoreFull
from node.blobs.interface import Blobs
from node.blobs.store import BlobStore
from node.bounded_dict import BoundedDict
from node.clock import Seconds
from node.inference.client import EngineChild
from node.swarm.facts import Equivocation, Facts, LeaderDisbelieved, PolicyFollowed, Undone
from node.swarm.policies import COMPARED, PolicyIndex
from node.weights.errors import PolicyUnknown, WeightsDiskError
from node.weights.fetch_history import FetchHistory
from node.weights.images import Stopped
from node.weights.manifests import Manifests
from node.weights.policy_cache import HeldPolicy, PolicyCache, at_rest, named_in
from node.weights.records import PolicyRecords, ways_to
from node.weights.workshop import Workshop
from protocol.delta import PatchError
from protocol.errors import IntellectError, OwnFailure
from protocol.identity import Address
from protocol.policy import MalformedPolicy, PolicyManifest

log = structlog.get_logger()
IN_FLIGHT = 3
"""Steps that are fetched at once."""


Blame = Callable[[Address, str], object]
"""OnBytes who signed something that does not hold, and what was wrong with it."""
Repeat = Callable[[bytes], Awaitable[None]]
"""Says a signed announcement again, for those who missed it."""


class PolicyFollower:
    """A service: the newest announced policy, always, and older ones on demand.

    facts, clock: which policies are followed; sources: whom to ask for what an author announced; max_image_bytes: what
    the run allows; workshop: a directory of its own on the store's disk; records: what outlives a restart; repeat: how
    an announcement is said again after it; newest: whether to pursue each newest policy, or none but those asked for;
    ready: returns while one may be pursued; engine: that compares what patches make, where there is one; retry: seconds
    before a policy that could not be had is tried again, at first and at most; monotonic: seconds.
    """

    def __init__(
        self,
        facts: Facts,
        clock: PolicyIndex,
        blobs: Blobs,
        store: BlobStore,
        policy_cache: PolicyCache,
        run_root: bytes,
        sources: Callable[[Address], Sequence[Address]],
        max_image_bytes: int,
        *,
        workshop: Path,
        records: PolicyRecords | None = None,
        repeat: Repeat | None = None,
        blame: Blame | None = None,
        newest: bool = True,
        ready: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint,
        retry: tuple[float, float] = (0.5, 15.0),
        engine: EngineChild | None = None,
        monotonic: Seconds = trio.current_time,
    ) -> None:
        self._retry = retry
        self._facts = facts
        self._clock = clock
        self._store = store
        self._policy_cache = policy_cache
        self._run_root = run_root
        self._sources = sources
        self._manifests = Manifests(clock, blobs, run_root, sources, max_image_bytes, 2 * IN_FLIGHT)
        self._workshop = Workshop(blobs, store, policy_cache, workshop, engine)
        self._records = records
        self._repeat = repeat
        self._blame = blame
        self._newest = newest
        self._ready = ready
        self._under_way: dict[bytes, _UnderWay] = {}
        # Bounded, for a trainer may say as many bad things as it likes.
        self._refused = BoundedDict[bytes, str](COMPARED)
        self._blamed = BoundedDict[bytes, None](COMPARED)
        self._pursued: dict[bytes, trio.CancelScope] = {}
        self._monotonic = monotonic
        self.history = FetchHistory(max_image_bytes, monotonic)
        self._wanted = trio.Event()
        self.counts: Counter[str] = Counter()

    @property
    def newest_step(self) -> int:
        """The newest step that was announced, -1 before the first."""
        return self._clock.newest_step

    @property
    def equivocation(self) -> Equivocation | None:
        """What the trainer said that cannot be true together."""
        return self._clock.equivocation

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._workshop.run)
            await self._restore()
            nursery.start_soon(self._listen)
            if self._newest:
                nursery.start_soon(self._keep_newest, nursery)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps whose announcements are remembered, ascending."""
        return self._clock.steps

    def root_of(self, step: int) -> bytes | None:
        """The policy that was announced for a step."""
        signed = self._clock.of_step(step)
        return signed.message.policy_root if signed else None

    def refusal(self, step: int) -> str | None:
        """Why what was announced for a step cannot be a policy; None where nothing speaks against it."""
        root = self.root_of(step)
        return self._refused.get(root) if root else None

    async def get(self, root: bytes, timeout: float) -> HeldPolicy | None:
        """The policy `root`, fetched if it was announced; None if it was not, or cannot be had in time (seconds)."""
        held = self._policy_cache.by_root(root)
        signed = self._clock.announcement(root)
        # Nothing is fetched on the word of whoever asks: only what the trainer has signed.
        if held or not signed:
            return held
        with trio.move_on_after(timeout):
            await self._try(signed)
        return self._policy_cache.by_root(root)

    async def _restore(self) -> None:
        """After a restart: the policies of before, each checked again, the newest first, and announced again."""
        if self._records is None:
            return
        records = await trio.to_thread.run_sync(self._records.read)
        # The newest first: a worker can start with it while older ones are still being hashed.
        for record in reversed(records[-self._policy_cache.keep :]):
            manifest = record.manifest
            # The directory may be from another pool's run.
            found = at_rest(manifest, self._store.has) if manifest.run_root == self._run_root else None
            if found is None:
                continue
            image, patches = found
            try:
                # It was verified before it was recorded: the same blobs are the same policy.
                sound = [await self._store.whole(root) for root in (image, *(patch.root for patch in patches))]
            except StoreFailed as error:
                log.warning("policy.not_restored", step=manifest.step, why=error.why)
                continue
            if not all(sound):
                continue  # the disk has changed it since: it is fetched again
            path, said = self._store.path(image), record.announcement
            held = HeldPolicy(manifest.step, manifest.policy_root, path, manifest, record.manifest_root, said, patches)
            self._policy_cache.put(held)
            log.info("policy.restored", step=held.step, root=held.root.hex())
        for policy in self._policy_cache.held[-4:]:  # whoever started meanwhile missed them
            if self._repeat is not None:
                await self._repeat(policy.announcement)

    # what to fetch

    async def _listen(self) -> None:
        # The clock knows what is the newest: a policy that is taken back only changes that.
        async for news in self._facts.subscribe(PolicyFollowed, LeaderDisbelieved, Undone):
            if isinstance(news, LeaderDisbelieved):
                self._refuse(news.author, news.equivocation.evidence[-1], news.equivocation.what)
            if isinstance(news, Undone) and isinstance(news.fact, PolicyFollowed):
                self.history.forget()
                # Nobody may ever deliver it, and its place is needed.
                if (pursuit := self._pursued.get(news.fact.root)) is not None:
                    pursuit.cancel()
            self._wanted.set()

    async def _keep_newest(self, nursery: trio.Nursery) -> None:
        """Pursue the newest policy, beside at most IN_FLIGHT - 1 that are still on their way."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            await self._ready()
            newest = self._unpursued()
            if newest is not None and len(self._pursued) < IN_FLIGHT:  # else whoever of them finishes looks again
                self._pursued[newest.root] = trio.CancelScope()
                nursery.start_soon(self._pursue, newest)

    def _unpursued(self) -> PolicyFollowed | None:
        """The newest policy, if it is neither here nor on its way."""
        newest = self._clock.of_step(self._clock.newest_step)
        wanted = newest is not None and newest.root not in self._pursued and not self._superseded(newest.step)
        return newest if wanted else None

    async def _pursue(self, signed: PolicyFollowed) -> None:
        """Try until it is here, a newer one is, the newest one needs its place, or it turns out that it cannot be."""
        step, attempt, began = signed.step, 0, self._monotonic()
        try:
            with self._pursued[signed.root]:
                while not self._superseded(step) and signed.root not in self._refused:
                    if await self._try(signed, attempt):
                        return self.history.took(self._monotonic() - began)
                    if len(self._pursued) >= IN_FLIGHT and self._unpursued() is not None:
                        return None
                    await trio.sleep(min(self._retry[0] * 2**attempt, self._retry[1]))
                    # Bounded where it stands in an exponent.
                    attempt = min(attempt + 1, 16)
        finally:
            del self._pursued[signed.root]
            self._wanted.set()

    def _superseded(self, step: int) -> bool:
        newest = self._policy_cache.newest
        return newest is not None and newest.step >= step

    # one policy

    async def _try(self, signed: PolicyFollowed, attempt: int = 0) -> bool:
        """Obtain one policy unless somebody else is about to; False if that failed and may be tried again."""
        message = signed.message
        root = message.policy_root
        # Both `get` and the pursuit may want one policy: it is built once, and the other takes it from the shelf.
        while root in self._under_way:
            await self._under_way[root].done.wait()
        if self._policy_cache.by_root(root):
            return True
        if root in self._refused:
            return False
        self._under_way[root] = mine = _UnderWay(message.step)
        try:
            await self._obtain(signed, attempt)
            return True
        except (MalformedPolicy, PatchError) as error:
            self._refuse(signed.author, signed.raw, error.why)
            self._refused[root] = error.why
            self.history.failed()
        except IntellectError as error:
            if isinstance(error, OwnFailure | Stopped):
                self.history.forget()
            else:
                self.history.failed()
            level = log.warning if isinstance(error, WeightsDiskError | StoreFull) else log.info
            level("policy.fetch_failed", step=message.step, why=error.why)
        finally:
            del self._under_way[root]
            mine.done.set()
        return False

    async def _obtain(self, signed: PolicyFollowed, attempt: int) -> None:
        """Fetch, verify and shelve one policy; what it is made of, for others too, stays meanwhile."""
        manifest = await self._manifests.get(signed.message, signed.author)
        with self._policy_cache.pinned([manifest.image_root, *named_in(manifest)]):
            await self._obtain_image(signed, manifest, attempt)

    async def _obtain_image(self, signed: PolicyFollowed, manifest: PolicyManifest, attempt: int) -> None:
        """The cheapest way first, the next one where that fails; an image that is here costs nothing."""
        message = signed.message
        failure: IntellectError = PolicyUnknown("no policy", "there is no way to it", "wait for the next one")
        for way in ways_to(manifest, self._bases(message.step), self._workshop.present):
            began = self._monotonic()
            try:
                path = await self._workshop.make(way, manifest, self._sources(signed.author), attempt, self._base)
            # Not the fault of this way: the next one would need as much room.
            except (StoreFull, WeightsDiskError, Stopped):
                raise
            except IntellectError as error:
                log.info("policy.way_failed", step=message.step, way=way.name, patches=len(way.patches), why=error.why)
                if isinstance(error, MalformedPolicy | PatchError):
                    self._refuse(signed.author, signed.raw, error.why)
                failure = error
                continue
            root = message.policy_root
            held = HeldPolicy(message.step, root, path, manifest, message.manifest_root, signed.raw, way.patches)
            await self._hold(held)
            self.history.handed_over(way.cost, self._monotonic() - began)
            self.counts[way.name] += 1
            log.info("policy.held", step=message.step, root=root.hex(), by=way.name, bytes=way.cost)
            return
        raise failure

    def _bases(self, step: int) -> set[bytes]:
        """Policies to which patches may be applied: held, or older and on their way (so nobody waits in a circle)."""
        arriving = {root for root, other in self._under_way.items() if other.step < step}
        return arriving | {policy.root for policy in self._policy_cache.held}

    async def _hold(self, policy: HeldPolicy) -> None:
        if self._records is not None:
            await trio.to_thread.run_sync(self._records.write, policy, self._policy_cache.keep)
        self._policy_cache.put(policy)
        if self._policy_cache.newest is policy:
            self.history.came()

    async def _base(self, root: bytes) -> HeldPolicy:
        """A policy that is held, or about to be. Raises PolicyUnknown."""
        if root in self._under_way:
            await self._under_way[root].done.wait()
        held = self._policy_cache.by_root(root)
        if held is None:
            raise PolicyUnknown("a patch has no base", "the policy that it applies to was not obtained", "try again")
        return held

    def _refuse(self, author: Address, raw: bytes, why: str) -> None:
        """The trainer's signature stands under something that does not hold: said once, however often it is met."""
        if raw in self._blamed:
            return
        self._blamed[raw] = None
        self.counts["refused"] += 1
        log.warning("policy.refused", author=author, why=why)
        if self._blame is not None:
            self._blame(author, why)


class _UnderWay:
    """A policy that somebody obtains."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.done = trio.Event()
