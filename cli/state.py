"""`intellect-node state`: a node in one file, to move it to another machine or to keep it safe."""

import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.keyring import FOR_COPY, KEY_PASSWORD, open_node_key, read_password
from cli.output import AsJson, console, print_json
from cli.places import StateDir, chosen_directory, state_dir_option

app = typer.Typer(
    help="A node in one file: key, journals, a trainer's spool. What was imported asks the pool before it signs.",
    no_args_is_help=True,
)
PasswordFile = Annotated[
    Path | None, typer.Option("--password-file", help="Password of the node's key where it lies now (mode 0600).")
]
NewPasswordFile = Annotated[
    Path | None,
    typer.Option(FOR_COPY, help=f"Password of the state file (mode 0600); default: ask, or {KEY_PASSWORD}."),
]


@app.command(
    "export", epilog="Example:  intellect-node state export --state-dir nodes/a --to a.state --new-password-file pw"
)
def export(
    to: Annotated[Path, typer.Option("--to", help="The file to write (mode 0600).")],
    state_dir: StateDir = None,
    password_file: PasswordFile = None,
    new_password_file: NewPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Write a node that does not run into one file. Its key is encrypted with a password of the file's own.

    A backup is as old as its moment: a node that is imported from one asks the pool what its key has said since. While
    it may run in two places use `keys move` instead, which leaves nothing to start here.
    """
    _tell(write(chosen_directory(state_dir), to, password_file, new_password_file), as_json)


def write(directory: Path, to: Path, password_file: Path | None, new_password_file: Path | None) -> dict[str, Any]:
    """What was written. Raises StateError where a daemon runs in the directory."""
    from node.config import program_version
    from node.state.bundle import check_moved, write_bundle
    from node.state.directory import StateDir as Held

    check_moved(directory)
    key = open_node_key(directory, password_file)
    password = read_password(new_password_file, confirm=True, prompt=f"Password for {to.name}", option=FOR_COPY)
    with closing(Held(directory)):
        head = write_bundle(directory, to, key, password, int(time.time()), program_version())
    return {"file": str(to), "address": head.address, "parts": len(head.parts), "bytes": to.stat().st_size}


@app.command(
    "import", epilog="Example:  intellect-node state import a.state --state-dir nodes/a --new-password-file pw"
)
def import_(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="What `state export` or `keys move` wrote.")],
    state_dir: Annotated[Path, state_dir_option("A new directory, which the node gets.")],
    new_password_file: NewPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a state directory of a state file: whole and verified, or not at all.

    The password stays that of the file: `join` wants it by --password-file, or in INTELLECT_NODE_PASSWORD.
    """
    from node.state.bundle import read_bundle

    head = read_bundle(
        source, state_dir, read_password(new_password_file, prompt=f"Password of {source.name}", option=FOR_COPY)
    )
    _tell({"directory": str(state_dir), "address": head.address, "parts": len(head.parts)}, as_json)


def _tell(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        console().print(f"{name:<10} {value}", markup=False, soft_wrap=True)
