"""Starts a fork server. Needs the standard library only, so that it can come before the daemon's own imports."""

import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

ARCHITECTURE = "transformers.models.llama.modeling_llama"  # the others share its imports
ENGINE = ("node.inference.torch_engine", "node.inference.produce", "node.inference.inspect", ARCHITECTURE)
LEARNER = ("node.training.learner", "node.training.checkpoint", "node.training.evaluator", ARCHITECTURE)
"""What the programs of an engine and a learner import, without the programs themselves, which run in the child."""


def for_role(role: str) -> tuple[str, ...]:
    """The modules that a node's child imports, as far as its configured role tells."""
    return LEARNER if role == "trainer" else ENGINE


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, importing `modules`, and our end of its socket."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    modules: tuple[str, ...]


def launch(modules: Sequence[str]) -> Server | None:
    """Start one; None where there is no such thing: not on Linux."""
    if not sys.platform.startswith("linux"):
        return None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "node.forkserver.server", str(theirs.fileno()), *modules],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    return Server(process, ours, tuple(modules))
