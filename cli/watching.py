"""A picture that is drawn again and again, until somebody presses q. Without a terminal it is drawn once."""

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import RenderableType

from cli.output import console

EVERY = 2.0
"""Seconds between two pictures."""
QUIT = "qQ\x03\x04"

Wait = Callable[[float], str]
"""Waits so many seconds at most for a key, and returns it; nothing where none was pressed."""


def watch_until_quit(draw: Callable[[], RenderableType], every: float = EVERY) -> None:
    """Draw until q or Ctrl-C; anything else that is pressed draws at once."""
    out = console()
    if not (out.is_terminal and sys.stdin.isatty()):
        out.print(draw())
        return
    from rich.live import Live

    live = Live(draw(), console=out, screen=True, auto_refresh=False)
    with suppress(KeyboardInterrupt), _keys() as wait, live:
        while wait(every) not in tuple(QUIT):
            live.update(draw(), refresh=True)


@contextmanager
def _keys() -> Iterator[Wait]:
    """Single keys, as they are pressed. The terminal is left as it was found."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def wait(seconds: float) -> str:
        ready, _, _ = select.select([terminal], [], [], seconds)
        return os.read(terminal, 1).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(terminal)
        yield wait
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
