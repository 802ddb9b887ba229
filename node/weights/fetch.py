"""Follow the trainer's announcements: fetch, build, verify and keep each newest policy.

Several steps may be on their way at once: their blobs are fetched side by side, and a step whose base is not there yet
waits for it before it is built. What the trainer signed and what does not hold is refused and counted against him;
wrong bytes of a peer never come this far.
"""

import shutil
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import structlog
import trio

from node.blobs.errors import StoreFull
from node.blobs.files import DAMAGE
from node.blobs.interface import Blobs
from node.blobs.store import BlobStore
from node.recent import Recent
from node.swarm.facts import Facts, Fork, LeaderDisbelieved, PolicyFollowed, Undone
from node.swarm.policies import COMPARED, PolicyClock
from node.weights.errors import PolicyUnknown, WeightsDiskError
from node.weights.images import Stopped, build_image, verify_file
from node.weights.keeper import HeldPolicy, PolicyShelf
from node.weights.records import PolicyRecords, Way, ways_to
from protocol.blobs import BlobInfo, describe
from protocol.delta import PatchError
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.messages import PolicyAnnounced
from protocol.policy import MAX_MANIFEST_BYTES, MalformedPolicy, PolicyManifest, PolicyPatch, decode_manifest

log = structlog.get_logger()
FIRST_PATIENCE = 10.0
"""Seconds that a blob has at the first attempt, and what its size needs at USUAL_RATE; twice that at each further one.

What has arrived stays, so an attempt costs nothing; without an end, a blob that nobody has any more would block the
other ways.
"""
# Bytes a second: a home's line. A slower one only needs another attempt, which goes on where the first ended.
USUAL_RATE = 20_000_000
# Else the doubling would end in centuries, and a way that is really blocked would never be left.
LONGEST_PATIENCE = 24 * 3600.0
MANIFEST_TIMEOUT = 60.0
RETRY_PAUSE = (0.5, 15.0)
IN_FLIGHT = 3
"""Steps that are fetched at once."""
REPEATED = 4
"""Announcements that are said again after a restart."""


Blame = Callable[[Address, str], object]
"""Told who signed something that does not hold, and what was wrong with it."""
Repeat = Callable[[bytes], Awaitable[None]]
"""Says a signed announcement again, for those who missed it."""


