"""What survives a restart, and what does not stop a node: a full disk, a damaged file, another run's."""

import sqlite3
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import trio

from node.web.page import series
from node.web.page.page import WebPage
from node.web.page.series import MAX_BYTES, Curves, Point, SeriesFile, SeriesRecorder
from tests.swarms import status, typed

RUN = "ab" * 32


def fed(curves: Curves, *steps: int) -> Curves:
    for step in steps:
        curves.feed(typed(status(step=step, at=float(step))), 1.79e9 + step)
    return curves


async def test_curves_are_there_again_after_a_restart(tmp_path: Path) -> None:
    first = SeriesRecorder(tmp_path / "h.sqlite", fed(Curves(), 40))
    await first.belong_to(RUN)
    await first.keep()
    await first.close()
    curves = Curves()
    second = SeriesRecorder(tmp_path / "h.sqlite", curves)
    await second.belong_to(RUN)
    assert curves.steps.points == fed(Curves(), 40).steps.points and second.fault is None
    assert curves.load.points == fed(Curves(), 40).load.points
    await second.close()


async def test_another_runs_curves_are_not_shown_as_this_ones(tmp_path: Path) -> None:
    first = SeriesRecorder(tmp_path / "h.sqlite", fed(Curves(), 40))
    await first.belong_to(RUN)
    await first.keep()
    await first.close()
    curves = Curves()
    second = SeriesRecorder(tmp_path / "h.sqlite", curves)
    await second.belong_to("cd" * 32)
    assert curves.steps.points == []
    await second.close()


@pytest.mark.parametrize("damage", [b"not a database at all" * 400, b""])
async def test_a_damaged_file_is_begun_anew(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    path.write_bytes(damage)
    recorder = SeriesRecorder(path, fed(Curves(), 5))
    await recorder.belong_to(RUN)
    await recorder.keep()
    assert recorder.fault is None
    await recorder.close()
    assert SeriesFile(path).read(RUN)["steps"][-1].x == 5


async def test_a_file_that_another_program_holds_is_kept_and_read_when_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, connect = tmp_path / "h.sqlite", sqlite3.connect
    first = SeriesRecorder(path, fed(Curves(), 40))
    await first.belong_to(RUN)
    await first.keep()
    await first.close()
    # Without the seconds that SQLite waits by itself.
    monkeypatch.setattr(sqlite3, "connect", partial(connect, timeout=0.01))
    with closing(connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        curves = Curves()
        second = SeriesRecorder(path, curves)
        await second.belong_to(RUN)
        await second.keep()
        assert second.fault and "locked" in second.fault
    await second.belong_to(RUN)
    assert len(curves.steps.points) == 41 and second.fault is None
    await second.close()


async def test_a_full_disk_is_said_and_what_is_missing_is_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "MAX_BYTES", 3 * 4096)
    curves = fed(Curves(), 300)
    recorder = SeriesRecorder(tmp_path / "h.sqlite", curves)
    await recorder.belong_to(RUN)
    await recorder.keep()
    assert recorder.fault and "full" in recorder.fault
    assert len(curves.steps.points) == 301, "what is shown is not lost with it"
    await recorder.close()
    monkeypatch.setattr(series, "MAX_BYTES", MAX_BYTES)
    await recorder.keep()
    assert recorder.fault is None
    await recorder.close()
    assert len(SeriesFile(tmp_path / "h.sqlite").read(RUN)["steps"]) == 301


async def test_a_directory_that_is_gone_does_not_stop_a_node(tmp_path: Path) -> None:
    recorder = SeriesRecorder(tmp_path / "nowhere" / "h.sqlite", fed(Curves(), 3))
    await recorder.belong_to(RUN)
    await recorder.keep()
    assert recorder.fault


def test_the_file_is_smaller_than_its_bound_with_the_widest_series(tmp_path: Path) -> None:
    history = SeriesFile(tmp_path / "h.sqlite")
    history.read(RUN)
    wide = [Point(2**40 + x, tuple(-1234567.8901 for _ in range(11))) for x in range(800)]
    for _ in range(3):
        history.write({}, {"steps": wide, "load": wide})
    history.close()
    assert (tmp_path / "h.sqlite").stat().st_size < MAX_BYTES / 4


def test_all_or_nothing_of_a_write_is_there(tmp_path: Path) -> None:
    history = SeriesFile(tmp_path / "h.sqlite")
    history.read(RUN)
    history.write({"steps": [Point(1, (1.0,))]}, {})
    with pytest.raises((sqlite3.Error, OverflowError)):
        history.write({}, {"steps": [Point(2, (1.0,)), Point(2**70, (1.0,))]})
    assert history.read(RUN) == {"steps": [Point(1, (1.0,))]}
    history.close()


def test_no_page_opens_a_file_before_it_runs(tmp_path: Path) -> None:
    WebPage(lambda: typed(status()), tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_nothing_is_closed_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    did, real = list[str](), SeriesFile.close
    goes_on = threading.Event()

    def read(self: SeriesFile, run: str) -> dict[str, list[Point]]:
        did.append("reads")
        goes_on.wait(5)
        did.append("has read")
        return {}

    def close(self: SeriesFile) -> None:
        did.append("closes")
        real(self)

    monkeypatch.setattr(SeriesFile, "read", read)
    monkeypatch.setattr(SeriesFile, "close", close)
    recorder = SeriesRecorder(tmp_path / "h.sqlite", Curves())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(recorder.belong_to, RUN)
        while not did:
            await trio.sleep(0.001)
        nursery.start_soon(recorder.close)
        await trio.sleep(0.01)
        goes_on.set()
    assert did == ["reads", "has read", "closes"]
