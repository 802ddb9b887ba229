"""Blobs on disk: complete ones by their root, unfinished ones beside them.

Layout below the directory, where <root> is 64 hex digits:

    complete/<root>  complete/<root>.info     the bytes, and their piece list
    partial/<root>   partial/<root>.info      as much as has arrived; pieces are hashed again at opening

A blob is complete once both files carry their final name, and they get it only after the bytes are
on disk: a crash at any instant leaves either a complete blob or a partial one. The least recently
used blobs that nobody pinned make room for new ones.

Knows files, quota and hashes; knows nothing of peers.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import structlog
import trio
from blake3 import blake3

from node.network.errors import BlobTooLarge, BlobUnavailable, StoreFailed, StoreFull
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


class BlobStore:
    """quota: bytes for complete and partial blobs together. One process per directory."""

    def __init__(self, directory: Path, quota: int) -> None:
        self.directory = directory
        self.quota = quota
        self._complete = directory / "complete"
        self._partial = directory / "partial"
        self._sizes: dict[bytes, int] = {}  # complete blobs, least recently used first
        self._reserved: dict[bytes, int] = {}  # partial blobs
        self._pins: dict[bytes, int] = {}
        self._infos: dict[bytes, BlobInfo] = {}  # read last
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
            if info is None or info.size != stat.st_size:
                _remove(path)
            else:
                found.append((stat.st_mtime, root, info.size))
        self._sizes = {root: size for _, root, size in sorted(found)}
        for path in self._partial.iterdir():
            root = _root_of(path.name)
            if root is not None:
                info = self._read_info(path)
                if info is None or root in self._sizes:
                    _remove(path)
                else:
                    self._reserved[root] = info.size

    # -- complete blobs ----------------------------------------------------------------------------

    async def add(self, source: Path | bytes, *, move: bool = False) -> BlobInfo:
        """Take in a blob of our own. move: the file at `source` is ours to keep (no copy is made).

        Raises StoreFull.
        """
        if isinstance(source, bytes):
            info = describe(source) if len(source) <= SMALL else await self._in_thread(describe, source)
            return await self._take_in(info, _write_new, source)
        if move:
            info = await self._in_thread(_describe_file, source)
            return await self._take_in(info, shutil.move, source)
        size = await self._in_thread(os.path.getsize, source)
        with self._reservation(b"", size) as temporary:
            await self._in_thread(_copy, source, temporary)
            info = await self._in_thread(_describe_file, temporary)  # of the copy: the source may change
            if info.root not in self._sizes:
                await self._in_thread(self._adopt, temporary, info)
                self._sizes[info.root] = info.size
        return info

    async def _take_in(self, info: BlobInfo, bring: Callable[..., object], source: Path | bytes) -> BlobInfo:
        if info.root in self._sizes:
            return info
        with self._reservation(info.root, info.size) as temporary:
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
    def _reservation(self, root: bytes, size: int) -> Iterator[Path]:
        """Room for `size` bytes and the name of a file to put them in, until the blob is in its place."""
        self._make_room(root, size)
        token = os.urandom(16)
        temporary = self._partial / f"{token.hex()}.new"
        self._reserved[token] = size
        try:
            yield temporary
        finally:
            del self._reserved[token]
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
        info = self._infos.pop(root, None) or self._read_info(self._complete / root.hex())
        if info is not None:
            self._infos[root] = info
            while len(self._infos) > MAX_CACHED_INFOS:
                del self._infos[next(iter(self._infos))]
        return info

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

    # -- partial blobs -----------------------------------------------------------------------------

    def partial_info(self, root: bytes) -> BlobInfo | None:
        """The piece list of an unfinished blob left by an earlier attempt."""
        return self._read_info(self._partial / root.hex()) if root in self._reserved else None

    async def open_partial(self, info: BlobInfo) -> "Partial":
        """Start or resume a blob; hashes what is there. Raises StoreFull, BlobTooLarge."""
        if info.root not in self._reserved:
            self._make_room(info.root, info.size)
            self._reserved[info.root] = info.size
        try:
            return await self._in_thread(self._open_partial, info)
        except BaseException:
            if not (self._partial / info.root.hex()).exists():
                self._reserved.pop(info.root, None)
            raise

    def _open_partial(self, info: BlobInfo) -> "Partial":
        path = self._partial / info.root.hex()
        with _disk_errors():
            if self._read_info(path) != info:
                self._write_info(path, info)
            resumed = path.exists()
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            os.truncate(descriptor, info.size)
        have = {
            index
            for index in range(len(info.pieces) if resumed else 0)
            if verify_piece(info, index, os.pread(descriptor, info.span(index)[1], info.span(index)[0]))
        }
        return Partial(self, info, descriptor, have)

    async def finish(self, partial: "Partial") -> Path:
        """Make a partial blob with all its pieces a complete one."""
        info = partial.info
        await self._in_thread(self._finish, partial)
        self._reserved.pop(info.root, None)
        self._sizes[info.root] = info.size
        return self._complete / info.root.hex()

    def _finish(self, partial: "Partial") -> None:
        name = partial.info.root.hex()
        with _disk_errors():
            os.fsync(partial.descriptor)
            self._write_info(self._complete / name, partial.info)
            os.replace(self._partial / name, self._complete / name)
            _sync_folder(self._complete)
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
            _sync_folder(self._complete)

    def _make_room(self, root: bytes, size: int) -> None:
        """Evict until `size` more bytes fit the quota and the disk."""
        if size > self.quota:
            raise BlobTooLarge(root, size, self.quota)
        while self.used + size > self.quota:
            victim = next((each for each in self._sizes if each not in self._pins), None)
            if victim is None:
                raise StoreFull(f"{self.used} of {self.quota} bytes are pinned or arriving, {size} more are needed")
            log.info("blob.evicted", root=victim.hex(), size=self._sizes[victim])
            self.evict(victim)
        free = shutil.disk_usage(self.directory).free
        if size > free:
            raise StoreFull(f"the disk has {free} bytes left, {size} are needed")

    def _touch(self, root: bytes) -> None:
        self._sizes[root] = self._sizes.pop(root)
        try:
            os.utime(self._complete / root.hex())
        except OSError as error:
            log.debug("blob.touch_failed", root=root.hex(), error=repr(error))

    def _read_info(self, path: Path) -> BlobInfo | None:
        try:
            with _info_path(path).open("rb") as file:
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

    async def write(self, first: int, data: bytes) -> int:
        """Verify and write consecutive pieces from `first` on; returns how many bytes of them were good.

        Stops at the first bad piece. Raises StoreFull.
        """
        with self._in_use():
            count = await self._store._in_thread(self._write, first, data)
        self.have.update(range(first, first + count))
        return count

    def _write(self, first: int, data: bytes) -> int:
        view = memoryview(data)
        count = 0
        while len(view) and first + count < len(self.info.pieces):
            offset, length = self.info.span(first + count)
            piece = view[:length]
            if len(piece) != length or blake3(piece).digest() != self.info.pieces[first + count]:
                break
            with _disk_errors():
                _write_fully(self.descriptor, piece, offset)
            view = view[length:]
            count += 1
        return count

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
            if self._closed and not self._users:
                os.close(self.descriptor)

    def close(self) -> None:
        """Let go of the file; it stays for the next attempt."""
        if not self._closed:
            self._closed = True
            if not self._users:
                os.close(self.descriptor)


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


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
