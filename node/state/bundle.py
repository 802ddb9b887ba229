"""A node in one file, to move it or to keep it safe: its key, encrypted anew, its journals, and a trainer's spool.

What can be had again (blobs, the run, the chain's history) is not in it. The file has a head in JSON that names every
part with its size and its BLAKE3, and then the parts one after the other. Whoever reads one believes nothing: names,
numbers and sizes are bounded before anything is written, each part is hashed as it is written, and the directory gets
its name when all of them stand. What was imported is always in doubt at its first start (`node.state.pen`). Blocking.
"""

import json
import os
import re
import secrets
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import msgspec
from blake3 import blake3

from node.errors import StateError
from node.state.directory import JOURNAL_NAME, check_space, existing
from node.state.files import sync_directory, whole_file
from node.state.journal import FORM, IMPORTED
from node.state.keystore import open_keystore, save_key
from node.state.tables import check_head, open_table
from protocol.errors import UNREADABLE
from protocol.identity import NodeKey

MAGIC = b"intellect-node state 1\n"
OTHER = re.compile(rb"intellect-node state ([0-9])\n")
MAX_HEAD, MAX_PARTS = 8 << 20, 65_536
MAX_PART, MAX_ALL = 1 << 40, 4 << 40
CHUNK = 1 << 20
KEY, MOVED = "node-key.json", "moved.json"
NAMES = re.compile(
    r"node-key\.json|outbox\.sqlite|metrics\.jsonl|journal(-[0-9a-f]{16})?\.sqlite"
    r"|spool(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}){1,5}",
    re.ASCII,
)
WHAT = "the state file"


class BundlePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """root: BLAKE3, in hex."""

    name: str
    size: int
    root: str


class BundleHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """made_at: unix seconds."""

    address: str
    made_at: int
    program: str
    parts: tuple[BundlePart, ...]


def check_moved(directory: Path) -> None:
    """Refuse a directory whose node lives elsewhere now. Raises StateError."""
    if (directory / MOVED).exists():
        raise StateError(
            f"the node of {directory} was moved away",
            f"its key is in a state file that `keys move` wrote ({directory / MOVED} says when and where)",
            f"run it where it was imported; to have it back, delete {directory / MOVED} and import that file elsewhere",
        )


def write_bundle(directory: Path, target: Path, key: NodeKey, password: str, made_at: int, program: str) -> BundleHead:
    """The directory's lock must be held: a running daemon promises more. Raises StateError, OSError."""
    if target.exists():
        raise StateError(f"will not overwrite {target}", "there is a file already", "name another one: --to FILE")
    work = target.with_name(f".{target.name}.{secrets.token_hex(4)}.parts")
    work.mkdir(mode=0o700, parents=True)
    try:
        files = dict(_gathered(directory, work, key, password))
        parts = tuple(BundlePart(name, path.stat().st_size, _root(path)) for name, path in files.items())
        head = BundleHead(key.address, made_at, program, parts)
        _check(head)
        encoded = msgspec.json.encode(head)
        check_space(existing(target.parent), "--to")
        with whole_file(target, mode=0o600, replace=False) as file:
            file.write(MAGIC + len(encoded).to_bytes(4) + encoded)
            for part in parts:
                _copy(files[part.name], file, part)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return head


def _gathered(directory: Path, work: Path, key: NodeKey, password: str) -> Iterator[tuple[str, Path]]:
    save_key(work / KEY, key, password)
    yield KEY, work / KEY
    for path in sorted([*directory.glob("journal*.sqlite"), directory / "outbox.sqlite"]):
        if NAMES.fullmatch(path.name) and path.exists():
            # By SQLite itself: its newest pages may still be in the log beside it.
            with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(work / path.name)) as copy:
                source.backup(copy)
            yield path.name, work / path.name
    if (directory / "metrics.jsonl").is_file():
        yield "metrics.jsonl", directory / "metrics.jsonl"
    for path in sorted((directory / "spool").rglob("*")):
        name = str(path.relative_to(directory))
        # The run's assets are a link, and orders between daemon and learner are of the moment.
        if path.is_file() and not path.is_symlink() and "assets" not in path.parts and NAMES.fullmatch(name):
            yield name, path


def read_head(file: BinaryIO) -> BundleHead:
    """Raises StateError for what is none, or names what it may not."""
    if (found := file.read(len(MAGIC))) != MAGIC:
        if other := OTHER.fullmatch(found):
            why = f"it says version {other[1].decode()}, and this program reads version 1"
            raise StateError(f"{WHAT} is of another version", why, "import it with the program that wrote it")
        raise _bad("it does not begin as one", "name a file that `state export` wrote")
    size = int.from_bytes(file.read(4))
    if not 0 < size <= MAX_HEAD:
        raise _bad(f"its head has {size} bytes")
    try:
        head = msgspec.json.decode(file.read(size), type=BundleHead)
    except UNREADABLE as error:
        raise _bad(str(error)[:200]) from error
    _check(head)
    return head


