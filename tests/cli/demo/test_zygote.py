"""Programs forked from a real server, in the hands of the demo's supervisor."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import psutil
import trio

from cli.demo.supervise import Spawn, SupervisedProcess, SupervisedProgram, Supervisor, child_environment, fork_or_start
from node.processes.forkserver import KILLED, ForkedChild, ForkServer
from node.processes.launch import launch

ROOT = Path(__file__).resolve().parents[3]


@asynccontextmanager
async def fork_server() -> AsyncIterator[ForkServer]:
    children = ForkServer(launch(("json", "trio", "psutil"), child_environment(ROOT)))
    async with trio.open_nursery() as nursery:
        await nursery.start(children.run)
        yield children
        nursery.cancel_scope.cancel()


def program(here: Path, *words: str) -> SupervisedProgram:
    command = [sys.executable, "-m", *words]
    return SupervisedProgram(
        "node", command, child_environment(ROOT, {"ONLY": "this"}), here / "logs" / "node.log", here
    )


async def status_of(child: SupervisedProcess) -> int:
    with trio.fail_after(60):
        while (status := child.poll()) is None:
            await trio.sleep(0.01)
    return status


async def test_a_forked_program_runs_in_its_directory_writes_its_log_and_ends_with_its_status(tmp_path: Path) -> None:
    async with fork_server() as children:
        child = await fork_or_start(children, program(tmp_path, "tests.node.processes.mirror", "7"))
        assert isinstance(child, ForkedChild)
        assert await status_of(child) == 7
    seen = json.loads((tmp_path / "logs" / "node.log").read_text())
    assert seen["argv"] == ["7"] and seen["environment"]["ONLY"] == "this"
    assert seen["session"] == child.pid and seen["directory"] == str(tmp_path)


async def test_the_supervisor_stops_what_was_forked(tmp_path: Path) -> None:
    async with fork_server() as children:
        spawn: Spawn = partial(fork_or_start, children)
        supervisor = Supervisor(print, spawn=spawn)
        await supervisor.start(program(tmp_path, "http.server", "0", "--bind", "127.0.0.1"))
        pid = supervisor.states()["node"].pid
        assert pid is not None and not supervisor.has_ended("node")
        with trio.fail_after(60):
            while Path(psutil.Process(pid).cwd()) != tmp_path:
                await trio.sleep(0.01)
            await supervisor.stop()
        assert supervisor.has_ended("node") and not psutil.pid_exists(pid)


async def test_a_program_with_the_imports_forks_its_own_server_too(tmp_path: Path) -> None:
    async with fork_server() as children:
        child = await fork_or_start(children, program(tmp_path, "tests.node.processes.nested"))
        assert await status_of(child) == 3, (tmp_path / "logs" / "node.log").read_text()
    said = (tmp_path / "logs" / "node.log").read_text().splitlines()
    assert json.loads(said[-1]) == {"by": True, "forked": True, "status": 5}


async def test_what_was_forked_hears_a_farewell_when_the_server_is_killed(tmp_path: Path) -> None:
    async with fork_server() as children:
        child = await fork_or_start(children, program(tmp_path, "http.server", "0", "--bind", "127.0.0.1"))
        assert children.pid is not None
        os.kill(children.pid, signal.SIGKILL)
        assert await status_of(child) == KILLED


async def test_another_program_than_ours_and_one_without_a_server_are_started_anew(tmp_path: Path) -> None:
    other = SupervisedProgram("other", ["true"], child_environment(ROOT), tmp_path / "log", tmp_path)
    for children, one in (
        (ForkServer(launch(("json",))), other),
        (ForkServer(None), program(tmp_path, "tests.node.processes.mirror", "4")),
    ):
        async with trio.open_nursery() as nursery:
            await nursery.start(children.run)
            child = await fork_or_start(children, one)
            assert not isinstance(child, ForkedChild) and await status_of(child) == (0 if one is other else 4)
            nursery.cancel_scope.cancel()
