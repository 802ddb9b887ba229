"""What this node committed to, counted by its journal; asked again only where a slot was taken meanwhile."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.clock import Clock
from node.errors import StateError
from node.services.committing import OwnWorks, commit, slot_name
from node.state.journal import Journal
from protocol.blobs import describe
from protocol.identity import NodeKey
from protocol.messages import seal
from protocol.statements import Domain
from tests.counts import Counts

KEY = NodeKey.generate()
DOMAIN = Domain(31337, KEY.address)
POLICY = b"p" * 32


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Any]:
    async def add(path: Path) -> Any:
        return describe(path.read_bytes())

    async def post_raw(raw: bytes) -> None:
        pass

    journal = Journal(tmp_path / "journal.sqlite")
    journal.pen.open()
    yield SimpleNamespace(
        key=KEY,
        domain=DOMAIN,
        pool=1,
        run=SimpleNamespace(root=b"r" * 32),
        time=SimpleNamespace(epoch=lambda: 0),
        clock=Clock(),
        blobs=SimpleNamespace(add=add),
        board=SimpleNamespace(sealed=partial(seal, KEY, DOMAIN), post_raw=post_raw),
        journal=journal,
    )
    journal.close()


async def test_a_file_is_noted_and_counted_in_one_job_and_the_journal_is_asked_where_a_slot_was_taken(
    context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works, counts, journal = OwnWorks(context), Counts(monkeypatch), context.journal

    async def cost(work: Any) -> tuple[Any, int]:
        before = counts.jobs.total()
        return await work, counts.jobs.total() - before

    async def make(index: int) -> None:
        (tmp_path / "file").write_bytes(bytes([index]))
        await commit(context, POLICY, index, tmp_path / "file", 7, 3, then=partial(works.note, POLICY))

    assert await cost(works.made(POLICY)) == (0, 1)
    assert await cost(works.made(POLICY)) == (0, 0), "nothing was said since"
    assert await cost(make(0)) == (None, 1)
    assert await cost(works.made(POLICY)) == (1, 0)
    assert works.done.counts == {"pending": 1} and works.done.units == 7
    assert await cost(works.made(b"q" * 32)) == (0, 1)
    assert await cost(works.made(POLICY)) == (1, 1)
    # Another daemon's word with this key comes in, as after a start in doubt: its index must not be used.
    assert journal.adopt("commitment", slot_name(POLICY, 1), b"another daemon's")
    assert await cost(works.made(POLICY)) == (2, 1)
    with pytest.raises(StateError, match="twice"):
        await make(1)
    assert await cost(works.made(POLICY)) == (2, 1), "what did not come to pass is not counted"
    assert works.done.counts == {"pending": 1}
