"""A trainer's checkpoints as blobs, for whoever audits: offered when written, served while an audit may need them.

Nothing is copied where the file system knows hard links. Beside the checkpoints stays what replays them: the manifests
of the steps since, the files and the reports that these name. Knows names and pins; no tensor.
"""

from pathlib import Path
from typing import Any, Self

import msgspec
import structlog
import trio

from node.blobs.errors import StoreFull
from node.blobs.store import BlobStore
from node.changes import Changes, every
from node.services.base import Service
from node.services.context import Context
from node.services.workplace import Workplace
from node.state.files import link_or_copy
from node.status_schema import CheckpointsPart
from node.training.spool import Spool
from protocol.blobs import BlobInfo
from protocol.errors import IntellectError
from protocol.manifest import MAX_MANIFEST_BYTES, CheckpointCard, CheckpointFile, decode_composed, encode_manifest
from protocol.messages import CheckpointOffered

log = structlog.get_logger()
SHARE = 2
"""Checkpoints take one part in so many of the store: the rest is for policies, which nobody can do without."""


class _Written(msgspec.Struct, frozen=True):
    """Of a checkpoint's state.json (node.training.checkpoint), what an auditor needs."""

    step: int
    updates: int
    consumed: dict[str, int]
    files: dict[str, str]


