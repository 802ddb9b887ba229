"""The daemon's log on disk: rotated, bounded, and no reason to end when the disk is full."""

import contextlib
import logging
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

LOG_NAME = "daemon.jsonl"
LOG_BYTES = 20 * 1024 * 1024
LOG_FILES = 5
"""Older files that are kept beside the one that is written: daemon.jsonl.1 is the newest of them."""


def log_files(directory: Path) -> list[Path]:
    """Where the log may be, newest first."""
    return [directory / LOG_NAME, *(directory / f"{LOG_NAME}.{number}" for number in range(1, LOG_FILES + 1))]


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

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self.lost += 1
        if self.lost == 1:
            with contextlib.suppress(OSError):  # standard error may be on the same disk
                print(f"the log {self.baseFilename} cannot be written: {error.strerror}", file=sys.stderr, flush=True)


def _note(text: str) -> logging.LogRecord:
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None)
