"""Several sandboxes that have loaded the same, so that many calls are made at one time.

Every call begins in the same state, so which of them makes it changes nothing.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

from node.sandbox.base import Call, Outcome, Sandbox, Session
from node.sandbox.errors import SandboxError, Undecided

MOST = 4
CALLS_EACH = 8
"""Starting a sandbox costs about as much as so many short calls."""
Opened = Callable[[], Sandbox]


class SandboxPool:
    """A `Sandbox`: for one thread, as each of those in it. open_one: loads another; most: of them, by default as many
    as this process has cores, and no more than MOST."""

    def __init__(self, open_one: Opened, most: int | None = None) -> None:
        """Raises what the first one raises."""
        self._open = open_one
        self._most = most or min(MOST, _cores())
        self._sandboxes = [open_one()]

    def call(self, function: str, *arguments: Any) -> Outcome:
        """Raises Undecided."""
        return self._sandboxes[0].call(function, *arguments)

    def run(self, calls: Iterable[Call]) -> Iterator[Outcome | Undecided]:
        """One after the other."""
        return self._sandboxes[0].run(calls)

    def call_all(self, function: str, calls: Sequence[Sequence[Any]]) -> list[Outcome | Undecided]:
        wanted = min(self._most, len(calls) // CALLS_EACH)
        if wanted < 2 or not self._grow(wanted):
            return self._sandboxes[0].call_all(function, calls)
        waiting: SimpleQueue[int] = SimpleQueue()
        for place in range(len(calls)):
            waiting.put(place)
        found: dict[int, Outcome | Undecided] = {}

        def work(sandbox: Sandbox) -> None:
            while True:
                try:
                    place = waiting.get_nowait()
                except Empty:
                    return
                (found[place],) = sandbox.call_all(function, [calls[place]])

        with ThreadPoolExecutor(len(self._sandboxes)) as threads:
            list(threads.map(work, self._sandboxes))
        return [found[place] for place in range(len(calls))]

    def session(self) -> Session:
        return self._sandboxes[0].session()

    def close(self) -> None:
        for sandbox in self._sandboxes:
            sandbox.close()

    def _grow(self, wanted: int) -> bool:
        """Whether there are two or more. One that cannot be had now is gone without."""
        try:
            while len(self._sandboxes) < wanted:
                self._sandboxes.append(self._open())
        except SandboxError:
            self._most = len(self._sandboxes)
        return len(self._sandboxes) > 1


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
