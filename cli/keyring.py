"""Opens keys for commands: a keystore file, a node's state directory, or the local chain's own account."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cli.errors import CommandError

if TYPE_CHECKING:
    from protocol.identity import NodeKey

NODE_KEY = "node-key.json"


def read_password(file: Path | None, *, confirm: bool = False) -> str:
    """From a private file, INTELLECT_NODE_PASSWORD, or the terminal. Raises CommandError or KeyError_."""
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
            "give --password-file, or set INTELLECT_NODE_PASSWORD",
        )
    return typer.prompt("Password", hide_input=True, confirmation_prompt=confirm, err=True)


def open_key(file: Path, password_file: Path | None) -> "NodeKey":
    """Decrypt a keystore file."""
    from node.keystore import load_key, require_private

    require_private(file)
    return load_key(file, read_password(password_file))


def open_node_key(state_dir: Path, password_file: Path | None = None, *, create: bool = False) -> "NodeKey":
    """The key of the node with this state directory, opened as its daemon does; `create` makes a missing one."""
    from node.keystore import load_key, load_or_create
    from node.keystore import read_password as daemon_password

    password = daemon_password(os.environ.get("INTELLECT_NODE_PASSWORD"), password_file, state_dir)
    return (load_or_create if create else load_key)(state_dir / NODE_KEY, password)
