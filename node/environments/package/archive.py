"""A package as one blob: a plain tar of which exactly one exists for given files.

Headers hold a name and a size, nothing else: no owner, no date, no link, no directory. The reader builds the header
that it expects and compares, so whatever is not canonical is refused, and two archives of the same files have one root.
"""

import os
import re
import stat
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from node.environments.errors import PackageError
from node.environments.package.manifest import CODE, refused
from protocol.blobs import describe

MAX_BYTES = 32 << 20
MAX_FILES = 256
SUFFIXES = (".py", ".toml", ".json", ".jsonl", ".txt", ".md", ".csv")
"""What a package may hold; all of it is UTF-8 text."""
RESERVED = "intellect_"
"""How modules begin that the program puts beside a package's."""
_BLOCK = 512
# No part begins with a dot: no path leads upwards, and none is hidden.
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")


def pack(files: Mapping[str, bytes]) -> bytes:
    """The archive of files by their relative paths. Raises PackageError for what a package must not hold."""
    check_files(files)
    parts: list[bytes] = []
    for name, data in sorted(files.items()):
        parts += [_header(name, len(data)), data, bytes(-len(data) % _BLOCK)]
    archive = b"".join([*parts, bytes(2 * _BLOCK)])
    if len(archive) > MAX_BYTES:
        raise refused(f"it has {len(archive)} bytes, {MAX_BYTES} are allowed", "leave something out")
    return archive


def unpack(archive: bytes) -> dict[str, bytes]:
    """The files of an archive; raises PackageError for anything that `pack` would not have written."""
    if len(archive) > MAX_BYTES:
        raise refused(f"it has {len(archive)} bytes, {MAX_BYTES} are allowed", _PACK_ANEW)
    files: dict[str, bytes] = {}
    place, last = 0, ""
    # A block of zeros ends the files, two of them the archive. Anything behind them is refused below.
    while any(header := archive[place : place + _BLOCK]):
        name, size = _read_header(header)
        start = place + _BLOCK
        place = start + size + -size % _BLOCK
        # Compared with what is there before anything is cut out: a size that lies allocates nothing.
        # Padding that is not zero would give one package two roots.
        if place > len(archive) or any(archive[start + size : place]):
            raise refused(f"{name} is cut off or padded wrongly", _PACK_ANEW)
        # One order only, so that the same files have one root; equal names fall out with it.
        if name <= last or len(files) == MAX_FILES:
            raise refused(f"{name} is out of order, doubled or one file too many", _PACK_ANEW)
        files[name], last = archive[start : start + size], name
    if archive[place:] != bytes(2 * _BLOCK):
        raise refused("it does not end where it should", _PACK_ANEW)
    check_files(files)
    return files


def root_of(archive: bytes) -> str:
    """64 hex digits: the blob root, which names the environment."""
    return describe(archive).root.hex()


def check_files(files: Mapping[str, bytes]) -> None:
    """Raise PackageError unless these may be a package: plain names, text, within the bounds."""
    if len(files) > MAX_FILES:
        raise refused(f"it has {len(files)} files, {MAX_FILES} are allowed", "put the rows into one rows.jsonl")
    for name, data in files.items():
        check_name(name)
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise refused(
                f"{name} is not UTF-8 text: {error.reason} at byte {error.start}", "save it as UTF-8"
            ) from None


def check_name(name: str) -> None:
    """Raise PackageError unless `name` is a plain relative path of a kind of file that a package may hold."""
    parts = name.split("/")
    # A name of more than 100 bytes would spill into the header's prefix, which the reader does not look at.
    if len(parts) > 4 or not all(_PART.fullmatch(part) for part in parts) or len(name) > 100:
        raise refused(f"{name[:120]!r} is not a plain relative path", "use letters, digits, '_', '-' and '.'")
    if parts[0].startswith(RESERVED):
        raise refused(f"{name} has a name of the program's own", f"call it something without {RESERVED!r} in front")
    if not name.endswith(SUFFIXES):
        raise refused(f"{name} is of no kind that a package may hold", f"it holds text: {', '.join(SUFFIXES)}")


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry.tobuf(tarfile.USTAR_FORMAT)


