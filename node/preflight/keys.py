"""The node's key and its directory: there, private, and opened by the password. Blocking: scrypt takes a second."""

import os
from pathlib import Path

from node.errors import KeyError_
from node.preflight.finding import Finding, failure, ok, warning
from node.state.keystore import claimed_address, load_key, read_keystore, read_password

NODE_KEY = "node-key.json"


def check_keys(directory: Path, password: str | None, password_file: Path | None) -> list[Finding]:
    """The key is opened where its password can be had; one that is missing is made by `join`."""
    if not directory.is_dir():
        return [ok("keys", f"join makes the node's key in {directory}", path=str(directory))]
    found = [_check_directory(directory)]
    path = directory / NODE_KEY
    if not path.exists():
        return [*found, ok("keys", f"join makes the node's key {path}", path=str(path))]
    return [*found, _check_key(path, password, password_file)]


def _check_directory(directory: Path) -> Finding:
    status = directory.stat()
    mode, data = status.st_mode & 0o777, {"mode": f"{status.st_mode & 0o777:04o}", "path": str(directory)}
    if status.st_uid not in (os.getuid(), 0):
        return failure("directory", f"{directory} belongs to user {status.st_uid}", f"chown $USER {directory}", **data)
    if mode & 0o022:
        return warning("directory", f"others may write in {directory}", f"chmod 700 {directory}", **data)
    return ok("directory", f"{directory} is this user's", **data)


def _check_key(path: Path, password: str | None, password_file: Path | None) -> Finding:
    try:
        claimed = claimed_address(read_keystore(path)) or ""
        if password or password_file or (path.parent / "password").exists():
            claimed = load_key(path, read_password(password, password_file, path.parent)).address
        else:
            remedy = "give --password-file, or set INTELLECT_NODE_PASSWORD"
            return failure("keys", f"no password for {path}", remedy, address=claimed)
    except (KeyError_, ValueError) as error:
        remedy = error.remedy if isinstance(error, KeyError_) else "restore the file from your backup"
        return failure("keys", f"{path}: {error.why if isinstance(error, KeyError_) else error}", remedy)
    return ok("keys", f"{path} opens as {claimed}", address=claimed)
