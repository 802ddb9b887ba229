"""The supervisor with small real programs in the place of daemons."""

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from cli.demo.supervise import SupervisedProgram, Supervisor, child_environment, last_error
from cli.errors import CommandError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., SupervisedProgram]:
    def make(name: str, source: str, restart: bool = True, optional: bool = False) -> SupervisedProgram:
        return SupervisedProgram(
            name=name,
            command=[sys.executable, "-S", "-c", textwrap.dedent(source)],
            environment=child_environment(tmp_path),
            log=tmp_path / f"{name}.log",
            directory=tmp_path,
            restart=restart,
            optional=optional,
        )

    return make


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(0.02)


async def test_a_dead_process_is_started_again(program: Callable[..., SupervisedProgram], tmp_path: Path) -> None:
    said: list[str] = []
    supervisor = Supervisor(said.append)
    await supervisor.start(
        program(
            "worker 1",
            """
            import os, time
            with open("starts", "a") as file: file.write(f"{os.getpid()}\\n")
            time.sleep(60)
            """,
        )
    )
    starts = tmp_path / "starts"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.watch)
        await until(lambda: starts.exists() and starts.read_text().count("\n") == 1)
        os.kill(int(starts.read_text()), 9)
        await until(lambda: starts.read_text().count("\n") == 2)
        nursery.cancel_scope.cancel()
    assert supervisor.states()["worker 1"].restarts == 1
    assert "SIGKILL" in said[0]
    await supervisor.stop()
    assert not any(running(int(pid)) for pid in starts.read_text().split())


async def test_stopping_ends_stubborn_processes_and_their_children(
    program: Callable[..., SupervisedProgram], tmp_path: Path
) -> None:
    supervisor = Supervisor(print, grace=0.3)
    await supervisor.start(
        program(
            "stubborn",
            """
            import signal, subprocess, sys, time
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
            with open("pids", "w") as file: file.write(f"{child.pid}\\n")
            time.sleep(60)
            """,
        )
    )
    pids = tmp_path / "pids"
    await until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    await supervisor.stop()
    await until(lambda: not _alive(int(pids.read_text())))
    assert supervisor.states()["stubborn"].state == "stopped"


def _alive(pid: int) -> bool:
    """Running, and not a zombie that waits for the init process to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_process_that_keeps_dying_ends_the_demo_with_its_own_words(
    program: Callable[..., SupervisedProgram],
) -> None:
    supervisor = Supervisor(print, restarts=1)
    await supervisor.start(
        program(
            "worker 1",
            """
            import sys
            print("error: the chain does not answer\\n  why: connection refused\\n  do:  start it", file=sys.stderr)
            sys.exit(4)
            """,
        )
    )
    with pytest.raises(CommandError) as caught, trio.fail_after(60):
        await supervisor.watch()
    error = caught.value
    assert (error.what, error.why, error.remedy) == (
        "worker 1: the chain does not answer",
        "connection refused",
        "start it",
    )
    assert error.code == 4
    await supervisor.stop()


async def test_a_configuration_error_is_not_tried_again(program: Callable[..., SupervisedProgram]) -> None:
    supervisor = Supervisor(print)
    await supervisor.start(program("trainer", "import sys; sys.exit(3)"))
    with pytest.raises(CommandError, match="trainer died"), trio.fail_after(60):
        await supervisor.watch()
    await supervisor.stop()


async def test_an_expelled_process_stays_out(program: Callable[..., SupervisedProgram]) -> None:
    said: list[str] = []
    supervisor = Supervisor(said.append)
    await supervisor.start(program("cheat", "import sys; sys.exit(7)"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.watch)
        await until(lambda: said)
        nursery.cancel_scope.cancel()
    assert supervisor.states()["cheat"].state == "stopped"
    await supervisor.stop()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")
def test_processes_end_when_the_demo_itself_is_killed(tmp_path: Path) -> None:
    source = f"""
import sys, time
from pathlib import Path
import trio
from cli.demo.supervise import SupervisedProgram, Supervisor, child_environment
here = Path({str(tmp_path)!r})
supervisor = Supervisor(print)
command = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
trio.run(supervisor.start, SupervisedProgram("node", command, child_environment(here), here / "log", here))
print(supervisor.states()["node"].pid, flush=True)
time.sleep(60)
"""
    demo = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert demo.stdout is not None
        pid = int(demo.stdout.readline())
        time.sleep(0.3)  # the leash is put on within a few milliseconds of the start
        assert _alive(pid)
    finally:
        demo.kill()
        demo.communicate()
    deadline = time.monotonic() + 10
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(pid)


def test_the_last_error_of_a_log_is_found_and_a_log_without_one_has_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('{"event": "x"}\nerror: one\n  why: two\n  do:  three\n')
    assert last_error(log) == ("one", "two", "three")
    log.write_text("Traceback\n")
    assert last_error(log) is None
    assert last_error(tmp_path / "absent") is None


async def test_one_that_the_others_can_do_without_may_fail(program: Callable[..., SupervisedProgram]) -> None:
    said: list[str] = []
    supervisor = Supervisor(said.append)
    await supervisor.start(program("cheat", "import sys; sys.exit(6)", optional=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.watch)
        await until(lambda: supervisor.states()["cheat"].state == "stopped")
        nursery.cancel_scope.cancel()
    assert said == ["cheat died; going on without it"]
