"""What a service manager hears, through a real datagram socket."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from node import daemon
from node.config import NodeConfig
from node.processes.supervision import Supervision

LOOK_EVERY = 2.0


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.setblocking(False)
        heard.bind(str(tmp_path / "notify"))
        yield heard


def heard(manager: socket.socket) -> list[list[str]]:
    """The lines of every datagram so far."""
    found: list[list[str]] = []
    while True:
        try:
            found.append(manager.recv(4096).decode().split("\n"))
        except BlockingIOError:
            return found


async def test_it_says_ready_first_then_alive_within_half_the_watchdog(
    manager: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    environ = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(os.getpid())}
    supervision = Supervision(lambda: "joining", environ)
    async with trio.open_nursery() as nursery:
        await nursery.start(supervision.run)
        await trio.sleep(2.25)
        nursery.cancel_scope.cancel()
    first, *later = heard(manager)
    assert first == ["READY=1", "STATUS=joining"]
    assert later == [["WATCHDOG=1"]] * 5, "at 0, 0.5, 1, 1.5 and 2 seconds"
    assert environ == {}, "no child of ours answers for us"


async def test_it_tells_a_new_phase_once_and_in_one_line(
    manager: socket.socket, autojump_clock: trio.testing.MockClock
) -> None:
    doing = ["syncing"]
    supervision = Supervision(lambda: doing[0], {"NOTIFY_SOCKET": manager.getsockname()})
    async with trio.open_nursery() as nursery:
        await nursery.start(supervision.run)
        await trio.sleep(3 * LOOK_EVERY + 0.1)
        doing[0] = "work\nMAINPID=1" + "x" * 500
        await trio.sleep(LOOK_EVERY)
        nursery.cancel_scope.cancel()
    lines = [line for datagram in heard(manager) for line in datagram]
    assert lines[:2] == ["READY=1", "STATUS=syncing"] and len(lines) == 3
    assert lines[2].startswith("STATUS=work MAINPID=1xxx") and len(lines[2]) < 250


def test_an_abstract_socket_is_reached_and_another_process_s_watchdog_is_not_answered() -> None:
    name = f"intellect-node-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.setblocking(False)
        manager.bind("\0" + name)
        environ = {"NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
        supervision = Supervision(lambda: "", environ)
        supervision.stopping()
        assert heard(manager) == [["STOPPING=1", "STATUS=draining"]]
        assert supervision._watchdog == 0


async def test_without_a_manager_it_ends_at_once_and_a_manager_that_is_gone_harms_nobody(tmp_path: Path) -> None:
    with trio.fail_after(5):
        await Supervision(lambda: "", {}).run()
    Supervision(lambda: "", {"NOTIFY_SOCKET": str(tmp_path / "gone")}).stopping()


class StoppedWhileConnecting:
    """A chain whose daemon is told to stop before it has answered."""

    def __init__(self, *_: object, **__: object) -> None:
        return

    async def pool(self, number: int, *, agreed: bool = False) -> None:
        del number, agreed
        os.kill(os.getpid(), signal.SIGTERM)
        await trio.sleep_forever()

    def close(self) -> None:
        """Nothing was opened."""


def test_a_daemon_is_ready_once_its_control_socket_answers_and_says_when_it_ends(
    manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.getsockname())
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    profile = SimpleNamespace(pool=1, chain_id=31337, contracts=SimpleNamespace(swarm="0x" + "5" * 40))
    monkeypatch.setattr(daemon, "load_profile", lambda *_, **__: profile)
    monkeypatch.setattr(daemon, "ChainClient", StoppedWhileConnecting)
    trio.run(daemon.Daemon(NodeConfig(state_dir=tmp_path / "state", home=tmp_path)).main)
    told = [line for datagram in heard(manager) for line in datagram if not line.startswith("STATUS=")]
    assert told == ["READY=1", "STOPPING=1"]
