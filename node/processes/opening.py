"""Opening waits while no more files may be open: the one place where that is caught, waited for, told and counted.

A daemon whose limit was lowered, or whose machine has no descriptor left, has lost nothing: journal, log and links are
open already. Raised through whatever was being read, the error would end it all the same. So a thread that opens a
file or lists a directory waits until it can. The event loop never waits here: a child's start is tried again by
`patiently`, and what it opens else are sockets, which fail as for a network that is away.
"""

import builtins
import errno
import io
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import structlog
import trio

T = TypeVar("T")
log = structlog.get_logger()
LACKING = (errno.EMFILE, errno.ENFILE)
PATIENCE = 300.0
"""Seconds after which the error is raised all the same."""
EVERY = 0.2
PLACES = ((builtins, "open"), (io, "open"), (os, "open"), (os, "listdir"), (os, "scandir"))
REMEDY = "raise the limit of open files: ulimit -n, or LimitNOFILE of its unit"


class Opening:
    """waited: how often something had to wait, since the start of this daemon."""

    def __init__(self, patience: float = PATIENCE, every: float = EVERY) -> None:
        self.waited = 0
        self._patience, self._every = patience, every
        self._loop = threading.get_ident()
        self._lock = threading.Lock()
        self._waiting = 0
        self._since = 0.0
        self._ends = threading.Event()

    def give_up(self) -> None:
        """Nothing waits from now on: the daemon ends."""
        self._ends.set()

    def patient(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same, which waits where no descriptor is left, in every thread but the event loop's."""

        @wraps(function)
        def opened(*args: Any, **named: Any) -> Any:
            try:
                return function(*args, **named)
            except OSError as error:
                if error.errno not in LACKING or threading.get_ident() == self._loop:
                    raise
                with self._told(error):
                    return self._again(lambda: function(*args, **named))

        return opened

    def _again(self, function: Callable[[], Any]) -> Any:
        until = time.monotonic() + self._patience
        while True:
            ends = self._ends.wait(self._every) or time.monotonic() > until
            try:
                return function()
            except OSError as error:
                if error.errno not in LACKING or ends:
                    raise

    @contextmanager
    def _told(self, error: OSError) -> Iterator[None]:
        """One line when the first begins to wait, and one when nobody does any more."""
        with self._lock:
            self.waited += 1
            self._waiting += 1
            first = self._waiting == 1
            if first:
                self._since = time.monotonic()
        if first:
            log.warning("files.none_left", why=str(error), remedy=REMEDY)
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1
                last = not self._waiting
            if last:
                log.warning("files.left_again", seconds=round(time.monotonic() - self._since, 1), waited=self.waited)


@contextmanager
def patient_opening(patience: float = PATIENCE, every: float = EVERY) -> Iterator[Opening]:
    """In this process, whoever opens; called in the thread of the event loop, and once the log is open: that is written
    while a lock is held for which the event loop waits."""
    opening = Opening(patience, every)
    before = [getattr(where, name) for where, name in PLACES]
    for (where, name), function in zip(PLACES, before, strict=True):
        # In the modules themselves: libraries open files too, and each would have to be taught by itself.
        setattr(where, name, opening.patient(function))
    try:
        yield opening
    finally:
        opening.give_up()
        for (where, name), function in zip(PLACES, before, strict=True):
            setattr(where, name, function)


async def patiently(do: Callable[[], Awaitable[T]], patience: float = PATIENCE) -> T:
    """On the event loop: what opens something, and leaves nothing behind where it cannot. Raises OSError."""
    until = trio.current_time() + patience
    while True:
        try:
            return await do()
        except OSError as error:
            if error.errno not in LACKING or trio.current_time() > until:
                raise
            log.warning("child.waits_for_files", why=str(error), remedy=REMEDY)
        await trio.sleep(1.0)
