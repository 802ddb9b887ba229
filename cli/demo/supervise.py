"""Starts the demo's daemons as separate OS processes, starts dead ones again, and leaves nothing behind.

Knows processes; nothing of chains, models or rewards. Every child leads a process group of its own, so that
Ctrl-C in the terminal reaches this program only, and so that a child's children can be stopped with it. Programs of
ours are forked from one process that has everybody's imports: seconds and memory are paid once instead of five times.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from cli.demo.snapshot import ProcessState
from cli.errors import CONFIGURATION, EXPELLED, RUN, UNEXPECTED, USAGE, CommandError
from node.processes.forkserver import ForkServer
from node.processes.launch import ENGINE, LEARNER, launch

MODULES = ("cli.main", "cli.join", "cli.joinview", "node.daemon", *ENGINE, *LEARNER)
"""What every participant of a demo imports."""
LEASH = Path(__file__).with_name("leash.py")
KILL_SECONDS = 10.0
HOPELESS = (USAGE, CONFIGURATION, RUN)  # starting again would end the same way


@dataclass(frozen=True, slots=True)
class SupervisedProgram:
    """What to run. log: receives standard output and error, appended; optional: the others do without it."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    directory: Path
    restart: bool = True
    optional: bool = False


class SupervisedProcess(Protocol):
    """The part of `subprocess.Popen` that is used here. It leads a process group of its own."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...


Spawn = Callable[[SupervisedProgram], Awaitable[SupervisedProcess]]


@dataclass(slots=True)
class _Child:
    program: SupervisedProgram
    process: SupervisedProcess
    started: float
    restarts: int = 0
    gone: bool = False
    restart_at: float | None = None


class Supervisor:
    """Runs programs until cancelled or `stop`ped. `told` hears one line about every death and restart."""

    def __init__(
        self,
        on_progress: Callable[[str], None],
        *,
        restarts: int = 5,  # per process; a process that dies more often has a reason that must be seen
        grace: float = 20.0,  # seconds between SIGTERM and SIGKILL: a busy machine's daemon still has its chain to tell
        spawn: Spawn | None = None,
    ) -> None:
        self._told = on_progress
        self._spawn = spawn or start_anew
        self._restarts = restarts
        self._grace = grace
        self._children: dict[str, _Child] = {}

    async def start(self, program: SupervisedProgram) -> None:
        """Start a program now."""
        self._children[program.name] = _Child(program, await self._spawn(program), time.monotonic())

    def kill(self, name: str) -> None:
        """SIGKILL to a program and all of its group; it is not started again."""
        child = self._children[name]
        child.gone = True
        _kill_group(child.process)

    def states(self) -> dict[str, ProcessState]:
        """The state of every process by its name."""
        return {name: _state(child) for name, child in self._children.items()}

    def has_ended(self, name: str) -> bool:
        """Whether a program is not running now."""
        return self._children[name].process.poll() is not None

    async def watch(self) -> None:
        """Look after the children; raises CommandError when one dies more often than the budget allows."""
        while True:
            now = time.monotonic()
            for child in list(self._children.values()):  # others may be started while one is
                await self._look_after(child, now)
            await trio.sleep(0.2)

    async def stop(self) -> None:
        """SIGTERM to all, a grace, SIGKILL to what is left of each process group. A second signal does not cut it."""
        with trio.move_on_after(self._grace + KILL_SECONDS, shield=True):
            # Those that have ended already must not be signalled: their number may be another process's by now.
            alive = {name: child.process for name, child in self._children.items() if child.process.poll() is None}
            # Before the first signal: else the watcher would start again what dies of it.
            for child in self._children.values():
                child.gone = True
            for process in alive.values():
                _send(process, signal.SIGTERM)
            with trio.move_on_after(self._grace):
                while any(process.poll() is None for process in alive.values()):  # noqa: ASYNC110 - processes end
                    await trio.sleep(0.05)
            for name, process in alive.items():
                if process.poll() is None:
                    self._told(f"{name} did not stop within {self._grace:g} s and is killed")
                # Also after a good end: a child's own children may have outlived it.
                _kill_group(process)
                await _end_of(process)

    async def _look_after(self, child: _Child, now: float) -> None:
        if child.gone:
            return
        if child.restart_at is not None:
            if now >= child.restart_at:
                child.process, child.started, child.restart_at = await self._spawn(child.program), now, None
                if child.gone:  # killed for good meanwhile
                    _kill_group(child.process)
            return
        code = child.process.poll()
        if code is None:
            return
        # Its engine may have outlived it, and would compute beside the one of the next life.
        _kill_group(child.process)
        self._decide(child, code, now)

    def _decide(self, child: _Child, code: int, now: float) -> None:
        name = child.program.name
        # Who was expelled has met the fate that the demo shows: started again it would only be refused.
        if code in (0, EXPELLED) or not child.program.restart:
            child.gone = True
            self._told(f"{name} ended ({_exit_text(code)})")
            return
        if code in HOPELESS or child.restarts >= self._restarts:
            error = _given_up(child, code)
            if not child.program.optional:
                raise error
            child.gone = True
            self._told(f"{error.what}; going on without it")
            return
        child.restarts += 1
        # Doubled each time, so that what fails at its start does not use up the machine for the others.
        child.restart_at = now + min(0.5 * 2 ** (child.restarts - 1), 8.0)
        self._told(f"{name} died ({_exit_text(code)}); starting it again ({child.restarts} of {self._restarts})")


async def run_to_end(program: SupervisedProgram, spawn: Spawn | None = None) -> None:
    """Run one program until it exits 0; raises CommandError with its own words when it fails."""
    child = _Child(program, await (spawn or start_anew)(program), time.monotonic())
    try:
        while (code := child.process.poll()) is None:  # noqa: ASYNC110 - another process ends
            await trio.sleep(0.05)
        if code:
            raise _given_up(child, code)
    finally:
        if child.process.poll() is None:
            _kill_group(child.process)
            with trio.move_on_after(KILL_SECONDS, shield=True):
                await _end_of(child.process)


@asynccontextmanager
async def open_zygote(environment: Mapping[str, str]) -> AsyncIterator[Spawn]:
    """How to start programs while it lasts. Its imports run beside whatever comes next; the first to be started waits
    for them. What still runs at the end gets SIGTERM. Where nothing can be forked (not on Linux) all are started anew.
    """
    children, until = ForkServer(launch(MODULES, environment)), trio.CancelScope(shield=True)

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        # Shielded: at Ctrl-C the server would go first, and with it what says whether a program has ended. Whoever
        # stops the programs would wait for none of them.
        with until:
            await children.run(task_status=task_status)

    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        try:
            yield partial(fork_or_start, children)
        finally:
            until.cancel()


async def fork_or_start(children: ForkServer, program: SupervisedProgram) -> SupervisedProcess:
    """Fork a program of ours; start it anew if it is another's, or the server is gone or without room."""
    # SIGTERM is what a child gets when the server goes: so none outlives the demo.
    order = children.order(program.command, program.environment, str(program.directory), signal.SIGTERM)
    if order is not None:
        program.log.parent.mkdir(parents=True, exist_ok=True)
        with open(os.devnull, "rb") as nothing, program.log.open("ab") as log:  # noqa: ASYNC230 - never waits
            child = await children.fork(order, [nothing.fileno(), log.fileno(), log.fileno()])
        if child is not None:
            return child
    return await start_anew(program)


