"""Structured logs: JSON lines in the state directory, short lines on standard error."""

import logging
import sys
from pathlib import Path

import structlog

from node.log_file import LogFile


def set_up_logging(directory: Path, level: str, *, shown: bool = True) -> None:
    """One event, two renderings. Third parties' loggers are kept at warnings. shown: on standard error too."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
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
    for name in ("node", "protocol", "contracts", "cli"):
        logging.getLogger(name).setLevel(level.upper())
