"""`intellect-node keys`: make a key, or show the names that follow from one."""

from pathlib import Path
from typing import Annotated

import typer

from cli.errors import CommandError
from cli.output import console, print_json

app = typer.Typer(
    help="Node and provider keys (keystore v3). One key gives the node's address and its peer id.",
    no_args_is_help=True,
)

PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file", help="File with the password (mode 0600); default: ask, or INTELLECT_NODE_PASSWORD."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


@app.command("new", epilog="Example:  intellect-node keys new ~/keys/provider.json")
def new(
    file: Annotated[Path, typer.Argument(help="Where the encrypted key goes; never overwritten.")],
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a new key and keep it encrypted."""
    from node.keystore import save_key
    from protocol.identity import NodeKey

    if file.exists():
        raise CommandError(f"will not overwrite {file}", "a file is there already", "choose another name")
    key = NodeKey.generate()
    save_key(file, key, _password(password_file, confirm=True))
    _show(file, key.address, key.peer_id, as_json)


@app.command("show", epilog="Example:  intellect-node keys show ~/keys/provider.json --json")
def show(
    file: Annotated[Path, typer.Argument(help="A keystore v3 file.")],
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the address and the peer id of a key. The secret is never shown."""
    from node.keystore import load_key, require_private

    require_private(file)
    key = load_key(file, _password(password_file, confirm=False))
    _show(file, key.address, key.peer_id, as_json)


def _password(file: Path | None, *, confirm: bool) -> str:
    import os
    import sys

    from node.keystore import require_private

    if file is not None:
        require_private(file)
        return file.read_text(encoding="utf-8").strip()
    if from_environment := os.environ.get("INTELLECT_NODE_PASSWORD"):
        return from_environment
    if not sys.stdin.isatty():
        raise CommandError(
            "no password for the key",
            "there is no terminal to ask at",
            "give --password-file or INTELLECT_NODE_PASSWORD",
        )
    return typer.prompt("Password", hide_input=True, confirmation_prompt=confirm)


def _show(file: Path, address: str, peer_id: str, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(file), "address": address, "peer_id": peer_id})
        return
    out = console()
    out.print(f"key      {file}\naddress  {address}\npeer id  {peer_id}", soft_wrap=True)
