"""Ending daemons: real processes that hold a state directory's lock, and heed signals as they please."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import stop as stopping
from cli.errors import CommandError
from cli.main import main
from cli.stop import daemon_of, stop
from node.state.locks import FileLock

DAEMON = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from node.state.locks import FileLock
lock, heeded, deaf = FileLock(Path(sys.argv[1]) / "lock"), 0, int(sys.argv[2])
def heed(*_):
    global heeded
    heeded += 1
    print("heeded", flush=True)
    if heeded > deaf:
        lock.release()
        os._exit(0)
signal.signal(signal.SIGTERM, heed)
while sys.argv[4] == "guarded" and os.fork():
    os.wait()
assert lock.acquire()
print("holds", flush=True)
time.sleep(60)
"""


@pytest.fixture
def daemons() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start(directory: Path, daemons: list[subprocess.Popen[str]], deaf: int, guard: str = "alone") -> int:
    """A process that heeds the signal after `deaf` others; its pid."""
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-c", DAEMON, str(directory), str(deaf), root, guard]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    daemons.append(process)
    assert process.stdout is not None and process.stdout.readline() == "holds\n"
    return process.pid


@pytest.mark.parametrize(("deaf", "outcome"), [(0, "drained"), (1, "cut"), (9, "killed")])
def test_a_daemon_is_asked_then_cut_then_killed_and_each_stage_is_said(
    deaf: int,
    outcome: str,
    tmp_path: Path,
    daemons: list[subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pid = start(tmp_path, daemons, deaf)
    assert daemon_of(tmp_path) == str(pid)
    said: list[str] = []
    send, heard = stopping._send, daemons[0].stdout

    def send_and_see(pid: int, number: signal.Signals) -> None:
        """Two signals of a kind are one to a process that had no time for the first."""
        send(pid, number)
        assert number != signal.SIGTERM or (heard and heard.readline() == "heeded\n")

    monkeypatch.setattr(stopping, "_send", send_and_see)
    how, _ = stop(tmp_path, 0.3 if deaf else 30.0, said.append, after_cut=0.3 if deaf > 1 else 30.0)
    assert how == outcome and daemon_of(tmp_path) is None
    assert [word for line in said for word in ("SIGTERM", "SIGKILL") if word in line] == {
        "drained": [],
        "cut": ["SIGTERM"],
        "killed": ["SIGTERM", "SIGKILL"],
    }[outcome]


def test_a_daemon_that_is_killed_is_not_started_again_by_its_guardian(
    tmp_path: Path, daemons: list[subprocess.Popen[str]]
) -> None:
    guardian = start(tmp_path, daemons, 9, "guarded")
    assert daemon_of(tmp_path) != str(guardian)
    assert stop(tmp_path, 0.1, print, after_cut=0.2)[0] == "killed"
    assert daemons[0].wait(10) == -signal.SIGKILL and daemon_of(tmp_path) is None


def test_the_command_says_what_it_did(
    tmp_path: Path, daemons: list[subprocess.Popen[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    start(tmp_path, daemons, 0)
    assert main(["stop", "--state-dir", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stopped"] == "drained"
    assert main(["stop", "--state-dir", str(tmp_path)]) == 5
    assert "nobody holds its lock" in capsys.readouterr().err


def test_a_lock_file_that_a_killed_daemon_left_is_nobody_s(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("1\n")
    with pytest.raises(CommandError, match="no daemon runs"):
        stop(tmp_path, 1.0, print)


def test_a_daemon_whose_lock_names_no_process_is_not_taken_for_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = FileLock(tmp_path / "lock")
    assert lock.acquire()
    lock.path.write_text("")
    assert daemon_of(tmp_path) == "unknown"
    assert main(["stop", "--state-dir", str(tmp_path)]) == 5
    assert "names no process" in capsys.readouterr().err
    lock.release()
