"""The daemon's end of the child that multiplies (multiply.py): started when first asked, killed when late or idle.

A child of its own: a daemon does not compute, and the engine's process may be busy with rollouts. It costs one more
import of torch while it lives.
"""

import sys
from collections.abc import Sequence
from subprocess import PIPE

import msgspec
import trio

from node.errors import NodeError
from node.hardware.orders import HEADER_BYTES, READY, Multiply, Order, Show
from protocol.freivalds import DIGEST_BYTES, Challenge


class MultiplierError(NodeError):
    """The child that multiplies did not start, did not answer in time, or answered something else."""


class Multiplier:
    """`run` it beside; one caller at a time. command: of the child."""

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", "node.hardware.multiply")) -> None:
        self._command = list(command)
        self._process: trio.Process | None = None
        self._used = trio.Event()

    async def run(self) -> None:
        """End the child when nobody has asked for it in a while, and in the end."""
        try:
            while True:
                self._used = trio.Event()
                # Challenges come in rounds: within one the child stays, between two its memory is wanted by others.
                with trio.move_on_after(120.0):
                    await self._used.wait()
                    continue
                await self.stop()
                await self._used.wait()
        finally:
            await self.stop()

    async def warm(self) -> None:
        """Returns once the child can multiply at once. Raises MultiplierError."""
        self._used.set()
        if self._process is not None and self._process.returncode is None:
            return
        with trio.CancelScope(shield=True):  # half a start would leave a child that nobody knows
            self._process = await trio.lowlevel.open_process(self._command, stdin=PIPE, stdout=PIPE)
        if await self._read(len(READY), 90.0) != READY:  # torch's import on a busy machine, and a device that wakes up
            raise await self._failed("its first answer is none")

    async def digests(self, challenge: Challenge) -> bytes:
        """Of each row of the product. Raises MultiplierError."""
        return await self._ask(Multiply(challenge), challenge.size * DIGEST_BYTES)

    async def rows(self, challenge: Challenge, rows: Sequence[int]) -> bytes:
        """Rows of the product last made, int32. Raises MultiplierError."""
        return await self._ask(Show(tuple(rows)), 4 * challenge.size * len(rows))

    async def stop(self) -> None:
        """Leaves nothing of the child behind."""
        process, self._process = self._process, None
        if process is None:
            return
        with trio.CancelScope(shield=True):
            # Killed, not asked: it may be in the middle of a product that takes minutes, and keeps nothing.
            process.kill()
            await process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    await pipe.aclose()

    async def _ask(self, order: Order, size: int, *, answer_seconds: float = 60.0) -> bytes:
        await self.warm()
        process = self._process
        if process is None or process.stdin is None:
            raise await self._failed("it was stopped")
        try:
            await process.stdin.send_all(msgspec.json.encode(order) + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise await self._failed("it has ended") from None
        return await self._read(size, answer_seconds)

    async def _read(self, size: int, seconds: float) -> bytes:
        """A body of just `size` bytes."""
        with trio.move_on_after(seconds):
            length = int.from_bytes(await self._exactly(HEADER_BYTES), "little")
            # The answer's length follows from the question, so a child that answers another one is broken.
            if length != size:
                raise await self._failed(f"{length} bytes instead of {size}")
            return await self._exactly(size)
        # Ended with it: a late answer would be read as the answer to the next question.
        raise await self._failed(f"nothing within {seconds:g} s")

    async def _exactly(self, size: int) -> bytes:
        found = bytearray()
        read_bytes = 1 << 16
        while len(found) < size:
            if self._process is None or self._process.stdout is None:
                raise await self._failed("it was stopped")
            part = await self._process.stdout.receive_some(min(read_bytes, size - len(found)))
            if not part:
                raise await self._failed("it has ended")
            found += part
        return bytes(found)

    async def _failed(self, why: str) -> MultiplierError:
        await self.stop()
        return MultiplierError("the multiplying process failed", why, "see the log; members will ask again")
