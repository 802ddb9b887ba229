"""Lines for a terminal, or a file, that may stall: a thread of their own writes them, and what it cannot keep up with
is left out. Whoever prints never waits.
"""

import queue
import threading
from typing import TextIO

from rich.console import Console
from rich.text import Text

MOST_WAITING = 200
CLOSE_SECONDS = 1.0
ERASE = "\r\x1b[2K"


class Screen:
    """Lines that stay, and below them, on a terminal, one line that changes. dropped: lines that were left out."""

    def __init__(self, stream: TextIO, *, live: bool) -> None:
        self._stream = stream
        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._live = live
        self._lines: queue.Queue[Text | None] = queue.Queue(MOST_WAITING)
        self._status = Text()
        self._shown = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._write, name="screen", daemon=True)
        self._thread.start()

    def line(self, text: Text) -> None:
        """Print a line that stays."""
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self.dropped += 1

    def status(self, text: Text) -> None:
        """Change the last line; a stalled terminal sees the newest one only."""
        self._status = text
        if self._live and self._lines.empty():
            self.line(Text())

    def close(self) -> None:
        """Write what waits, for two seconds at most, and take the last line away."""
        self._status = Text()
        try:
            self._lines.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:  # stalled to the end
            return
        self._thread.join(CLOSE_SECONDS)

    def _write(self) -> None:
        try:
            while (text := self._lines.get()) is not None:
                self._print(text)
            self._print(Text())
        except (OSError, ValueError):  # the terminal is gone: there is nobody to tell
            return

    def _print(self, text: Text) -> None:
        if self._shown:
            self._stream.write(ERASE)
        if text.plain:
            self._console.print(text)
        status, self._shown = self._status, bool(self._live and self._status.plain)
        if self._shown:
            fitted = status.copy()
            fitted.truncate(max(self._console.width - 1, 10), overflow="ellipsis")
            self._console.print(fitted, end="")
        self._stream.flush()
