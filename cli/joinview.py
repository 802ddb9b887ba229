"""What `join` shows of the node that it is: the phases until the first contribution, then a line for each event.

Reads the node's progress record a few times a second; writes through a screen that never makes it wait.
"""

import queue
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
import trio
from rich.console import Console
from rich.text import Text

from cli.output import SCHEMA_VERSION, clean, duration
from node.changes import about

if TYPE_CHECKING:
    from node.progress import Event, Phase, ProgressRecord

ERASE = "\r\x1b[2K"


class JoinScreen:
    """Lines that stay, and below them, on a terminal, one line that changes. dropped: lines that were left out.

    A thread writes them: a terminal that stalls (Ctrl-S, a lost ssh) must not stop a node that has a stake."""

    def __init__(self, stream: TextIO, *, live: bool) -> None:
        self._stream = stream
        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._live = live
        # Lines for a terminal that stalls; what is more is left out and counted.
        self._lines: queue.Queue[Text | None] = queue.Queue(200)
        self._status = Text()
        self._shown = False
        self.dropped = 0
        # daemon: one that hangs in a dead terminal must not keep the program from ending.
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
        # An empty line wakes the writer; while others wait it will show the newest status anyway.
        if self._live and self._lines.empty():
            self.line(Text())

    def close(self, *, close_seconds: float = 1.0) -> None:
        """Write what waits, for two seconds at most, and take the last line away."""
        self._status = Text()
        try:
            self._lines.put(None, timeout=close_seconds)
        except queue.Full:  # stalled to the end
            return
        self._thread.join(close_seconds)

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
            # One column less: at the last one some terminals wrap, and a wrapped line cannot be erased by \r.
            fitted.truncate(max(self._console.width - 1, 10), overflow="ellipsis")
            self._console.print(fitted, end="")
        self._stream.flush()


LONGEST = 600
SPINNER = "|/-\\"
STYLES = {"accepted": "green", "claimed": "green", "refused": "red", "slashed": "bold red", "trouble": "yellow"}
CONTRIBUTIONS = ("accepted", "verdict", "policy")
"""What a worker, a validator and a trainer is in the swarm for."""
QUIET = ("role", "joined", "engine", "policy", "verdict", "certified", "in the table")
"""Events that are told without a colour."""


class _View:
    """Looks at the record again and again, and shows on the screen what is new. every: seconds between two looks."""

    def __init__(self, screen: JoinScreen, *, every: float = 1.0) -> None:
        self._screen, self._every = screen, every
        self._phase = ""
        self._told = 0

    async def run(self, progress: "ProgressRecord") -> None:
        """Until cancelled; what happened last is shown even then."""
        try:
            while True:
                self.look(progress)
                await trio.sleep_until(about(self._every))
        finally:
            self.look(progress)
            self._screen.close()

    def look(self, progress: "ProgressRecord") -> None:
        raise NotImplementedError


class JoinView(_View):
    """live: on a terminal, one line below the others says what the node does now."""

    def __init__(self, screen: JoinScreen, *, live: bool) -> None:
        super().__init__(screen, every=0.25 if live else 1.0)  # a line that turns is to be seen turning
        self._live = live
        self._over = 0
        self._turn = 0
        self._announced = False

    def look(self, progress: "ProgressRecord") -> None:
        """Show what is new."""
        for event in progress.since(self._told):
            self._screen.line(line_of(event))
        self._told = progress.told
        if self._live:
            self._tell_finished(progress)
        elif progress.name != self._phase:  # what it is about is asked of all services: only for whom it is shown
            self._screen.line(Text.assemble(_clock(), f"  {progress.name}: ", clean(progress.phase.text, LONGEST)))
        self._phase = progress.name
        if progress.name == "working" and not self._announced:
            self._announce(progress)
        if self._live:
            self._turn += 1
            self._screen.status(status_of(progress.phase, SPINNER[self._turn % len(SPINNER)]))

    def _tell_finished(self, progress: "ProgressRecord") -> None:
        for phase in progress.phases[self._over :]:
            self._screen.line(Text.assemble(("  done  ", "dim"), f"{phase.name:<20}", (_seconds(phase.seconds), "dim")))
        self._over = len(progress.phases)

    def _announce(self, progress: "ProgressRecord") -> None:
        self._announced = True
        first = next((event for event in reversed(progress.events) if event.name in CONTRIBUTIONS), None)
        self._screen.line(Text(f"This node contributes, {duration(progress.age)} after its start.", style="bold green"))
        if first is not None:
            self._screen.line(Text(f"  the first: {clean(first.text, LONGEST)}"))
        self._screen.line(Text("  from now on one line for each event; intellect-node status; Ctrl-C to leave", "dim"))


class JoinJsonView(_View):
    """The same for programs: one object a line on standard output."""

    def look(self, progress: "ProgressRecord") -> None:
        """Print what is new."""
        for event in progress.since(self._told):
            self._print({"event": event.name, "text": event.text, "at": event.at})
        self._told = progress.told
        if progress.name != self._phase:
            text = progress.phase.text
            self._print({"phase": progress.name, "text": text, "seconds": round(progress.age, 2)})
        self._phase = progress.name

    def _print(self, value: dict[str, Any]) -> None:
        self._screen.line(Text(msgspec.json.encode({"schema_version": SCHEMA_VERSION, **value}).decode()))


def open_json_view() -> JoinJsonView:
    return JoinJsonView(JoinScreen(sys.stdout, live=False))


def open_view(*, logs: bool) -> JoinView:
    """On standard error. logs: the log is written there too, so that no line may change."""
    live = sys.stderr.isatty() and not logs
    return JoinView(JoinScreen(sys.stderr, live=live), live=live)


def line_of(event: "Event") -> Text:
    """One event on one line; a command stands alone on its line, to be copied."""
    text = clean(event.text, LONGEST)
    if event.name == "do":
        return Text(f"    {text}", style="bold")
    style = STYLES.get(event.name, "" if event.name in QUIET else "bold")
    return Text.assemble(_clock(event.at), "  ", (f"{event.name:<9}", style), f" {text}")


def status_of(phase: "Phase", mark: str) -> Text:
    """The line that changes."""
    share = "" if phase.progress is None else f" {phase.progress:.0%}"
    text = clean(phase.text, LONGEST)
    return Text.assemble(
        (f"{mark} ", "cyan"), (phase.name, "bold"), f"{share}  {_seconds(phase.since_seconds)}  {text}"
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)


def _clock(at: float | None = None) -> str:
    """The local time of a moment, of now by default."""
    return time.strftime("%H:%M:%S", time.localtime(at))
