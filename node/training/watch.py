"""New files of a spool, told to whoever waits for them: the one place that looks.

Whoever writes into a spool rings (`node.training.bells`). A rename has no event that every system knows, and not every
writer can ring: another machine's evaluator writes, too, and not all file systems have pipes. So one look at a few
directories now and then stands for all who wait. What they ask of the disk is asked off the event loop, in that look's
job.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import trio

from node.changes import Changes
from node.training.bells import hung, silence
from node.training.spool import Spool

PARTS = ("", "in", "out", "eval", "ckpt", "jobs")


class SpoolWatch(Changes):
    """Of one spool. seconds: between two looks that nobody has rung for; deaf: the same where no bell can be hung."""

    def __init__(self, spool: Spool, seconds: float = 1.0, *, deaf: float = 0.05) -> None:
        super().__init__()
        self._root, self._folders = spool.root, [spool.root / part for part in PARTS]
        self._seconds, self._deaf = seconds, deaf
        self._wanted: dict[trio.Event, Callable[[], bool]] = {}
        """What is waited for."""

    async def run(self) -> None:
        """Look until cancelled."""
        seen, again, rang = (), False, True
        with ExitStack() as stack:
            bell = await trio.to_thread.run_sync(stack.enter_context, hung(self._root))
            while True:
                now, there = await trio.to_thread.run_sync(self._look, list(self._wanted.items()))
                for event in there:
                    event.set()
                # Once more after each change: a second file within one tick of the file system's clock shows no other
                # time.
                if rang or now != seen or again:
                    seen, again = now, now != seen
                    self.tell()
                rang = await self._rings(bell)

    async def until_there(self, so: Callable[[], bool], over: Callable[[], bool] = lambda: False) -> None:
        """Return once it is so, which may ask the disk and is asked when that has changed; or over, which asks memory
        alone and is asked whenever something is told."""
        there = trio.Event()
        # Before it is asked: what comes meanwhile is not missed.
        self._wanted[there] = so
        try:
            if over() or await trio.to_thread.run_sync(so):
                return
            while not (there.is_set() or over()):
                await self.next.wait()
        finally:
            del self._wanted[there]

    async def _rings(self, bell: int | None) -> bool:
        """Whether somebody has rung; false if it is time for a look."""
        with trio.move_on_after(self._seconds if bell is not None else min(self._seconds, self._deaf)):
            if bell is None:
                await trio.sleep_forever()
            else:
                await trio.lowlevel.wait_readable(bell)
                silence(bell)
                return True
        return False

    def _look(self, wanted: list[tuple[trio.Event, Callable[[], bool]]]) -> tuple[tuple[int, ...], list[trio.Event]]:
        """When each folder was changed last, and what is there of what is waited for."""
        return tuple(_changed_at(folder) for folder in self._folders), [event for event, so in wanted if so()]


def _changed_at(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
