"""Blobs on disk: complete ones by their root, unfinished ones beside them.

Layout below the directory, where <root> is 64 hex digits:

    complete/<root>  complete/<root>.info     the bytes, and their piece list
    partial/<root>   partial/<root>.info      as much as has arrived; pieces are hashed again at opening
    partial/<token>.new                       a blob of our own on its way in; thrown away at the next start

A blob is complete once both files carry their final name, and they get it only after the bytes are
on disk: a crash at any instant leaves either a complete blob or a partial one. The least recently
used blobs that nobody pinned make room for new ones, and after them unfinished ones that nobody is working on: every
byte of the quota is either in use or can be had again.

Knows files, quota and hashes; knows nothing of peers.
"""

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import structlog
import trio
from blake3 import blake3
from numpy.typing import NDArray

from node.blobs.errors import BlobTooLarge, BlobUnavailable, StoreFailed, StoreFull
from node.recent import Recent
from node.state.files import sync_directory
from protocol.blobs import (
    MAX_INFO_BYTES,
    BlobInfo,
    choose_piece_size,
    decode_info,
    describe,
    describe_pieces,
    encode_info,
    verify_piece,
)
from protocol.errors import ProtocolError

log = structlog.get_logger(__name__)

Result = TypeVar("Result")

SMALL = 64 * 1024
"""Bytes that are hashed and written in place; anything more goes to a thread."""
MAX_THREADS = 4
MAX_CACHED_INFOS = 16
FORGET_AFTER = 7 * 24 * 3600.0
"""Seconds after which an unfinished blob that nobody continued is dropped at the next start."""