class PolicyFollower:
    """A service: the newest announced policy, always, and older ones on demand.

    facts, clock: which policies are followed; sources: whom to ask for what an author announced; max_image_bytes: what
    the run allows; workshop: a directory of its own on the store's disk; records: what outlives a restart; repeat: how
    an announcement is said again after it; newest: whether to pursue each newest policy, or none but those asked for.
    """

    def __init__(
        self,
        facts: Facts,
        clock: PolicyClock,
        blobs: Blobs,
        store: BlobStore,
        shelf: PolicyShelf,
        run_root: bytes,
        sources: Callable[[Address], Sequence[Address]],
        max_image_bytes: int,
        *,
        workshop: Path,
        records: PolicyRecords | None = None,
        repeat: Repeat | None = None,
        blame: Blame | None = None,
        newest: bool = True,
    ) -> None:
        self._facts = facts
        self._clock = clock
        self._blobs = blobs
        self._store = store
        self._shelf = shelf
        self._run_root = run_root
        self._sources = sources
        self._max_image = max_image_bytes
        self._workshop = workshop
        self._records = records
        self._repeat = repeat
        self._blame = blame
        self._newest = newest
        self._manifests = Recent[bytes, PolicyManifest](2 * IN_FLIGHT)
        self._under_way: dict[bytes, _UnderWay] = {}
        # Bounded, for a trainer may say as many bad things as it likes.
        self._refused = Recent[bytes, str](COMPARED)
        self._blamed = Recent[bytes, None](COMPARED)
        self._pursued: set[int] = set()
        self._wanted = trio.Event()
        # One at a time: two builds would share the disk's speed and each need an image's room.
        self._building = trio.Lock()
        # Threads look at this between two chunks; without it a cancelled daemon would wait for an image to be built.
        self._stop = threading.Event()
        self.counts: Counter[str] = Counter()

    @property
    def newest_step(self) -> int:
        """The newest step that was announced, -1 before the first."""
        return self._clock.newest_step

    @property
    def fork(self) -> Fork | None:
        """What the trainer said that cannot be true together."""
        return self._clock.fork

    async def run(self) -> None:
        # What a killed process left half built is never taken up: its blobs are in the store.
        await trio.to_thread.run_sync(_empty, self._workshop)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_building)
            await self._restore()
            nursery.start_soon(self._listen)
            if self._newest:
                nursery.start_soon(self._keep_newest, nursery)

    async def _stop_building(self) -> None:
        """A thread cannot be cancelled; it is told."""
        try:
            await trio.sleep_forever()
        finally:
            self._stop.set()

    def step_of(self, root: bytes) -> int | None:
        """The step of an announced policy."""
        known = self._clock.find(root)
        return known.step if known else None

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
        held = self._shelf.by_root(root)
        signed = self._clock.announcement(root)
        # Nothing is fetched on the word of whoever asks: only what the trainer has signed.
        if held or not signed:
            return held
        with trio.move_on_after(timeout):
            await self._try(signed)
        return self._shelf.by_root(root)

    async def _restore(self) -> None:
        """After a restart: the policies of before, each checked again, the newest first, and announced again."""
        if self._records is None:
            return
        records = await trio.to_thread.run_sync(self._records.read)
        # The newest first: a worker can start with it while older ones are still being hashed.
        for record in reversed(records[-self._shelf.keep :]):
            manifest = record.manifest
            # The directory may be from another pool's run.
            if manifest.run_root != self._run_root or not self._store.has(manifest.image_root):
                continue
            path = self._store.path(manifest.image_root)
            try:
                await trio.to_thread.run_sync(verify_file, manifest, path)
            except (OSError, MalformedPolicy) as error:
                # The disk has changed it since: it is fetched again. All else says nothing of the file.
                if isinstance(error, MalformedPolicy) or error.errno in DAMAGE:
                    self._store.proof.lose(manifest.image_root, str(error))
                else:
                    log.warning("policy.not_restored", step=manifest.step, why=str(error))
                continue
            self._store.proof.proved(manifest.image_root)
            held = HeldPolicy(
                manifest.step, manifest.policy_root, path, manifest, record.manifest_root, record.announcement
            )
            self._shelf.put(held)
            log.info("policy.restored", step=held.step, root=held.root.hex())
        for policy in self._shelf.held[-REPEATED:]:
            if self._repeat is not None:
                await self._repeat(policy.announcement)

    # what to fetch

    async def _listen(self) -> None:
        # The clock knows what is the newest: a policy that is taken back only changes that.
        async for news in self._facts.subscribe(PolicyFollowed, LeaderDisbelieved, Undone):
            if isinstance(news, LeaderDisbelieved):
                self._refuse(news.author, news.fork.evidence[-1], news.fork.what)
            self._wanted.set()

    async def _keep_newest(self, nursery: trio.Nursery) -> None:
        """Pursue the newest policy, beside at most IN_FLIGHT - 1 that are still on their way."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            newest = self._clock.of_step(self._clock.newest_step)
            if newest is None or len(self._pursued) >= IN_FLIGHT:
                continue  # whoever of them finishes looks again
            step = newest.message.step
            if step not in self._pursued and not self._superseded(step):
                self._pursued.add(step)
                nursery.start_soon(self._pursue, newest)

    async def _pursue(self, signed: PolicyFollowed) -> None:
        """Try until it is here, a newer one is, or it turns out that it cannot be."""
        step = signed.message.step
        attempt = 0
        try:
            while not self._superseded(step) and signed.message.policy_root not in self._refused:
                if await self._try(signed, attempt):
                    return
                await trio.sleep(min(RETRY_PAUSE[0] * 2**attempt, RETRY_PAUSE[1]))
                # Bounded where it stands in an exponent.
                attempt = min(attempt + 1, 16)
        finally:
            self._pursued.discard(step)
            self._wanted.set()

    def _superseded(self, step: int) -> bool:
        newest = self._shelf.newest
        return newest is not None and newest.step >= step

    # one policy

    async def _try(self, signed: PolicyFollowed, attempt: int = 0) -> bool:
        """Obtain one policy unless somebody else is about to; False if that failed and may be tried again."""
        message = signed.message
        root = message.policy_root
        # Both `get` and the pursuit may want one policy: it is built once, and the other takes it from the shelf.
        while root in self._under_way:
            await self._under_way[root].done.wait()
        if self._shelf.by_root(root):
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
        except IntellectError as error:
            level = log.warning if isinstance(error, WeightsDiskError | StoreFull) else log.info
            level("policy.fetch_failed", step=message.step, why=error.why)
        finally:
            del self._under_way[root]
            mine.done.set()
        return False

    async def _obtain(self, signed: PolicyFollowed, attempt: int) -> None:
        """Fetch, verify and shelve one policy; its image, which may be here under another step, stays meanwhile."""
        manifest = await self._manifest(signed.message, signed.author)
        with self._shelf.pinned([manifest.image_root]):
            await self._obtain_image(signed, manifest, attempt)

    async def _obtain_image(self, signed: PolicyFollowed, manifest: PolicyManifest, attempt: int) -> None:
        """The cheapest way first, the next one where that fails; an image that is here costs nothing."""
        message = signed.message
        failure: IntellectError = PolicyUnknown("no policy", "there is no way to it", "wait for the next one")
        for way in ways_to(manifest, self._bases(message.step), self._present):
            try:
                path = await self._go_making_room(way, manifest, self._sources(signed.author), attempt)
            # Not the fault of this way: the next one would need as much room.
            except (StoreFull, WeightsDiskError, Stopped):
                raise
            except IntellectError as error:
                log.info("policy.way_failed", step=message.step, patches=len(way.patches), why=error.why)
                if isinstance(error, MalformedPolicy | PatchError):
                    self._refuse(signed.author, signed.raw, error.why)
                failure = error
                continue
            root = message.policy_root
            await self._hold(HeldPolicy(message.step, root, path, manifest, message.manifest_root, signed.raw))
            self.counts[way.name] += 1
            log.info("policy.held", step=message.step, root=root.hex(), by=way.name, bytes=way.cost)
            return
        raise failure

    def _bases(self, step: int) -> set[bytes]:
        """Policies to which patches may be applied: held, or older and on their way (so nobody waits in a circle)."""
        arriving = {root for root, other in self._under_way.items() if other.step < step}
        return arriving | {policy.root for policy in self._shelf.held}

    def _present(self, root: bytes) -> int:
        """Bytes of a blob that are here already."""
        return self._store.path(root).stat().st_size if self._store.has(root) else 0

    async def _hold(self, policy: HeldPolicy) -> None:
        if self._records is not None:
            await trio.to_thread.run_sync(self._records.write, policy, self._shelf.keep)
        self._shelf.put(policy)

    async def _go_making_room(
        self, way: Way, manifest: PolicyManifest, sources: Sequence[Address], attempt: int
    ) -> Path:
        while True:
            try:
                return await self._go(way, manifest, sources, attempt)
            except StoreFull:
                if not self._shelf.make_room():
                    raise

    async def _go(self, way: Way, manifest: PolicyManifest, sources: Sequence[Address], attempt: int) -> Path:
        """The verified image, by one way. Raises IntellectError."""
        needed = [(patch.root, patch.size) for patch in way.patches]
        if way.image:
            needed.append((way.image, manifest.image_size))
        with self._shelf.pinned(root for root, _ in needed):
            known = way.whole and self._store.has(way.image)  # compared with its root at some time, but not now
            paths = await self._fetch_all(needed, sources, attempt, manifest.step)
            if way.whole:
                await self._verify(manifest, paths[way.image], None if known else self._store.info(way.image))
                return paths[way.image]
            held = None if way.image else await self._base(way.base)
            if self._store.has(manifest.image_root):  # it arrived with a base that has the same weights
                await self._verify(manifest, self._store.path(manifest.image_root))
                return self._store.path(manifest.image_root)
            patches = [(patch, paths[patch.root]) for patch in way.patches]
            if held is None:
                return await self._build(manifest, paths[way.image], patches)
            # It may leave the shelf while others are built first.
            with self._shelf.pinned([held.manifest.image_root]):
                return await self._build(manifest, held.path, patches)

    async def _verify(self, manifest: PolicyManifest, path: Path, blob: BlobInfo | None = None) -> None:
        """blob: as in `verify_file`. Raises MalformedPolicy, PolicyUnknown if it is our own disk's fault."""
        try:
            await trio.to_thread.run_sync(verify_file, manifest, path, blob)
        except MalformedPolicy:
            await self._check_disk([path])
            raise

    async def _base(self, root: bytes) -> HeldPolicy:
        """A policy that is held, or about to be. Raises PolicyUnknown."""
        if root in self._under_way:
            await self._under_way[root].done.wait()
        held = self._shelf.by_root(root)
        if held is None:
            raise PolicyUnknown("a patch has no base", "the policy that it applies to was not obtained", "try again")
        return held

    async def _build(self, manifest: PolicyManifest, base: Path, patches: list[tuple[PolicyPatch, Path]]) -> Path:
        """Apply patches in a thread, into a file that becomes a blob by one rename."""
        work = self._workshop / f"{manifest.step:09d}-{manifest.policy_root.hex()[:16]}"
        async with self._building:
            try:
                built = await trio.to_thread.run_sync(build_image, manifest, base, patches, work, self._stop)
                info = await self._store.add(work, move=True, known=built)
            except PatchError:
                await self._check_disk([base, *(path for _, path in patches)])
                raise
            finally:
                work.unlink(missing_ok=True)  # noqa: ASYNC240 - one local file
        # The tensors are right by now, each by its digest: only the manifest's own arithmetic can be wrong.
        if info.root != manifest.image_root:
            raise MalformedPolicy("wrong policy manifest", "the image of its tensors has another root")
        return self._store.path(info.root)

    async def _check_disk(self, paths: Sequence[Path]) -> None:
        """Before anybody is blamed for what does not fit: are the blobs on this disk what they were?"""
        for path in paths:
            root = bytes.fromhex(path.name)
            if not self._store.has(root):
                continue
            await self._store.proof.prove(root)
            if not self._store.has(root):
                raise PolicyUnknown("a blob was damaged", f"{path} is not what it was", "check the disk")

    async def _fetch_all(
        self, blobs: list[tuple[bytes, int]], sources: Sequence[Address], attempt: int, step: int
    ) -> dict[bytes, Path]:
        """Side by side, those of newer steps before those of older ones; the first failure ends them all."""
        paths: dict[bytes, Path] = {}

        async def fetch(root: bytes, size: int) -> None:
            timeout = min(LONGEST_PATIENCE, (FIRST_PATIENCE + size / USUAL_RATE) * 2**attempt)
            paths[root] = await self._blobs.fetch(root, sources, max_size=size, timeout=timeout, priority=step)

        try:
            async with trio.open_nursery() as nursery:
                for root, size in blobs:
                    nursery.start_soon(fetch, root, size)
        except BaseExceptionGroup as group:
            _raise_expected(group)
        return paths

    async def _manifest(self, message: PolicyAnnounced, author: Address) -> PolicyManifest:
        """The manifest that an announcement names, checked against it. Raises MalformedPolicy."""
        manifest = self._manifests.get(message.manifest_root)
        if manifest is None:
            manifest = await self._read_manifest(message, author)
            self._manifests[message.manifest_root] = manifest
        self._check(manifest, message)
        return manifest

    async def _read_manifest(self, message: PolicyAnnounced, author: Address) -> PolicyManifest:
        if not 0 < message.manifest_size <= MAX_MANIFEST_BYTES:
            raise MalformedPolicy("wrong policy manifest", f"{message.manifest_size} bytes cannot be one")
        data = message.manifest
        if data:
            if describe(data).root != message.manifest_root:
                raise MalformedPolicy("wrong policy manifest", "the one in the announcement is not the one it names")
        else:
            path = await self._blobs.fetch(
                message.manifest_root, self._sources(author), max_size=message.manifest_size, timeout=MANIFEST_TIMEOUT
            )
            data = await trio.to_thread.run_sync(path.read_bytes)
        return await trio.to_thread.run_sync(decode_manifest, data)

    def _check(self, manifest: PolicyManifest, message: PolicyAnnounced) -> None:
        named = (manifest.run_root, manifest.step, manifest.policy_root)
        if named != (self._run_root, message.step, message.policy_root):
            raise MalformedPolicy("wrong policy manifest", "it is not the one that was announced")
        if manifest.image_size > self._max_image:
            raise MalformedPolicy("wrong policy manifest", f"an image of {manifest.image_size} bytes is too large")
        steps = {patch.step: patch.target_root for patch in manifest.patches}
        if manifest.anchor is not None:
            steps.setdefault(manifest.anchor.step, manifest.anchor.policy_root)
        for step, root in steps.items():
            if self.root_of(step) not in (None, root) or self.step_of(root) not in (None, step):
                raise MalformedPolicy("forked policy", f"it builds on another policy of step {step} than was announced")

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


def _raise_expected(group: BaseExceptionGroup) -> None:
    """An expected error of several tasks as itself; anything else as it is."""
    expected, rest = group.split(IntellectError)
    # Where the time was up meanwhile, too, the next wait says so again.
    if expected is None or (rest is not None and rest.split(trio.Cancelled)[1] is not None):
        raise group
    first: BaseException = expected
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    raise first from group


def _empty(directory: Path) -> None:
    """What a killed predecessor left half-done goes."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
