import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.errors import StateError
from node.state import directory as statedir
from node.state.directory import StateDir, check_place
from node.state.journal import Journal

ROOT = Path(__file__).resolve().parents[3]
HOLD = """
import sys
from pathlib import Path
from node.state.directory import StateDir
held = StateDir(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_daemon_on_one_directory_is_told_who_holds_it(tmp_path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    holder = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True, cwd=ROOT)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(StateError, match=f"pid {holder.pid}"):
            StateDir(tmp_path)
    finally:
        holder.kill()
        holder.communicate()
    StateDir(tmp_path).close()  # a killed daemon leaves nothing that blocks the next one


def test_leaving_removes_the_lock(tmp_path) -> None:
    StateDir(tmp_path / "new" / "dir").close()
    assert not (tmp_path / "new" / "dir" / "lock").exists()


def test_a_full_disk_is_noticed_before_anything_is_lost(tmp_path, monkeypatch) -> None:
    real = os.statvfs(tmp_path)
    full = os.statvfs_result((real.f_bsize, real.f_frsize, real.f_blocks, 0, 0, *tuple(real)[5:]))
    monkeypatch.setattr(statedir.os, "statvfs", lambda _: full)
    for look in (StateDir, check_place):
        with pytest.raises(StateError, match="full"):
            look(tmp_path)


def test_a_file_in_the_way_is_a_clear_error(tmp_path) -> None:
    (tmp_path / "state").write_text("")
    for look in (StateDir, check_place):
        with pytest.raises(StateError, match="cannot use the state directory"):
            look(tmp_path / "state")


def test_a_place_is_looked_at_without_a_trace(tmp_path) -> None:
    check_place(tmp_path / "new" / "dir")
    assert not list(tmp_path.iterdir())
    StateDir(tmp_path / "used").close()
    Journal(tmp_path / "used" / "journal.sqlite").close()
    check_place(tmp_path / "used")
    (tmp_path / "used" / "journal.sqlite").write_text("{}")
    with pytest.raises(StateError, match="it is no SQLite database"):
        check_place(tmp_path / "used")
