"""Where the files of a package come from: a module, a directory, an archive, or a run's assets.

Everything is bounded before it is read, and nothing but regular files is: no link leads out of a package.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from node.environments.errors import PackageError
from node.environments.package.archive import MAX_BYTES, MAX_FILES, check_files, unpack
from node.environments.package.manifest import CODE

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
        if entry.is_dir(follow_symlinks=False):
            yield from _below(path / entry.name)
        else:
            yield path / entry.name


def _content(path: Path, most: int) -> bytes:
    """The bytes of a regular file of at most `most` bytes. Raises PackageError."""
    try:
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
