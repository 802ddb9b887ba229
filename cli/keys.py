"""`intellect-node keys`: make keys, take them in, look at them, and hand them out."""

import json
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import INTERRUPTED, USAGE, CommandError
from cli.keyring import (
    FOR_COPY,
    NODE_KEY,
    key_directory,
    key_file,
    node_password,
    open_key,
    open_node_key,
    read_password,
)
from cli.output import AsJson, asking, console, print_json
from cli.places import state_dir_option
from protocol.errors import IntellectError

if TYPE_CHECKING:
    from protocol.identity import NodeKey

app = typer.Typer(
    help="Node and provider keys (keystore v3). One key gives the node's address and its peer id.", no_args_is_help=True
)

Name = Annotated[
    str | None, typer.Argument(metavar="[KEY]", help="A keystore file, or a name for one in the key directory.")
]
StateDir = Annotated[Path | None, state_dir_option("Instead of a file: the node with this state directory.")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file", help="File with the password (mode 0600); default: ask, or INTELLECT_KEY_PASSWORD."
    ),
]
NewPasswordFile = Annotated[Path | None, typer.Option(FOR_COPY, help="File with the password of the copy (mode 0600).")]
MAX_SECRET_BYTES = 4096


@app.command(
    "new",
    epilog="Examples:  intellect-node keys new provider   |   intellect-node keys new my/provider.json   |   "
    "intellect-node keys new --state-dir nodes/worker-1",
)
def new(
    key: Name = None, state_dir: StateDir = None, password_file: PasswordFile = None, as_json: AsJson = False
) -> None:
    """Make a new key and keep it encrypted; nothing is ever overwritten.

    With --state-dir it becomes the key of that node, and a missing password is made up and kept beside it.
    """
    from node.state.keystore import save_key
    from protocol.identity import NodeKey

    target = _target(key, state_dir)
    # Opening with `create` takes a key that is there, and this command would say that it has made it.
    _refuse_overwrite(target)
    if state_dir is not None:
        made = open_node_key(state_dir, password_file, create=True)
    else:
        made = NodeKey.generate()
        save_key(target, made, read_password(password_file, confirm=True, prompt=f"Password for {target.name}"))
    _show(target, made.address, made.peer_id, as_json)


