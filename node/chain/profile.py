"""A network profile: which chain, where its contracts lie, and how to reach it. TOML, read strictly."""

import difflib
import ipaddress
import json
import tomllib
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from contracts.bindings import NOBODY, Addresses
from node.addresses import is_public
from node.chain.errors import ProfileError
from node.chain.invitations import MAX_INVITATIONS, Invited, checked
from node.state.files import write_whole
from protocol.errors import IntellectError
from protocol.identity import parse_address

LOCAL = "local"
MAX_PROFILE_BYTES = 64 * 1024
MAX_RPC_URLS = 16
MAX_BOOTNODES = 32
MAX_CONFIRMATIONS = 1_000
MAX_FEE_GWEI = 1e6
SHIPPED = Path(__file__).resolve().parent / "networks"
"""Networks that come with the program; `contract deploy` writes a copy with addresses into the user's own.
None has addresses itself: whose contracts to trust is the user's decision."""
NOWHERE = Addresses(**dict.fromkeys(Addresses.__struct_fields__, NOBODY))
"""The contracts of a network where they are not deployed yet."""
Finality = Literal["latest", "safe", "finalized"]


class NetworkProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One network.

    confirmations: blocks on top of an event's or a receipt's before it counts; finality: events are delivered
    up to the chain's block of that name; l1_fees: whether the chain takes a fee for its data beside the gas (OP
    stack); max_fee_gwei: of the chain's coin per gas, the most that is ever paid; window_seconds: of a pool
    for which nothing else is said; deployed_block: where the contracts' logs start; explorer: a URL prefix or None;
    bootnodes: multiaddrs of members that are dialled whatever the chain says; coin: where its coin is had, for people;
    invitations: into its pool.
    """

    name: str
    chain_id: int
    rpc_urls: tuple[str, ...]
    contracts: Addresses = NOWHERE
    pool: int | None = None
    confirmations: int = 0
    finality: Finality = "latest"
    l1_fees: bool = False
    max_fee_gwei: float = 100.0
    explorer: str | None = None
    window_seconds: int = 86_400
    deployed_block: int = 0
    bootnodes: tuple[str, ...] = ()
    coin: str = ""
    invitations: tuple[Invited, ...] = ()

    @property
    def deployed(self) -> bool:
        """Whether the profile knows where the contracts lie."""
        return self.contracts != NOWHERE

    @property
    def lan(self) -> bool:
        """Whether the chain itself is on this machine or in a private network, and so, it may be, are its members."""
        return all(is_near(urlsplit(url).hostname or "") for url in self.rpc_urls)

    def link(self, kind: Literal["tx", "address"], name: str) -> str | None:
        """Where a browser shows a transaction or an address; None where the network has no explorer."""
        return f"{self.explorer.rstrip('/')}/{kind}/{name}" if self.explorer else None


def is_near(host: str) -> bool:
    try:
        return not is_public(ipaddress.ip_address(host))
    except ValueError:
        return host == "localhost"


def user_profile_path(name: str, home: Path) -> Path:
    """Where a user's own profile of a network lies."""
    return home / "networks" / f"{name}.toml"


def local_profile_path(home: Path) -> Path:
    """Where `devnet up` leaves the profile of the local chain."""
    return user_profile_path(LOCAL, home)


def network_names(home: Path) -> list[str]:
    """Every network that a name stands for: the user's own, and those that come with the program."""
    return sorted({path.stem for folder in (home / "networks", SHIPPED) for path in folder.glob("*.toml")})


def profile_path(name_or_path: str | Path, *, home: Path) -> Path | None:
    """The file that a name or path stands for: a path as it is, a name as the user's own file, else the
    shipped one; None for an unknown name.
    """
    text = str(name_or_path)
    if _is_path(text):
        return Path(text)
    candidates = (user_profile_path(text, home), SHIPPED / f"{text}.toml")
    return next((path for path in candidates if path.is_file()), None)


def spelled(network: str) -> str:
    """A name or path as it is understood in any directory."""
    return str(Path(network).absolute()) if _is_path(network) else network


def _is_path(network: str) -> bool:
    return "/" in network or network.endswith(".toml")


