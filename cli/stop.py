"""`intellect-node stop`: end a daemon in good order, and cut it short where it takes too long."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from cli.errors import NETWORK, CommandError
from cli.output import AsJson, console, duration, print_json
from cli.places import StateDir, chosen_directory

EXAMPLES = (
    "Examples:  intellect-node stop   |   intellect-node stop --state-dir ~/nodes/a --now   |   "
    "intellect-node stop --patience 300"
)
PATIENCE = 30.0
"""Seconds for draining."""


def command(
    state_dir: StateDir = None,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for it to drain.")] = False,
    patience: Annotated[float, typer.Option(min=0, max=86_400, help="Seconds that it may drain.")] = PATIENCE,
    as_json: AsJson = False,
) -> None:
    """Stop a daemon: it finishes what is under way and exits; when that lasts too long it is cut.

    Its membership, stake, pay and keys stay: `join` goes on with them. A trainer with a seat gives up its chair. A
    service starts again at the next boot. `leave` ends the membership.
    """
    say: Callable[[str], None] = (lambda _: None) if as_json else lambda text: console().print(text, soft_wrap=True)
    directory = chosen_directory(state_dir)
    how, seconds = stop(directory, 0.0 if now else patience, say)
    if as_json:
        print_json({"state_dir": str(directory), "stopped": how, "seconds": round(seconds, 1)})
        return
    say(f"stopped ({how}) after {duration(seconds)}; its state stays in {directory}")


def stop(directory: Path, patience: float, say: Callable[[str], None], *, after_cut: float = 5.0) -> tuple[str, float]:
    """(drained, cut or killed; after how many seconds). Raises CommandError where no daemon of ours runs. patience,
    after_cut: seconds for draining, and after the second signal."""
    pid, began = _pid_of(directory), time.monotonic()
    for how, signals, wait in _stages(patience, after_cut):
        if how != "drained":
            say(f"it still runs after {duration(time.monotonic() - began)}: {signals[-1].name} cuts it short")
        # The guardian is told nothing: it ends when its daemon ends well.
        for number in signals:
            _send(pid, number)
        if _is_gone(directory, wait, say):
            return how, time.monotonic() - began
    raise CommandError(
        f"the daemon {pid} does not end", "not even SIGKILL ended it", f"look at it: ps -p {pid}", NETWORK
    )


def daemon_of(directory: Path) -> str | None:
    """pid of the daemon that holds a state directory, or "unknown"; None if none does."""
    from node.state.locks import holder_of

    return holder_of(directory / "lock")


def _pid_of(directory: Path) -> int:
    """Raises CommandError where no process can be told to end."""
    from node.state.locks import UNKNOWN

    holder = daemon_of(directory)
    if holder is None:
        raise CommandError(
            f"no daemon runs in {directory}",
            "nobody holds its lock",
            "see those that run: intellect-node status",
            NETWORK,
        )
    if holder == UNKNOWN:
        raise CommandError(
            f"the daemon in {directory} cannot be told to stop",
            "its lock is held, but names no process that this user can read",
            f"ask again in a moment; else find the process and end it: fuser -v {directory / 'lock'}",
            NETWORK,
        )
    return int(holder)


def _stages(
    patience: float, after_cut: float, after_kill: float = 5.0
) -> list[tuple[str, tuple[signal.Signals, ...], float]]:
    """What becomes of it, with which signals, and how long to wait for that."""
    drain = [("drained", (signal.SIGTERM,), patience)]
    # A second SIGTERM is what the daemon takes for "at once"; SIGKILL leaves its lock and journal to the next start.
    return [*drain, ("cut", (signal.SIGTERM,), after_cut), ("killed", (signal.SIGKILL,), after_kill)]


def _send(pid: int, number: signal.Signals) -> None:
    """To the daemon; SIGKILL to its guardian first, which would start it again."""
    guardian = _guardian_of(pid) if number == signal.SIGKILL else None
    try:
        if guardian is not None:
            os.kill(guardian, number)
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended by itself meanwhile: its lock tells
    except PermissionError:
        raise CommandError(
            f"process {pid} is not yours to stop", "it belongs to another user", "stop it as that user, or with sudo"
        ) from None


def _guardian_of(pid: int) -> int | None:
    """The parent that forked a daemon, which is the same program with the same words."""
    import psutil

    try:
        daemon = psutil.Process(pid)
        parent = daemon.parent()
        # By its words: a shell or a service manager that started the daemon is its parent too, and must live.
        return parent.pid if parent is not None and parent.cmdline() == daemon.cmdline() else None
    except psutil.Error:
        return None


def _is_gone(directory: Path, seconds: float, say: Callable[[str], None], *, tell_every: float = 5.0) -> bool:
    """Whether nobody holds the directory any more, within so many seconds."""
    # the lock is asked, not the number of the process, which another process may have by then
    began = told = time.monotonic()
    while daemon_of(directory) is not None:
        now = time.monotonic()
        if now - began >= seconds:
            return False
        if now - told >= tell_every:
            told = now
            say(f"  draining, {duration(now - began)} of {duration(seconds)} at most")
        time.sleep(0.1)
    return True
