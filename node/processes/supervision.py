"""The daemon as a process: what it tells its service manager, and memory that it gives back to the system.

sd_notify(3): datagrams of NAME=VALUE lines to the socket that $NOTIFY_SOCKET names. Sent by a task of the event loop,
so that a loop which turns no more misses its watchdog and is started again. Where nobody supervises, nothing is sent.
"""

import ctypes
import os
import socket
import sys
from collections.abc import Callable, MutableMapping

import structlog
import trio

from node.changes import every

log = structlog.get_logger()


class Supervision:
    """told: what the daemon does, in a few words. Takes its variables out of `environ`: no child answers for it."""

    def __init__(self, told: Callable[[], str], environ: MutableMapping[str, str] = os.environ) -> None:
        self._told = told
        self._address = _address(environ.pop("NOTIFY_SOCKET", ""))
        self._watchdog = _watchdog_seconds(environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", ""))
        self._last = ""

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED, look_every: float = 2.0
    ) -> None:
        """Say that the daemon is ready, then that it lives and what it does, until cancelled."""
        self._send("READY=1", *self._news())
        task_status.started()
        if self._address is None:
            return
        alive = ("WATCHDOG=1",) if self._watchdog else ()
        # Half of the watchdog's time, as sd_watchdog_enabled(3) says: one late turn is forgiven.
        # Seconds between two looks at what the daemon does.
        pause = min(self._watchdog / 2, look_every) if self._watchdog else look_every
        await every(pause, lambda: self._send(*alive, *self._news()))

    def stopping(self) -> None:
        """The daemon has begun to end: what follows is no failure."""
        self._send("STOPPING=1", "STATUS=draining")

    def _news(self) -> tuple[str, ...]:
        """The status line, if it changed: one line, whatever the text holds."""
        most_text = 200  # characters of a status line
        text = "".join(c if c.isprintable() else " " for c in self._told()[:most_text])
        if text == self._last:
            return ()
        self._last = text
        return (f"STATUS={text}",)

    def _send(self, *lines: str) -> None:
        if self._address is None or not lines:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as out:
                out.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:  # a manager that is busy hears the next one; one that is gone hears nothing
            log.debug("supervision.unheard", why=str(error))


def _address(name: str) -> str | None:
    """The socket's address: a path, or @NAME in the abstract namespace."""
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else None


def _watchdog_seconds(microseconds: str, pid: str) -> float:
    """How often this process must be heard, in seconds; 0 where nobody waits for it."""
    # The variable is inherited: a child must not answer for its parent.
    meant = not pid or pid == str(os.getpid())
    return int(microseconds) / 1e6 if meant and microseconds.isdigit() else 0.0


async def give_back_memory(seconds: float = 300.0) -> None:
    """Every few minutes until cancelled.

    Files, images' pieces and the chain's answers pass through blocks of the heap, and what stays for long is cut from
    between them: the pages around it are free and remain ours, some 15 MB of a worker after half an hour.
    """
    trim = _trim()
    if trim is None:
        return
    # Between files and steps the heap is the largest; what is used again comes back at a page fault for 4 KiB.
    await every(seconds, lambda: trio.to_thread.run_sync(trim, 0, abandon_on_cancel=True), at_once=False)


def _trim() -> Callable[[int], int] | None:
    """malloc_trim(3), which lets go the interpreter's lock; None where there is another C library than glibc."""
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
