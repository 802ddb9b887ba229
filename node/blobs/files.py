"""Blob files: the bytes, beside them their piece list, and whether the one still is what the other says. Blocking."""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from node.blobs.errors import StoreBusy, StoreFailed, StoreFull
from node.state.files import sync_directory
from protocol.blobs import (
    MAX_INFO_BYTES,
    BlobInfo,
    choose_piece_size,
    decode_info,
    describe_pieces,
    encode_info,
    verify_piece,
)
from protocol.errors import ProtocolError

SMALL = 64 * 1024
"""Bytes of a blob that are read again after a power cut sooner than its list is synced."""
DAMAGE = frozenset({errno.EIO, errno.ENOENT, errno.EUCLEAN, errno.EBADMSG})
"""What a disk says of a file that cannot be had whole any more. All else (no descriptor, no right, no memory) says
nothing of the file."""


class NotWhole(Exception):
    """A file on this disk is not what its piece list says."""


@contextmanager
def disk_errors() -> Iterator[None]:
    """A full or broken disk is a named error, not an OSError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull("the disk has no space left") from error
        raise _failed(error) from error


def _failed(error: OSError) -> StoreFailed:
    return StoreBusy(str(error)) if error.errno in (errno.EMFILE, errno.ENFILE) else StoreFailed(str(error))


@contextmanager
def damage() -> Iterator[None]:
    """What a disk says of damaged files as NotWhole. Raises StoreFailed for its other errors."""
    try:
        yield
    except OSError as error:
        if error.errno in DAMAGE:
            raise NotWhole(str(error)) from error
        raise _failed(error) from error


def root_of(name: str) -> bytes | None:
    try:
        root = bytes.fromhex(name)
    except ValueError:
        return None
    return root if len(root) == 32 and name == root.hex() else None


def info_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.info")


def remove(path: Path) -> None:
    for each in (path, info_path(path)):
        each.unlink(missing_ok=True)


def read_info(path: Path) -> BlobInfo | None:
    """None where there is none, or not a whole one. Raises StoreFailed."""
    try:
        with damage(), info_path(path).open("rb") as file:
            # One byte more than allowed, so that the decoder refuses a list that is too long.
            return decode_info(file.read(MAX_INFO_BYTES + 1), bytes.fromhex(path.name))
    except (NotWhole, ProtocolError):
        return None


def write_info(path: Path, info: BlobInfo, *, synced: bool = False) -> None:
    temporary = path.with_name(f"{path.name}.info.new")
    with temporary.open("wb") as file:
        file.write(encode_info(info))
        file.flush()
        if synced:
            os.fsync(file.fileno())
    # By a rename: a list that is cut in the middle would make its blob a damaged one.
    os.replace(temporary, info_path(path))


def adopt(source: Path, final: Path, info: BlobInfo, *, synced: bool) -> None:
    """Give a whole blob its name. synced: it outlives a power cut from now on. The list of a small one does not, and is
    made anew from its bytes."""
    with disk_errors():
        if synced:
            with source.open("rb") as file:
                # Bytes, list, name, directory, in this order: a cut at any instant leaves a whole blob or none.
                os.fsync(file.fileno())
        write_info(final, info, synced=synced and info.size > SMALL)
        os.replace(source, final)
        if synced:
            sync_directory(final.parent)


def adopt_partial(source: Path, final: Path, info: BlobInfo) -> None:
    """The same of one that was fetched, and can be again."""
    adopt(source, final, info, synced=False)
    info_path(source).unlink(missing_ok=True)


def adopt_file(
    source: Path, temporary: Path, folder: Path, bring: Callable[[Path, Path], object], most: int, *, synced: bool
) -> tuple[BlobInfo, bytes | None]:
    """A file as a blob, copied or moved, which is described where it lies then, as the source may change; with its
    bytes, if they are `most` at most: others ask for them at once."""
    with disk_errors():
        if source.exists() or not temporary.exists():  # moved before all files were open that may be
            bring(source, temporary)
    info = describe_file(temporary)
    with disk_errors():
        data = temporary.read_bytes() if info.size <= most else None
    adopt(temporary, folder / info.root.hex(), info, synced=synced)
    return info, data


def adopt_bytes(data: memoryview, temporary: Path, final: Path, info: BlobInfo) -> bool:
    """What a peer sent in one go, if it is what the list says. It can be fetched again."""
    spans = map(info.span, range(len(info.pieces)))
    hashes = [blake3(data[offset : offset + length]).digest() for offset, length in spans]
    if len(data) != info.size or hashes != list(info.pieces):
        return False
    with disk_errors():
        temporary.write_bytes(data)
    adopt(temporary, final, info, synced=False)
    return True


def list_anew(path: Path) -> BlobInfo | None:
    """The piece list of a small blob, which a power cut may have taken; None where its bytes are not the name's."""
    if not 0 < path.stat().st_size <= SMALL or (info := describe_file(path)).root.hex() != path.name:
        return None
    write_info(path, info)
    return info


