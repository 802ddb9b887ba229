"""A child process that is spoken to in lines of JSON, with deadlines: for packages that are not imported here.

Blocking; for one thread. What it says on standard error is thrown away, and so is it when an answer does not come.
"""

import json
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from node.environments.errors import EnvironmentFault

# A child that prints without end must not fill this process's memory.
MAX_LINE_BYTES = 1 << 26


class LineChild:
    """Started when it is first spoken to, and again where it has ended since.

    environment: all that it sees of ours; told: what it hears first; refused: the error for its first line if it is not
    the right one ({"wrong": why} where the program cannot be started, None where nothing came in `seconds`), or None.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        seconds: float,
        refused: Callable[[Any], EnvironmentFault | None],
        told: Sequence[Any] = (),
    ) -> None:
        self._command, self._environment, self._seconds = list(command), dict(environment), seconds
        self._refused, self._told = refused, told
        self._child: subprocess.Popen[bytes] | None = None
        self._unread = bytearray()

    def start(self) -> None:
        """Nothing where it runs already. Raises what `refused` says."""
        if self._child is not None and self._child.poll() is None:
            return
        # A child that ended by itself is still to be reaped, and its unread output belongs to no question.
        self.close()
        try:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # A pipe that nobody reads fills up, and the child would wait in its next complaint.
                stderr=subprocess.DEVNULL,
                # Not what this process sees: that may hold keys, and some children run packages of strangers.
                env=self._environment,
            )
        except OSError as error:
            said: Any = {"wrong": f"{self._command[0]}: {error.strerror or error}"}
        else:
            self._write(self._told)
            said = self.receive(self._seconds)
        fault = self._refused(said)
        if fault is not None:
            self.close()
            raise fault

    def send(self, *messages: Any) -> None:
        """Raises what `refused` says. One that ends meanwhile hears nothing; that its answers do not come says so."""
        self.start()
        self._write(messages)

    def receive(self, seconds: float) -> Any | None:
        """One message; None, and its end, if that does not come in time, or ever, or is too long or no JSON."""
        until = time.monotonic() + seconds
        while b"\n" not in self._unread:
            if len(self._unread) > MAX_LINE_BYTES or not self._read(until - time.monotonic()):
                self.close()
                return None
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            return json.loads(line)
        # Answers are told apart by their order alone: behind one that is lost, the next would be taken for it.
        except (ValueError, RecursionError):
            self.close()
            return None

    def _write(self, messages: Sequence[Any]) -> None:
        lines = b"".join(json.dumps(message).encode() + b"\n" for message in messages)
        with suppress(OSError):
            self._child.stdin.write(lines)  # type: ignore[union-attr]
            self._child.stdin.flush()  # type: ignore[union-attr]

    def _read(self, seconds: float) -> bool:
        if self._child is None:
            return False
        stream = self._child.stdout
        assert stream is not None  # it was asked for
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            if not selector.select(max(seconds, 0.0)):
                return False
        # From the descriptor: the stream's own buffer could hold bytes that the selector does not see.
        data = os.read(stream.fileno(), 1 << 16)
        self._unread += data
        return bool(data)

    def close(self) -> None:
        child, self._child = self._child, None
        # Rests of the last child's output must not be taken for an answer of the next one.
        self._unread.clear()
        if child is not None:
            child.kill()
            for pipe in (child.stdin, child.stdout):
                # Closing writes what it could not take, and it has ended.
                with suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]
            child.wait()  # not for the end of its output: a child of its own may hold that for ever
