"""The mark that tells a journal from its older copies, and the pen that waits."""

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from node.errors import StateError
from node.state import pen as pen_module
from node.state.journal import Journal
from node.state.pen import Fence, Mark, Pen, mark_place, read_mark
from tests.attacks.validators.court import InlineJournal

POOL = "31337:0xabc:1"


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "runtime"
    place.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    return place


def started(directory: Path, pool: str = POOL, *, first: bool = False) -> Journal:
    """A start, as the daemon makes it; the pen is open unless it is in doubt."""
    directory.mkdir(exist_ok=True)
    journal = Journal(directory / "journal.sqlite", Pen(shut=True))
    doubt = journal.examine(mark_place(directory, pool), first=first)
    boot = journal.booted(1_000)
    if not doubt:
        journal.take_pen(boot)
        journal.pen.open()
    return journal


async def promised(journal: Journal, word: bytes) -> None:
    await journal.promise(journal.say, "commitment", word, word)


@pytest.fixture
async def lived(tmp_path: Path) -> Path:
    """The directory of a daemon that was killed after two promises."""
    journal = started(tmp_path / "node", first=True)
    await promised(journal, b"one")
    await promised(journal, b"two")
    journal.close()
    return tmp_path / "node"


async def test_a_first_join_and_a_restart_are_in_no_doubt(lived: Path) -> None:
    for _ in range(3):
        journal = started(lived)
        assert journal.pen.doubt == "" and journal.pen.may_write
        await promised(journal, os.urandom(8))
        journal.close()


@pytest.mark.parametrize("after", ["booted", "marked"])
async def test_a_start_that_is_killed_at_any_moment_makes_no_doubt(lived: Path, after: str) -> None:
    journal = Journal(lived / "journal.sqlite", Pen(shut=True))
    assert journal.examine(mark_place(lived, POOL), first=False) == ""
    boot = journal.booted(9_000)
    if after == "marked":
        journal.pen.generation = boot
        journal.pen.wrote(journal.words())
    journal.close()
    assert started(lived).pen.doubt == ""


async def test_a_copy_a_moved_one_and_a_restored_one_are_in_doubt_and_stay_so(lived: Path, tmp_path: Path) -> None:
    shutil.copytree(lived, tmp_path / "copy")
    backup = (lived / "journal.sqlite").read_bytes()
    assert "copied" in started(tmp_path / "copy").pen.doubt
    journal = started(lived)
    await promised(journal, b"three")
    journal.close()
    (lived / "journal.sqlite").write_bytes(backup)  # the same file, and fewer promises
    doubted = started(lived)
    assert doubted.pen.doubt == "the journal has 2 promises, and there were 3: it is an older copy"
    doubted.close()
    assert started(lived).pen.doubt  # a second start has no mark either


async def test_a_journal_that_was_replaced_is_another_file(lived: Path, tmp_path: Path) -> None:
    shutil.copy(lived / "journal.sqlite", tmp_path / "new")
    os.replace(tmp_path / "new", lived / "journal.sqlite")
    assert "another file" in started(lived).pen.doubt


async def test_a_reverted_journal_with_as_many_promises_is_of_another_generation(lived: Path) -> None:
    place = mark_place(lived, POOL)
    mark = read_mark(place)
    assert mark is not None
    place.write_bytes(msgspec.json.encode(msgspec.structs.replace(mark, generation=mark.generation + 5)))
    assert "last daemon" in started(lived).pen.doubt


async def test_a_reboot_is_a_doubt(lived: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pen_module, "boot_id", lambda: "another")
    assert "started anew" in started(lived).pen.doubt


@pytest.mark.parametrize(
    "forged",
    [b"", b"{", b"[" * 5000, b'{"boot_id": "x"}', b"\xff" * 100, b'{"boot_id":1}', b" " * 100_000],
    ids=["empty", "cut", "brackets", "fields", "no text", "types", "long"],
)
async def test_what_is_no_mark_is_none(lived: Path, forged: bytes) -> None:
    mark_place(lived, POOL).write_bytes(forged)
    assert started(lived).pen.doubt


async def test_a_mark_that_others_may_write_or_a_link_is_none(lived: Path, tmp_path: Path) -> None:
    place = mark_place(lived, POOL)
    good = place.read_bytes()
    assert read_mark(place) is not None
    place.chmod(0o666)
    assert read_mark(place) is None
    place.unlink()
    (tmp_path / "elsewhere").write_bytes(good)
    (tmp_path / "elsewhere").chmod(0o600)
    place.symlink_to(tmp_path / "elsewhere")
    assert read_mark(place) is None
    place.unlink()
    os.mkfifo(place, 0o600)
    assert read_mark(place) is None  # and does not wait for a writer


async def test_a_mark_that_cannot_be_written_is_removed_or_ends_the_promise(
    lived: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, place = started(lived), mark_place(lived, POOL)

    def refused(*_: Any, **__: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(pen_module.os, "replace", refused)
    await promised(journal, b"three")
    assert not place.exists()  # rather none: an older one would let an older journal pass
    place.mkdir()
    with pytest.raises(StateError, match="neither written nor removed"):
        await promised(journal, b"four")


async def test_marks_of_two_pools_stand_beside_each_other(lived: Path) -> None:
    assert mark_place(lived, POOL) != mark_place(lived, "31337:0xabc:2")


async def test_a_promise_waits_for_the_pen_and_is_counted(autojump_clock: Any) -> None:
    journal = InlineJournal(Pen(shut=True))
    done: list[bytes] = []

    async def say(word: bytes) -> None:
        await promised(journal, word)
        done.append(word)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(say, b"a")
        await trio.sleep(5)
        assert not done and journal.words() == 0
        journal.pen.open()
        await trio.sleep(5)
        assert done == [b"a"] and journal.words() == 1
        journal.pen.hold("another daemon")
        nursery.start_soon(say, b"b")
        await trio.sleep(5)
        assert done == [b"a"]
        journal.pen.open()
    assert done == [b"a", b"b"]
    journal.close()


async def test_a_pen_that_is_held_between_the_look_and_the_turn_writes_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    true_do = journal.do

    async def slow(work: Any, *args: object) -> Any:
        journal.pen.hold("another daemon")
        return await true_do(work, *args)

    journal.do = slow  # type: ignore[method-assign]
    with trio.move_on_after(0.5):
        await promised(journal, b"a")
    assert journal.said("commitment", b"a") is None
    journal.close()


async def test_a_broken_promise_counts_for_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    await promised(journal, b"a")
    with pytest.raises(StateError, match="twice"):
        await journal.promise(journal.say, "commitment", b"a", b"other")
    assert journal.words() == 1
    journal.close()


async def test_what_lies_under_the_fence_is_refused_and_the_fence_is_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    journal.close_fence(journal.fence.with_more(4, (b"task",)))
    journal.close()
    journal = Journal(tmp_path / "j.sqlite")
    assert journal.fence == Fence(4, (b"task",))
    for about in ({"step": 4}, {"step": 0}, {"task": b"task"}):
        with pytest.raises(StateError, match="signed before"):
            await journal.promise(journal.say, "commitment", b"a", b"a", **about)
    await journal.promise(journal.say, "commitment", b"a", b"a", step=5)
    await journal.promise(journal.say, "commitment", b"b", b"b", task=b"another")
    assert journal.fence.with_more(2, ()).step == 4  # it only rises
    assert len(Fence().with_more(1, tuple(bytes([n]) for n in range(200))).tasks) == 64
    journal.close()


def test_a_mark_names_all_that_is_looked_at() -> None:
    assert Mark.__struct_fields__ == ("boot_id", "device", "inode", "generation", "words")
