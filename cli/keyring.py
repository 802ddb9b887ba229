"""Opens keys for commands: a keystore file, a node's state directory, or the local chain's own account."""

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cli.errors import USAGE, CommandError
from cli.output import asking

if TYPE_CHECKING:
    from protocol.identity import NodeKey

NODE_KEY = "node-key.json"
KEY_PASSWORD, NODE_PASSWORD = "INTELLECT_KEY_PASSWORD", "INTELLECT_NODE_PASSWORD"
"""Of a person's own keys, and of a node's: a node's environment opens no key of its provider's."""
FOR_COPY = "--new-password-file"
"""The option that names the password of a copy."""
NAME = re.compile("[A-Za-z0-9_-]{1,64}")


def read_password(
    file: Path | None,
    *,
    confirm: bool = False,
    prompt: str = "Password for the key",
    variable: str = KEY_PASSWORD,
    option: str = "--password-file",
) -> str:
    """From a private file, the environment's `variable`, or the terminal. option: that names the file. Raises
    CommandError or KeyError_."""
    from node.state.keystore import read_password_file

    if file is not None:
        return read_password_file(file)
    # An empty one counts as none: services often set variables that nobody has filled in.
    if from_environment := os.environ.get(variable):
        return from_environment
    if not sys.stdin.isatty():
        raise CommandError(
            f"no {prompt[:1].lower()}{prompt[1:]}",
            "there is no terminal to ask at",
            f"give {option}, or set {variable}",
        )
    with asking():
        return typer.prompt(prompt, hide_input=True, confirmation_prompt=confirm, err=True)


def open_key(file: Path, password_file: Path | None) -> "NodeKey":
    """Decrypt a keystore file."""
    from node.state.keystore import load_key, require_private

    # Before it is opened: a key that others can read may be stolen already, and its owner should know.
    require_private(file)
    variable = NODE_PASSWORD if file.name == NODE_KEY else KEY_PASSWORD
    return load_key(file, read_password(password_file, variable=variable))


def key_directory() -> Path:
    """Where keys lie that have a name: home/keys/NAME.json."""
    from node.config import default_home

    return default_home() / "keys"


def key_file(name_or_path: str) -> Path:
    """A path as it is (with a slash, or ending in .json, or an existing file); a name in the key directory."""
    path = Path(name_or_path)
    if "/" in name_or_path or path.suffix == ".json" or path.is_file():
        return path
    if not NAME.fullmatch(name_or_path):
        raise CommandError(
            f"{name_or_path[:40]!r} is no name for a key",
            "a name has letters, digits, - and _, at most 64",
            "choose another name, or give a path",
            USAGE,
        )
    return key_directory() / f"{name_or_path}.json"


def open_signer(name_or_path: str, password_file: Path | None) -> "NodeKey":
    """The key that signs a transaction. Raises KeyError_ for a missing or exposed file, or a wrong password."""
    return open_key(key_file(name_or_path), password_file)


def open_node_key(state_dir: Path, password_file: Path | None = None, *, create: bool = False) -> "NodeKey":
    """The key of the node with this state directory, opened as its daemon does; `create` makes a missing one."""
    from node.state.keystore import load_key, load_or_create

    return (load_or_create if create else load_key)(state_dir / NODE_KEY, node_password(state_dir, password_file))


def node_password(state_dir: Path, file: Path | None) -> str:
    """As the daemon of that node will look for it."""
    from node.state.keystore import read_password as daemon_password

    return daemon_password(os.environ.get(NODE_PASSWORD), file, state_dir)
