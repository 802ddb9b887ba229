"""Node keys at rest: keystore v3 (scrypt), mode 0600, never logged.

Blocking (scrypt takes about half a second): call from a thread.
"""

import json
import os
import secrets
from pathlib import Path

from eth_account import Account

from node.errors import KeyError_
from protocol.identity import NodeKey, parse_address

MAX_KEY_FILE = 64 * 1024


def load_key(path: Path, password: str) -> NodeKey:
    """Decrypt a keystore v3 file; raises KeyError_."""
    require_private(path)
    try:
        data = json.loads(path.read_text()[:MAX_KEY_FILE])
    except (OSError, ValueError) as error:
        raise KeyError_(f"cannot read the key {path}", str(error), "restore the file from your backup") from error
    try:
        key = NodeKey(bytes(Account.decrypt(data, password)))
        if "address" in data and parse_address("0x" + str(data["address"]).removeprefix("0x")) != key.address:
            raise ValueError("the address in the file is not that of the key")
    except Exception as error:  # eth-keyfile raises many unrelated types for a damaged file
        raise KeyError_(
            f"cannot open the key {path}",
            str(error)[:200] or "it is not a keystore v3 file",
            "check the password (INTELLECT_NODE_PASSWORD or --password-file), or restore the file",
        ) from error
    return key


def save_key(path: Path, key: NodeKey, password: str) -> None:
    """Write a new keystore v3 file with mode 0600; refuses to overwrite."""
    if not password:
        raise KeyError_("no password for the new key", "keys are never stored in the clear", "give --password-file")
    text = json.dumps(dict(Account.encrypt(key.secret, password)))
    write_private(path, text)


def load_or_create(path: Path, password: str) -> NodeKey:
    """The key in `path`, made now if there is none."""
    if path.exists():
        return load_key(path, password)
    key = NodeKey.generate()
    save_key(path, key, password)
    return key


def write_private(path: Path, text: str) -> None:
    """Create `path` with mode 0600 in one step: complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, path)
    except FileExistsError as error:
        raise KeyError_(f"will not overwrite {path}", "a key is there already", "move it away first") from error
    finally:
        partial.unlink(missing_ok=True)


def require_private(path: Path) -> None:
    """Raise unless the file exists and only its owner can read it."""
    try:
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        raise KeyError_(f"no key at {path}", str(error), "create one: intellect-node keys new") from error
    if mode & 0o077:
        raise KeyError_(f"the key {path} is exposed", f"mode {mode:04o} lets others read it", f"chmod 600 {path}")


def read_password(password: str | None, file: Path | None, state_dir: Path) -> str:
    """The password from the setting, the file, or a random one kept beside the key (mode 0600)."""
    if password:
        return password
    path = file or state_dir / "password"
    if file is None and not path.exists():
        write_private(path, secrets.token_urlsafe(24))
    require_private(path)
    return path.read_text().strip()