def child_environment(root: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, one compute thread per process, the repository importable."""
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))
    # Five processes share the cores: each with a thread per core would spend its time waiting for the others.
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    quiet = {"TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **threads, **quiet, "PYTHONPATH": path, **(extra or {})}


def last_error(log: Path) -> tuple[str, str, str] | None:
    """what, why, remedy: the error that a program of ours printed last, if it ended with one."""
    lines = _tail(log)
    # From the end: a log holds earlier lives as well, whose errors are no news.
    for i in range(len(lines) - 3, -1, -1):
        texts = [lines[i + j].partition(mark) for j, mark in enumerate(("error: ", "  why: ", "  do:  "))]
        if all(mark and not before for before, mark, _ in texts):
            what, why, remedy = (text for _, _, text in texts)
            return what, why, remedy
    return None


def _given_up(child: _Child, code: int) -> CommandError:
    """The child's own words where it said some."""
    program = child.program
    own = code if 1 < code < 8 else UNEXPECTED
    # Our programs say what to do; of another one the last line of its log must serve.
    printed = last_error(program.log)
    if printed:
        what, why, remedy = printed
        return CommandError(f"{program.name}: {what}", why, remedy, own)
    words = next((line.strip()[-300:] for line in reversed(_tail(program.log)) if line.strip()), "(nothing)")
    return CommandError(
        f"{program.name} died" + (f" {child.restarts + 1} times" if child.restarts else ""),
        f"last {_exit_text(code)}; its log ends with: {words}",
        f"read {program.log}",
        own,
    )


def _tail(log: Path, size: int = 16384) -> list[str]:
    try:
        with log.open("rb") as file:
            # Only the end: a daemon's log may have grown for hours.
            file.seek(max(file.seek(0, os.SEEK_END) - size, 0))
            return file.read().decode(errors="replace").split("\n")
    except OSError:
        return []


async def start_anew(program: SupervisedProgram) -> SupervisedProcess:
    """As the system does it."""
    await trio.lowlevel.checkpoint()
    return _begun(program)


def _begun(program: SupervisedProgram) -> "subprocess.Popen[bytes]":
    """In this thread, not in one of trio's: the leash follows the thread that forked, and trio lets its threads end."""
    program.log.parent.mkdir(parents=True, exist_ok=True)
    with program.log.open("ab") as log:
        return subprocess.Popen(
            # -S and -E: the leash needs the standard library alone, and should become its program soon.
            [sys.executable, "-S", "-E", str(LEASH), str(os.getpid()), *program.command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(program.environment),
            cwd=program.directory,
            start_new_session=True,
        )


def _state(child: _Child) -> ProcessState:
    if child.gone:
        return ProcessState(None, "stopped", child.restarts)
    if child.restart_at is not None:
        return ProcessState(None, "restarting", child.restarts)
    return ProcessState(child.process.pid, "running", child.restarts)


def _send(process: SupervisedProcess, number: int) -> None:
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return  # it ended just now


async def _end_of(process: SupervisedProcess) -> None:
    while process.poll() is None:  # noqa: ASYNC110 - a process ends
        await trio.sleep(0.02)


def _kill_group(process: SupervisedProcess) -> None:
    """What a child left of its process group. The group's id stays taken while a member lives."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    # macOS says "not permitted" of a group whose members are all dead and not yet waited for.
    except (ProcessLookupError, PermissionError):
        return


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
