"""A ring wakes every process that listens, and harms nothing where nobody does, or where no pipe is."""

import os
import select
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from node.training.bells import hung, ring, silence


def rang(bell: int | None) -> bool:
    assert bell is not None
    return bool(select.select([bell], [], [], 0)[0])


def test_one_ring_of_another_process_is_heard_by_all_and_once(tmp_path: Path) -> None:
    with hung(tmp_path) as first, hung(tmp_path) as second:
        assert not rang(first) and not rang(second)
        program = f"from pathlib import Path; from node.training.bells import ring; ring(Path({str(tmp_path)!r}))"
        subprocess.run([sys.executable, "-c", program], check=True)
        for bell in (first, second):
            assert rang(bell)
            silence(bell)  # type: ignore[arg-type]
            assert not rang(bell), "without its own end it would be readable for good"
    assert not list((tmp_path / "bells").iterdir())


def test_a_bell_that_nobody_silences_never_makes_the_ringer_wait(tmp_path: Path) -> None:
    with hung(tmp_path) as bell:
        (place,) = (tmp_path / "bells").iterdir()
        pipe = os.open(Path(place.read_text()) / "pipe", os.O_WRONLY | os.O_NONBLOCK)
        for size in (4096, 1):  # to the last byte
            with suppress(BlockingIOError):
                while True:
                    os.write(pipe, bytes(size))
        os.close(pipe)
        for _ in range(3):
            ring(tmp_path)
        silence(bell)  # type: ignore[arg-type]
        assert not rang(bell)


def test_what_a_killed_process_left_is_taken_away_and_who_listens_is_not_woken_by_that(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from node.training.bells import hung
with hung(Path({str(tmp_path)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], check=False)
    (left,) = (tmp_path / "bells").iterdir()
    place = Path(left.read_text())
    assert (place / "pipe").exists()
    ring(tmp_path)
    with hung(tmp_path) as bell, hung(tmp_path):
        assert not left.exists() and not place.exists() and not rang(bell)


def test_a_copy_of_a_directory_in_use_has_no_pipes_and_rings_the_same_bell(tmp_path: Path) -> None:
    with hung(tmp_path / "spool") as bell:
        shutil.copytree(tmp_path / "spool", tmp_path / "copy")
        ring(tmp_path / "copy")
        assert rang(bell)


@pytest.mark.parametrize("where", ["", "relative/intellect-bell-1", "{folder}/another", "{folder}/intellect-bell-1"])
def test_a_note_that_names_no_bell_opens_nothing_and_takes_nothing_away(tmp_path: Path, where: str) -> None:
    kept = [tmp_path / name / "pipe" for name in ("another", "intellect-bell-1")]
    for path in kept:
        path.parent.mkdir()
        path.write_bytes(b"kept")
    note = tmp_path / "bells" / "1"
    note.parent.mkdir()
    note.write_text(where.format(folder=tmp_path))
    ring(tmp_path)
    assert [path.read_bytes() for path in kept] == [b"kept"] * 2
    with hung(tmp_path):
        assert not note.exists()
    assert [path.read_bytes() for path in kept] == [b"kept"] * 2


def test_a_ring_where_nobody_ever_listened_makes_nothing(tmp_path: Path) -> None:
    ring(tmp_path)
    ring(tmp_path / "nowhere")
    assert not list(tmp_path.iterdir())


def test_where_the_file_system_knows_no_pipes_there_is_no_bell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError("no pipes here")

    monkeypatch.setattr(os, "mkfifo", refused)
    with hung(tmp_path) as bell:
        assert bell is None


def test_a_learner_rings_without_trio() -> None:
    program = "import sys, node.training.bells; sys.exit('trio' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
