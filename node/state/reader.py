"""What a node's state directory holds of its run, found without the daemon: run, assets, policies, blobs.

Reads only; a daemon may be running in the directory.
"""

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from node.errors import StateError
from node.state.directory import FACT, JOURNAL_NAME
from node.state.earned import EarnedBook, OwnLine
from node.state.files import files_in, read_if_there
from node.state.journal import FORM, TABLE
from node.state.kept import kept
from node.state.made import FileRecord, read_records
from node.state.pay import PAY, PayBook, PayRecord, Sums
from node.state.tables import check_head, refused
from protocol.blobs import describe
from protocol.earnings import EarningsLine
from protocol.errors import ProtocolError
from protocol.identity import Address, address_bytes
from protocol.pages import pages_of, read_page
from protocol.policy import MalformedPolicy, decode_image, describe_tensors, find_step, weights_root
from protocol.run import MAX_RUN_BYTES, RunSpec, decode_run
from protocol.table import Owed, Share, checked_head

T = TypeVar("T")


class _Rows:
    """A journal that is only read."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    def at_once(self) -> AbstractContextManager[None]:
        raise NotImplementedError("nothing is written here")

    def remember(self, name: str, value: bytes) -> None:
        raise NotImplementedError("nothing is written here")

    def recall(self, name: str) -> bytes | None:
        row = self.db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None


class StateFiles:
    """Raises StateError with what is missing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._blobs = directory / "blobs" / "complete"

    def run(self) -> tuple[RunSpec, Path]:
        """The run that the node worked for last, and the directory of its assets."""
        folders = sorted((self.directory / "run").glob("*"), key=lambda path: path.stat().st_mtime)
        for folder in reversed(folders):
            # The directory of a run's files is called as the run's root begins.
            for blob, status in files_in(self._blobs, f"{folder.name}*"):
                if blob.suffix == "" and status.st_size <= MAX_RUN_BYTES:
                    data = read_if_there(blob)
                    if data is not None and describe(data).root.hex() == blob.name:
                        return kept(blob, partial(decode_run, data)), folder
        raise StateError(
            f"no run in {self.directory}", "a node that has joined a pool keeps it there", "name the run file: --run"
        )

    def policy(self, root: str, last: int) -> Path:
        """The image of a policy of step `last` or before, by the hex digits of its root.

        The node's records say of which step an image is, where there are any; this looks at the images alone.
        """
        for blob, _ in sorted(files_in(self._blobs, "*"), key=lambda one: -one[1].st_mtime):
            with suppress(FileNotFoundError):  # a running node makes room for newer ones
                if blob.suffix == "" and _is_image(blob) and _is_policy(blob, root, last):
                    return blob
        raise StateError(
            f"the policy {root[:16]}… is not in {self.directory}",
            "a node keeps the newest few only",
            "name its image: --policy FILE",
        )

    def sums(self, node: Address, posted: int, line: int, quorum: int) -> Sums:
        """Where the works of this node are, as far as its daemon knew. posted: the last epoch that is tabled on chain,
        -1 for none; line: this node's newest that is known; quorum: of the validators."""
        return self._journal(lambda journal: PayBook(_Rows(journal)).sums(node, quorum, posted, line))

    def pool(self) -> int:
        """The number of the pool that the journal is of; 0 for one that never was in any."""
        label = (self.fact(FACT) or b"").rpartition(b":")[2]
        return int(label) if label.isdigit() else 0

    def share(self, pool: int, root: bytes, total: int, node: Address) -> Share | None:
        """What the table of this root says of a node, by what the daemon here has read of it; None where it has not."""
        found = self.fact(TABLE)
        if not found:
            return None
        head, *files = self._kept(TABLE, found, list[bytes])
        pages = {describe(file).root: file for file in files}
        try:
            table = checked_head(head, pool, root, total)
            lines = {
                at: read_page(pages[table.pages[at].root], table.pages[at], EarningsLine) for at in table.pages_of(node)
            }
            places = [table.debts[at] for at in pages_of(table.debts, address_bytes(node))]
            owed = [row for page in places for row in read_page(pages[page.root], page, Owed)]
        except (KeyError, ProtocolError):  # an older table, or files of others' lines alone
            return None
        return table.share(node, lines, owed)

    def lines(self, first: int, last: int) -> list[OwnLine]:
        """This node's lines under validators' roots of these epochs."""
        return self._journal(lambda journal: EarnedBook(_Rows(journal)).lines(first, last))

    def contributions(self, most: int, since: float) -> list[FileRecord]:
        """The newest of what this node did, newest first. since: Unix seconds."""
        return self._journal(lambda journal: read_records(journal, most, since))

    def pay(self) -> PayRecord | None:
        """What the daemon knew of the node's pay when it looked last."""
        found = self.fact(PAY)
        return self._kept(PAY, found, PayRecord) if found else None

    def _kept(self, name: str, found: bytes, kind: type[T]) -> T:
        where = f"the {name} in {self.directory / JOURNAL_NAME}"
        return kept(where, lambda: msgspec.msgpack.decode(found, type=kind))

    def fact(self, name: str) -> bytes | None:
        """Something that the daemon has remembered."""
        row = self._journal(lambda j: j.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone())
        return row[0] if row else None

    def groups_per_file(self) -> int | None:
        """Groups in each file of the run that the node worked for last; None where no run is there."""
        try:
            return self.run()[0].rollout.prompts_per_file
        except StateError:
            return None

    def _journal(self, read: Callable[[sqlite3.Connection], T]) -> T:
        path = self.directory / JOURNAL_NAME
        if not path.exists():
            why = "a node that has worked keeps one"
            raise StateError(f"no journal in {self.directory}", why, "check the directory")
        check_head(path, FORM)
        with (
            refused(path, FORM),
            closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as journal,
        ):
            return read(journal)

    def blob(self, root: str) -> Path:
        """A complete blob by the hex digits of its root."""
        path = self._blobs / root
        if not path.is_file():
            raise StateError(
                f"no blob {root[:16]}… in {self.directory}", "it was never there or was evicted", "fetch it"
            )
        return path


def _is_image(path: Path) -> bool:
    """A quick look: the header of safetensors."""
    smallest_image = 64
    with path.open("rb") as file:
        start = file.read(smallest_image)
    return len(start) == smallest_image and start[8:24] == b'{"__metadata__":'


def _is_policy(path: Path, root: str, last: int) -> bool:
    try:
        weights = weights_root(describe_tensors(decode_image(path.read_bytes())))
    except MalformedPolicy:
        return False
    return find_step(root, weights, last) is not None
