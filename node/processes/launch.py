"""Starts a fork server. Needs the standard library only, so that it can come before the daemon's own imports."""

import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from node.processes.threads import alone

ARCHITECTURE = "transformers.models.llama.modeling_llama"  # the others share its imports
WRITER = "protocol.arrow_writer"  # what they make; its library is imported nowhere else before the first file
ENGINE = ("node.inference.torch_engine", "node.inference.produce", "node.inference.inspect", WRITER, ARCHITECTURE)
LEARNER = ("node.training.learner", "node.training.checkpoint", "node.training.evaluator", WRITER, ARCHITECTURE)
"""What the programs of an engine and a learner import, without the programs themselves, which run in the child."""


def for_role(role: str) -> tuple[str, ...]:
    """The modules that a node's child imports, as far as its configured role tells."""
    return LEARNER if role == "trainer" else ENGINE


class ServerProcess(Protocol):
    """The part of `subprocess.Popen` that owners of a server use."""

    @property
    def pid(self) -> int: ...

    def wait(self) -> int: ...


@dataclass(frozen=True, slots=True)
class LaunchedServer:
    """A running server, importing `modules`, and our end of its socket. environment: what it was started with, None for
    this process's own."""

    process: ServerProcess
    socket: socket.socket
    modules: tuple[str, ...]
    environment: Mapping[str, str] | None = None


def launch(modules: Sequence[str], environment: Mapping[str, str] | None = None) -> LaunchedServer | None:
    """Start one; None where there is no such thing: not on Linux. environment: this process's own if None. Raises
    OSError."""
    if not sys.platform.startswith("linux"):
        return None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "node.processes.server", str(theirs.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=environment,
            )
    except OSError:
        ours.close()
        raise
    return LaunchedServer(process, ours, tuple(modules), environment)


def fork_or_launch(modules: Sequence[str]) -> LaunchedServer | None:
    """The same for a program that has done nothing yet: if it was itself forked from a process with these imports, its
    server is one more fork, which costs neither time nor memory."""
    # Asked last: it may have to wait.
    if not all(module in sys.modules for module in modules) or not alone():
        return launch(modules)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _serve_and_end(theirs)
    theirs.close()
    return LaunchedServer(_Forked(pid), ours, tuple(modules))


def _serve_and_end(orders: socket.socket) -> None:
    """Never returns: what stands below on the stack is the daemon's."""
    status = 1
    try:
        from node.processes.server import work

        os.setsid()
        work(orders)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # as an interpreter does with what nobody caught
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@dataclass(frozen=True, slots=True)
class _Forked:
    """A server that is a fork of this program, or of the guardian that this program was forked by."""

    pid: int

    def wait(self) -> int:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        # A fork of the guardian is not this program's child: its status goes to the guardian.
        except ChildProcessError:
            return 0
