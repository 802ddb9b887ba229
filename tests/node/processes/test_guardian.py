"""A guarded program, as a process of its own."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import os, signal, sys
from node.processes.guardian import become_guarded

become_guarded()
told = []
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
signal.signal(signal.SIGINT, lambda number, frame: (told.append(number), print(len(told), flush=True)))
print(os.getpid(), flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def program() -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    yield running
    running.kill()
    running.communicate()


def line(program: subprocess.Popen[str]) -> int:
    assert program.stdout is not None
    return int(program.stdout.readline())


def test_a_killed_daemon_is_started_again_and_its_end_is_the_programs_end(program: subprocess.Popen[str]) -> None:
    first = line(program)
    psutil.Process(first).kill()
    second = line(program)
    assert second not in (first, program.pid)
    program.send_signal(signal.SIGINT)  # handed on, once
    assert line(program) == 1
    program.terminate()
    _, told = program.communicate(timeout=20)
    assert program.returncode == 7
    assert told == "the daemon was killed by signal 9; starting it again\n"
    assert not psutil.pid_exists(second)


def test_a_daemon_that_keeps_being_killed_is_given_up(program: subprocess.Popen[str]) -> None:
    for _ in range(5):
        psutil.Process(line(program)).send_signal(signal.SIGSEGV)
    program.communicate(timeout=20)
    assert program.returncode == 128 + signal.SIGSEGV


def test_a_daemon_that_is_killed_while_it_stops_is_not_started_again() -> None:
    """Control: the first test, in which nobody asked it to stop."""
    dies = PROGRAM.replace("sys.exit(7)", "os.kill(os.getpid(), signal.SIGKILL)")
    words = [sys.executable, "-c", dies]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            line(running)
            # The daemon may speak before its guardian listens, which then ends as a program does.
            caught = re.compile(r"^SigCgt:\s*[0-9a-f]+[4-7c-f][0-9a-f]{3}$", re.MULTILINE)  # bit 14: SIGTERM
            while not caught.search(Path(f"/proc/{running.pid}/status").read_text()):
                time.sleep(0.01)
            running.terminate()
            _, told = running.communicate(timeout=20)
        finally:
            running.kill()
    assert (running.returncode, told) == (128 + signal.SIGKILL, "")


ENDS = """
import os, sys
from pathlib import Path
from node.processes.guardian import become_guarded

up = become_guarded((3,), (0.05, 0.1))
lives = Path(sys.argv[1])
with lives.open("a") as file:
    file.write(".")
words = sys.argv[2].split(",")[lives.stat().st_size - 1]
if words.startswith("up"):
    up()
sys.exit(int(words.removeprefix("up")))
"""


@pytest.mark.parametrize(
    ("lives", "code"),
    [
        ("up3,3,3,up0", 0),  # its machine failed, and had failed still when it was started again
        ("up3,up3,4", 4),
        ("3", 3),  # it never was up: whoever started it reads why
        ("up6", 6),  # no machine's fault
    ],
)
def test_a_daemon_that_its_machine_ended_is_started_again_once_it_was_up(tmp_path: Path, lives: str, code: int) -> None:
    words = [sys.executable, "-c", ENDS, str(tmp_path / "lives"), lives]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, len((tmp_path / "lives").read_text())) == (code, lives.count(",") + 1), done.stderr
    assert done.stderr.count("starting it again in") == lives.count(",")


def test_a_guardian_that_waits_can_be_stopped(tmp_path: Path) -> None:
    program = ENDS.replace("(0.05, 0.1)", "(60, 60)")
    words = [sys.executable, "-c", program, str(tmp_path / "lives"), "up3"]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        assert "starting it again in 60 s" in waiting.stderr.readline()
        waiting.terminate()
        assert waiting.wait(20) == -signal.SIGTERM


def test_a_daemon_stops_when_its_guardian_is_killed(program: subprocess.Popen[str]) -> None:
    daemon = psutil.Process(line(program))
    program.kill()
    assert psutil.wait_procs([daemon], timeout=20)[1] == []
