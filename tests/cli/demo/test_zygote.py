"""Programs forked from a real server, in the hands of the demo's supervisor."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import trio

from cli.demo import zygote as module
from cli.demo.supervise import Program, Supervisor, child_environment
from cli.demo.zygote import Forked, Zygote
from node.processes.launch import launch

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def zygote() -> Iterator[Zygote]:
    server = launch(("json", "trio", "psutil"), child_environment(ROOT))
    assert server is not None
    mould = Zygote(server)
    yield mould
    mould.close()


def program(here: Path, *words: str) -> Program:
    command = [sys.executable, "-m", *words]
    return Program("node", command, child_environment(ROOT, {"ONLY": "this"}), here / "logs" / "node.log", here)


def test_a_forked_program_runs_in_its_directory_writes_its_log_and_ends_with_its_status(
    zygote: Zygote, tmp_path: Path
) -> None:
    child = zygote.spawn(program(tmp_path, "tests.node.processes.mirror", "7"))
    assert isinstance(child, Forked)
    assert child.wait() == 7 == child.poll()
    seen = json.loads((tmp_path / "logs" / "node.log").read_text())
    assert seen["argv"] == ["7"] and seen["environment"]["ONLY"] == "this"
    assert seen["session"] == child.pid and seen["directory"] == str(tmp_path)


async def test_the_supervisor_stops_what_was_forked(zygote: Zygote, tmp_path: Path) -> None:
    supervisor = Supervisor(print, spawn=zygote.spawn)
    supervisor.start(program(tmp_path, "http.server", "0", "--bind", "127.0.0.1"))
    pid = supervisor.states()["node"].pid
    assert pid is not None and not supervisor.has_ended("node")
    with trio.fail_after(10):
        while Path(psutil.Process(pid).cwd()) != tmp_path:  # noqa: ASYNC110 - another process goes there
            await trio.sleep(0.01)
        await supervisor.stop()
    assert supervisor.has_ended("node") and not psutil.pid_exists(pid)


def test_a_program_with_the_imports_forks_its_own_server_too(zygote: Zygote, tmp_path: Path) -> None:
    child = zygote.spawn(program(tmp_path, "tests.node.processes.nested"))
    assert child.wait() == 3, (tmp_path / "logs" / "node.log").read_text()
    said = (tmp_path / "logs" / "node.log").read_text().splitlines()
    assert json.loads(said[-1]) == {"by": True, "forked": True, "status": 5}


def test_without_the_server_programs_are_started_anew_and_its_children_hear_a_farewell(
    zygote: Zygote, tmp_path: Path
) -> None:
    child = zygote.spawn(program(tmp_path, "http.server", "0", "--bind", "127.0.0.1"))
    assert isinstance(child, Forked)
    os.kill(zygote._server.process.pid, signal.SIGKILL)
    assert child.wait() == module.KILLED
    again = zygote.spawn(program(tmp_path, "tests.node.processes.mirror", "4"))
    assert not isinstance(again, Forked) and again.wait() == 4


def test_another_program_than_ours_is_started_anew(zygote: Zygote, tmp_path: Path) -> None:
    other = Program("other", ["true"], child_environment(ROOT), tmp_path / "log", tmp_path)
    child = zygote.spawn(other)
    assert not isinstance(child, Forked) and child.wait() == 0
