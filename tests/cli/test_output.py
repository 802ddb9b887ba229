"""What a command shows of the log, whatever this process logged before."""

import pytest
import structlog

from cli.output import quiet_logs


def test_quiet_logs_are_whole_also_where_a_daemons_log_was_set_up(capsys: pytest.CaptureFixture[str]) -> None:
    """A daemon's processors ask for what a logger that prints has not, and a logger may be kept for good."""
    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    log = structlog.get_logger()
    try:
        with quiet_logs():
            log.info("not shown")
            log.warning("shown", block=7)
    finally:
        structlog.configure(**before)
    told = capsys.readouterr().err
    assert "shown" in told and "block" in told and "not shown" not in told
