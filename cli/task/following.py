"""A task on its way: given to the daemon, watched until it is over."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cli import api
from cli.errors import NETWORK, USAGE, CommandError
from cli.task.asking import Wish

POLL = 0.5


def submit(directory: Path, wish: Wish) -> str:
    """Give a task to the daemon; its id, 64 hex digits. Raises CommandError in the daemon's words."""
    import msgspec

    files = {path: str(file.resolve()) for path, file in wish.files.items()}
    body = {"spec": msgspec.to_builtins(wish.spec), "policy": wish.policy, "files": files}
    return str(api.ask(api.socket_of(directory), "POST", "/tasks", msgspec.json.encode(body))["task"])


def own_tasks(directory: Path) -> list[dict[str, Any]]:
    """The tasks that this node offers, oldest first."""
    return list(api.ask(api.socket_of(directory), "GET", "/tasks")["tasks"])


def cancel(directory: Path, id: str) -> None:
    api.ask(api.socket_of(directory), "POST", f"/tasks/{id}/cancel")


def named(directory: Path, start: str) -> dict[str, Any]:
    """The task whose id begins so; the newest if nothing is said. Raises CommandError."""
    found = [task for task in own_tasks(directory) if task["id"].startswith(start.lower())]
    if not found or (start and len(found) > 1):
        why = f"{len(found)} tasks have ids that begin with {start!r}" if start else "it has offered none"
        raise CommandError("no such task at this node", why, "look at: intellect-node task status", USAGE)
    return found[-1]


def wait(directory: Path, id: str, show: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """What is told of a task once it is over. A daemon that starts again is waited for."""
    silent = 0.0
    while True:
        try:
            task = named(directory, id)
            silent = 0.0
        except CommandError as error:
            silent += POLL
            if error.code != NETWORK or silent > 60:
                raise
        else:
            show(task)
            if not task["open"]:
                return task
        time.sleep(POLL)
