"""A real fork server with real children."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest
import trio
import trio.testing

from node.processes.forkserver import Anew, ChildProcess, ForkedChild, ForkServer, kill_group
from node.processes.launch import launch

MIRROR = [sys.executable, "-m", "tests.node.processes.mirror"]


@asynccontextmanager
async def fork_server() -> AsyncIterator[ForkServer]:
    children = ForkServer(launch(("json",)))
    async with trio.open_nursery() as nursery:
        await nursery.start(children.run)
        yield children
        nursery.cancel_scope.cancel()


async def said(child: ChildProcess) -> dict:
    assert child.stdout is not None
    with trio.fail_after(60):
        data = b""
        while not data.endswith(b"\n"):
            data += await child.stdout.receive_some()
    return json.loads(data)


def has_ended(pid: int) -> bool:
    """Whether a process does nothing any more; whoever inherited it may not have asked for its status yet."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def close_input(child: ChildProcess) -> None:
    assert child.stdin is not None
    await child.stdin.aclose()


async def test_a_forked_child_is_like_a_program_that_was_just_started() -> None:
    async with fork_server() as children:
        environment = {"ONLY": "this", "PATH": os.environ["PATH"]}
        child = await children.start([*MIRROR, "7", "b"], environment, heard=True)
        assert isinstance(child, ForkedChild)
        seen = await said(child)
        assert seen["name"] == "__main__" and seen["argv"] == ["7", "b"] and seen["environment"] == environment
        assert seen["session"] == child.pid != os.getsid(0)
        assert child.poll() is None
        await close_input(child)
        with trio.fail_after(60):
            assert await child.wait() == 7 == child.poll()


async def test_children_of_a_killed_server_die_and_a_new_server_forks_the_next() -> None:
    async with fork_server() as children:
        child = await children.start([*MIRROR, "0"], os.environ, heard=True)
        await said(child)
        first = children.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        with trio.fail_after(60):
            assert await child.wait() == -signal.SIGKILL
            while children.pid in (None, first):
                await trio.sleep(0.01)
        again = await children.start([*MIRROR, "0"], os.environ, heard=True)
        assert isinstance(again, ForkedChild)
        await said(again)
        os.kill(again.pid, signal.SIGTERM)
        with trio.fail_after(60):
            assert await again.wait() == -signal.SIGTERM
    assert has_ended(child.pid) and has_ended(again.pid)


@pytest.mark.parametrize("command", [["sleep", "60"], [sys.executable, "-c", "import time; time.sleep(60)"]])
async def test_other_programs_are_started_anew(command: list[str]) -> None:
    async with fork_server() as children:
        child = await children.start(command, os.environ, heard=False)
        assert not isinstance(child, ForkedChild) and child.stdout is None
        os.kill(child.pid, signal.SIGKILL)
        with trio.fail_after(60):
            await child.wait()


async def test_where_there_is_no_server_children_are_started_anew() -> None:
    children = ForkServer(None)
    async with trio.open_nursery() as nursery:
        await nursery.start(children.run)
        child = await children.start([*MIRROR, "3"], os.environ, heard=True)
        assert (await said(child))["argv"] == ["3"]
        await close_input(child)
        with trio.fail_after(60):
            assert await child.wait() == 3
        nursery.cancel_scope.cancel()


async def test_a_server_ends_with_its_daemon_and_takes_its_children_along() -> None:
    server = launch(())
    assert server is not None
    children = ForkServer(server)
    async with trio.open_nursery() as nursery:
        await nursery.start(children.run)
        child = await children.start([*MIRROR, "0"], os.environ, heard=True)
        await said(child)
        nursery.cancel_scope.cancel()
    assert server.process.poll() is not None
    with trio.fail_after(60):
        while not has_ended(child.pid):
            await trio.sleep(0.01)


async def test_a_server_that_cannot_be_replaced_ends_neither_the_daemon_nor_its_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was killed since memory is short, and for the same reason no other one can be started."""

    def no_memory(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    async with fork_server() as children:
        assert children.pid is not None
        with monkeypatch.context() as short:
            short.setattr("node.processes.launch.subprocess.Popen", no_memory)
            os.kill(children.pid, signal.SIGKILL)
            with trio.fail_after(60):
                while children.pid is not None:
                    await trio.sleep(0.01)
            await trio.testing.wait_all_tasks_blocked(0.05)
        child = await children.start([*MIRROR, "3"], os.environ, heard=True)
        assert not isinstance(child, ForkedChild)
        await close_input(child)
        with trio.fail_after(60):
            assert await child.wait() == 3


async def test_a_child_that_nobody_waits_for_any_more_leaves_no_descriptors() -> None:
    async with fork_server() as children:
        before = len(os.listdir("/proc/self/fd"))
        with trio.CancelScope() as given_up:
            given_up.cancel()
            await children.start([*MIRROR, "0"], os.environ, heard=True)
        assert given_up.cancelled_caught
        assert len(os.listdir("/proc/self/fd")) == before


async def test_what_a_program_says_until_it_ends_is_heard_of_a_fork_as_of_one_that_was_started_anew() -> None:
    with trio.fail_after(60):
        async with fork_server() as children:
            for starter in (children, Anew()):
                seen = json.loads(await starter.said([*MIRROR, "7"]))
                assert seen["argv"] == ["7"] and seen["environment"]["PATH"] == os.environ["PATH"]
                assert (seen["session"] == os.getsid(0)) == (starter is not children), "else it was no fork"
            assert await children.said(["/bin/echo", "another program"]) == b"another program\n"
            assert await children.said([sys.executable, "-m", "no.such.module"]) == b""


async def test_nothing_is_left_of_a_program_that_is_not_listened_to_any_more() -> None:
    async with fork_server() as children:
        with trio.move_on_after(1.0) as scope:
            await children.said([sys.executable, "-m", "tests.node.processes.mute"])
        assert scope.cancelled_caught and children.pid is not None
        assert psutil.Process(children.pid).children() == []


def test_a_child_that_leads_no_group_yet_is_killed_all_the_same() -> None:
    """Between the fork and its first words to the system."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        kill_group(child.pid)
        assert child.wait(20) == -signal.SIGKILL
    kill_group(child.pid)  # and of one that is gone nothing is said