def _read_header(header: bytes) -> tuple[str, int]:
    """(name, size in bytes) of a header that is to the bit what `pack` writes."""
    # Bytes beyond ASCII become a sign that no name may have, so the name is refused.
    name = header[:100].rstrip(b"\0").decode("ascii", "replace")
    check_name(name)
    try:
        size = int(header[124:135], 8)
    except ValueError:
        # Refused below, in the words for a size that is too large.
        size = MAX_BYTES + 1
    if not 0 <= size <= MAX_BYTES or header != _header(name, size):
        raise refused(f"the entry {name} is no plain file as `env publish` writes it", _PACK_ANEW)
    return name, size


_PACK_ANEW = "pack it anew: intellect-node env publish"


# Where the files of a package come from: a module, a directory, an archive, or a run's assets.
# Everything is bounded before it is read, and nothing but regular files is: no link leads out of a package.
ASSETS = "environments"
"""The directory of packages among a run's assets."""
_LEFT_OUT = ("__pycache__",)


def asset_name(name: str) -> str:
    """The asset of the package `name` in a run."""
    return f"{ASSETS}/{name}.tar"


def in_run(assets: Path, name: str) -> dict[str, bytes]:
    """The files of the package `name` of a run. Raises PackageError."""
    return unpack(_content(assets / asset_name(name), MAX_BYTES))


def read_source(path: Path) -> dict[str, bytes]:
    """The files of a package that lies on this disk: a .py module, a directory, or an archive. Raises PackageError."""
    if path.is_dir():
        return _directory(path)
    if path.suffix == ".tar":
        return unpack(_content(path, MAX_BYTES))
    if path.suffix == ".py":
        files = {CODE: _content(path, MAX_BYTES)}
        check_files(files)
        return files
    if not path.exists():
        raise _unreadable(path, "there is no such file", "correct the path")
    raise _unreadable(path, "it is no .py module, no directory and no .tar of a package", "name one of those")


def _directory(path: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    left = MAX_BYTES
    for file in _below(path):
        if len(files) == MAX_FILES:
            raise _unreadable(path, f"it has more than {MAX_FILES} files", "put the rows into one rows.jsonl")
        data = _content(file, left)
        files[file.relative_to(path).as_posix()] = data
        left -= len(data)
    check_files(files)
    return files


def _below(path: Path) -> Iterator[Path]:
    """The files of a directory and those below it, hidden ones left out. Raises PackageError for links and devices."""
    for entry in sorted(os.scandir(path), key=lambda one: one.name):
        if entry.name.startswith(".") or entry.name in _LEFT_OUT:
            continue
        # A link to a directory goes on to `_content`, which refuses links.
        if entry.is_dir(follow_symlinks=False):
            yield from _below(path / entry.name)
        else:
            yield path / entry.name


def _content(path: Path, most: int) -> bytes:
    """The bytes of a regular file of at most `most` bytes. Raises PackageError."""
    try:
        # O_NONBLOCK: opening a pipe would wait for somebody who writes to it.
        # The open file is looked at and not its path: somebody may put another file there in between.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise _unreadable(path, "it is not a regular file", "a package holds files and directories only")
            if found.st_size > most:
                raise _unreadable(path, f"a package has at most {MAX_BYTES} bytes", "leave something out")
            data = file.read(most + 1)
    except OSError as error:
        why = "it is a link" if path.is_symlink() else error.strerror or str(error)
        raise _unreadable(path, why, "put the file itself there") from None
    if len(data) > most:
        raise _unreadable(path, "it grew while it was read", "try again")
    return data


def _unreadable(path: Path, why: str, remedy: str) -> PackageError:
    return PackageError("the environment package cannot be read", f"{path}: {why}", remedy)
