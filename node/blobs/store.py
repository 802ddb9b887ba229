"""Blobs on disk: complete ones by their root, unfinished ones beside them.

Layout below the directory, where <root> is 64 hex digits:

    complete/<root>  complete/<root>.info     the bytes, and their piece list
    partial/<root>   partial/<root>.info      as much as has arrived; pieces are hashed again at opening
    partial/<token>.new                       a blob of our own on its way in; thrown away at the next start

    boot                                      of the machine, at the last start

A blob is complete once both files carry their final name: a process that is killed leaves either a complete blob or a
partial one. Blobs of our own are synced before that, so that a power cut leaves them, too. What can be fetched or made
again is not: after another boot it may be torn, and is forgotten. A disk may change what it holds: a blob of an earlier
start is hashed before it is used (`proof`), and each piece before it is handed on. The loop never waits for a disk.

Knows which blobs there are, `room` what fits, `proof` what is sound; knows nothing of peers.
"""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog
import trio

from node.blobs import files, wire
from node.blobs.errors import BlobUnavailable, StoreBusy, StoreFailed
from node.blobs.files import NotWhole, disk_errors
from node.blobs.partial import Partial
from node.blobs.proof import BlobProofs
from node.blobs.room import Room, written
from node.bounded_dict import BoundedDict
from node.state.pen import boot_id
from protocol.blobs import BlobInfo, describe

log = structlog.get_logger(__name__)

Result = TypeVar("Result")

MAX_THREADS = 4
BUSY = 60.0
"""Seconds for which the store waits where no more files may be open: whoever holds them is done by then, or never."""
MAX_CACHED_INFOS = 16


