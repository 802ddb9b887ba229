"""`intellect-node keys`: make a key, or show the names that follow from one."""

from pathlib import Path
from typing import Annotated

import typer

from cli.errors import USAGE, CommandError
from cli.keyring import NODE_KEY, open_key, open_node_key, read_password
from cli.output import console, print_json

app = typer.Typer(
    help="Node and provider keys (keystore v3). One key gives the node's address and its peer id.",
    no_args_is_help=True,
)

File = Annotated[Path | None, typer.Argument(help="A keystore v3 file.")]
StateDir = Annotated[
    Path | None, typer.Option("--state-dir", help="Instead of a file: the node with this state directory.")
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file", help="File with the password (mode 0600); default: ask, or INTELLECT_NODE_PASSWORD."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


@app.command(
    "new",
    epilog="Examples:  intellect-node keys new provider.json   |   intellect-node keys new --state-dir nodes/worker-1",
)
def new(
    file: File = None, state_dir: StateDir = None, password_file: PasswordFile = None, as_json: AsJson = False
) -> None:
    """Make a new key and keep it encrypted; nothing is ever overwritten.

    With --state-dir it becomes the key of that node, and a missing password is made up and kept beside it.
    """
    from node.keystore import save_key
    from protocol.identity import NodeKey

    target = _target(file, state_dir)
    if target.exists():
        raise CommandError(f"will not overwrite {target}", "a key is there already", "choose another name")
    if state_dir is not None:
        key = open_node_key(state_dir, password_file, create=True)
    else:
        key = NodeKey.generate()
        save_key(target, key, read_password(password_file, confirm=True))
    _show(target, key.address, key.peer_id, as_json)


@app.command(
    "show",
    epilog="Examples:  intellect-node keys show provider.json --json   |   intellect-node keys show --state-dir a",
)
def show(
    file: File = None, state_dir: StateDir = None, password_file: PasswordFile = None, as_json: AsJson = False
) -> None:
    """Show the address and the peer id of a key. The secret is never shown."""
    target = _target(file, state_dir)
    if not target.exists():
        raise CommandError(f"no key at {target}", "the file does not exist", "make one: intellect-node keys new")
    key = open_key(target, password_file) if state_dir is None else open_node_key(state_dir, password_file)
    _show(target, key.address, key.peer_id, as_json)


def _target(file: Path | None, state_dir: Path | None) -> Path:
    if (file is None) == (state_dir is None):
        raise CommandError("which key?", "give a file or --state-dir, one of them", "see --help", USAGE)
    return file if file is not None else Path(state_dir or "") / NODE_KEY


def _show(file: Path, address: str, peer_id: str, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(file), "address": address, "peer_id": peer_id})
        return
    console().print(f"key      {file}\naddress  {address}\npeer id  {peer_id}", soft_wrap=True)
