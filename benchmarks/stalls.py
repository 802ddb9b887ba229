"""What an event loop did in the steps that stopped it longest. Knows trio; nothing of nodes."""

import heapq
import itertools
import os
import time

import trio

MOST = 12
TICK = 0.005
WORTH = 0.002
"""Seconds from which on a step is kept."""


class Stalls(trio.abc.Instrument):
    """The longest steps. A step's seconds are its own CPU, waiting for a processor that others had, and the rest:
    waiting for the interpreter's lock, or for the system."""

    def __init__(self) -> None:
        self._longest: list[tuple[float, int, float, float, str]] = []
        self._numbers = itertools.count()
        self._schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._began = self._used = self._queued = 0.0
        self.own = 0.0
        """CPU seconds of the loop's thread in its most expensive step."""
        self.stall = self.lock = 0.0
        """Seconds by which a sleep of TICK was late at most, and what of that was neither the loop's own CPU nor
        waiting for a processor: the interpreter's lock, in a step or between two."""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began, self._used = time.perf_counter(), time.thread_time()
        self._queued = self._queue()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took = time.perf_counter() - self._began
        if took < WORTH or not self._began:  # the step that installed this began before it
            return
        used = time.thread_time() - self._used
        self.own = max(self.own, used)
        queued = self._queue() - self._queued
        row = took, next(self._numbers), used, queued, f"{task.name} at {_place(task)}"
        keep = heapq.heappushpop if len(self._longest) >= MOST else heapq.heappush
        keep(self._longest, row)

    async def watch(self) -> None:
        """Until cancelled, in the loop that is watched."""
        while True:
            began, used, queued = time.perf_counter(), time.thread_time(), self._queue()
            await trio.sleep(TICK)
            late = time.perf_counter() - began - TICK
            excused = time.thread_time() - used + self._queue() - queued
            self.stall, self.lock = max(self.stall, late), max(self.lock, late - excused)

    def longest(self) -> list[tuple[float, float, float, str]]:
        """(seconds, CPU seconds, seconds without a processor, task and where it waits now), the longest first."""
        rows = sorted(self._longest, reverse=True)
        return [(round(took, 4), round(used, 4), round(queued, 4), name) for took, _, used, queued, name in rows]

    def _queue(self) -> float:
        """Seconds for which this thread wanted a processor and had none, since it began."""
        return int(os.pread(self._schedule, 100, 0).split()[1]) / 1e9


def _place(task: trio.lowlevel.Task) -> str:
    """The innermost frame of ours in which a task stands after its step."""
    found = "its end"
    one = task.coro
    while one is not None:
        frame = getattr(one, "cr_frame", None) or getattr(one, "gi_frame", None) or getattr(one, "ag_frame", None)
        if frame is not None and "/trio/" not in frame.f_code.co_filename:
            found = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
        one = getattr(one, "cr_await", None) or getattr(one, "gi_yieldfrom", None) or getattr(one, "ag_await", None)
    return found
