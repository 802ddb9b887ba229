"""Structured logs: JSON lines in the state directory, bounded; short lines on standard error.

A full disk is no reason to end.
"""

import contextlib
import logging
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

import structlog

LOG_NAME = "daemon.jsonl"
LOG_BYTES = 20 * 1024 * 1024
LOG_FILES = 5


def log_files(directory: Path) -> list[Path]:
    """Where the log may be, newest first."""
    return [directory / LOG_NAME, *(directory / f"{LOG_NAME}.{number}" for number in range(1, LOG_FILES + 1))]


def print_logs(least: int) -> None:
    """Events that are at least so bad, on standard error, for programs that are no daemon."""
    # All of it: processors of a daemon's log, which this process may have had, ask for what a logger that prints has
    # not.
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.dev.set_exc_info, structlog.dev.ConsoleRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def set_up_logging(directory: Path, level: str, *, shown: bool = True) -> None:
    """One event, two renderings. Third parties' loggers are kept at warnings. shown: on standard error too."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    file = LogFile(directory)
    file.setFormatter(
        structlog.stdlib.ProcessorFormatter(processor=structlog.processors.JSONRenderer(), foreign_pre_chain=shared)
    )
    console = logging.StreamHandler(sys.stderr)
    console.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processor=structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()), foreign_pre_chain=shared
        )
    )
    root = logging.getLogger()
    for before in root.handlers:
        if isinstance(before, LogFile):
            before.close()
    root.handlers[:] = [file, console] if shown else [file]
    root.setLevel(logging.WARNING)
    listening = logging.getLogger("trio.serve_listeners")
    listening.filters[:] = [Sparing()]
    for name in ("node", "protocol", "contracts", "cli"):
        logging.getLogger(name).setLevel(level.upper())


class Sparing(logging.Filter):
    """Of a loop that fails ten times a second, such as one that accepts connections where no more files may be open,
    one line a minute, without where in the code that was."""

    def __init__(self) -> None:
        super().__init__()
        self._told = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        # Older files that are kept beside the one that is written: daemon.jsonl.1 is the newest of them.
        if record.created - self._told < 60.0:
            return False
        self._told, record.exc_info = record.created, None
        return True


class LogFile(RotatingFileHandler):
    """At most LOG_BYTES * (LOG_FILES + 1) bytes. What the disk refuses is counted: said once on standard error, and in
    the log itself as soon as that can be written again."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / LOG_NAME, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8")
        self.lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream is not None and self.stream.closed:
            self.stream = None  # a full disk let rotation fail half-way; the library opens a new one for None only
        before = self.lost
        super().emit(record)
        if before and self.lost == before:
            self.lost = 0
            super().emit(_note(f"log.lost: {before} events could not be written"))

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        # the library prints a traceback for each line that it cannot write
        self.lost += 1
        if self.lost == 1:
            with contextlib.suppress(OSError):  # standard error may be on the same disk
                print(f"the log {self.baseFilename} cannot be written: {error.strerror}", file=sys.stderr, flush=True)


def _note(text: str) -> logging.LogRecord:
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None)
