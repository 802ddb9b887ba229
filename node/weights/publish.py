"""Publish a policy: image, patch and manifest become blobs, the announcement is journaled, then said.

A patch is made against the policy published before, unless it would cost too much; an image becomes the snapshot when
the run says so, or when the patches since the last one have grown to a quarter of its size.
"""

import shutil
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog
import trio

from node.blobs.errors import StoreFull
from node.blobs.store import BlobStore
from node.state.files import link_or_copy
from node.state.journal import Journal
from node.state.kept import kept
from node.swarm.board import Board
from node.weights.images import (
    DescribedImage,
    PatchTooLong,
    describe_image,
    is_canonical,
    write_canonical,
    write_patch,
)
from node.weights.policy_cache import HeldPolicy, PolicyCache
from node.weights.records import PolicyRecords, next_chain
from protocol.blobs import BlobInfo
from protocol.delta import PatchError
from protocol.manifest import PolicyStatement
from protocol.messages import PolicyAnnounced, parse_envelope
from protocol.policy import (
    MAX_MANIFEST_BYTES,
    PATCH_SHARE,
    MalformedPolicy,
    PolicyManifest,
    PolicyPatch,
    TensorInfo,
    WeightsSnapshot,
    decode_manifest,
    encode_manifest,
    policy_root,
)

log = structlog.get_logger()
T = TypeVar("T")
JOURNAL_KIND = "policy"


MOST_LAYERS = 64
"""Patches that lead from a snapshot to a policy at most: whoever loads the policy applies all of them."""


class StepWord(msgspec.Struct, frozen=True):
    """What the trainer states of a step, and its signature. batch: the manifest of its batch, which the statement
    names; empty for step 0."""

    statement: PolicyStatement
    signature: bytes
    batch: bytes = b""


