"""Other processes of a benchmark, which are told, and tell, in lines of JSON on their pipes."""

import json
import subprocess
from collections.abc import Sequence
from typing import IO, Any

import trio


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


class Talk:
    """The same over the pipes of a trio process."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._read = b""

    async def tell(self, order: Any) -> None:
        assert self.process.stdin  # noqa: S101 - as it was started
        await self.process.stdin.send_all(json.dumps(order).encode() + b"\n")

    async def hear(self) -> Any:
        """What it says next. Raises SystemExit once it has ended."""
        assert self.process.stdout  # noqa: S101 - as it was started
        while b"\n" not in self._read:
            some = await self.process.stdout.receive_some()
            if not some:
                raise SystemExit("a process ended")
            self._read += some
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)

    async def ask(self, order: Any) -> Any:
        await self.tell(order)
        return await self.hear()
