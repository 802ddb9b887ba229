"""What becomes of a single bit that flips in a stored file?

A silent one is used, or handed on, as if it were what was stored. python -m benchmarks.flips [--quick]
"""

import argparse
import os
import random
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import structlog
import trio

from contracts.bindings import RawLog
from node.blobs import files
from node.blobs.errors import BlobUnavailable
from node.blobs.store import BlobStore
from node.chain.blocks import Block
from node.chain.follower import EventStore
from node.errors import StateError
from node.state.journal import Journal
from protocol.earnings import Accepted, Leaf
from protocol.identity import Address, address_bytes

BLOBS = (0, 1, 900, 20_000, 300_000, 1_500_000)
"""Bytes: the run's specification, reports, tokenizers, files, images."""
QUOTA = 10**9


@dataclass
class Found:
    """tried: flips; noticed: told, and neither used nor handed on; silent: used as they were."""

    tried: int = 0
    noticed: int = 0
    silent: int = 0


class Flips:
    """Stored things below a directory, and one flip after the other in them."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self._directory = directory
        self._rng = rng

    async def blobs(self, count: int, *, checked: bool = True) -> Found:
        """In complete blobs and their piece lists, between two starts. checked: as the node reads them, or, as a
        control, as the files lie there."""
        found, folder = Found(), self._directory / "blobs"
        for _ in range(count):
            data = self._rng.randbytes(self._rng.choice(BLOBS))
            store = BlobStore(folder, QUOTA)
            root = (await store.add(data)).root
            path = store.path(root)
            self.flip(files.info_path(path) if not data or self._rng.random() < 0.25 else path)
            as_it_lies, again = path.read_bytes(), BlobStore(folder, QUOTA)
            used = await _read(again, root) if checked else [as_it_lies]
            found.tried += 1
            found.silent += any(one != data for one in used)
            found.noticed += again.proof.damaged == 1 and not used
            again.evict(root)
        return found

    def pages(self, count: int, rows: int = 300) -> Found:
        """In the pages of a closed journal, between two starts. What changes no row is neither noticed nor silent."""
        whole, path, found = self._directory / "whole.sqlite", self._directory / "journal.sqlite", Found()
        _write_journal(whole, self._rng, rows)
        before = _rows(whole)
        for _ in range(count):
            shutil.copyfile(whole, path)
            self.flip(path)
            found.tried += 1
            try:
                Journal(path).close()
            except StateError:
                found.noticed += 1
            else:
                found.silent += _rows(path) != before
        return found

    def chain(self, count: int, rows: int = 100) -> Found:
        """In the pages of what was read of the chain: it is set aside and read anew, and never ends the daemon."""
        whole, path, found = self._directory / "read.sqlite", self._directory / "chain.sqlite", Found()
        _write_chain(whole, self._rng, rows)
        before = _rows(whole)
        for _ in range(count):
            shutil.copyfile(whole, path)
            self.flip(path)
            found.tried += 1
            store = EventStore(path)
            store.close()
            aside = path.with_name("chain.sqlite.damaged")
            found.noticed += aside.exists()
            found.silent += not aside.exists() and _rows(path) != before
            aside.unlink(missing_ok=True)
        return found

    def flip(self, path: Path) -> None:
        """One bit of a file, whose times stay: a disk writes down no change."""
        stat = path.stat()
        data = bytearray(path.read_bytes())
        data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
        path.write_bytes(bytes(data))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _write_journal(path: Path, rng: random.Random, rows: int) -> None:
    """What a validator that works, too, keeps of some epochs."""
    journal = Journal(path)
    for row in range(rows):
        root, node = rng.randbytes(32), Address(f"0x{row % 7:040x}")
        journal.say("verdict", root, rng.randbytes(300), float(row))
        journal.files.add_file(root, rng.randbytes(32), row, 1000 + row, float(row), b"r" * 32, row, row // 50, root)
        journal.pay.name(node, [Accepted(4, node, row // 50, root, 1000 + row)])
        leaf = Leaf(address_bytes(node), root, 1000 + row)
        journal.earned.note_leaves(row // 50, node, row, rng.randbytes(32), rng.randbytes(300), [leaf])
        journal.remember(f"lot_pledge_{row}", b"1000 20")
        journal.used.consume([root], row)
    journal.close()


def _write_chain(path: Path, rng: random.Random, rows: int) -> None:
    store = EventStore(path)
    store.bind("a chain")
    for number in range(rows):
        block = Block(number, rng.randbytes(32), 1_700_000_000 + number, rng.randbytes(32))
        log = RawLog(Address(f"0x{7:040x}"), (rng.randbytes(32),), rng.randbytes(96), number, block.hash, "0x1", 0)
        store.advance(block, [log])
    store.close()


def _rows(path: Path) -> list[object]:
    """All that a database says, by its tables and by their indexes."""
    told: list[object] = []
    with closing(sqlite3.connect(path)) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = ", ".join(row[1] for row in db.execute(f"PRAGMA table_info({name})"))
            try:
                told.append(sorted(map(repr, db.execute(f"SELECT {columns} FROM {name}"))))  # noqa: S608 - ours
            except sqlite3.DatabaseError as error:
                told.append(repr(error))
    return told


async def _read(store: BlobStore, root: bytes) -> list[bytes]:
    """What is handed on, and what is used, if anything is."""
    used: list[bytes] = []
    try:
        if (info := store.info(root)) is not None and info.pieces:
            used.append(await store.read_pieces(root, range(len(info.pieces))))
    except BlobUnavailable:
        pass  # not handed on
    if await store.whole(root):
        used.append(store.path(root).read_bytes())
    return used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with tempfile.TemporaryDirectory() as directory:
        flips = Flips(Path(directory), random.Random(given.seed))
        print("blobs   ", trio.run(flips.blobs, 60 if given.quick else 600))
        print("pages   ", flips.pages(24 if given.quick else 240))
        print("chain   ", flips.chain(24 if given.quick else 120))
        control = trio.run(lambda: flips.blobs(30, checked=False))
        print("control ", control, "(read as the files lie there)")


if __name__ == "__main__":
    main()