class Publisher:
    """Makes a step of the model known to the swarm, once.

    workshop: a directory of its own on the store's disk; records: what `intellect-node weights` reads; shelf: where the
    caller keeps what was published, and what gives way when the store is full.
    """

    def __init__(
        self,
        store: BlobStore,
        board: Board,
        journal: Journal,
        run_root: bytes,
        pool: int,
        *,
        workshop: Path,
        snapshot_every: int = 50,
        records: PolicyRecords | None = None,
        policy_cache: PolicyCache | None = None,
    ) -> None:
        self._store = store
        self._board = board
        self._journal = journal
        self._run_root = run_root
        self._pool = pool
        self._workshop = workshop
        self._snapshot_every = snapshot_every
        self._records = records
        self._policy_cache = policy_cache
        self._previous: HeldPolicy | None = None
        shutil.rmtree(workshop, ignore_errors=True)  # what a killed predecessor left half-done
        workshop.mkdir(parents=True)

    async def publish(self, step: int, image: Path, word: StepWord) -> HeldPolicy:
        """Announce the image of `step`. After a restart the journaled announcement is repeated as it was."""
        info, tensors = await self._take_in(step, image)
        with self._kept(info.root):
            return await self._announce(step, info, tensors, word)

    async def _announce(self, step: int, info: BlobInfo, tensors: tuple[TensorInfo, ...], word: StepWord) -> HeldPolicy:
        slot = _slot(step, word)
        raw = await self._journal.do(self._journal.said, JOURNAL_KIND, slot)
        if raw is None:
            manifest = await self._describe(step, info, tensors)
            # The newest patch alone: those before it are held by the policies that they led to.
            with self._kept(*(patch.root for patch in manifest.patches[-1:])):
                raw = self._board.sealed(await self._announcement(manifest, word))
            # On the disk before it is said: a restart would else sign another announcement of this step.
            await self._journal.promise(self._journal.say, JOURNAL_KIND, slot, raw)
        else:
            manifest = await self._said_before(raw, step, info, tensors)
        await self._board.post_raw(raw)
        held = await self._held(raw, step, info, manifest)
        patch = manifest.patches[-1].size if manifest.patches else 0
        log.info("policy.published", step=step, root=held.root.hex(), bytes=info.size, patch_bytes=patch)
        return held

    async def hold(self, step: int, image: Path, raw: bytes) -> HeldPolicy:
        """Serve a policy that another trainer has announced, and build on it. Raises MalformedPolicy if the image is
        another one."""
        info, tensors = await self._take_in(step, image)
        with self._kept(info.root):
            return await self._held(raw, step, info, await self._said_before(raw, step, info, tensors))

    def _kept(self, *roots: bytes) -> AbstractContextManager[None]:
        """Until the caller has the policy on the shelf: a full store would drop its image for its own patch, and that
        for its manifest, before any older policy."""
        return nullcontext() if self._policy_cache is None else self._policy_cache.pinned(roots)

    async def _held(self, raw: bytes, step: int, info: BlobInfo, manifest: PolicyManifest) -> HeldPolicy:
        message = self._read(raw)
        held = HeldPolicy(step, manifest.policy_root, self._store.path(info.root), manifest, message.manifest_root, raw)
        self._previous = held
        if self._records is not None and self._policy_cache is not None:
            await trio.to_thread.run_sync(self._records.write, held, self._policy_cache.keep)
        return held

    async def _take_in(self, step: int, image: Path) -> tuple[BlobInfo, tuple[TensorInfo, ...]]:
        """The image as a blob, in canonical form; no copy is made where the file system knows hard links."""
        work = self._workshop / f"image-{step:06d}"

        def taken() -> DescribedImage:
            if is_canonical(image):
                link_or_copy(image, work)
            else:
                write_canonical(image, work)
            return describe_image(work)

        try:
            found = await trio.to_thread.run_sync(taken)
            # Not synced: the learner has the image, and takes care of it until a checkpoint is behind it.
            add = lambda: self._store.add(work, move=True, known=found.blob, synced=False)
            return await self._with_room(add), found.tensors
        finally:
            work.unlink(missing_ok=True)

    async def _with_room(self, add: Callable[[], Awaitable[T]]) -> T:
        """What `add` gives; older policies make room for it. Raises StoreFull."""
        while True:
            try:
                return await add()
            except StoreFull:
                if self._policy_cache is None or not self._policy_cache.make_room():
                    raise

    async def _add_manifests(self, manifest: bytes, batch: bytes, *, synced: bool) -> BlobInfo:
        """A policy's and its batch's, if it has one; the blob of the first."""
        blobs = [manifest, batch] if batch else [manifest]
        return (await self._with_room(lambda: self._store.add_each(blobs, synced=synced)))[0]

    async def _describe(self, step: int, info: BlobInfo, tensors: tuple[TensorInfo, ...]) -> PolicyManifest:
        previous = self._previous.manifest if self._previous and self._previous.step < step else None
        root, patch = await self._patch(step, info, tensors)
        chain = next_chain(previous, patch, info.size, info.size // PATCH_SHARE)
        snapshot = self._snapshot(step, previous, chain)
        manifest = PolicyManifest(self._run_root, step, root, tensors, info.root, info.size, snapshot, chain)
        await trio.to_thread.run_sync(manifest.check)
        return manifest

    def _snapshot(
        self, step: int, previous: PolicyManifest | None, chain: tuple[PolicyPatch, ...]
    ) -> WeightsSnapshot | None:
        """The snapshot that stays, if the patches still lead from it; None: the new image is the snapshot."""
        if previous is None or not chain:
            return None
        old = previous.snapshot or WeightsSnapshot(previous.step, previous.policy_root, previous.image_root)
        reached = any(patch.base_root == old.policy_root for patch in chain)
        return old if reached and step - old.step < min(self._snapshot_every, MOST_LAYERS) else None

    async def _patch(
        self, step: int, info: BlobInfo, tensors: tuple[TensorInfo, ...]
    ) -> tuple[bytes, PolicyPatch | None]:
        """The policy's root, and the patch from the policy before, as a blob; None if there is none or it would not
        pay.

        Between equal weights it is a few bytes per tensor, and made all the same: the chain leads on over it.
        """
        previous = self._previous
        # A full store may have dropped the image before: then there is nothing to compare with, and no patch.
        if previous is None or previous.step >= step or not self._store.has(previous.manifest.image_root):
            return await trio.to_thread.run_sync(policy_root, step, tensors), None
        base, target = self._store.path(previous.manifest.image_root), self._store.path(info.root)
        work, most = self._workshop / f"patch-{step:06d}", info.size // PATCH_SHARE

        def made() -> tuple[bytes, bool]:
            root = policy_root(step, tensors)
            ends = previous.root, root
            try:
                write_patch(base, previous.manifest.tensors, target, tensors, work, most, roots=ends)
            except PatchTooLong:
                log.debug("policy.no_patch", step=step, why="it would be longer than a quarter of the image")
                return root, False
            except PatchError as error:
                log.info("policy.no_patch", step=step, why=error.why)
                return root, False
            return root, True

        try:
            root, pays = await trio.to_thread.run_sync(made)
            if not pays:
                return root, None
            blob = await self._with_room(lambda: self._store.add(work, move=True))
        finally:
            work.unlink(missing_ok=True)
        return root, PolicyPatch(step, previous.root, root, blob.root, blob.size)

    async def _announcement(self, manifest: PolicyManifest, word: StepWord) -> PolicyAnnounced:
        if word.statement.policy_root != manifest.policy_root:
            raise MalformedPolicy("will not publish this policy", "its image is not what the learner said to have made")
        encoded = encode_manifest(manifest)
        told, batch = _told(encoded, 8 * 1024), _told(word.batch, 2 * 1024)
        # What is told is in the journal before it is said, and is made a blob again from there.
        synced = bool((encoded and not told) or (word.batch and not batch))
        blob = await self._add_manifests(encoded, word.batch, synced=synced)
        return PolicyAnnounced(
            pool=self._pool,
            statement=word.statement,
            signature=word.signature,
            manifest_root=blob.root,
            manifest_size=len(encoded),
            manifest=told,
            batch=batch,
        )

    async def _said_before(
        self, raw: bytes, step: int, info: BlobInfo, tensors: tuple[TensorInfo, ...]
    ) -> PolicyManifest:
        """The manifest that was announced before a restart; the image must be that one's."""
        message = kept(f"what the journal has of policy {step}", lambda: self._read(raw))
        if message.policy_root != policy_root(step, tensors):
            raise MalformedPolicy("will not publish two policies for one step", f"step {step} was announced otherwise")
        encoded = message.manifest
        if not encoded and self._store.has(message.manifest_root):
            encoded = await trio.to_thread.run_sync(_read_manifest, self._store.path(message.manifest_root))
        if encoded:
            await self._add_manifests(encoded, message.told_batch, synced=False)
            return decode_manifest(encoded)
        return PolicyManifest(self._run_root, step, message.policy_root, tensors, info.root, info.size)

    def _read(self, raw: bytes) -> PolicyAnnounced:
        """An announcement of a trainer's."""
        message = parse_envelope(self._pool, raw).message
        if not isinstance(message, PolicyAnnounced):
            raise MalformedPolicy("unreadable announcement", "it is another kind of message")
        return message


def _told(manifest: bytes, most: int) -> bytes:
    """It travels inside the announcement if it has so few bytes."""
    return manifest if len(manifest) <= most else b""


def _slot(step: int, word: StepWord) -> bytes:
    """In the journal. A trainer that leads again may say a step of its earlier term anew."""
    return step.to_bytes(8, "big") + word.statement.term.to_bytes(4, "big")


def _read_manifest(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_MANIFEST_BYTES + 1)
