"""Where policies come to rest: blobs fetched side by side, patches applied, the result held against its manifest.

Wrong bytes of a peer never come this far: what does not fit was signed so, or this disk has changed it.
"""

import os
import shutil
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import structlog
import trio

from node.blobs.errors import StoreFull
from node.blobs.interface import Blobs
from node.blobs.store import BlobStore
from node.inference.client import EngineChild
from node.inference.errors import EngineError
from node.inference.layers import LayeredImage
from node.weights.errors import BlobDamaged, PolicyUnknown
from node.weights.images import build_image, verify_file
from node.weights.policy_cache import HeldPolicy, PolicyCache, layers_in, load_of
from node.weights.records import FetchPath
from protocol.blobs import BlobInfo
from protocol.delta import PatchError
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.policy import MalformedPolicy, PolicyManifest, PolicyPatch, TensorInfo

log = structlog.get_logger()
Base = Callable[[bytes], Awaitable[HeldPolicy]]
"""A policy that is held or about to be, by its root. Raises PolicyUnknown."""


class LayersAt(NamedTuple):
    """Blobs of the store: an image, and patches that lead on from it."""

    path: Path
    patches: Sequence[PolicyPatch]


class Workshop:
    """directory: its own, on the store's disk; engine: that compares policies, where there is one."""

    def __init__(
        self,
        blobs: Blobs,
        store: BlobStore,
        policy_cache: PolicyCache,
        directory: Path,
        engine: EngineChild | None = None,
    ) -> None:
        self._blobs, self._store, self._policy_cache, self._directory = blobs, store, policy_cache, directory
        self._engine = engine
        # One at a time: two builds would share the disk's speed and each need an image's room.
        self._building = trio.Lock()
        # Threads look at this between two chunks; without it a cancelled daemon would wait for an image to be built.
        self._stop = threading.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled: then the thread that builds, which cannot be, is told."""
        # What a killed process left half built is never taken up: its blobs are in the store.
        await trio.to_thread.run_sync(_empty, self._directory)
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            self._stop.set()

    def present(self, root: bytes) -> int:
        """Bytes of a blob that are here already."""
        return self._store.path(root).stat().st_size if self._store.has(root) else 0

    async def make(
        self, way: FetchPath, manifest: PolicyManifest, sources: Sequence[Address], attempt: int, base: Base
    ) -> Path:
        """The image at rest from which `way.patches` lead to the policy, all of it verified. Raises IntellectError."""
        while True:
            try:
                return await self._go(way, manifest, sources, attempt, base)
            except StoreFull:
                if not self._policy_cache.make_room():
                    raise

    async def _go(
        self, way: FetchPath, manifest: PolicyManifest, sources: Sequence[Address], attempt: int, base: Base
    ) -> Path:
        needed = [(patch.root, patch.size) for patch in (*way.before, *way.patches)]
        if not way.base:
            needed.append((way.image, manifest.image_size))
        with self._policy_cache.pinned([way.image, *(root for root, _ in needed)]):
            known = self._store.has(way.image)  # compared with its root at some time, but not now
            await self._fetch_all(needed, sources, attempt, manifest.step)
            held = await base(way.base) if way.base else None
            built = held is not None and not self._store.has(way.image)
            if held is not None and built:
                await self._build(manifest, held, way)
            path = self._store.path(way.image)
            if way.patches:
                await self._check(manifest, LayersAt(path, way.patches))
            elif not built:
                await self._verify(manifest, path, None if known else self._store.info(way.image))
            return path

    async def _verify(self, manifest: PolicyManifest, path: Path, blob: BlobInfo | None = None) -> None:
        """blob: as in `verify_file`. Raises MalformedPolicy, PolicyUnknown if it is our own disk's fault."""
        try:
            await trio.to_thread.run_sync(verify_file, manifest, path, blob)
        except MalformedPolicy:
            await self._check_disk([path])
            raise

    async def _check(self, manifest: PolicyManifest, layers: "LayersAt") -> None:
        """Are a base and patches the manifest's policy? Nothing is written."""
        if await self._engine_agrees(manifest, layers):
            return
        async with self._building:
            await self._put_together(layers, manifest.image_root, manifest.tensors)

    async def _engine_agrees(self, manifest: PolicyManifest, layers: "LayersAt") -> bool:
        """The engine has to compare the policy before it computes with it, and has the one before: to it a step is one
        patch, and not all since the snapshot. What it objects to is looked at here, before anybody is blamed."""
        if self._engine is None:
            return False
        # All patches on a slow machine, at so many bytes a second: an engine that has just begun has no policy before.
        timeout = 60.0 + manifest.image_size / 20_000_000
        try:
            await self._engine.ask(load_of(manifest, *layers), timeout=timeout)
        except EngineError as error:
            log.info("policy.not_checked_by_engine", step=manifest.step, why=error.why)
            return False
        return True

    async def _build(self, manifest: PolicyManifest, held: HeldPolicy, way: FetchPath) -> None:
        """The image that later policies rest on, from the policies before it: a file that becomes a blob by one
        rename."""
        if not way.before:
            raise PolicyUnknown("a patch has no base", "the image that it leads on from is not here", "fetch that")
        work = self._directory / f"{manifest.step:09d}-{manifest.policy_root.hex()[:16]}"
        infos = None if way.patches else manifest.tensors
        # The policy may leave the shelf while others are built first.
        with self._policy_cache.pinned(held.blobs):
            async with self._building:
                try:
                    layers = LayersAt(held.path, (*held.patches, *way.before))
                    info = await self._put_together(layers, way.image, infos, work)
                    # Not synced: others have it, and the policies that it was built from.
                    await self._store.add(work, move=True, known=info, synced=False)
                finally:
                    work.unlink(missing_ok=True)

    async def _put_together(
        self, layers: "LayersAt", root: bytes, infos: Sequence[TensorInfo] | None, out: Path | None = None
    ) -> BlobInfo:
        """The image `root`, in threads. Raises PatchError, MalformedPolicy, PolicyUnknown if it is our own disk's
        fault."""

        def build() -> BlobInfo:
            image = LayeredImage(layers.path, layers_in(layers.path.parent, layers.patches))
            found = build_image(image, infos, out, self._stop)
            if found.root != root:
                raise MalformedPolicy("wrong policy manifest", "the image that its patches lead to has another root")
            return found

        try:
            return await trio.to_thread.run_sync(build)
        except (PatchError, MalformedPolicy, OSError) as error:
            await self._check_disk([layers.path, *(layers.path.with_name(one.root.hex()) for one in layers.patches)])
            if isinstance(error, OSError):  # it was lost while it was waited for
                raise BlobDamaged("a blob cannot be read", str(error), "check the disk") from error
            raise

    async def _check_disk(self, paths: Sequence[Path]) -> None:
        """Before anybody is blamed for what does not fit: are the blobs on this disk what they were?"""
        for path in paths:
            root = bytes.fromhex(path.name)
            if not self._store.has(root):
                continue
            await self._store.proof.prove(root)
            if not self._store.has(root):
                raise BlobDamaged("a blob was damaged", f"{path} is not what it was", "check the disk")

    async def _fetch_all(
        self, blobs: list[tuple[bytes, int]], sources: Sequence[Address], attempt: int, step: int
    ) -> None:
        """Side by side, those of newer steps before those of older ones; the first failure ends them all."""

        # Seconds that a blob has at the first attempt, and what its size needs at the usual rate; twice that at each
        # further one. What has arrived stays, so an attempt costs nothing; without an end, a blob that nobody has any
        # more would block the other ways.
        first_patience = 10.0
        # Bytes a second: a home's line. A slower one only needs another attempt, which goes on where the first ended.
        usual_rate = 20_000_000
        # End of the doubling: else it would come to centuries, and a way that is really blocked would never be left.
        longest_patience = 24 * 3600.0

        async def fetch(root: bytes, size: int) -> None:
            timeout = min(longest_patience, (first_patience + size / usual_rate) * 2**attempt)
            await self._blobs.fetch(root, sources, max_size=size, timeout=timeout, priority=step)

        try:
            async with trio.open_nursery() as nursery:
                for root, size in blobs:
                    nursery.start_soon(fetch, root, size)
        except BaseExceptionGroup as group:
            _raise_expected(group)


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


async def written_out(policy: HeldPolicy, store: BlobStore, directory: Path) -> Path:
    """A policy's own image as a blob, made of a base and patches if it is not there: for who reads files. Nothing keeps
    it. directory: on the store's disk. Raises StoreFull, WeightsDiskError, MalformedPolicy, PatchError."""
    if not policy.patches:
        return policy.path
    root = policy.manifest.image_root
    if not await store.whole(root):
        work = directory / f"{os.urandom(8).hex()}.image"
        with store.holding(policy.blobs):
            # Before the work: whoever asks a gateway again and again would have it made for nothing each time.
            store.room.make(root, policy.manifest.image_size)
            try:
                info = await trio.to_thread.run_sync(lambda: build_image(policy.image(), policy.manifest.tensors, work))
                await store.add(work, move=True, known=info, synced=False)
            finally:
                work.unlink(missing_ok=True)
    return store.path(root)
