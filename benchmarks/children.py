"""Other processes of a benchmark, which are told, and tell, in lines of JSON on their pipes."""

import json
import subprocess
from collections.abc import Sequence
from typing import IO, Any


class Child:
    """A process, for a program that does nothing else while it waits for an answer."""

    def __init__(self, command: Sequence[str], errors: IO[bytes] | None = None) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)

    def hear(self) -> Any:
        """What it says next. Raises SystemExit once it has ended."""
        assert self._process.stdout is not None  # noqa: S101 - as it was started
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a process ended: {self._process.wait()}")
        return json.loads(line)

    def ask(self, order: Any) -> Any:
        self.tell(order)
        return self.hear()

    def tell(self, order: Any) -> None:
        assert self._process.stdin is not None  # noqa: S101 - as it was started
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