@app.command(
    "import",
    epilog="Examples:  intellect-node keys import provider --keystore old.json   |   "
    "intellect-node keys import provider < secret.hex",
)
def import_(
    key: Name = None,
    state_dir: StateDir = None,
    keystore: Annotated[Path | None, typer.Option("--keystore", help="A keystore v3 file of another program.")] = None,
    secret_file: Annotated[
        Path | None, typer.Option("--secret-file", help="A file with the secret (mode 0600).")
    ] = None,
    password_file: PasswordFile = None,
    new_password_file: NewPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Take in a key: from a keystore file, or its secret (64 hex digits) from a file, standard input or the terminal.

    A secret is never taken from the command line, where other users could see it. --password-file opens the
    keystore; --new-password-file (or the same password) protects the copy.
    """
    from node.state.keystore import open_keystore, read_keystore, save_key

    target = _target(key, state_dir)
    _refuse_overwrite(target)
    if keystore is not None and secret_file is not None:
        raise CommandError("which one?", "--keystore and --secret-file were given", "give one of them", USAGE)
    if keystore is not None:
        password = read_password(password_file, prompt=f"Password of {keystore.name}")
        taken = open_keystore(read_keystore(keystore), password, str(keystore))
        password = read_password(new_password_file) if new_password_file else password
    else:
        taken = _key_of(_read_secret(secret_file))
        source = new_password_file or password_file
        password = node_password(state_dir, source) if state_dir else read_password(source, confirm=True)
    save_key(target, taken, password)
    _show(target, taken.address, taken.peer_id, as_json)


@app.command("list", epilog="Example:  intellect-node keys list --json")
def list_(as_json: AsJson = False) -> None:
    """Every key of this user: named ones, and those of nodes. No password is needed; nothing is opened."""
    from node.config import default_home

    found = sorted(key_directory().glob("*.json"))
    found += sorted((default_home() / "nodes").glob(f"**/{NODE_KEY}"))
    entries = [_entry(path) for path in found]
    if as_json:
        print_json({"directory": str(key_directory()), "keys": entries})
        return
    for entry in entries:
        trouble = f"  [{entry['problem']}]" if entry["problem"] else ""
        line = f"{entry['name']:<20}  {entry['address'] or '?':<42}  {entry['file']}{trouble}"
        console().print(line, markup=False, soft_wrap=True)
    if not entries:
        console().print(f"no keys in {key_directory()}; make one: intellect-node keys new NAME", soft_wrap=True)


@app.command(
    "show",
    epilog="Examples:  intellect-node keys show provider --json   |   intellect-node keys show --state-dir nodes/a",
)
def show(
    key: Name = None, state_dir: StateDir = None, password_file: PasswordFile = None, as_json: AsJson = False
) -> None:
    """Show the address and the peer id of a key. The secret is never shown."""
    target = _target(key, state_dir)
    opened = _open(target, state_dir, password_file)
    _show(target, opened.address, opened.peer_id, as_json)


@app.command(
    "export",
    epilog="Examples:  intellect-node keys export provider --to backup.json   |   "
    "intellect-node keys export provider --reveal",
)
def export(
    key: Name = None,
    state_dir: StateDir = None,
    to: Annotated[Path | None, typer.Option("--to", help="Write an encrypted copy (keystore v3, mode 0600).")] = None,
    reveal: Annotated[bool, typer.Option("--reveal", help="Print the secret itself, 64 hex digits.")] = False,
    password_file: PasswordFile = None,
    new_password_file: NewPasswordFile = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Hand out a key: as an encrypted copy under a password of its own, or with --reveal in the clear."""
    from node.state.keystore import save_key

    if (to is None) == (not reveal):
        raise CommandError(
            "export to where?", "neither or both of --to and --reveal were given", "give --to FILE, or --reveal", USAGE
        )
    target = _target(key, state_dir)
    if to is not None:
        _refuse_overwrite(to)
    # Asked before the password: whoever types it has then decided.
    _confirm_export(target, to, yes)
    opened = _open(target, state_dir, password_file)
    if to is not None:
        save_key(
            to,
            opened,
            read_password(new_password_file, confirm=True, prompt=f"Password for {to.name}", option=FOR_COPY),
        )
        _show(to, opened.address, opened.peer_id, as_json)
    elif as_json:
        print_json({"address": opened.address, "secret": opened.secret.hex()})
    else:
        print(opened.secret.hex())


@app.command("move", epilog="Example:  intellect-node keys move --state-dir nodes/a --to a.state")
def move(
    state_dir: Annotated[Path, state_dir_option("The node that is to live elsewhere.")],
    to: Annotated[Path, typer.Option("--to", help="The state file to write (mode 0600).")],
    password_file: PasswordFile = None,
    new_password_file: NewPasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Move a node away: into a state file, for `state import` elsewhere. What stays here cannot be started any more.

    Its key and its journal go together: a key that runs without its newest journal, or twice, may lose its stake.
    """
    from cli.state import write
    from node.state.bundle import MOVED, check_bundle
    from node.state.files import write_whole

    told = write(state_dir, to, password_file, new_password_file)
    check_bundle(to)  # read back before anything is taken from here
    note = {**told, "at": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())}
    write_whole(state_dir / MOVED, json.dumps(note).encode())
    if as_json:
        print_json(told)
    else:
        told_next = f"next, elsewhere: intellect-node state import {to.name} --state-dir DIR"
        console().print(f"moved {told['address']} into {to}; {told_next}", soft_wrap=True)


def _confirm_export(target: Path, to: Path | None, yes: bool) -> None:
    what = (
        f"an encrypted copy of {target} is written to {to}" if to else f"the secret of {target} is shown in the clear"
    )
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(
            "nobody can be asked whether to go on", f"there is no terminal, and {what}", "give --yes", USAGE
        )
    typer.echo(f"{what}: whoever has it can act, spend and lose everything in its name.", err=True)
    with asking():
        agreed = typer.confirm("Go on?", err=True)
    if not agreed:
        raise CommandError(
            "nothing was exported", "you said no", "run the command again to change your mind", INTERRUPTED
        )


def _target(key: str | None, state_dir: Path | None) -> Path:
    if (key is None) == (state_dir is None):
        raise CommandError("which key?", "give a file, a name or --state-dir, one of them", "see --help", USAGE)
    return key_file(key) if key is not None else Path(state_dir or "") / NODE_KEY


def _open(target: Path, state_dir: Path | None, password_file: Path | None) -> "NodeKey":
    if not target.exists():
        raise CommandError(f"no key at {target}", "the file does not exist", "make one: intellect-node keys new")
    return open_key(target, password_file) if state_dir is None else open_node_key(state_dir, password_file)


def _refuse_overwrite(target: Path) -> None:
    if target.exists():
        raise CommandError(f"will not overwrite {target}", "a key is there already", "choose another name")


def _read_secret(file: Path | None) -> str:
    if file is not None:
        from node.state.keystore import read_password_file

        return read_password_file(file)
    if sys.stdin.isatty():
        with asking():
            return typer.prompt("Secret (64 hex digits)", hide_input=True, err=True)
    # Bounded: what is piped in may be the wrong file.
    return sys.stdin.read(MAX_SECRET_BYTES).strip()


def _key_of(secret: str) -> "NodeKey":
    from protocol.identity import NodeKey

    # The secret itself is never in an error: terminals and logs keep what they show.
    if not re.fullmatch("(0x)?[0-9a-fA-F]{64}", secret):
        raise CommandError("this is no private key", "it must be 32 bytes in hex", "give 64 hex digits", USAGE)
    try:
        return NodeKey(bytes.fromhex(secret.removeprefix("0x")))
    except (IntellectError, ValueError):
        raise CommandError(
            "this is no private key", "its number is 0 or too large for the curve", "give another", USAGE
        ) from None


def _entry(path: Path) -> dict[str, Any]:
    """What can be said without the password: the address is what the file claims."""
    from node.state.keystore import claimed_address, read_keystore

    name, kind = (path.stem, "key") if path.parent == key_directory() else (path.parent.name, "node")
    entry: dict[str, Any] = {"name": name, "kind": kind, "file": str(path), "address": None, "problem": None}
    try:
        entry["address"] = claimed_address(read_keystore(path))
    except (IntellectError, ValueError) as error:
        entry["problem"] = f"{error.why}: {error.remedy}" if isinstance(error, IntellectError) else str(error)
    return entry


def _show(file: Path, address: str, peer_id: str, as_json: bool) -> None:
    if as_json:
        print_json({"file": str(file), "address": address, "peer_id": peer_id})
        return
    console().print(f"key      {file}\naddress  {address}\npeer id  {peer_id}", soft_wrap=True)
