"""A terminal's single keys: a picture that is drawn again until q is pressed, and a wait for any key."""

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import RenderableType

from cli.output import console

# Ctrl-D among them: without line input the terminal makes no end of file of it.
QUIT = "qQ\x03\x04"

Wait = Callable[[float], str]
"""Waits so many seconds at most for a key, and returns it; nothing where none was pressed."""


def watch_until_quit(draw: Callable[[], RenderableType], every: float = 2.0) -> None:  # seconds between two pictures
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


async def any_key() -> None:
    """Returns when somebody presses a key; the terminal is left as it was found."""
    import trio

    with _keys() as wait:
        await trio.lowlevel.wait_readable(sys.stdin)
        # Taken: a key that is left in the terminal would stand in the shell's next line.
        wait(0)


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
