"""`join --detach`: a daemon in the background, in a session of its own, watched until it is in or has failed."""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.errors import CONFIGURATION, UNEXPECTED, CommandError
from cli.invocation import IMPORTING, own_command, without
from cli.output import clean, console, print_json
from cli.status import is_member, wanted

if TYPE_CHECKING:
    from cli.daemon_status import DaemonStatus

LONGEST_START, SETTLING = 120.0, 20.0
"""Seconds until its socket must answer, and from then on until it is left to itself, under way or not yet."""
POLL = 0.1
UNDER_WAY = ("policy", "first-contribution", "working")
"""Phases of a node that has its run and its engine."""
START_LOG = "start.log"
"""In the logs of the state directory: what the process itself prints; its events are in the log beside it."""


@dataclass(frozen=True, slots=True)
class Started:
    """A daemon that answers. log: what it printed while it started."""

    pid: int
    directory: Path
    log: Path
    status: "DaemonStatus"

    def facts(self) -> dict[str, Any]:
        """JSON-ready."""
        node = self.status.node
        phase = node.phase.text if node.phase else node.state
        facts: dict[str, Any] = {"pid": self.pid, "state_dir": str(self.directory), "log": str(self.log)}
        return facts | {"address": node.address, "role": node.role, "state": node.state, "phase": phase}

    def lines(self) -> list[str]:
        """For people: what runs, how to look at it, how to end it."""
        facts, place = self.facts(), f"--state-dir {self.directory}"
        return [
            f"{facts['role'] or 'node'} {facts['address']} runs in the background (process {self.pid})",
            f"  now:   {facts['phase']}",
            *(f"  do:    {clean(command, 300)}" for command in wanted(self.status)),
            f"  look:  intellect-node status {place}",
            f"  log:   intellect-node logs -f {place}",
            f"  stop:  intellect-node stop {place}",
        ]


def join_in_background(words: Sequence[str], directory: Path, *, as_json: bool) -> None:
    """Start the same command again without --detach, and say what came of it."""
    say: Callable[[str], None] = (lambda _: None) if as_json else lambda text: console().print(text, soft_wrap=True)
    again = [*without(words, "--detach", "--json", "--log", "--logs"), "--json"]  # which leaves only errors to its log
    started = start_detached(again, directory.resolve(), say)
    if as_json:
        print_json(started.facts())
        return
    for line in started.lines():
        say(line)


def start_detached(words: Sequence[str], directory: Path, say: Callable[[str], None]) -> Started:
    """Run this program with `words` in the background. Raises CommandError with the daemon's own words if it fails."""
    from cli.stop import pid_of

    pid = pid_of(directory)
    # The daemon would refuse by its lock as well, but into a log that nobody is shown.
    if pid is not None:
        raise CommandError(
            f"a daemon runs in {directory} already",
            f"process {pid} holds its lock",
            "stop it first (intellect-node stop), or give this one its own --state-dir",
        )
    log = directory / "logs" / START_LOG
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    process = _spawn([*own_command(), *words], log)
    say(f"  - {IMPORTING}")
    status = _await(process, directory, log, say)
    process.returncode = 0  # it outlives us: nobody is to warn that we did not wait for it
    return Started(process.pid, directory, log, status)


def _spawn(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    # the same command again, no fork: after imports a fork would copy locks that threads hold
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )


def _await(process: subprocess.Popen[bytes], directory: Path, log: Path, say: Callable[[str], None]) -> "DaemonStatus":
    """The daemon's word once it is under way, or after a while. It is ended if it never answers."""
    began, first, told = time.monotonic(), None, ""
    while process.poll() is None:
        now = time.monotonic()
        status = _status(directory, process.pid)
        if status is not None:
            first = first or now
            phase = status.node.phase.text if status.node.phase else status.node.state
            if phase != told:
                say(f"  - {phase}")
                told = phase
            if _is_under_way(status) or now - first > SETTLING:
                return status
        elif now - began > LONGEST_START:
            process.terminate()
            raise CommandError(
                "the daemon does not answer", f"nothing came within {LONGEST_START:g} s", f"read {log}", CONFIGURATION
            )
        time.sleep(POLL)
    raise _failed(process.returncode, log)


def _is_under_way(status: "DaemonStatus") -> bool:
    """Whether all that usually fails is behind it: the chain, the pool, the run and the engine."""
    phase = status.node.phase
    return is_member(status) and (phase is None or phase.name in UNDER_WAY)


def _status(directory: Path, pid: int) -> "DaemonStatus | None":
    """What this very process says by now."""
    from cli import api

    socket = api.socket_of(directory)
    if not socket.exists():
        return None
    try:
        status = api.get_status(socket, timeout=2.0)
    except CommandError:
        return None
    # The socket may still be that of a daemon that is just going: its word is not about the one that was started.
    return status if _session_of(status.node.pid) == pid else None


def _session_of(pid: int) -> int | None:
    """The daemon may be a child of the process that was started; it stays in its session."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _failed(code: int, log: Path) -> CommandError:
    """The daemon's own three lines where it printed some."""
    from cli.demo.supervise import last_error

    printed = last_error(log)
    # Codes that our commands give; another one, as of a signal, would say something false to a script.
    known = code if 1 < code < 8 else UNEXPECTED
    if printed is not None:
        return CommandError(*printed, known)
    return CommandError("the daemon ended while it started", f"exit code {code}", f"read {log}", known)
