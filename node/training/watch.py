"""New files of a spool, told to whoever waits for them: the one place that looks again and again.

A rename has no event that every system knows, and the writer need not be the process that this one started: torchrun
starts ranks of its own, a learner of before may still be at its last file, and another machine's evaluator writes, too.
So one thread's look at a few directories stands for all who wait. What they then ask the disk is asked off the event
loop, by `until`.
"""

from collections.abc import Callable
from pathlib import Path

import trio

from node.changes import Changes, every
from node.training.spool import Spool

PARTS = ("", "in", "out", "eval", "ckpt", "jobs")


class SpoolWatch(Changes):
    """Of one spool. seconds: between two looks."""

    def __init__(self, spool: Spool, seconds: float = 0.05) -> None:
        super().__init__()
        self._folders = [spool.root / part for part in PARTS]
        self._seconds = seconds

    async def run(self) -> None:
        """Look until cancelled."""
        seen, again = tuple[int, ...](), False

        async def look() -> None:
            nonlocal seen, again
            now = await trio.to_thread.run_sync(self._look)
            # Once more after each change: a second file within one tick of the file system's clock shows no other time.
            if now != seen or again:
                seen, again = now, now != seen
                self.tell()

        await every(self._seconds, look)

    async def until(self, so: Callable[[], bool]) -> None:
        """As with any changes; what is looked at may ask the disk."""
        while True:
            told = self.next
            if await trio.to_thread.run_sync(so):
                return
            await told.wait()

    def _look(self) -> tuple[int, ...]:
        return tuple(_changed_at(folder) for folder in self._folders)


def _changed_at(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