def load_profile(name_or_path: str | Path, *, home: Path, deployed: bool = True) -> NetworkProfile:
    """A profile by file, or by name from home/networks/<name>.toml or from those that come with the program.

    deployed: refuse a network whose contracts' addresses are not known. Raises ProfileError.
    """
    path, text = profile_path(name_or_path, home=home), str(name_or_path)
    if text == LOCAL and deployed and not user_profile_path(LOCAL, home).is_file():
        missing = user_profile_path(LOCAL, home)
        raise ProfileError("there is no local chain", f"{missing} does not exist", "run: intellect-node devnet up")
    if path is None:
        known = ", ".join(network_names(home))
        near = difflib.get_close_matches(text, network_names(home), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        why = f"{user_profile_path(text, home)} does not exist"
        raise ProfileError(f"there is no network {text!r}", why, f"{hint}use one of: {known}; or give a file's path")
    profile = read_profile(path)
    if deployed and not profile.deployed:
        raise ProfileError(
            f"the contracts are not on {profile.name}",
            f"{path} has no [contracts]",
            f"deploy them (intellect-node contract deploy --network {text}), or use the profile of who did",
        )
    return profile


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
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _broken(path, str(error)) from error
    readable = 1  # version of profiles
    if (version := table.pop("version", readable)) != readable:
        why = f"it says version {str(version)[:40]}, and this program reads version {readable}"
        remedy = "use a program of that version, or ask for a profile of this one"
        raise ProfileError(f"the network profile {path} is of another version", why, remedy)
    # Before the conversion, which refuses unknown keys as well, but names no near one.
    _refuse_unknown(path, table, NetworkProfile, "")
    if isinstance(table.get("contracts"), dict):
        _refuse_unknown(path, table["contracts"], Addresses, "contracts.")
    for one in invited if isinstance(invited := table.get("invitations"), list) else ():
        if isinstance(one, dict):
            _refuse_unknown(path, one, Invited, "invitations.")
    try:
        return _checked(msgspec.convert(table, NetworkProfile))
    except (msgspec.ValidationError, IntellectError, ValueError) as error:
        raise _broken(path, str(error)) from error


def write_profile(path: Path, profile: NetworkProfile) -> None:
    """Write a profile that `read_profile` reads back, replacing the file in one step."""
    plain = {key: value for key, value in msgspec.to_builtins(profile).items() if value not in (None, (), "")}
    contracts, invitations = plain.pop("contracts"), plain.pop("invitations", ())
    lines = [f"{key} = {_toml(value)}" for key, value in plain.items()]
    if profile.deployed:
        known = {key: value for key, value in contracts.items() if value != NOBODY}
        lines += ["", "[contracts]", *(f"{key} = {_toml(value)}" for key, value in known.items())]
    for one in invitations:
        lines += ["", "[[invitations]]", *(f"{key} = {_toml(value)}" for key, value in one.items() if value != "")]
    raw = ("\n".join(lines) + "\n").encode()
    # Whoever reads a key in it may join by it.
    write_whole(path, raw, mode=0o600 if any(one.key for one in profile.invitations) else 0o666)


def _checked(profile: NetworkProfile) -> NetworkProfile:
    if not 1 <= len(profile.rpc_urls) <= MAX_RPC_URLS:
        raise ValueError(f"rpc_urls must have 1 to {MAX_RPC_URLS} entries")
    for url in profile.rpc_urls:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ValueError(f"{url!r} in rpc_urls is not an http(s) URL")
    if len(profile.bootnodes) > MAX_BOOTNODES:
        raise ValueError(f"bootnodes must have at most {MAX_BOOTNODES} entries")
    if profile.chain_id <= 0 or profile.deployed_block < 0:
        raise ValueError("chain_id must be positive, deployed_block not negative")
    if not 0 <= profile.confirmations <= MAX_CONFIRMATIONS:
        raise ValueError(f"confirmations must be 0 to {MAX_CONFIRMATIONS}")
    if not 0 < profile.max_fee_gwei <= MAX_FEE_GWEI:
        raise ValueError(f"max_fee_gwei must be above 0 and at most {MAX_FEE_GWEI:g}")
    if profile.explorer is not None and urlsplit(profile.explorer).scheme not in ("http", "https"):
        raise ValueError(f"explorer {profile.explorer!r} is not an http(s) URL")
    if len(profile.invitations) > MAX_INVITATIONS:
        raise ValueError(f"invitations must have at most {MAX_INVITATIONS} entries")
    invitations = tuple(checked(one) for one in profile.invitations)
    parsed = {name: parse_address(getattr(profile.contracts, name)) for name in Addresses.__struct_fields__}
    return msgspec.structs.replace(profile, contracts=Addresses(**parsed), invitations=invitations)


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
