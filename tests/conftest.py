"""The longest files begin first: four processes share the tests file by file, and the last one would run alone. And no
property fails because the machine is busy. And what is imported and collected is not looked through for garbage, which
would be done some hundred times. And the log of a daemon that a test ran ends with the test."""

import gc
import logging
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings
from trio._core import _run as scheduler

pytest_plugins = ["tests.processes"]

settings.register_profile("ours", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")

LONGEST = (
    "tests/swarm/test_swarm.py",
    "tests/node/audit/test_swarm_audits.py",
    "tests/cli/test_train.py",
    "tests/node/services/test_earnings_reporter.py",
    "tests/node/training/test_trainer.py",
    "tests/cli/test_pretraining.py",
    "tests/node/services/training/test_takeover.py",
    "tests/node/services/judging/test_recomputed_works.py",
    "tests/cli/test_contract.py",
    "tests/node/services/rounds/test_rounds.py",
    "tests/node/environments/test_scoring_pool.py",
    "tests/attacks/validators/test_sharing.py",
    "tests/test_contributing.py",
)
"""Seconds, most first: 124 to 24, with four processes on two cores."""

OURS = ("node", "cli", "protocol", "contracts", "tests")
PLAIN = structlog.get_config()
gc.disable()


def _flushed(descriptor: int) -> None:
    """In the place of `os.fsync`: no test pulls the plug. Who counts calls, or has one fail, puts its own over this.
    Programs that tests start wait for the disk as ever."""
    os.fstat(descriptor)


os.fsync = _flushed


@pytest.fixture(autouse=True)
def no_log_outlives_its_test() -> Iterator[None]:
    """Loggers that were first used while a daemon's log was set up are kept with its processors for good: no later test
    would see what they say."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    if structlog.get_config() != PLAIN:
        structlog.configure(**PLAIN)
        for name, module in list(sys.modules.items()):
            for one in vars(module).values() if name.partition(".")[0] in OURS else ():
                if isinstance(one, structlog._config.BoundLoggerLazyProxy):
                    vars(one).pop("bind", None)
        for handler in set(root.handlers) - set(handlers):
            handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)


# In which order tasks run that could run at the same moment, and what a memory network does at random. Drawn for each
# run: with one order for ever a test could count on it, and fail where a task takes longer. What fails in some order is
# a fault of the test or the product, and the run's number shows it again.


def pytest_addoption(parser: pytest.Parser) -> None:
    drawn = random.SystemRandom().randrange(1_000_000)
    parser.addoption("--order", type=int, default=drawn, help="tasks run in the order of that run (default: drawn)")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for source in (scheduler._r, random):
        source.seed(f"{item.config.option.order} {item.nodeid}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was not run, and how it is, in one line of every run: what is skipped unseen may have ceased to work."""
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"with --order {terminalreporter.config.option.order} tasks run as they did here")
    told = (report.longrepr for report in terminalreporter.stats.get("skipped", ()))
    skips = Counter(f"{Path(file).name}: {str(why).removeprefix('Skipped: ')}" for file, _, why in told)
    if skips:
        terminalreporter.write_line("not run: " + "; ".join(f"{reason} ({count})" for reason, count in skips.items()))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        file = item.nodeid.partition("::")[0]
        return LONGEST.index(file) if file in LONGEST else len(LONGEST)

    items.sort(key=place)
