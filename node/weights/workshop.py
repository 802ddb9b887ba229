"""Where images of policies are made: blobs fetched side by side, patches applied, the result held against its manifest.

Wrong bytes of a peer never come this far: what does not fit was signed so, or this disk has changed it.
"""

import shutil
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import trio

from node.blobs.errors import StoreFull
from node.blobs.interface import Blobs
from node.blobs.store import BlobStore
from node.weights.errors import PolicyUnknown
from node.weights.images import build_image, verify_file
from node.weights.policy_cache import HeldPolicy, PolicyCache
from node.weights.records import FetchPath
from protocol.blobs import BlobInfo
from protocol.delta import PatchError
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.policy import MalformedPolicy, PolicyManifest, PolicyPatch

FIRST_PATIENCE = 10.0
"""Seconds that a blob has at the first attempt, and what its size needs at USUAL_RATE; twice that at each further one.

What has arrived stays, so an attempt costs nothing; without an end, a blob that nobody has any more would block the
other ways.
"""
# Bytes a second: a home's line. A slower one only needs another attempt, which goes on where the first ended.
USUAL_RATE = 20_000_000
# Else the doubling would end in centuries, and a way that is really blocked would never be left.
LONGEST_PATIENCE = 24 * 3600.0

Base = Callable[[bytes], Awaitable[HeldPolicy]]
"""A policy that is held or about to be, by its root. Raises PolicyUnknown."""


class Workshop:
    """directory: its own, on the store's disk."""

    def __init__(self, blobs: Blobs, store: BlobStore, policy_cache: PolicyCache, directory: Path) -> None:
        self._blobs, self._store, self._policy_cache, self._directory = blobs, store, policy_cache, directory
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
        """The verified image, by one way. Raises IntellectError."""
        while True:
            try:
                return await self._go(way, manifest, sources, attempt, base)
            except StoreFull:
                if not self._policy_cache.make_room():
                    raise

    async def _go(
        self, way: FetchPath, manifest: PolicyManifest, sources: Sequence[Address], attempt: int, base: Base
    ) -> Path:
        needed = [(patch.root, patch.size) for patch in way.patches]
        if way.image:
            needed.append((way.image, manifest.image_size))
        with self._policy_cache.pinned(root for root, _ in needed):
            known = way.whole and self._store.has(way.image)  # compared with its root at some time, but not now
            paths = await self._fetch_all(needed, sources, attempt, manifest.step)
            if way.whole:
                await self._verify(manifest, paths[way.image], None if known else self._store.info(way.image))
                return paths[way.image]
            held = None if way.image else await base(way.base)
            if self._store.has(manifest.image_root):  # it arrived with a base that has the same weights
                await self._verify(manifest, self._store.path(manifest.image_root))
                return self._store.path(manifest.image_root)
            patches = [(patch, paths[patch.root]) for patch in way.patches]
            if held is None:
                return await self._build(manifest, paths[way.image], patches)
            # It may leave the shelf while others are built first.
            with self._policy_cache.pinned([held.manifest.image_root]):
                return await self._build(manifest, held.path, patches)

    async def _verify(self, manifest: PolicyManifest, path: Path, blob: BlobInfo | None = None) -> None:
        """blob: as in `verify_file`. Raises MalformedPolicy, PolicyUnknown if it is our own disk's fault."""
        try:
            await trio.to_thread.run_sync(verify_file, manifest, path, blob)
        except MalformedPolicy:
            await self._check_disk([path])
            raise

    async def _build(self, manifest: PolicyManifest, base: Path, patches: list[tuple[PolicyPatch, Path]]) -> Path:
        """Apply patches in a thread, into a file that becomes a blob by one rename."""
        work = self._directory / f"{manifest.step:09d}-{manifest.policy_root.hex()[:16]}"
        async with self._building:
            try:
                built = await trio.to_thread.run_sync(build_image, manifest, base, patches, work, self._stop)
                # Not synced: it is held for a step or two, and can be made again from base and patches.
                info = await self._store.add(work, move=True, known=built, synced=False)
            except PatchError:
                await self._check_disk([base, *(path for _, path in patches)])
                raise
            finally:
                work.unlink(missing_ok=True)
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
