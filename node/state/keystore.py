"""Keys at rest: keystore v3 (scrypt), mode 0600, never logged.

Blocking (scrypt takes about half a second): call from a thread. What a file asks for is bounded before it is
done: a keystore from a stranger may demand any amount of memory.
"""

import json
import os
import re
import secrets
from pathlib import Path
from typing import Any

from node.errors import KeyError_
from node.state.files import write_whole
from protocol.identity import Address, NodeKey, parse_address

MAX_KEY_FILE = 64 * 1024
MAX_PASSWORD_FILE = 4096
MAX_SCRYPT_BYTES = 512 * 1024 * 1024
MAX_SCRYPT_WORK = 2**26
"""n * r * p at most; the standard file has 2^21."""
MAX_PBKDF2_ROUNDS = 10_000_000
_MADE_HERE = re.compile(r"random-[\w-]{32}", re.ASCII)
"""A password of `read_password`: 192 random bits. The word before them tells it from one that somebody thought of."""


def load_key(path: Path, password: str) -> NodeKey:
    """Decrypt a keystore v3 file; raises KeyError_."""
    return open_keystore(read_keystore(path), password, str(path))


def read_keystore(path: Path) -> dict[str, Any]:
    """A keystore's JSON, still encrypted; raises KeyError_ for an exposed, missing or malformed file."""
    require_private(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_KEY_FILE + 1)
        data = json.loads(raw) if len(raw) <= MAX_KEY_FILE else None
    except (OSError, ValueError, RecursionError) as error:  # the last of brackets in brackets in brackets
        raise KeyError_(f"cannot read the key {path}", str(error), "restore the file from your backup") from error
    if not isinstance(data, dict):
        raise KeyError_(f"cannot read the key {path}", "it is no keystore v3 file", "restore the file from your backup")
    return data


def open_keystore(data: dict[str, Any], password: str, name: str) -> NodeKey:
    """Decrypt. name: what to call it in errors."""
    data = _lowered(data)
    complaint = _excessive(data)
    if complaint is not None:
        raise KeyError_(f"will not open the key {name}", complaint, "export it again with usual parameters")
    from eth_account import Account  # most of a second, and whoever reads an address needs none

    try:
        key = NodeKey(bytes(Account.decrypt(data, password)))
        claimed = claimed_address(data)
        # The address is outside of what is encrypted: changed, a user would fund an account that nobody has the key of.
        if claimed is not None and claimed != key.address:
            raise ValueError("the address in the file is not that of the key")
    except Exception as error:  # eth-keyfile raises many unrelated types for a damaged file
        wrong = "MAC" in str(error)  # the digest over the key that the password gives, and the ciphertext
        raise KeyError_(
            f"cannot open the key {name}",
            "the password is wrong" if wrong else str(error)[:200] or "it is not a keystore v3 file",
            "check the password (--password-file, or the environment's), or restore the file",
        ) from error
    return key


def _lowered(data: dict[str, Any], levels: int = 3) -> dict[str, Any]:
    """With names as eth-keyfile reads them: it takes "Crypto" and "KDFPARAMS", too, and what it takes is bounded here.
    levels: of tables in tables; no bounded one lies deeper."""
    return {
        name.lower(): _lowered(value, levels - 1) if isinstance(value, dict) and levels else value
        for name, value in data.items()
    }


def claimed_address(data: dict[str, Any]) -> Address | None:
    """What a keystore says without its password; proved only when it is opened. ValueError if it is none."""
    if "address" not in data:
        return None
    # Keystores of other programs write it without 0x, in any case.
    return parse_address("0x" + str(data["address"]).removeprefix("0x").lower())


def save_key(path: Path, key: NodeKey, password: str) -> None:
    """Write a new keystore v3 file with mode 0600; refuses to overwrite."""
    if not password:
        raise KeyError_("no password for the new key", "keys are never stored in the clear", "give --password-file")
    from eth_account import Account

    # scrypt makes guesses slow. Nobody guesses 192 bits, and each start would wait a second for it.
    work = 2**12 if _MADE_HERE.fullmatch(password) else None  # n, as in geth's light keystores
    write_private(path, json.dumps(dict(Account.encrypt(key.secret, password, kdf="scrypt", iterations=work))))


def load_or_create(path: Path, password: str) -> NodeKey:
    """The key in `path`, made now if there is none."""
    if path.exists():
        return load_key(path, password)
    key = NodeKey.generate()
    save_key(path, key, password)
    return key


def write_private(path: Path, text: str) -> None:
    """Create `path` with mode 0600 in one step: complete or not at all. A new directory gets mode 0700."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        write_whole(path, text.encode(), mode=0o600, replace=False)
    except FileExistsError as error:
        raise KeyError_(f"will not overwrite {path}", "a key is there already", "move it away first") from error


def require_private(path: Path) -> None:
    """Raise unless the file exists, is ours, and only its owner can read it."""
    try:
        status = path.stat()
    except OSError as error:
        raise KeyError_(f"no key at {path}", str(error), "create one: intellect-node keys new") from error
    mode = status.st_mode & 0o777
    shared_with_others = 0o077
    if mode & shared_with_others:
        raise KeyError_(f"the key {path} is exposed", f"mode {mode:04o} lets others read it", f"chmod 600 {path}")
    if status.st_uid not in (os.getuid(), 0):
        raise KeyError_(f"the key {path} is another user's", f"user {status.st_uid} owns it", f"chown $USER {path}")


def read_password(password: str | None, file: Path | None, state_dir: Path) -> str:
    """The password from the setting, the file, or a random one kept beside the key (mode 0600). None is made where
    there is a key already: it would not open it. Raises KeyError_."""
    if password:
        return password
    path = file or state_dir / "password"
    if file is None and not path.exists():
        if keys := sorted(state_dir.glob("*-key.json")):
            raise KeyError_(
                f"no password for the key {keys[0]}",
                f"{path} is not there any more, and no other was given",
                "restore the file, give --password-file, or set INTELLECT_NODE_PASSWORD",
            )
        write_private(path, f"random-{secrets.token_urlsafe(24)}")
    return read_password_file(path)


def read_password_file(path: Path) -> str:
    """The text of a private file, without white space around it. Raises KeyError_."""
    require_private(path)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_PASSWORD_FILE).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise KeyError_(f"cannot read the password in {path}", str(error), "write it anew") from error
    password = text.strip()
    if not password:
        raise KeyError_(f"no password in {path}", "the file is empty", "write the password into it")
    return password


def _excessive(data: dict[str, Any]) -> str | None:
    """Why a keystore's parameters are not worth trying; None if they are. data: `_lowered`."""
    if data.get("version") != 3:
        return f"its version is {str(data.get('version'))[:20]}, not 3"  # version 4 has its parameters elsewhere
    crypto = data.get("crypto")
    params = crypto.get("kdfparams") if isinstance(crypto, dict) else None
    if not isinstance(params, dict):
        return None  # opening it will say what is missing
    numbers: dict[str, int] = {}
    for name in ("n", "r", "p", "c", "dklen"):
        value = params.get(name, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            return "its key derivation has impossible parameters"
        numbers[name] = value
    n, r, p = numbers["n"], numbers["r"], numbers["p"]
    if 128 * n * r > MAX_SCRYPT_BYTES or n * r * p > MAX_SCRYPT_WORK:
        return f"its scrypt asks for {128 * n * r >> 20} MiB of memory and {p} rounds"
    if numbers["c"] > MAX_PBKDF2_ROUNDS or numbers["dklen"] > 1024:
        return "its key derivation asks for too much work"
    return None
