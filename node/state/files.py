"""Files that appear whole or not at all, also after a power cut. Blocking: call from a thread."""

import mmap
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

from protocol.blobs import describe
from protocol.errors import OwnFailure

Buffer = TypeVar("Buffer", bytes, memoryview)


def write_whole(path: Path, data: bytes, *, mode: int = 0o666, replace: bool = True, synced: bool = True) -> None:
    """Put `data` into `path`. See whole_file."""
    with whole_file(path, mode=mode, replace=replace, synced=synced) as file:
        file.write(data)


@contextmanager
def whole_file(path: Path, *, mode: int = 0o666, replace: bool = True, synced: bool = True) -> Iterator[BinaryIO]:
    """An open file that gets its name, on the disk, when the block ends; none if the block raises.

    mode: permissions before the umask. replace: False raises FileExistsError where there is a file already. synced: it
    outlives a power cut; without, a cut may leave the file torn, which whoever reads it must see. Directories on the
    way are made. Raises OSError. What a killed process leaves is called `.NAME.` and eight hex digits.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # a random name: two writers never share a half-written file
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    # O_EXCL: a link that somebody put there beforehand is not written through.
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if synced:
                os.fsync(descriptor)
        if replace:
            os.replace(partial, path)
        else:
            # A link fails where the name is taken; a rename would replace it without a word.
            os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    # The file's bytes are on the disk; without this its name may not be after a power cut.
    if synced:
        sync_directory(path.parent)


def as_named(data: Buffer, root: bytes, what: str) -> Buffer:
    """The bytes of a file that others handed over, if the root still names them. Raises OwnFailure otherwise: they were
    compared as they came, so what is otherwise now is this machine's disk. What cannot be read in them is its author's
    only behind this."""
    if describe(data).root != root:
        remedy = "check the disk; it is fetched again once the damage is seen"
        raise OwnFailure(f"{what} was damaged on this machine", "its bytes are not those that came", remedy)
    return data


def read_if_there(path: Path) -> bytes | None:
    """None where there is no such file. Raises OSError for one that is there and cannot be read: that is no absence."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def files_in(directory: Path, pattern: str) -> Iterator[tuple[Path, os.stat_result]]:
    """Plain files with what the system says of them, without those that go while they are looked at: a running daemon
    makes room at any moment."""
    for path in directory.glob(pattern):
        with suppress(FileNotFoundError):
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                yield path, status


def mapped(path: Path) -> memoryview:
    """The bytes of a file, paged in as they are looked at; the mapping ends with the last view of it."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def link_or_copy(source: Path, target: Path) -> None:
    """The same file under another name, for files that are only ever replaced and never written in place; a copy where
    the file system knows no hard links, or `target` is on another one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def own_directory(path: Path) -> None:
    """Make a directory that nobody else may enter. Raises OSError, also for one that somebody else made."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    # It may lie in /tmp, which is everybody's: whoever made it first would have the sockets in it.
    if path.stat().st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to somebody else")


def sync_directory(path: Path) -> None:
    """Bring the names in a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
