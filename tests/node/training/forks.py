"""Children of a test's own process, for work that needs torch: a program that is started anew imports it for seconds.

A fork has whatever its parent has imported, and no other threads. One that hangs is ended by an alarm.
"""

import importlib
import itertools
import os
import runpy
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio

from node.processes.launch import ENGINE, LEARNER
from node.processes.server import _become
from node.processes.wire import StartChild

PATIENCE = 240
"""Seconds."""


def fork(work: Callable[..., object], *arguments: object) -> int:
    """The number of a child that does the work and ends; where that raises, with status 1 and a traceback."""
    with warnings.catch_warnings():
        # Python 3.12 warns of other threads. Those of a test process only wait, and the child uses nothing of theirs.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return child
    status = 1
    try:
        signal.alarm(PATIENCE)
        work(*arguments)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def end_of(child: int) -> int:
    """Its exit status, or minus the signal that ended it. Blocking."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at(number: int) -> None:
    """End this process with SIGKILL right before the number-th call that makes something lasting (fsync, rename), in
    whatever thread that is; 0 stands for never."""
    calls = itertools.count(1)

    def deadly(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        return call

    for name in ("fsync", "replace"):
        setattr(os, name, deadly(getattr(os, name)))


class Forking:
    """A `Starter` of `python -m` programs of ours, as a fork server has them."""

    async def start(self, command: Sequence[str], environment: Mapping[str, str], *, heard: bool) -> "ForkedProgram":
        source, sink = os.pipe2(os.O_CLOEXEC)
        order = StartChild(0, command[2], tuple(command[3:]), dict(environment), "", int(signal.SIGKILL))
        if not heard:
            child = fork(_program, order, source, sink, os.getpid())
            os.close(source)
            return ForkedProgram(child, trio.lowlevel.FdStream(sink))
        said, told = os.pipe2(os.O_CLOEXEC)
        descriptors = [source, told, os.dup(2)]
        child = fork(_talking_program, order, descriptors, [sink, said], os.getpid())
        for one in descriptors:
            os.close(one)
        return ForkedProgram(child, trio.lowlevel.FdStream(sink), trio.lowlevel.FdStream(said))


class ForkedPopen(subprocess.Popen[Any]):
    """`subprocess.Popen` of `python -m` programs of ours, with the environment and the directory named. What they start
    by a fork server is forked from us, too."""

    def _execute_child(self, args: Sequence[str], *options: Any) -> None:
        for module in (*ENGINE, *LEARNER):
            importlib.import_module(module)
        cwd, environment = options[4:6]
        to_child, ours, out, from_child, err, errors = options[9:15]
        nothing = os.open(os.devnull, os.O_RDWR)
        descriptors = [os.dup(one if one >= 0 else nothing) for one in (to_child, from_child, errors)]
        order = StartChild(0, args[2], tuple(args[3:]), dict(environment), str(cwd), int(signal.SIGKILL))
        # The child must not hold our ends: it would not hear that we closed them.
        self.pid = fork(
            _talking_program, order, descriptors, [one for one in (ours, out, err) if one >= 0], os.getpid()
        )
        self._child_created = True
        for one in (*descriptors, nothing):
            os.close(one)
        self._close_pipe_fds(*options[9:15])


def _talking_program(order: StartChild, descriptors: list[int], others: list[int], parent: int) -> None:
    signal.alarm(0)  # whoever started it waits as long as it likes
    for one in others:
        os.close(one)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)
    sys.stderr = open(2, "w", buffering=1, closefd=False)
    _run_as(order, descriptors, parent)


def _program(order: StartChild, source: int, sink: int, parent: int) -> None:
    os.close(sink)
    _run_as(order, [source], parent)


def _run_as(order: StartChild, descriptors: list[int], parent: int) -> None:
    warnings.simplefilter("default")  # in a program they are no errors
    _become(order, descriptors, parent)
    runpy.run_module(order.module, run_name="__main__", alter_sys=True)


class ForkedProgram:
    def __init__(self, pid: int, stdin: trio.abc.SendStream, stdout: trio.abc.ReceiveStream | None = None) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self._status: int | None = None
        self._gone = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return self._status

    async def wait(self) -> int:
        if self._status is None:
            await trio.lowlevel.wait_readable(self._gone)
            os.close(self._gone)
            self._status = end_of(self.pid)
        return self._status
