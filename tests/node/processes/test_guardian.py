"""A guarded program, as a process of its own."""

import signal
import subprocess
import sys
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


def test_a_daemon_stops_when_its_guardian_is_killed(program: subprocess.Popen[str]) -> None:
    daemon = psutil.Process(line(program))
    program.kill()
    assert psutil.wait_procs([daemon], timeout=20)[1] == []
