"""A network profile: which chain, where its contracts lie, and how to reach it. TOML, read strictly."""

import difflib
import json
import os
import secrets
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from contracts.bindings import Addresses
from node.chain.errors import ProfileError
from protocol.errors import IntellectError
from protocol.identity import parse_address

LOCAL = "local"
MAX_PROFILE_BYTES = 64 * 1024
MAX_RPC_URLS = 16


class NetworkProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One network. confirmations: blocks on top before an event counts; window_seconds: of its pools, as a
    hint for people; deployed_block: where the contracts' logs start; explorer: a URL prefix or None.
    """

    name: str
    chain_id: int
    rpc_urls: tuple[str, ...]
    contracts: Addresses
    pool: int | None = None
    confirmations: int = 0
    explorer: str | None = None
    window_seconds: int = 86_400
    deployed_block: int = 0


def local_profile_path(home: Path) -> Path:
    """Where `devnet up` leaves the profile of the local chain."""
    return home / "networks" / f"{LOCAL}.toml"


def load_profile(name_or_path: str | Path, *, home: Path) -> NetworkProfile:
    """A profile by file, or by name from home/networks/<name>.toml. Raises ProfileError."""
    text = str(name_or_path)
    if "/" in text or text.endswith(".toml"):
        return read_profile(Path(text))
    path = home / "networks" / f"{text}.toml"
    if path.is_file():
        return read_profile(path)
    if text == LOCAL:
        raise ProfileError("there is no local chain", f"{path} does not exist", "run: intellect-node devnet up")
    known = sorted(entry.stem for entry in (home / "networks").glob("*.toml"))
    raise ProfileError(
        f"there is no network {text!r}",
        f"{path} does not exist",
        f"use one of: {', '.join(known)}" if known else "give the path of a network profile",
    )


def read_profile(path: Path) -> NetworkProfile:
    """Parse one file; raises ProfileError with the nearest right name for an unknown key."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ProfileError(
            f"cannot read the network profile {path}", error.strerror or str(error), "check the path"
        ) from error
    if len(raw) > MAX_PROFILE_BYTES:
        raise _broken(path, f"it has {len(raw)} bytes")
    try:
        table = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _broken(path, str(error)) from error
    _refuse_unknown(path, table, NetworkProfile, "")
    if isinstance(table.get("contracts"), dict):
        _refuse_unknown(path, table["contracts"], Addresses, "contracts.")
    try:
        return _checked(msgspec.convert(table, NetworkProfile))
    except (msgspec.ValidationError, IntellectError, ValueError) as error:
        raise _broken(path, str(error)) from error


def write_profile(path: Path, profile: NetworkProfile) -> None:
    """Write a profile that `read_profile` reads back, replacing the file in one step."""
    plain = {key: value for key, value in msgspec.to_builtins(profile).items() if value is not None}
    contracts = plain.pop("contracts")
    lines = [f"{key} = {_toml(value)}" for key, value in plain.items()]
    lines += ["", "[contracts]", *(f"{key} = {_toml(value)}" for key, value in contracts.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    partial.write_text("\n".join(lines) + "\n")
    os.replace(partial, path)


def _checked(profile: NetworkProfile) -> NetworkProfile:
    if not 1 <= len(profile.rpc_urls) <= MAX_RPC_URLS:
        raise ValueError(f"rpc_urls must have 1 to {MAX_RPC_URLS} entries")
    for url in profile.rpc_urls:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ValueError(f"{url!r} in rpc_urls is not an http(s) URL")
    if profile.chain_id <= 0 or profile.confirmations < 0 or profile.deployed_block < 0:
        raise ValueError("chain_id must be positive; confirmations and deployed_block not negative")
    c = profile.contracts
    addresses = Addresses(token=parse_address(c.token), vault=parse_address(c.vault), swarm=parse_address(c.swarm))
    return msgspec.structs.replace(profile, contracts=addresses)


def _refuse_unknown(path: Path, table: dict[str, Any], kind: type[msgspec.Struct], prefix: str) -> None:
    known = kind.__struct_fields__
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known: {', '.join(known)}"
            raise ProfileError(
                f"unknown key {prefix}{key} in {path}", f"no setting has that name; {hint}", "correct it"
            )


def _broken(path: Path, why: str) -> ProfileError:
    return ProfileError(f"the network profile {path} cannot be used", why, "correct the file, or write it anew")


def _toml(value: Any) -> str:
    # JSON's strings, numbers and arrays are TOML's too
    return json.dumps(value)