def read_pieces(path: Path, info: BlobInfo, pieces: Iterable[int], header: bytes = b"") -> bytes:
    """`header`, then these pieces, each of them as the list has it. Raises NotWhole, StoreFailed."""
    with damage(), path.open("rb") as file:
        return join(file.fileno(), info, pieces, header)


def join(descriptor: int, info: BlobInfo, pieces: Iterable[int], header: bytes = b"") -> bytes:
    """The same of a file that is open."""
    return b"".join([header, *(sound_piece(descriptor, info, piece) for piece in pieces)])


def sound_piece(descriptor: int, info: BlobInfo, piece: int) -> bytes:
    """Raises NotWhole, OSError."""
    offset, length = info.span(piece)
    data = os.pread(descriptor, length, offset)
    if not verify_piece(info, piece, data):
        raise NotWhole(f"piece {piece} of {len(info.pieces)} is another")
    return data


def check_pieces(path: Path, info: BlobInfo, first: int, count: int, *, afresh: bool = False) -> int:
    """Compare pieces with the list; how many bytes. afresh: as the disk has them now. Raises NotWhole, StoreFailed."""
    pieces = range(first, min(first + count, len(info.pieces)))
    with damage(), path.open("rb") as file:
        descriptor = file.fileno()
        if os.fstat(descriptor).st_size != info.size:
            raise NotWhole(f"it has {os.fstat(descriptor).st_size} bytes of {info.size}")
        if not pieces:
            return 0
        offset, end = info.span(pieces[0])[0], sum(info.span(pieces[-1]))
        if afresh:  # what lies in memory says nothing of the disk
            os.posix_fadvise(descriptor, offset, end - offset, os.POSIX_FADV_DONTNEED)
        for piece in pieces:
            sound_piece(descriptor, info, piece)
        if afresh:  # and what is only compared shall push nothing out of memory
            os.posix_fadvise(descriptor, offset, end - offset, os.POSIX_FADV_DONTNEED)
        return end - offset


def arrived_pieces(descriptor: int, info: BlobInfo) -> Iterator[int]:
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


def write_fully(descriptor: int, data: memoryview, offset: int) -> None:
    while len(data):
        written = os.pwrite(descriptor, data, offset)
        # One call may write less than it was given, on a disk that fills up or where a signal comes.
        data, offset = data[written:], offset + written


def on_one_disk(source: Path, directory: Path) -> bool:
    return source.stat().st_dev == directory.stat().st_dev


def write_new(data: bytes, path: Path) -> None:
    path.write_bytes(data)


def describe_file(path: Path) -> BlobInfo:
    """Raises OSError, StoreBusy."""
    size = path.stat().st_size
    piece_size = choose_piece_size(size)
    try:
        file = path.open("rb")
    except OSError as error:
        raise (busy if isinstance(busy := _failed(error), StoreBusy) else error) from None
    with file:
        hashes = [blake3(piece).digest() for piece in iter(lambda: file.read(piece_size), b"")]
    return describe_pieces(size, piece_size, hashes)
