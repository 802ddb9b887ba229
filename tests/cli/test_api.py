"""What listens at a daemon's socket may be no daemon: its answer is bounded while it comes."""

import socket as sockets
import socketserver
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import trio

from cli import api
from cli.errors import NETWORK, CommandError
from node.errors import NodeError
from node.sdk import MAX_ANSWER, Node

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
PIECE = b" " * 65536
PATIENCE = 8 * MAX_ANSWER
"""Bytes after which it gives up: a reader without a bound then shows itself."""


class Babbler(socketserver.ThreadingUnixStreamServer):
    """Answers without end. said: bytes that somebody took."""

    said = 0


class _Babble(socketserver.BaseRequestHandler):
    server: Babbler

    def handle(self) -> None:
        with suppress(OSError):  # the other side has hung up
            self.request.recv(65536)
            self.request.sendall(HEAD)
            while self.server.said < PATIENCE:
                self.request.sendall(PIECE)
                self.server.said += len(PIECE)


@pytest.fixture
def babbler() -> Iterator[tuple[Babbler, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "s"
        with Babbler(str(socket), _Babble) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            yield server, socket
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "asking",
    [
        api.get_status,
        lambda socket: api.ask(socket, "GET", "/tasks"),
        lambda socket: trio.run(api.get_status_async, socket),
    ],
    ids=["status", "ask", "status inside trio"],
)
def test_no_more_of_an_answer_is_read_than_a_daemon_says(
    asking: Callable[[Path], object], babbler: tuple[Babbler, Path]
) -> None:
    server, socket = babbler
    with pytest.raises(CommandError, match="too long") as refused:
        asking(socket)
    assert refused.value.code == NETWORK
    # A little more may stand in the socket's buffers.
    assert server.said < MAX_ANSWER + 2**22


def test_a_program_reads_no_more_of_it_either(babbler: tuple[Babbler, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    server, socket = babbler
    monkeypatch.setattr("node.sdk.api_socket_of", lambda state_dir: socket)
    with pytest.raises(NodeError, match="too long"):
        trio.run(Node(socket.parent).status)
    assert server.said < MAX_ANSWER + 2**22


@pytest.fixture
def full() -> Iterator[Path]:
    """The socket of a process that lives and takes no callers: its queue is full."""
    with tempfile.TemporaryDirectory() as folder, sockets.socket(sockets.AF_UNIX) as hung, ExitStack() as callers:
        socket = Path(folder) / "s.sock"
        hung.bind(str(socket))
        hung.listen(0)
        for _ in range(4):
            caller = callers.enter_context(sockets.socket(sockets.AF_UNIX))
            caller.setblocking(False)
            with suppress(BlockingIOError):
                caller.connect(str(socket))
        yield socket


def test_a_daemon_whose_queue_is_full_is_not_said_to_be_absent(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.config.api_socket_path", lambda directory: full)
    dead = full.with_name("dead.sock")
    with sockets.socket(sockets.AF_UNIX) as left:
        left.bind(str(dead))
    assert api.known_sockets() == [full], "and the control: a killed daemon's file is none"
    for asking in (api.get_status, lambda socket: api.ask(socket, "GET", "/tasks")):
        with pytest.raises(CommandError, match="the daemon does not answer"):
            asking(full)
        with pytest.raises(CommandError, match="no daemon runs there"):
            asking(dead)
    assert trio.run(api.get_status_async, full) is None and list(api.known_daemons()) == []
