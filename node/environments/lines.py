"""A child process that is spoken to in lines of JSON, with deadlines: for packages that are not imported here.

Blocking; for one thread. What it prints beside its lines is thrown away, and so is it when an answer does not come.
"""

import json
import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

MAX_LINE_BYTES = 1 << 26


class LineChild:
    """Raises OSError if the program cannot be started. environment: all that it sees of ours."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._child = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
        )
        self._unread = bytearray()

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    def send(self, *messages: Any) -> None:
        """A child that has ended hears nothing; that its answers do not come says so."""
        lines = b"".join(json.dumps(message).encode() + b"\n" for message in messages)
        with suppress(OSError):
            self._child.stdin.write(lines)  # type: ignore[union-attr]
            self._child.stdin.flush()  # type: ignore[union-attr]

    def receive(self, seconds: float) -> Any | None:
        """One message; None if it does not come in time, or ever, or is too long or no JSON."""
        until = time.monotonic() + seconds
        while b"\n" not in self._unread:
            if len(self._unread) > MAX_LINE_BYTES or not self._read(until - time.monotonic()):
                return None
        line, _, rest = bytes(self._unread).partition(b"\n")
        self._unread = bytearray(rest)
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            return None

    def _read(self, seconds: float) -> bool:
        stream = self._child.stdout
        assert stream is not None  # noqa: S101 - it was asked for
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            if not selector.select(max(seconds, 0.0)):
                return False
        data = os.read(stream.fileno(), 1 << 16)
        self._unread += data
        return bool(data)

    def close(self) -> None:
        self._child.kill()
        self._child.communicate()