def _check(head: BundleHead) -> None:
    names = [part.name for part in head.parts]
    if len(names) > MAX_PARTS or len(set(names)) != len(names):
        raise _bad("it has too many parts, or one twice")
    for part in head.parts:
        if not NAMES.fullmatch(part.name) or any(step.startswith(".") for step in part.name.split("/")):
            raise _bad(f"it has a part that no node has: {part.name[:80]!r}")
        if not 0 <= part.size <= MAX_PART or not re.fullmatch("[0-9a-f]{64}", part.root):
            raise _bad(f"the part {part.name} has no size or no hash that could be")
    if sum(part.size for part in head.parts) > MAX_ALL:
        raise _bad("its parts are larger than any disk")
    if not {KEY, JOURNAL_NAME} <= set(names):
        raise _bad("the key or the journal is not in it")


def check_bundle(source: Path) -> BundleHead:
    """Every part of it as it was exported, without its password. Raises StateError, OSError."""
    with source.open("rb") as file:
        head = read_head(file)
        for part in head.parts:
            _hashed(file, part, None)
    return head


def read_bundle(source: Path, directory: Path, password: str) -> BundleHead:
    """Make a state directory of it: all of it, or none. Raises StateError, KeyError_, OSError."""
    if directory.exists() and any(directory.iterdir()):
        raise StateError(
            f"will not import into {directory}", "there are files in it", "name a new directory: --state-dir DIR"
        )
    directory = directory.absolute()
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}.importing")
    with source.open("rb") as file:
        head = read_head(file)
        check_space(existing(directory.parent))
        disk = os.statvfs(existing(directory.parent))
        if sum(part.size for part in head.parts) > disk.f_bavail * disk.f_frsize:
            raise StateError(f"the disk of {directory} is too small", "the state does not fit", "free some space")
        partial.mkdir(mode=0o700)
        try:
            for part in head.parts:
                _extract(file, partial / part.name, part)
            if file.read(1):
                raise _bad("there is something behind its last part")
            _verify(partial, head, password)
            # Empty, as was asked above. One that somebody filled meanwhile is not removed: `rmdir` refuses it.
            if directory.exists():
                directory.rmdir()
            os.replace(partial, directory)
            sync_directory(directory.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return head


def _verify(partial: Path, head: BundleHead, password: str) -> None:
    """The key is the one that the head names and opens, and every journal is sound and of a form that is known."""
    try:
        keystore = json.loads((partial / KEY).read_bytes())
    except (ValueError, RecursionError) as error:
        raise _bad("its key is no keystore") from error
    if not isinstance(keystore, dict):
        raise _bad("its key is no keystore")
    if open_keystore(keystore, password, f"in {WHAT}").address != head.address:
        raise _bad("its key is not the one that its head names")
    for path in partial.glob("journal*.sqlite"):
        check_head(path, FORM)
        with closing(open_table(path, FORM)) as journal:
            # At its first start the pool is asked, whatever lies in this machine's memory.
            journal.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (IMPORTED, b"1"))


def _extract(file: BinaryIO, target: Path, part: BundlePart) -> None:
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        _hashed(file, part, out)
        out.flush()
        os.fsync(out.fileno())


def _hashed(file: BinaryIO, part: BundlePart, out: BinaryIO | None) -> None:
    found, left = blake3(), part.size
    while left:
        piece = file.read(min(CHUNK, left))
        if not piece:
            raise _bad(f"it ends within {part.name}: it was copied in part", "copy it again")
        left -= len(piece)
        found.update(piece)
        if out is not None:
            out.write(piece)
    if found.hexdigest() != part.root:
        raise _bad(f"the bytes of {part.name} are not those that were exported", "copy it again")


def _copy(source: Path, target: BinaryIO, part: BundlePart) -> None:
    found, left = blake3(), part.size
    with source.open("rb") as file:
        while left and (piece := file.read(min(CHUNK, left))):
            left -= len(piece)
            found.update(piece)
            target.write(piece)
    if left or found.hexdigest() != part.root:
        raise StateError(f"{source} changed while it was exported", "something writes there", "stop it, and try again")


def _root(path: Path) -> str:
    found = blake3()
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            found.update(piece)
    return found.hexdigest()


def _bad(why: str, remedy: str = "export it again where the node ran") -> StateError:
    return StateError(f"{WHAT} cannot be used", why, remedy)