class BlobStore:
    """quota: bytes for complete and partial blobs together. One process per directory."""

    def __init__(self, directory: Path, quota: int) -> None:
        self.directory = directory
        self.quota = quota
        self._complete = directory / "complete"
        self._partial = directory / "partial"
        self._sizes: dict[bytes, int] = {}  # complete blobs, least recently used first
        self._reserved: dict[bytes, int] = {}  # partial blobs, oldest first, and blobs on their way in
        self._moving: set[bytes] = set()  # blobs on their way in that the disk holds already
        self._open: dict[bytes, int] = {}  # partial blobs that somebody is working on
        self._pins: dict[bytes, int] = {}
        self._infos = Recent[bytes, BlobInfo](MAX_CACHED_INFOS, refresh=True)  # read last
        self._limiter = trio.CapacityLimiter(MAX_THREADS)
        with _disk_errors():
            for folder in (self._complete, self._partial):
                folder.mkdir(parents=True, exist_ok=True)
        self._scan()

    def _scan(self) -> None:
        found: list[tuple[float, bytes, int]] = []
        for path in self._complete.iterdir():
            root = _root_of(path.name)
            if root is None:
                continue
            info = self._read_info(path)
            stat = path.stat()
            # Complete blobs are not hashed again at the start, so their size must at least be right.
            if info is None or info.size != stat.st_size:
                _remove(path)
            else:
                found.append((stat.st_mtime, root, info.size))
        self._sizes = {root: size for _, root, size in sorted(found)}
        self._scan_partial()

    def _scan_partial(self) -> None:
        left: list[tuple[float, bytes, int]] = []
        for path in sorted(self._partial.iterdir()):  # a blob before its .info
            root = _root_of(path.name)
            if root is None:
                if path.suffix == ".new" or not path.with_suffix("").exists():
                    path.unlink(missing_ok=True)
                continue
            info, changed = self._read_info(path), path.stat().st_mtime
            if info is None or root in self._sizes or time.time() - changed > FORGET_AFTER:
                _remove(path)
            else:
                left.append((changed, root, info.size))
        self._reserved = {root: size for _, root, size in sorted(left)}
        for path in self._complete.iterdir():
            if path.suffix == ".new" or (path.suffix == ".info" and not path.with_suffix("").exists()):
                path.unlink(missing_ok=True)

    # -- complete blobs ----------------------------------------------------------------------------

    async def add(self, source: Path | bytes, *, move: bool = False, known: BlobInfo | None = None) -> BlobInfo:
        """Take in a blob of our own. move: the file at `source` is ours to keep (no copy is made); known: of a file
        that is moved, where it was hashed as it was written.

        Raises StoreFull.
        """
        if isinstance(source, bytes):
            info = describe(source) if len(source) <= SMALL else await self._in_thread(describe, source)
            return await self._take_in(info, _write_new, source)
        if move:
            info = known or await self._in_thread(_describe_file, source)
            return await self._take_in(info, shutil.move, source, on_disk=self._on_our_disk(source))
        size = await self._in_thread(os.path.getsize, source)
        with self._reservation(b"", size) as temporary:
            await self._in_thread(_copy, source, temporary)
            info = await self._in_thread(_describe_file, temporary)  # of the copy: the source may change
            if info.root not in self._sizes:
                await self._in_thread(self._adopt, temporary, info)
                self._sizes[info.root] = info.size
        return info

    def _on_our_disk(self, source: Path) -> bool:
        """Whether a move is a new name and takes no room: an image is as large as all else in the store."""
        return source.stat().st_dev == self.directory.stat().st_dev

    async def _take_in(
        self, info: BlobInfo, bring: Callable[..., object], source: Path | bytes, *, on_disk: bool = False
    ) -> BlobInfo:
        if info.root in self._sizes:
            return info
        with self._reservation(info.root, info.size, on_disk=on_disk) as temporary:
            if info.size <= SMALL:
                self._bring(bring, source, temporary, info)
            else:
                await self._in_thread(self._bring, bring, source, temporary, info)
            self._sizes[info.root] = info.size
        return info

    def _bring(self, bring: Callable[..., object], source: object, temporary: Path, info: BlobInfo) -> None:
        with _disk_errors():
            bring(source, temporary)
        self._adopt(temporary, info)

    @contextmanager
    def _reservation(self, root: bytes, size: int, *, on_disk: bool = False) -> Iterator[Path]:
        """Room for `size` bytes and the name of a file to put them in, until the blob is in its place."""
        self._make_room(root, size, on_disk=on_disk)
        # Half as long as a root, so that the table of reservations can tell a blob on its way in from a partial one.
        token = os.urandom(16)
        temporary = self._partial / f"{token.hex()}.new"
        self._reserved[token] = size
        if on_disk:
            self._moving.add(token)
        try:
            yield temporary
        finally:
            del self._reserved[token]
            self._moving.discard(token)
            temporary.unlink(missing_ok=True)

    def has(self, root: bytes) -> bool:
        return root in self._sizes

    def path(self, root: bytes) -> Path:
        """The file of a complete blob, for reading; pin it first if it is to stay. Raises BlobUnavailable."""
        if root not in self._sizes:
            raise BlobUnavailable(root, "it is not in the store")
        self._touch(root)
        return self._complete / root.hex()

    def info(self, root: bytes) -> BlobInfo | None:
        """The piece list of a complete blob, None if there is no such blob."""
        if root not in self._sizes:
            return None
        info = self._infos.get(root) or self._read_info(self._complete / root.hex())
        if info is not None:
            self._infos[root] = info
        return info

    def arrived(self, root: bytes) -> int:
        """Bytes of a blob, complete or partial, that are on the disk: it grows while the blob is fetched."""
        path = self._complete / root.hex() if self.has(root) else self._partial / root.hex()
        try:
            return path.stat().st_blocks * 512  # of a file with holes the rest of it
        except OSError:
            return 0

    def roots(self) -> tuple[bytes, ...]:
        """Complete blobs, least recently used first."""
        return tuple(self._sizes)

    @property
    def used(self) -> int:
        """Bytes held by complete blobs and reserved for partial ones."""
        return sum(self._sizes.values()) + sum(self._reserved.values())

    def pin(self, root: bytes) -> None:
        """Keep a blob (present or to come) from eviction, once more; each pin needs its unpin."""
        self._pins[root] = self._pins.get(root, 0) + 1

    def unpin(self, root: bytes) -> None:
        count = self._pins.pop(root, 0) - 1
        if count > 0:
            self._pins[root] = count

    @contextmanager
    def holding(self, roots: Iterable[bytes], /) -> Iterator[None]:
        """Pins these blobs, present or to come, until the block ends: what is fetched within can be read within."""
        roots = tuple(roots)
        for root in roots:
            self.pin(root)
        try:
            yield
        finally:
            for root in roots:
                self.unpin(root)

    def evict(self, root: bytes) -> None:
        """Forget a blob, complete or partial, pinned or not."""
        if self._sizes.pop(root, None) is not None:
            _remove(self._complete / root.hex())
        if self._reserved.pop(root, None) is not None:
            _remove(self._partial / root.hex())

    async def read(self, root: bytes, offset: int, length: int) -> bytes:
        """Bytes of a complete blob. Raises BlobUnavailable."""
        path = self.path(root)
        try:
            if length <= SMALL:
                return _read(path, offset, length)
            return await self._in_thread(_read, path, offset, length)
        except OSError as error:
            raise BlobUnavailable(root, error.strerror or str(error)) from error

    async def read_spans(self, root: bytes, spans: Sequence[tuple[int, int]], header: bytes = b"") -> bytes:
        """`header`, then the (offset, length) stretches of a complete blob. Raises BlobUnavailable."""
        path = self.path(root)
        try:
            return await self._in_thread(_read_spans, path, spans, header)
        except OSError as error:
            raise BlobUnavailable(root, error.strerror or str(error)) from error

    # -- partial blobs -----------------------------------------------------------------------------

    def partial_info(self, root: bytes) -> BlobInfo | None:
        """The piece list of an unfinished blob left by an earlier attempt."""
        return self._read_info(self._partial / root.hex()) if root in self._reserved else None

    async def open_partial(self, info: BlobInfo) -> "Partial":
        """Start or resume a blob; hashes what is there. Raises StoreFull, BlobTooLarge."""
        root = info.root
        if root not in self._reserved:
            # All of it is reserved before the first piece: two fetches must not each count on the same free room.
            self._make_room(root, info.size)
            self._reserved[root] = info.size
        self._open[root] = self._open.get(root, 0) + 1
        try:
            return await self._in_thread(self._open_partial, info)
        except BaseException:
            self._closed(root)
            if root not in self._open and not (self._partial / root.hex()).exists():
                self._reserved.pop(root, None)
                _remove(self._partial / root.hex())
            raise

    def _open_partial(self, info: BlobInfo) -> "Partial":
        path = self._partial / info.root.hex()
        with _disk_errors():
            if self._read_info(path) != info:
                self._write_info(path, info)
            resumed = path.exists()
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                # A sparse file: pieces come in any order, and holes show at the next start what was never written.
                os.truncate(descriptor, info.size)
                have = set(_verified(descriptor, info)) if resumed else set()
            except BaseException:
                os.close(descriptor)
                raise
        return Partial(self, info, descriptor, have)

    def _closed(self, root: bytes) -> None:
        self._open[root] -= 1
        if not self._open[root]:
            del self._open[root]

    def _abandoned(self, root: bytes) -> None:
        """Nothing of it ever came: whoever names big blobs and delivers none takes no room from those who do."""
        if root not in self._open and root in self._reserved:
            self.evict(root)

    async def finish(self, partial: "Partial") -> Path:
        """Make a partial blob with all its pieces a complete one."""
        info = partial.info
        if not partial.complete:
            raise StoreFailed(f"blob {info.root.hex()[:16]} is not complete")
        await self._in_thread(self._finish, partial)
        self._reserved.pop(info.root, None)
        self._sizes[info.root] = info.size
        return self._complete / info.root.hex()

    def _finish(self, partial: "Partial") -> None:
        name = partial.info.root.hex()
        with _disk_errors():
            # Bytes, list, name, directory, in this order: a crash at any instant leaves a whole blob or a partial one.
            os.fsync(partial.descriptor)
            self._write_info(self._complete / name, partial.info)
            os.replace(self._partial / name, self._complete / name)
            sync_directory(self._complete)
            _info_path(self._partial / name).unlink(missing_ok=True)

    # -- inside ------------------------------------------------------------------------------------

    async def _in_thread(self, work: Callable[..., Result], *args: object) -> Result:
        return await trio.to_thread.run_sync(work, *args, limiter=self._limiter)

    def _adopt(self, temporary: Path, info: BlobInfo) -> None:
        final = self._complete / info.root.hex()
        with _disk_errors():
            descriptor = os.open(temporary, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._write_info(final, info)
            os.replace(temporary, final)
            sync_directory(self._complete)

    def _make_room(self, root: bytes, size: int, *, on_disk: bool = False) -> None:
        """Evict until `size` more bytes fit the quota and the disk. on_disk: the disk holds them already."""
        if size > self.quota:
            raise BlobTooLarge(root, size, self.quota)
        # Everything that others rely on is pinned; what can go goes before a fetch is refused.
        while self.used + size > self.quota:
            victim = self._victim()
            if victim is None:
                raise StoreFull(f"{self.used} of {self.quota} bytes are pinned or arriving, {size} more are needed")
            log.info("blob.evicted", root=victim.hex(), size=self._sizes.get(victim) or self._reserved.get(victim))
            self.evict(victim)
        if on_disk:
            return
        # Sparse partial files have been promised room that the disk still shows as free.
        free = shutil.disk_usage(self.directory).free - self._unwritten()
        if size > free:
            raise StoreFull(f"the disk has {max(0, free)} bytes left, {size} are needed")

    def _victim(self) -> bytes | None:
        """What is missed least: the complete blob used longest ago, else an unfinished one that nobody works on."""
        for root in self._sizes:
            if root not in self._pins:
                return root
        return next((root for root in self._reserved if len(root) == 32 and root not in self._open), None)

    def _unwritten(self) -> int:
        """Bytes promised to unfinished blobs, and to those on their way in, that the disk does not hold yet."""
        total = 0
        for root, size in self._reserved.items():
            if root in self._moving:
                continue
            name = root.hex() if len(root) == 32 else f"{root.hex()}.new"
            try:
                written = (self._partial / name).stat().st_blocks * 512
            except OSError:
                written = 0
            total += max(0, size - written)
        return total

    def _touch(self, root: bytes) -> None:
        if next(reversed(self._sizes)) == root:
            return
        self._sizes[root] = self._sizes.pop(root)
        try:
            # The order of use must survive a restart; the scan at start reads it from the files' times.
            os.utime(self._complete / root.hex())
        except OSError as error:
            log.debug("blob.touch_failed", root=root.hex(), error=repr(error))

    def _read_info(self, path: Path) -> BlobInfo | None:
        try:
            with _info_path(path).open("rb") as file:
                # One byte more than allowed, so that the decoder refuses a list that is too long.
                return decode_info(file.read(MAX_INFO_BYTES + 1), bytes.fromhex(path.name))
        except (OSError, ProtocolError):
            return None

    def _write_info(self, path: Path, info: BlobInfo) -> None:
        temporary = path.with_name(f"{path.name}.info.new")
        with temporary.open("wb") as file:
            file.write(encode_info(info))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, _info_path(path))


