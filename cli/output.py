"""How commands speak: tables for people, JSON for programs, errors on standard error."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from cli.errors import INTERRUPTED, CommandError
from protocol.errors import IntellectError

SCHEMA_VERSION = 1
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


def console() -> Console:
    """The terminal of this moment (tests and pipes replace it)."""
    # Made anew each time: a kept one would write to a terminal that is gone.
    return Console(highlight=False)


@contextmanager
def asking() -> Iterator[None]:
    """Around a question at the terminal: Ctrl-C and the end of the input are no bug, which exit code 1 would say."""
    try:
        yield
    except typer.Abort:
        why = "the question was answered with Ctrl-C or Ctrl-D"
        raise CommandError("interrupted; nothing was done", why, "run the command again", INTERRUPTED) from None


@contextmanager
def quiet_logs() -> Iterator[None]:
    """What the daemon's parts log: warnings and worse are shown, on standard error, beside a command's own answer."""
    import logging

    import structlog

    from node.logs import print_logs

    before = structlog.get_config()
    print_logs(logging.WARNING)
    try:
        yield
    finally:
        structlog.configure(**before)


def print_error(error: IntellectError) -> None:
    """Three lines on standard error."""
    out = Console(stderr=True, highlight=False, soft_wrap=True)
    # Escaped: what stands in brackets, as [trainer] does, is no markup.
    out.print(f"[bold red]error:[/] {escape(error.what)}")
    out.print(f"  [dim]why:[/] {escape(error.why)}")
    out.print(f"  [dim]do: [/] {escape(error.remedy)}")


def print_json(value: dict[str, Any]) -> None:
    """One object on one line of standard output, with its schema's version."""
    # First in the object, for whoever reads with the eye.
    line = msgspec.json.encode({"schema_version": SCHEMA_VERSION, **value}).decode()
    # Not by rich, which would wrap at the terminal's width; flushed, because a pipe's reader waits for it.
    print(line, file=sys.stdout, flush=True)


def print_facts(rows: Sequence[tuple[str, Any]]) -> None:
    """Names and values in two columns; a long value is never broken, so that it can be copied."""
    width = max((len(name) for name, _ in rows), default=0) + 2
    for name, value in rows:
        shown = "-" if value is None else clean(str(value), 2000)
        console().print(Text.assemble((name.ljust(width), "dim"), shown), soft_wrap=True)


def ether(wei: int) -> str:
    """Amount of an 18-decimal token, for people: 1500000000000000000 -> '1.5'."""
    whole, rest = divmod(abs(wei), 10**18)
    # Integers throughout: a float has 16 digits, and an amount may need 27.
    fraction = f"{rest:018d}".rstrip("0")[:6]
    return ("-" if wei < 0 else "") + (f"{whole:,}.{fraction}" if fraction else f"{whole:,}")


def rounded(value: Any) -> float | None:
    """A figure for JSON; None for what is none."""
    return round(value, 4) if isinstance(value, int | float) else None


def clean(text: str, limit: int = 200) -> str:
    """Text from strangers, fit for a terminal: printable characters only, bounded."""
    return "".join(c if c.isprintable() else "?" for c in text[:limit])


def short(address: str) -> str:
    """'0x1234..abcd', for columns."""
    return f"{address[:6]}..{address[-4:]}" if len(address) > 12 else address


def duration(seconds: float) -> str:
    """'12 s', '3 min 05 s', '2 h 07 min', '3 d 04 h'."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02d} h"


def date(timestamp: int) -> str:
    """Unix seconds for people: '2026-11-22 10:30 UTC'."""
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(timestamp))
    except (OverflowError, ValueError, OSError):  # a number from the chain that no calendar has
        return f"second {timestamp}"


def count_of(number: int) -> str:
    """'594 k', '1.5 B'."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return str(number)