class BlobStore:
    """quota: bytes for complete and partial blobs together. One process per directory."""

    def __init__(self, directory: Path, quota: int) -> None:
        self.directory = directory
        self._complete = directory / "complete"
        self._partial = directory / "partial"
        self.room = Room(self._partial, quota, self.evict)
        self.pin, self.unpin, self.holding = self.room.pin, self.room.unpin, self.room.holding
        self._infos = BoundedDict[bytes, BlobInfo](MAX_CACHED_INFOS, refresh=True)  # read last
        # Small ones that came last: a file is asked for by each judge as soon as it is there, a patch by each follower.
        self._fresh = BoundedDict[bytes, bytes](64)
        # Its own limit: trio's common one is 40 threads, and a slow disk would fill them against everything else.
        self._limiter = trio.CapacityLimiter(MAX_THREADS)
        self.written = 0
        """Bytes of blobs that were written since the start, what was moved here among them."""
        self.proof = BlobProofs(self._complete, self.room.complete, self.info, self.evict, self._limiter)
        self.whole = self.proof.whole
        with disk_errors():
            for folder in (self._complete, self._partial):
                folder.mkdir(parents=True, exist_ok=True)
            self._scan(directory / "boot")

    def _scan(self, boot: Path) -> None:
        found: list[tuple[float, bytes, int]] = []
        now = boot_id()
        # Another boot, or none that can be told: what was not synced may be torn, and that is nobody's damage.
        cut = not now or not boot.exists() or boot.read_text(errors="replace") != now
        for path in self._complete.iterdir():
            root = files.root_of(path.name)
            if root is None:
                continue
            info = files.read_info(path) or (files.list_anew(path) if cut else None)
            stat = path.stat()
            # Before they are used they are hashed; their size is looked at now.
            if info is None or info.size != stat.st_size:
                if cut:
                    log.info("blob.torn_by_a_cut", root=root.hex(), then="forgotten, and fetched again")
                else:
                    self.proof.damage(root, "its piece list or its size is another")
                files.remove(path)
            else:
                found.append((stat.st_mtime, root, info.size))
        self.room.complete |= {root: size for _, root, size in sorted(found)}
        self.proof.unproven |= self.room.complete.keys()
        self._scan_partial()
        # Last: a start that is killed while it looks must look for torn blobs again.
        boot.write_text(now)

    def _scan_partial(self) -> None:
        left: list[tuple[float, bytes, int]] = []
        forget_after = 7 * 24 * 3600.0  # seconds: an unfinished blob that nobody continued is dropped then
        for path in sorted(self._partial.iterdir()):  # a blob before its .info
            root = files.root_of(path.name)
            if root is None:
                if path.suffix == ".new" or not path.with_suffix("").exists():
                    path.unlink(missing_ok=True)
                continue
            info, changed = files.read_info(path), path.stat().st_mtime
            if info is None or root in self.room.complete or time.time() - changed > forget_after:
                files.remove(path)
            else:
                left.append((changed, root, info.size))
        self.room.partial |= {root: size for _, root, size in sorted(left)}
        for path in self._complete.iterdir():
            if path.suffix == ".new" or (path.suffix == ".info" and not path.with_suffix("").exists()):
                path.unlink(missing_ok=True)

    # -- complete blobs ----------------------------------------------------------------------------

    async def add(
        self, source: Path | bytes, *, move: bool = False, known: BlobInfo | None = None, synced: bool = True
    ) -> BlobInfo:
        """Take in a blob of our own. move: the file at `source` is ours to keep (no copy is made); known: of a file
        that is moved, where it was hashed as it was written; synced: it outlives a power cut, as what nobody else has
        must.

        Raises StoreFull.
        """
        if isinstance(source, bytes):
            if len(source) <= files.SMALL:
                return (await self.add_each([source], synced=synced))[0]
            info = await self._in_thread(describe, source)
            return await self._take_in(info, files.write_new, source, synced=synced)
        # A move on one disk is a new name and takes no room: an image is as large as all else in the store.
        on_disk, size = move and files.on_one_disk(source, self.directory), source.stat().st_size  # noqa: ASYNC240 - local
        little = 4 * 1024**2  # bytes for which room is made twice where they are here already
        if move and (known or size > little):
            info = known or await self._in_thread(files.describe_file, source)
            return await self._take_in(info, shutil.move, source, on_disk=on_disk, synced=synced)
        with self.room.arriving(b"", size, on_disk=on_disk) as temporary:
            bring = shutil.move if move else shutil.copyfile
            adopt = partial(files.adopt_file, source, temporary, self._complete, bring, wire.INLINE, synced=synced)
            info, data = await self._in_thread(adopt)
            self._came(info, data)
        return info

    async def add_each(self, blobs: Sequence[bytes], *, synced: bool = True) -> list[BlobInfo]:
        """Take in small blobs of our own, side by side in one job. Raises StoreFull."""
        infos = [describe(data) for data in blobs]
        new = [(info, data) for info, data in zip(infos, blobs, strict=True) if not await self.whole(info.root)]
        with ExitStack() as stack:
            places = [stack.enter_context(self.room.arriving(info.root, info.size)) for info, _ in new]

            def bring() -> None:
                for (info, data), temporary in zip(new, places, strict=True):
                    self._bring(files.write_new, data, temporary, info, synced)

            if new:
                await self._in_thread(bring)
            for info, data in new:
                self._came(info, data)
        return infos

    async def _take_in(
        self,
        info: BlobInfo,
        bring: Callable[..., object],
        source: Path | bytes,
        *,
        on_disk: bool = False,
        synced: bool,
    ) -> BlobInfo:
        if await self.whole(info.root):
            return info
        with self.room.arriving(info.root, info.size, on_disk=on_disk) as temporary:
            await self._in_thread(self._bring, bring, source, temporary, info, synced)
            self._came(info, source if isinstance(source, bytes) else None)
        return info

    def _bring(
        self, bring: Callable[..., object], source: object, temporary: Path, info: BlobInfo, synced: bool
    ) -> None:
        with disk_errors():
            if not temporary.exists():  # moved before all files were open that may be
                bring(source, temporary)
        files.adopt(temporary, self._complete / info.root.hex(), info, synced=synced)

    async def take_whole(self, info: BlobInfo, data: memoryview) -> bool:
        """A small blob that a peer sent in one go; whether it is what its list says. Raises StoreFull."""
        with self.room.arriving(info.root, info.size) as temporary:
            final = self._complete / info.root.hex()
            if not await self._in_thread(files.adopt_bytes, data, temporary, final, info):
                return False
            self._came(info, data)
        return True

    def _came(self, info: BlobInfo, data: bytes | memoryview | None) -> None:
        """It is whole, and is remembered for a while if `data`, which was just compared with its list, is little."""
        self.proof.unproven.discard(info.root)
        self.room.complete[info.root] = info.size
        self._wrote(info.size)
        if data is not None and len(data) <= wire.INLINE:
            self._fresh[info.root] = bytes(data)
            few_bytes = 4 * 1024**2  # of all of them
            while sum(map(len, self._fresh.values())) > few_bytes:
                del self._fresh[next(iter(self._fresh))]

    def has(self, root: bytes) -> bool:
        return root in self.room.complete

    def path(self, root: bytes) -> Path:
        """The file of a complete blob, for reading; pin it first if it is to stay. Raises BlobUnavailable."""
        if root not in self.room.complete:
            raise BlobUnavailable(root, "it is not in the store")
        self._touch(root)
        return self._complete / root.hex()

    def info(self, root: bytes) -> BlobInfo | None:
        """The piece list of a complete blob, None if there is no such blob."""
        if root not in self.room.complete:
            return None
        info = self._infos.get(root) or files.read_info(self._complete / root.hex())
        if info is not None:
            self._infos[root] = info
        return info

    def arrived(self, root: bytes) -> int:
        """Bytes of a blob, complete or partial, that are on the disk: it grows while the blob is fetched."""
        return written((self._complete if self.has(root) else self._partial) / root.hex())

    def roots(self) -> tuple[bytes, ...]:
        """Complete blobs, least recently used first."""
        return tuple(self.room.complete)

    @property
    def used(self) -> int:
        """Bytes held by complete blobs and reserved for partial ones."""
        return self.room.used

    def evict(self, root: bytes) -> None:
        """Forget a blob, complete or partial, pinned or not."""
        self._infos.pop(root, None)
        self._fresh.pop(root, None)
        self.proof.unproven.discard(root)
        if self.room.complete.pop(root, None) is not None:
            files.remove(self._complete / root.hex())
        if self.room.partial.pop(root, None) is not None:
            files.remove(self._partial / root.hex())

    async def read_pieces(self, root: bytes, pieces: Sequence[int], header: bytes = b"") -> bytes:
        """`header`, then these pieces of a complete blob, each compared with its list. Raises BlobUnavailable."""
        path, info = self.path(root), self.info(root)
        if info is not None and (data := self._fresh.get(root)) is not None:
            await trio.lowlevel.checkpoint()
            return b"".join([header, *(data[at : at + size] for at, size in map(info.span, pieces))])
        try:
            if info is None:
                raise NotWhole("its piece list is another")
            return await self._in_thread(files.read_pieces, path, info, pieces, header)
        except NotWhole as error:
            self.proof.lose(root, str(error))
            raise BlobUnavailable(root, f"on this disk, {error}") from error
        except StoreFailed as error:
            raise BlobUnavailable(root, error.why) from error

    # -- partial blobs -----------------------------------------------------------------------------

    def partial_info(self, root: bytes) -> BlobInfo | None:
        """The piece list of an unfinished blob left by an earlier attempt."""
        return files.read_info(self._partial / root.hex()) if root in self.room.partial else None

    async def open_partial(self, info: BlobInfo) -> Partial:
        """Start or resume a blob; hashes what is there. Raises StoreFull."""
        root, room = info.root, self.room
        if root not in room.partial:
            # All of it is reserved before the first piece: two fetches must not each count on the same free room.
            room.make(root, info.size)
            room.partial[root] = info.size
        room.opened(root)
        try:
            return await self._in_thread(self._open_partial, info)
        except BaseException:
            room.closed(root)
            if not room.is_open(root) and not (self._partial / root.hex()).exists():
                room.partial.pop(root, None)
                files.remove(self._partial / root.hex())
            raise

    def _open_partial(self, info: BlobInfo) -> Partial:
        path = self._partial / info.root.hex()
        with disk_errors():
            if files.read_info(path) != info:
                files.write_info(path, info)
            resumed = path.exists()
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                # A sparse file: pieces come in any order, and holes show at the next start what was never written.
                os.truncate(descriptor, info.size)
                have = set(files.arrived_pieces(descriptor, info)) if resumed else set[int]()
            except BaseException:
                os.close(descriptor)
                raise
        return Partial(info, descriptor, have, self._limiter, self._closed, self._wrote)

    def _wrote(self, size: int) -> None:
        self.written += size

    def _closed(self, partial: Partial) -> None:
        root, room = partial.info.root, self.room
        room.closed(root)
        # Nothing of it ever came: whoever names big blobs and delivers none takes no room from those who do.
        if not partial.have and not partial.busy and not room.is_open(root) and root in room.partial:
            self.evict(root)

    async def finish(self, partial: Partial) -> Path:
        """Make a partial blob with all its pieces a complete one."""
        info, name = partial.info, partial.info.root.hex()
        if not partial.complete:
            raise StoreFailed(f"blob {name[:16]} is not complete")
        source, final = self._partial / name, self._complete / name
        await self._in_thread(files.adopt_partial, source, final, info)
        self.room.partial.pop(info.root, None)
        self.room.complete[info.root] = info.size
        return final

    # -- inside ------------------------------------------------------------------------------------

    async def _in_thread(self, work: Callable[..., Result], *args: object) -> Result:
        """Where no more files may be open, what is asked for waits, and is tried again."""
        ends, pause = trio.current_time() + BUSY, 0.1
        while True:
            try:
                return await trio.to_thread.run_sync(work, *args, limiter=self._limiter)
            except StoreBusy as error:
                if trio.current_time() + pause > ends:
                    raise
                log.warning("blob.store_waits", why=error.why, remedy=error.remedy)
                await trio.sleep(pause)
                pause = min(2 * pause, 8.0)

    def _touch(self, root: bytes) -> None:
        complete = self.room.complete
        if next(reversed(complete)) == root:
            return
        complete[root] = complete.pop(root)
        try:
            # The order of use must survive a restart; the scan at start reads it from the files' times.
            os.utime(self._complete / root.hex())
        except OSError as error:
            log.debug("blob.touch_failed", root=root.hex(), error=repr(error))
