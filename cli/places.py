"""Which node a command is about: the state directory that was named, or the only one that there can be."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.errors import USAGE, CommandError
from node.state.locks import FileLock
from node.status_schema import DaemonStatus


def trouble_of(status: DaemonStatus) -> str | None:
    """In a sentence with its remedy; None where all is well."""
    if not status.node.state_dir:
        return None
    place = Path(status.node.state_dir)
    try:
        free = shutil.disk_usage(place).free
    except FileNotFoundError:
        return (
            f"the state directory {place} was moved or deleted under the daemon: stop it (kill {status.node.pid}), "
            "then join with --state-dir at its new place"
        )
    except OSError as error:
        return f"the state directory {place} cannot be looked at: {error.strerror}"
    if free < 256 * 1024 * 1024:  # bytes below which a daemon would not start again (`node.state.directory`)
        return f"the disk of {place} is full: {free // 2**20} MiB are free; log lines are lost, then the journal fails"
    return None


def clear(directory: Path, names: Iterable[str]) -> None:
    """Remove what we have put into a directory; other files stay, and so does what a link leads to."""
    for name in names:
        path = directory / name
        # rmtree refuses a link, and what one leads to may be anything.
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def directory_lock(directory: Path, what: str = "demo") -> Iterator[None]:
    """Holds DIR/.lock; raises CommandError when another `what` does. The file is gone afterwards."""
    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / ".lock")
    if not lock.acquire():
        raise CommandError(
            f"another {what} runs in {directory}",
            f"its process {lock.holder} holds {lock.path}",
            "wait for it, stop it with Ctrl-C, or use another directory: --dir DIR",
        )
    try:
        yield
    finally:
        lock.release()


JOURNAL = "journal.sqlite"
"""In every state directory that a daemon has used."""


def known_directories() -> list[Path]:
    """State directories of this user that a daemon has used: below the home, and those of daemons that run now."""
    from node.config import default_home

    # By the journal: a directory that only holds a key has never been a node.
    # Two levels: a daemon without --state-dir lives in nodes/NETWORK/ROLE.
    below = [path.parent for path in default_home().glob(f"nodes/*/*/{JOURNAL}")]
    return sorted({*below, *running_directories()})


def running_directories() -> list[Path]:
    """State directories of the daemons of this user that answer."""
    from cli import api

    return sorted({Path(told.node.state_dir) for told in api.known_daemons() if told.node.state_dir})


def chosen_directory(given: Path | None) -> Path:
    """The directory that was given; else that of the only daemon that runs, or of the only one that ever did.

    Raises CommandError where that leaves none or several.
    """
    if given is not None:
        return given
    # Those that run first: a command is mostly about them, and old directories pile up.
    for found in (running_directories(), known_directories()):
        if len(found) == 1:
            return found[0]
        if found:
            raise _several(found)
    raise CommandError(
        "no node is known on this machine",
        "no daemon of this user runs, and none has left a state directory in its usual place",
        "name it: --state-dir DIR",
    )


def complete_directories(incomplete: str) -> list[str]:
    """For the shell's completion."""
    return [str(path) for path in known_directories() if str(path).startswith(incomplete)]


def complete_networks(incomplete: str) -> list[str]:
    """For the shell's completion: networks that can be named."""
    from node.chain.profile import network_names
    from node.config import default_home

    return [name for name in network_names(default_home()) if name.startswith(incomplete)]


def state_dir_option(help: str) -> Any:
    return typer.Option("--state-dir", help=help, autocompletion=complete_directories)


StateDir = Annotated[
    Path | None, state_dir_option("The node's state directory. Default: that of the only daemon here.")
]
NetworkName = Annotated[
    str | None,
    typer.Option(
        help="A network profile (TOML file), or 'local' for this machine's devnet.", autocompletion=complete_networks
    ),
]
PoolNumber = Annotated[
    int | None, typer.Option(min=0, max=2**32 - 1, help="The pool on chain; default: the profile's.")
]


def _several(found: list[Path]) -> CommandError:
    most_told = 5  # directories that are named
    named = ", ".join(str(path) for path in found[:most_told])
    more = f" and {len(found) - most_told} more" if len(found) > most_told else ""
    return CommandError("which node?", f"there are several: {named}{more}", "name one: --state-dir DIR", USAGE)
