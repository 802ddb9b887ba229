"""Starts the daemon again when it is killed: a process beside it that has its imports, and nothing else to do.

The program imports everything once, then forks; the child is the daemon. A daemon that dies by a signal nobody sent to
stop it (the system was short of memory, a library crashed) is forked anew in milliseconds, where a service manager
would start an interpreter and import for seconds. One that was up, and was ended by its machine (a disk that takes
nothing more, no descriptors), is forked anew after a pause, over and over: machines get well. Knows processes; nothing
of nodes.
"""

import ctypes
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Collection
from types import FrameType

from node.processes.threads import alone, running

PAUSES = (1.0, 30.0)
"""Seconds before a daemon that its machine has ended is started again: at first, and at most; doubled each time."""
PR_SET_PDEATHSIG = 1
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def become_guarded(again: Collection[int] = (), pauses: tuple[float, float] = PAUSES) -> Callable[[], object]:
    """Returns in a child process, which is to be the daemon; ends the program with the daemon's exit status. What it
    returns is called by a daemon that is up. again: exit codes by which a daemon ends whose machine failed.

    Does nothing where processes cannot be forked safely: not on Linux, or with threads running, which it says. Signals
    that stop the program are handed to the daemon, each once: it leads a process group of its own, so the terminal's
    Ctrl-C does not reach it twice. Ends with 128 + signal when the daemon dies of signals too often in a
    minute.
    """
    if not sys.platform.startswith("linux"):
        return bool
    if not alone():
        why = f"{running() - 1} thread(s) run beside it, whose locks a fork would keep for ever"
        remedy = "a service manager does: intellect-node service install"
        print(f"nothing starts this daemon again if it is killed: {why}; {remedy}", file=sys.stderr, flush=True)
        return bool
    # Asked before the fork: a child that asks for its parent may be given whoever adopted it.
    guardian, deaths = os.getpid(), []
    shared = mmap.mmap(-1, 1)  # the one word that a daemon has for its guardian
    was_up, pause = False, pauses[0]
    # Deaths after which it stays dead: there is a reason that a restart does not mend, and a service manager should
    # see it.
    most_deaths = 5
    within_seconds = 60.0
    while (child := os.fork()) != 0:
        status, asked_to_stop = _wait(child)
        if shared[0]:
            was_up, pause = True, pauses[0]
            shared[0] = 0
        if was_up and status in again and not asked_to_stop:
            _rest(pause, f"exit code {status}")
            pause = min(2 * pause, pauses[1])
            continue
        # Any other exit is the daemon's own decision; a death by a signal that nobody meant is undone. One that
        # was asked to stop and was killed while it drained stays dead: its owner did not want it back.
        if status >= 0 or -status in FORWARDED or asked_to_stop:
            _exit(status)
        now = time.monotonic()
        deaths = [*(at for at in deaths if now - at < within_seconds), now]
        if len(deaths) >= most_deaths:
            _exit(status)
        print(f"the daemon was killed by signal {-status}; starting it again", file=sys.stderr, flush=True)
    _be_guarded_by(guardian)
    return lambda: shared.__setitem__(0, 1)


def _rest(seconds: float, why: str) -> None:
    print(f"the daemon ended with {why}; starting it again in {seconds:g} s", file=sys.stderr, flush=True)
    time.sleep(seconds)


def _wait(child: int) -> tuple[int, bool]:
    """Exit status of the child, or minus the signal that ended it; and whether it was asked to stop: what is sent to us
    meanwhile is handed on."""
    asked = list[int]()

    def forward(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        try:
            os.kill(child, number)
        except ProcessLookupError:
            return  # it ended by itself just now

    for number in FORWARDED:
        signal.signal(number, forward)
    _, status = os.waitpid(child, 0)
    # Nobody is there to hand a signal to. Handed to the dead it would be lost, and the next daemon would run on.
    for number in FORWARDED:
        signal.signal(number, signal.SIG_DFL)
    return os.waitstatus_to_exitcode(status), bool(asked)


def _exit(status: int) -> None:
    """As the daemon ended; without our own clean-up, which belongs to the daemon."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if status >= 0 else 128 - status)


def _be_guarded_by(guardian: int) -> None:
    """In the child: die with the guardian, answer signals by the system's defaults, and for systemd's watchdog."""
    die_with_parent(guardian)  # at once: what is started next wants its lock
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # we may write to the terminal, though another group has it
    for number in FORWARDED:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # systemd names the process that it started; its watchdog is to hear the daemon, not the guardian.
    if os.environ.get("WATCHDOG_PID") == str(guardian):
        os.environ["WATCHDOG_PID"] = str(os.getpid())


def die_with_parent(parent: int, farewell: int = signal.SIGKILL) -> None:
    """Ask the kernel for a signal to this process when `parent` is gone; ends it at once if it is gone already.

    Linux only.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(farewell))
    # The parent may have died between the fork and the call above: then no signal comes any more.
    if os.getppid() != parent:
        os._exit(1)
