"""Tests in several processes, forked from the one that has collected them.

A process that pytest-xdist starts imports and collects for itself: 15 s of CPU here, 31 s before anything is compiled.
A fork has it all. The processes take the files one by one, in the order in which they were collected. One that ends
inside of a test fails that test, and another takes its place. Collecting keeps one core busy: the tests of a file that
`--first` names run meanwhile.
"""

import fcntl
import json
import os
import random
import selectors
import shutil
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

import pytest

ASKED = "processes"
PLACE = pytest.StashKey[Path]()
"""Of what all processes read."""
PARTING = 20.0
"""Seconds that processes have to tidy up when the tests are interrupted."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(f"--{ASKED}", type=int, default=1, help="share the test files among so many forks (default: 1)")
    parser.addoption("--first", metavar="FILE", help="begin with this file, while the others are collected")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(First(), First.__name__)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[PLACE] = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    config, first = session.config, session.config.pluginmanager.getplugin(First.__name__)
    files = [list(items) for _, items in groupby(session.items, lambda item: item.path)]
    number = min(config.getoption(ASKED), len(files))
    if not first.fork and (number <= 1 or not _shares(config)) or session.testsfailed:
        return None
    team = Team(session, files, first.handed_over())
    try:
        team.work(number)
    finally:
        team.end()
    return True


@pytest.fixture(scope="session")
def made_once(request: pytest.FixtureRequest) -> Callable[[str, Callable[[Path], None]], Path]:
    """(name, make): a directory that all processes read, made by the first one that asks for it."""
    place = request.config.stash[PLACE]

    def made(name: str, make: Callable[[Path], None]) -> Path:
        whole, half = place / name, place / f"{name}.half"
        with (place / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not whole.exists():
                shutil.rmtree(half, ignore_errors=True)  # of one that died
                half.mkdir()
                make(half)
                half.rename(whole)
        return whole

    return made


def _shares(config: pytest.Config) -> bool:
    return config.getoption(ASKED) > 1 and not config.option.collectonly and not config.option.usepdb


class Fork:
    """One of the processes, as the first one sees it. running: its newest test, None before the first."""

    def __init__(self, pid: int, source: int) -> None:
        self.pid = pid
        self.source = source
        self.running: str | None = None
        self.done = False
        self._rest = b""

    def heard(self) -> list[Any]:
        """What it has said since, without waiting for more."""
        try:
            while data := os.read(self.source, 1 << 20):
                self._rest += data
        except BlockingIOError:
            pass
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]


class First:
    """The process that runs the tests of the file that `--first` names, and ends then. fork: None before it is there,
    or where none was asked for."""

    def __init__(self) -> None:
        self.fork: Fork | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        file = session.config.getoption("first")
        if file and _shares(session.config):

            def run(say: Any) -> None:
                _run(session, [session.perform_collect([file])], say)

            self.fork = _forked(session.config, "process-0", [], run)

    def handed_over(self) -> Fork | None:
        fork, self.fork = self.fork, None
        return fork

    def pytest_sessionfinish(self) -> None:
        if fork := self.handed_over():  # not everything could be collected: no test counts
            _end([fork])


class Team:
    """The processes, and the files that none of them has taken: numbers in a pipe, four bytes each. first: a process
    that runs already, the tests of a file that all have heard of by now."""

    def __init__(self, session: pytest.Session, files: Sequence[Sequence[pytest.Item]], first: Fork | None) -> None:
        self._session = session
        self._files = files
        self._items = {item.nodeid: item for item in session.items}
        self._first = first
        self._forks: list[Fork] = [first] if first else []
        self._started = 0
        self._run_yet: set[str] = set()
        self._tickets, tickets = os.pipe()
        begun = session.config.invocation_params.dir / session.config.getoption("first") if first else None
        free = [number for number, file in enumerate(files) if file[0].path != begun]
        os.write(tickets, b"".join(number.to_bytes(4, "big") for number in free))
        os.close(tickets)

    def work(self, number: int) -> None:
        """Run all tests. Raises what ends a session early."""
        for _ in range(number - len(self._forks)):
            self._fork([])
        with selectors.DefaultSelector() as selector:
            while self._forks:
                for fork in self._forks:
                    if fork.source not in selector.get_map():
                        selector.register(fork.source, selectors.EVENT_READ, fork)
                # A process of a test's may hold the other end of a pipe open: its end says nothing, so we look.
                selector.select(timeout=0.5)
                for fork in list(self._forks):
                    ended = os.waitpid(fork.pid, os.WNOHANG)
                    if ended[0]:
                        selector.unregister(fork.source)
                        self._forks.remove(fork)  # first: what it has said may end all, which signals who is left
                    for message in fork.heard():
                        self._take(fork, message)
                    if ended[0]:
                        os.close(fork.source)
                        self._bury(fork, os.waitstatus_to_exitcode(ended[1]))
        if missed := len(self._items.keys() - self._run_yet):
            raise self._session.Failed(f"{missed} tests were run by no process")

    def end(self) -> None:
        """End what still runs."""
        os.close(self._tickets)
        _end(self._forks)

    def _fork(self, before: Sequence[pytest.Item]) -> None:
        """One more process; before: what it does before it takes a file."""
        self._started += 1
        name, others = f"process-{self._started}", [fork.source for fork in self._forks]

        def run(say: Any) -> None:
            _run(self._session, self._taken(before), say)

        self._forks.append(_forked(self._session.config, name, others, run))

    def _taken(self, before: Sequence[pytest.Item]) -> Iterator[Sequence[pytest.Item]]:
        if before:
            yield before
        while ticket := os.read(self._tickets, 4):
            yield self._files[int.from_bytes(ticket, "big")]

    def _take(self, fork: Fork, message: Any) -> None:
        hook = self._session.config.hook
        match message:
            case {"running": nodeid}:
                fork.running = nodeid
                self._run_yet.add(nodeid)
            case {"report": data}:
                self._report(hook.pytest_report_from_serializable(config=self._session.config, data=data))
            case {"warning": [text, when, nodeid]}:
                warning = warnings.WarningMessage(pytest.PytestWarning(text), pytest.PytestWarning, "", 0)
                hook.pytest_warning_recorded.call_historic(
                    kwargs={"warning_message": warning, "when": when, "nodeid": nodeid, "location": None}
                )
            case {"done": True}:
                fork.done = True

    def _report(self, report: pytest.TestReport) -> None:
        report.location = tuple(report.location)  # type: ignore[assignment]
        if isinstance(report.longrepr, list):  # of a skipped test; JSON has no tuples
            report.longrepr = tuple(report.longrepr)
        self._session.config.hook.pytest_runtest_logreport(report=report)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _bury(self, fork: Fork, status: int) -> None:
        if fork.done and status == 0:
            if fork is self._first:  # the others have taken files ever since, and go on
                self._fork([])
            return
        if fork.running is None:
            raise self._session.Failed(f"a process of the tests ended with status {status} before its first test")
        item = self._items[fork.running]
        what = f"the process ended with status {status} in this test, or after it"
        self._report(pytest.TestReport(item.nodeid, item.location, {}, "failed", what, "call"))
        file = next(file for file in self._files if item in file)
        self._fork(file[file.index(item) + 1 :])


def _end(forks: list[Fork]) -> None:
    """End them: first as Ctrl-C does, so that tests tidy up."""
    patience = time.monotonic() + PARTING
    for number in (signal.SIGINT, signal.SIGKILL):
        for fork in forks:
            os.kill(fork.pid, number)
        while forks and (number == signal.SIGKILL or time.monotonic() < patience):
            for fork in forks:
                fork.heard()  # or it waits for us
            forks = [fork for fork in forks if not os.waitpid(fork.pid, os.WNOHANG)[0]]
            time.sleep(0.05)


def _forked(
    config: pytest.Config, name: str, others: Sequence[int], run: Callable[[Callable[[Any], None]], None]
) -> Fork:
    """A process that runs and ends; others: of those before it, what we read from. run: takes what says something to
    us."""
    source, sink = os.pipe()
    os.set_blocking(source, False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 counts pyarrow's thread, which may end
        pid = os.fork()
    if pid == 0:
        _work_and_end(config, name, [source, *others], sink, run)
    os.close(sink)
    return Fork(pid, source)


def _work_and_end(config: Any, name: str, theirs: Sequence[int], sink: int, run: Callable[..., None]) -> NoReturn:
    status = 1
    try:
        os.setpgid(0, 0)  # Ctrl-C is for the first process, which tells the others
        for one in theirs:
            os.close(one)  # or the others would write on for us when the first process is gone
        _apart(config, name, sink)
        run(lambda message: _say(sink, message))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _run(session: pytest.Session, files: Iterable[Sequence[pytest.Item]], say: Callable[[Any], None]) -> None:
    """In a fork: the tests of these files."""
    hook, runner = session.config.hook, session.config.pluginmanager.getplugin("runner")
    try:
        for file in files:
            # Which file follows is not known before this one's last test has ended: only what belongs to the whole
            # session is kept until then.
            for item, following in zip(file, [*file[1:], session], strict=True):
                say({"running": item.nodeid})
                hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.shouldfail or session.shouldstop:
                    return
    finally:
        runner.pytest_sessionfinish(session)  # type: ignore[union-attr]
    say({"done": True})


class _Sender:
    """In a fork, what writes to the terminal elsewhere. ready: after it has been registered, which repeats all warnings
    of before."""

    def __init__(self, config: pytest.Config, sink: int) -> None:
        self._config, self._sink = config, sink
        self.ready = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        _say(self._sink, {"report": data})

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str, nodeid: str) -> None:
        text = f"{warning_message.filename}:{warning_message.lineno}: {warning_message.category.__name__}: "
        if self.ready:
            _say(self._sink, {"warning": [text + str(warning_message.message), when, nodeid]})


def _say(sink: int, message: Any) -> None:
    data = memoryview(json.dumps(message, default=str).encode() + b"\n")
    while data:
        data = data[os.write(sink, data) :]


def _apart(config: Any, name: str, sink: int) -> None:
    """In a fork: nothing that it writes to is the other processes', too."""
    random.seed()
    plugins = config.pluginmanager
    plugins.unregister(name="terminalreporter")
    sender = _Sender(config, sink)
    plugins.register(sender, "sender")
    sender.ready = True
    capture = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    factory = config._tmp_path_factory
    factory._basetemp = factory.getbasetemp() / name
    factory._basetemp.mkdir(mode=0o700)
    factory._exit_stack.pop_all()