class CheckpointServer(Service):
    """watch: tells what is new in the spool, and of policies; workshop: a directory of its own on the store's disk."""

    name = "checkpoint-server"

    def __init__(self, context: Context, store: BlobStore, spool: Spool, workshop: Path, watch: Changes) -> None:
        self._context = context
        self._watch = watch
        self._store = store
        self._spool = spool
        self._workshop = workshop
        self._offered: dict[int, int] = {}
        """Step -> bytes of its checkpoint; 0 for one that found no room."""
        self._gone: set[int] = set()
        """Those that the learner has deleted, and audits may need."""
        self._pinned: dict[tuple[str, int], tuple[bytes, ...]] = {}
        self._told_of_room = False

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        spool = Spool(place.directory / "spool")
        return cls(place.context, place.store, spool, place.directory / "weights" / "offering", place.watch)

    async def run(self) -> None:
        async def look() -> None:
            # Before it is looked: what comes meanwhile is not missed.
            told = self._watch.next
            await self.tick()
            await told.wait()

        await every(1.0, look)  # a step is told of several times: seconds in which the rest of it comes

    async def tick(self) -> None:
        """Offer what is new, and let go what the learner has deleted."""
        kept = await trio.to_thread.run_sync(self._spool.checkpoint_steps)
        newest = self._context.state.policies.newest_step
        for step in self._gone & set(kept):
            self._let_go(step)  # made anew, in a later term
        self._gone |= self._offered.keys() - set(kept)
        for step in sorted(self._gone):
            # What is audited is replayed from the last one before it.
            later = min((at for at, size in self._offered.items() if size and at > step), default=newest + 1)
            # Policies that come while an auditor, which does one audit after the other, fetches what the next one
            # takes.
            if later <= newest - 4:
                self._let_go(step)
        for step in kept:
            if step not in self._offered:
                await self._offer(step)
        await self._keep_what_replays(min(self._offered, default=0))

    def status(self) -> dict[str, Any]:
        shown = {str(step): size for step, size in sorted(self._offered.items()) if size}
        lacking = [step for step, size in sorted(self._offered.items()) if not size]
        return {"checkpoints": CheckpointsPart(shown, lacking)}

    # checkpoints

    async def _offer(self, step: int) -> None:
        """Say where a checkpoint is. One without room is not offered, and nothing else suffers."""
        try:
            written, size = await trio.to_thread.run_sync(self._read, step)
            self._make_room(size)
            if size + sum(self._offered.values()) > self._store.room.quota // SHARE:
                raise StoreFull(f"checkpoints may have a {SHARE}nd part of the store, {size} bytes more do not fit")
            files = [await self._add(step, name) for name in sorted(written.files)]
            consumed = tuple(sorted(written.consumed.items()))
            card = CheckpointCard(
                step, written.updates, consumed, tuple(CheckpointFile(one.root, one.size) for one in files)
            )
            named = await self._context.blobs.add(encode_manifest(card))
        except FileNotFoundError:
            return  # the learner has deleted it meanwhile
        except (StoreFull, OSError) as error:  # where nothing is linked the copy may fill the disk
            self._offered[step] = 0
            why = error.why if isinstance(error, StoreFull) else str(error)
            self._context.progress.trouble(f"checkpoint {step} is not offered to auditors: {why}")
            return
        self._pin("checkpoint", step, (named.root, *(one.root for one in files)))
        self._offered[step] = size
        await self._say(step, named)

    def _let_go(self, step: int) -> None:
        del self._offered[step]
        self._gone.discard(step)
        self._unpin("checkpoint", step)

    def _make_room(self, size: int) -> None:
        """For a new one. What audits of the past may need goes first, the oldest of it."""
        while self._gone and size + sum(self._offered.values()) > self._store.room.quota // SHARE:
            step = min(self._gone)
            self._let_go(step)
            if not self._told_of_room:
                self._told_of_room = True
                why = f"a {SHARE}nd part of the store has no room for the checkpoints that audits may need"
                self._context.progress.trouble(f"checkpoint {step} is let go: {why}: give it more disk, or write fewer")

    async def _say(self, step: int, named: BlobInfo) -> None:
        term = self._context.membership.terms.of(step).number
        said = CheckpointOffered(pool=self._context.pool, term=term, step=step, root=named.root, size=named.size)
        await self._context.board.post(said)
        log.info("checkpoint.offered", step=step, bytes=self._offered[step])

    def _read(self, step: int) -> tuple[_Written, int]:
        """(what was written, bytes of it)."""
        folder = self._folder(step)
        written = msgspec.json.decode((folder / "state.json").read_bytes(), type=_Written)
        return written, sum((folder / name).stat().st_size for name in written.files)

    async def _add(self, step: int, name: str) -> BlobInfo:
        work = self._workshop / name
        await trio.to_thread.run_sync(link_or_copy, self._folder(step) / name, work)
        try:
            return await self._store.add(work, move=True)
        finally:
            work.unlink(missing_ok=True)

    def _folder(self, step: int) -> Path:
        return self._spool.checkpoints / f"step-{step:06d}"

    # what replays them

    async def _keep_what_replays(self, oldest: int) -> None:
        """Pin the manifests of the announced steps from the oldest checkpoint on, and all that they name."""
        clock = self._context.state.policies
        for kind, step in list(self._pinned):
            if kind == "manifest" and step < oldest:
                self._unpin(kind, step)
        for step in range(oldest, clock.newest_step):
            announced = clock.of_step(step + 1)
            replayed = self._spool.works_path(step).exists()  # a standby is a step behind
            if announced is None or not replayed:
                continue
            root, pinned = announced.message.batch_root, self._pinned.get(("manifest", step))
            if pinned is not None and pinned[0] == root:
                continue
            self._unpin("manifest", step)  # that of a policy which a later term took back
            roots = await trio.to_thread.run_sync(self._named, step)
            self._pin("manifest", step, (root, *roots))

    def _named(self, step: int) -> tuple[bytes, ...]:
        try:
            with self._spool.works_path(step).open("rb") as file:
                composed = decode_composed(file.read(MAX_MANIFEST_BYTES + 1))
        except (OSError, IntellectError) as error:
            log.warning("manifest.not_kept", step=step, why=str(error))
            return ()
        return tuple(root for work in composed.works for root, _, _ in work.blobs())

    def _pin(self, kind: str, step: int, roots: tuple[bytes, ...]) -> None:
        self._pinned[kind, step] = roots
        for root in roots:
            self._store.pin(root)

    def _unpin(self, kind: str, step: int) -> None:
        for root in self._pinned.pop((kind, step), ()):
            self._store.unpin(root)