class Partial:
    """An unfinished blob: the pieces that have arrived, each verified. have: their indices."""

    def __init__(self, store: BlobStore, info: BlobInfo, descriptor: int, have: set[int]) -> None:
        self.info = info
        self.have = have
        self.descriptor = descriptor
        self._store = store
        self._users = 0
        self._closed = False

    @property
    def complete(self) -> bool:
        return len(self.have) == len(self.info.pieces)

    def flags(self) -> NDArray[np.bool_]:
        """bool[pieces]: which are here."""
        flags = np.zeros(len(self.info.pieces), np.bool_)
        flags[list(self.have)] = True
        return flags

    async def write(self, first: int, data: bytes) -> int:
        """Verify and write consecutive pieces from `first` on; returns how many of them were good before a bad one.

        Raises StoreFull.
        """
        count = min(-(-len(data) // self.info.piece_size), len(self.info.pieces) - first)
        good = await self.write_pieces(range(first, first + count), memoryview(data))
        return next((number for number in range(count) if first + number not in good), count)

    async def write_pieces(self, pieces: Iterable[int], data: memoryview) -> list[int]:
        """Verify and write `pieces`, whose bytes follow one another in `data`; returns the good ones.

        A piece that is there already is not written again. Raises StoreFull.
        """
        with self._in_use():
            good: list[int] = []
            try:
                await self._store._in_thread(self._write, list(pieces), data, good)
            finally:
                self.have.update(good)  # what was written before the disk was full is not fetched again
        return good

    def _write(self, pieces: list[int], data: memoryview, good: list[int]) -> None:
        for piece in pieces:
            offset, length = self.info.span(piece)
            part, data = data[:length], data[length:]
            # The hash is taken of what is written next: there is no moment between the check and the write.
            if len(part) != length or blake3(part).digest() != self.info.pieces[piece]:
                continue
            if piece not in self.have:
                with _disk_errors():
                    _write_fully(self.descriptor, part, offset)
            good.append(piece)

    async def read_spans(self, spans: Sequence[tuple[int, int]], header: bytes = b"") -> bytes:
        """`header`, then the (offset, length) stretches, of pieces that are there."""
        with self._in_use():
            return await self._store._in_thread(_join, self.descriptor, spans, header)

    async def read(self, offset: int, length: int) -> bytes:
        """Bytes of pieces that are there."""
        with self._in_use():
            return await self._store._in_thread(os.pread, self.descriptor, length, offset)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        if self._closed:
            raise BlobUnavailable(self.info.root, "the transfer has ended")
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            # A thread may still be writing: closing under it would let its bytes go into another file of that number.
            if self._closed and not self._users:
                os.close(self.descriptor)

    def close(self) -> None:
        """Let go of the file; it stays for the next attempt."""
        if not self._closed:
            self._closed = True
            self._store._closed(self.info.root)
            if not self._users:
                os.close(self.descriptor)
                if not self.have:
                    self._store._abandoned(self.info.root)


@contextmanager
def _disk_errors() -> Iterator[None]:
    """A full or broken disk is a named error, not an OSError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull("the disk has no space left") from error
        raise StoreFailed(str(error)) from error


def _root_of(name: str) -> bytes | None:
    try:
        root = bytes.fromhex(name)
    except ValueError:
        return None
    return root if len(root) == 32 and name == root.hex() else None


def _info_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.info")


def _remove(path: Path) -> None:
    for each in (path, _info_path(path)):
        each.unlink(missing_ok=True)


def _read(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        return os.pread(file.fileno(), length, offset)


def _read_spans(path: Path, spans: Sequence[tuple[int, int]], header: bytes) -> bytes:
    with path.open("rb") as file:
        return _join(file.fileno(), spans, header)


def _join(descriptor: int, spans: Sequence[tuple[int, int]], header: bytes) -> bytes:
    return b"".join([header, *(os.pread(descriptor, length, offset) for offset, length in spans)])


def _verified(descriptor: int, info: BlobInfo) -> Iterator[int]:
    """The pieces that are there. Where the file has holes nothing was written, and nothing is read."""
    piece, count = 0, len(info.pieces)
    while piece < count:
        try:
            data = os.lseek(descriptor, piece * info.piece_size, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but holes up to the end
                return
            data = piece * info.piece_size
        piece = max(piece, data // info.piece_size)
        offset, length = info.span(piece)
        if verify_piece(info, piece, os.pread(descriptor, length, offset)):
            yield piece
        piece += 1


def _write_fully(descriptor: int, data: memoryview, offset: int) -> None:
    while len(data):
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _write_new(data: bytes, path: Path) -> None:
    path.write_bytes(data)


def _copy(source: Path, target: Path) -> None:
    with _disk_errors():
        shutil.copyfile(source, target)


def _describe_file(path: Path) -> BlobInfo:
    size = path.stat().st_size
    piece_size = choose_piece_size(size)
    with path.open("rb") as file:
        hashes = [blake3(piece).digest() for piece in iter(lambda: file.read(piece_size), b"")]
    return describe_pieces(size, piece_size, hashes)
