"""What the service manager is told of this daemon: that it is ready, what it does, that it lives, that it ends.

sd_notify(3): datagrams of NAME=VALUE lines to the socket that $NOTIFY_SOCKET names. Sent by a task of the event loop,
so that a loop which turns no more misses its watchdog and is started again. Where nobody supervises, nothing is sent.
"""

import os
import socket
from collections.abc import Callable, MutableMapping

import structlog
import trio

log = structlog.get_logger()
LOOK_EVERY = 2.0
"""Seconds between two looks at what the daemon does."""
MOST_TEXT = 200
"""Characters of a status line."""


class Supervision:
    """told: what the daemon does, in a few words. Takes its variables out of `environ`: no child answers for it."""

    def __init__(self, told: Callable[[], str], environ: MutableMapping[str, str] = os.environ) -> None:
        self._told = told
        self._address = _address(environ.pop("NOTIFY_SOCKET", ""))
        self._watchdog = _watchdog_seconds(environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", ""))
        self._last = ""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Say that the daemon is ready, then that it lives and what it does, until cancelled."""
        self._send("READY=1", *self._news())
        task_status.started()
        if self._address is None:
            return
        alive = ("WATCHDOG=1",) if self._watchdog else ()
        pause = min(self._watchdog / 2, LOOK_EVERY) if self._watchdog else LOOK_EVERY
        while True:
            self._send(*alive, *self._news())
            await trio.sleep(pause)

    def stopping(self) -> None:
        """The daemon has begun to end: what follows is no failure."""
        self._send("STOPPING=1", "STATUS=draining")

    def _news(self) -> tuple[str, ...]:
        """The status line, if it changed: one line, whatever the text holds."""
        text = "".join(c if c.isprintable() else " " for c in self._told()[:MOST_TEXT])
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
    meant = not pid or pid == str(os.getpid())
    return int(microseconds) / 1e6 if meant and microseconds.isdigit() else 0.0
