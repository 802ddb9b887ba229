"""What one connection sends: frames of many writers, each whole, in turns, news before pieces.

Knows what the line takes and when; knows nothing of what a frame says.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog
import trio

from node.network.sockets import Prompt
from node.network.turns import LinePace, Turns

log = structlog.get_logger(__name__)

MAX_CONTROL_FRAMES = 1024
"""Answers that wait for a peer to read them, before the connection is closed."""
STALL_SECONDS = 30.0
"""For a frame to be written or to arrive whole, and for a peer to open a window that is shut."""


class Outlet:
    """below: where the frames go; stalled: called when the peer reads nothing, ends the connection. ended: nothing is
    sent any more."""

    def __init__(self, below: Prompt, pace: LinePace, stalled: Callable[[], Awaitable[None]]) -> None:
        self.pace = pace
        self.ended = False
        self._below = below
        self._stalled = stalled
        self._turns = Turns()
        self._owed = memoryview(b"")
        self._queued, self._queue = trio.open_memory_channel[bytes](MAX_CONTROL_FRAMES)
        self._kept_short = 0
        self._keep_short()

    async def run(self) -> None:
        """Send what is queued, until the connection is gone."""
        async for frame in self._queue:
            if not await self.write(frame):
                return

    def end(self) -> None:
        self.ended = True

    def queue(self, frame: bytes) -> None:
        """Have it sent, without waiting. Raises trio.WouldBlock where too many wait already."""
        self._queued.send_nowait(frame)

    async def write(self, frame: bytes, *, bulk: bool = False) -> bool:
        """Whether it was written: whole, also if we are cancelled meanwhile, since half a frame ends the connection."""
        if self.ended:
            return False
        await self._turns.enter(bulk=bulk)
        try:
            self.pace.begins(trio.current_time())
            if self._owed:
                await self._finish(self._owed)
                self._owed = memoryview(b"")
            if frame and (rest := self._below.begin_write(frame)):
                await self._finish(rest)
            self.pace.took(len(frame), trio.current_time())
            # Not at each change: it is a call to the system, and the pace of a line moves a little with every frame.
            if not self.pace.turn <= self._kept_short <= 4 * self.pace.turn:
                self._keep_short()
        except Exception as error:
            log.debug("network.frame_lost", error=repr(error))
            return False
        finally:
            self._turns.leave(len(frame), self.pace.turn, bulk=bulk)
        # A cancellation that came in the middle of the frame is delivered only now, after the whole frame.
        await trio.lowlevel.checkpoint_if_cancelled()
        return True

    def write_now(self, frame: bytes) -> bool:
        """Whether it will be written whole: what the connection does not take at once goes before the next write."""
        # Never overtakes: what an earlier call still owes goes first, and a frame must not land inside another's.
        if self.ended or self._owed or self._turns.held:
            return False
        try:
            self._owed = self._below.begin_write(frame)
        except Exception as error:
            log.debug("network.frame_lost", error=repr(error))
            return False
        if self._owed:
            with suppress(trio.WouldBlock):  # whoever sends what is queued there pays it
                self.queue(b"")
        return True

    def _keep_short(self) -> None:
        """What the system keeps unsent is a queue that news cannot overtake: two turns, or the line runs dry."""
        self._kept_short = 2 * self.pace.turn
        self._below.keep_short(self._kept_short)

    async def _finish(self, rest: memoryview) -> None:
        self.pace.full(trio.current_time())
        with trio.CancelScope(shield=True, deadline=trio.current_time() + STALL_SECONDS) as whole:
            await self._below.finish_write(rest)
        if whole.cancelled_caught:
            with trio.CancelScope(shield=True):
                await self._stalled()
            raise ConnectionError(f"it read nothing for {STALL_SECONDS:g} s")
