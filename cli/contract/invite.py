"""`contract pool invite|invitations|revoke`: a manager lets people into a pool by invitation.

Signing sends nothing: an invitation is a file, a network profile that `join` reads. What was signed is kept in the
home directory, so that it can be listed and taken back; the chain alone knows which places are taken.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import msgspec
import typer

from cli.contract.frame import CommandPlan, Network, Rows, pool_app, profile_of, question, read, step, transaction
from cli.contract.pool import Pool
from cli.contract.values import MAX_BYTES, MAX_POOL, Moment, address, when_option
from cli.errors import CHAIN, USAGE, CommandError
from cli.keyring import open_node_key, open_signer
from cli.output import AsJson, clean, console, date, ether, print_json
from cli.places import state_dir_option
from node.state.files import write_whole

if TYPE_CHECKING:
    from contracts.bindings import PoolInfo
    from node.chain.client import ChainClient
    from node.chain.profile import NetworkProfile
    from protocol.identity import Address

MAX_PLACES = 10_000
MAX_RECORD = 4 * 1024 * 1024


class Issued(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An invitation that was signed here. whose: as the list names them, or the file that anybody may use."""

    invitee: str
    places: int
    deadline: int
    whose: str


class InviteMistake(msgspec.Struct, frozen=True):
    """line: of the list, counted from one."""

    line: int
    what: str
    remedy: str


@pool_app.command(
    "invite",
    epilog="Examples:  intellect-node contract pool invite 7 --bearer 20 --until 2026-12-24 --out theirs.toml "
    "--state-dir nodes/trainer   |   "
    "intellect-node contract pool invite 7 --list people.csv --out theirs.toml --network base --key manager",
)
def invite(
    pool: Annotated[
        int | None, typer.Argument(min=1, max=MAX_POOL, help="The pool's number. Default: the profile's.")
    ] = None,
    who: Annotated[
        list[Any] | None,
        typer.Argument(parser=address, metavar="ADDRESS", help="Whom: a node, or the provider of nodes."),
    ] = None,
    people: Annotated[
        Path | None, typer.Option("--list", help="Whom: a CSV file, a line each: address, and a name for you.")
    ] = None,
    bearer: Annotated[
        int | None, typer.Option(min=1, max=MAX_PLACES, help="Instead: so many nodes of whoever has the file.")
    ] = None,
    places: Annotated[int, typer.Option(min=1, max=MAX_PLACES, help="Nodes that each address may bring.")] = 1,
    until: Annotated[Moment, when_option("Until when: +7d, a date, or unix seconds.")] = "+7d",  # type: ignore[assignment]
    out: Annotated[Path, typer.Option(help="The file for them, a network profile: join FILE.")] = Path("theirs.toml"),
    rpc_url: Annotated[
        list[str] | None, typer.Option(help="The chain's endpoint for them; repeatable. Default: yours without a key.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="The manager's keystore: a file or a name.")] = None,
    state_dir: Annotated[Path | None, state_dir_option("Instead: the manager's state directory.")] = None,
    network: Network = "local",
    password_file: Annotated[Path | None, typer.Option("--password-file", help="Password (mode 0600).")] = None,
    as_json: AsJson = False,
) -> None:
    """As the manager of a pool by invitation: sign a file with which others join. Sends nothing.

    They type `intellect-node join theirs.toml`. Each place lets in one node. Take it back with `pool revoke`.
    """
    from node.chain.invitations import MAX_INVITATIONS, bearer_key, invite
    from node.chain.profile import write_profile
    from protocol.identity import NodeKey
    from protocol.statements import Domain

    if (key is None) == (state_dir is None):
        raise CommandError("who invites?", "give --key or --state-dir, one of them", "see --help", USAGE)
    if sum((bool(who), people is not None, bearer is not None)) != 1:
        raise CommandError("whom?", "give addresses, --list or --bearer, one of them", "see --help", USAGE)
    if out.exists():
        raise CommandError(f"{out} is there already", "it may be somebody's invitation", "name another --out", USAGE)
    profile = profile_of(network)
    pool = pool or profile.pool
    if pool is None:
        raise CommandError("into which pool?", f"the profile of {network} names none", "give its number", USAGE)
    endpoints = _for_others(profile, rpc_url or ())

    async def look(chain: "ChainClient") -> tuple["PoolInfo", int, int]:
        return await chain.pool(pool), (await chain.block()).timestamp, await chain.required_stake(_nobody(), 1)

    info, now, stake = read(network, look)
    # From the chain's clock, by which the contract judges; this machine's may be wrong.
    deadline = until(now)
    _check_pool(info, deadline, now)
    named: list[tuple[Address, str]] = [(one, "") for one in dict.fromkeys(who or ())]
    if people is not None:
        named, mistakes = read_people(_text_of(people), info, MAX_INVITATIONS)
        if mistakes:
            raise _tell(people, mistakes, as_json=as_json)
    signer = open_signer(key, password_file) if key else open_node_key(state_dir or Path(), password_file)
    if info.manager != signer.address:
        why = f"the manager of pool {pool} is {info.manager}, the key is {signer.address}"
        raise CommandError("only the manager can invite", why, "use the manager's key")
    domain = Domain(profile.chain_id, profile.contracts.swarm)
    if bearer is not None:
        secret = bearer_key()
        ticket = NodeKey(bytes.fromhex(secret))
        invited = [invite(signer, domain, pool, ticket.address, bearer, deadline, key=secret)]
        named = [(ticket.address, f"whoever has {out.name}")]
    else:
        invited = [invite(signer, domain, pool, one, places, deadline) for one, _ in named]
    theirs = msgspec.structs.replace(profile, rpc_urls=endpoints, pool=pool, invitations=tuple(invited))
    signed = zip(invited, named, strict=True)
    _remember(profile, pool, [Issued(one.invitee, one.places, deadline, whose) for one, (_, whose) in signed])
    write_profile(out, theirs)
    total = sum(one.places for one in invited)
    if as_json:
        facts = {"pool": pool, "file": str(out), "places": total, "deadline": deadline, "stake_wei": str(stake)}
        print_json(facts | {"invitees": [one.invitee for one in invited], "rpc_urls": list(endpoints)})
        return
    whom = f"{total} node(s) of {'whoever has it' if bearer else f'{len(invited)} address(es)'}"
    for line in (
        f"{out} lets into pool {pool}: {whom}, until {date(deadline)}. Nothing was sent.",
        f"Send it to them. Each types:  intellect-node join {out.name}",
        f"and needs {ether(stake)} tokens of stake for a node, and coin for gas; their `join` says what is missing.",
        f"look:  intellect-node contract pool invitations {pool} --network {network}",
        *(["The pool is paused: nobody joins before `pool resume`."] if info.paused else []),
    ):
        console().print(clean(line, 400), markup=False, soft_wrap=True)


def _nobody() -> "Address":
    from contracts.bindings import NOBODY

    return NOBODY


def _check_pool(info: "PoolInfo", deadline: int, now: int) -> None:
    """Nothing is signed that could let in nobody, or that nobody needs."""
    if info.ended:
        raise CommandError(f"pool {info.id} has ended", "nobody can join it any more", "open a new pool", CHAIN)
    if not info.invited:
        remedy = "tell them to join: intellect-node join; a pool by invitation is opened with `pool create --invited`"
        raise CommandError(f"pool {info.id} is open", "whoever has a stake joins it uninvited", remedy, CHAIN)
    if deadline <= now:
        why = f"--until is {date(deadline)}, and the chain's clock shows {date(now)}"
        raise CommandError("the invitation would be over already", why, "give a later time, e.g. --until +7d", USAGE)


# The list


def _text_of(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            raw = opened.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise CommandError(f"{file} is too long", f"more than {MAX_BYTES} bytes", "split it into several", USAGE)
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise CommandError(f"cannot read {file}", error.strerror or str(error), "check the path", USAGE) from None
    except UnicodeDecodeError as error:
        raise CommandError(f"{file} is no text", str(error), "save it as CSV in UTF-8", USAGE) from None


def read_people(text: str, pool: "PoolInfo", most: int) -> "tuple[list[tuple[Address, str]], list[InviteMistake]]":
    """Whom a list names, with what it calls them, and all its mistakes. Pure. A first line without an address is a
    heading; lines that begin with # and empty ones are passed over."""
    found: dict[Address, tuple[int, str]] = {}
    mistakes: list[InviteMistake] = []
    first = next(iter(text.splitlines()), "")
    rows = csv.reader(text.splitlines(), delimiter=";" if first.count(";") > first.count(",") else ",")
    try:
        for row in rows:
            line, cells = rows.line_num, [cell.strip() for cell in row]
            if not any(cells) or cells[0].startswith("#") or (line == 1 and "0x" not in "".join(cells)):
                continue
            _take(line, cells, pool, found, mistakes)
    except csv.Error as error:
        mistakes.append(InviteMistake(rows.line_num, f"no CSV: {error}", "save it as CSV in UTF-8"))
    if not found and not mistakes:
        mistakes.append(InviteMistake(1, "the list names nobody", "a line for each: 0xADDRESS, and a name if you like"))
    if len(found) > most:
        what = f"{len(found)} addresses; a file carries at most {most}"
        mistakes.append(InviteMistake(rows.line_num, what, "split the list, or invite by --bearer"))
    return [(who, name) for who, (_, name) in found.items()], mistakes


def _take(
    line: int,
    cells: list[str],
    pool: "PoolInfo",
    found: "dict[Address, tuple[int, str]]",
    mistakes: list[InviteMistake],
) -> None:
    place = next((number for number, cell in enumerate(cells) if cell.lower().startswith("0x")), 0)
    try:
        who = address(cells[place])
    except CommandError as error:
        mistakes.append(InviteMistake(line, f"{error.what}: {error.why}", error.remedy))
        return
    name = clean(", ".join(cell for number, cell in enumerate(cells) if number != place and cell), 80)
    if who in found:
        mistakes.append(InviteMistake(line, f"{who} stands in line {found[who][0]} already", "take one of the two out"))
    elif who == _nobody():
        mistakes.append(InviteMistake(line, f"{who} is nobody's address", "write that of a node or a provider"))
    elif who in (pool.manager, *pool.validators):
        what = f"{who} is the pool's own trainer or validator"
        mistakes.append(InviteMistake(line, what, "take it out: it needs no invitation"))
    else:
        found[who] = (line, name)


def _tell(file: Path, mistakes: Sequence[InviteMistake], *, as_json: bool) -> CommandError:
    """Shows every mistake; returns what to end with."""
    if as_json:
        print_json({"mistakes": len(mistakes), "findings": msgspec.to_builtins(list(mistakes))})
    elif len(mistakes) > 1:
        for one in mistakes:
            console().print(f"{file.name}, line {one.line}: {one.what}", markup=False, soft_wrap=True)
            console().print(f"    do: {one.remedy}", markup=False, soft_wrap=True)
    several = f" ({len(mistakes)} mistakes, all above)" if len(mistakes) > 1 else ""
    one = mistakes[0]
    what = f"nobody was invited by {file.name}{several}"
    return CommandError(what, f"line {one.line}: {one.what}", one.remedy, USAGE)


# What others are given


def _for_others(profile: "NetworkProfile", given: Sequence[str]) -> tuple[str, ...]:
    """Endpoints of this chain for other people. Raises CommandError where there is none that has no key in it."""
    from node.chain.profile import SHIPPED, read_profile

    if given:
        return tuple(given)
    own = tuple(url for url in profile.rpc_urls if not is_private(url) or profile.lan)
    if own:
        return own
    for file in sorted(SHIPPED.glob("*.toml")):
        shipped = read_profile(file)
        if shipped.chain_id == profile.chain_id:
            return shipped.rpc_urls
    raise CommandError(
        "which endpoint of the chain shall they ask?",
        "each of yours is on this machine, or has what looks like a key in it",
        "give one that may be known to all: --rpc-url https://...",
        USAGE,
    )


def is_private(url: str) -> bool:
    """Whether an endpoint is not for other people: a key stands in it, or it is near this machine. Pure."""
    from node.chain.profile import is_near

    parts = urlsplit(url)
    if parts.username or parts.password or parts.query or is_near(parts.hostname or ""):
        return True
    # A part of a URL's path that is as long is taken for a key.
    return any(len(part) >= 16 for part in parts.path.split("/"))


# What was signed, and what became of it


def _record(profile: "NetworkProfile", pool: int) -> Path:
    from node.config import default_home

    return default_home() / "invitations" / f"{profile.chain_id}-{profile.contracts.swarm}-{pool}.json"


def _issued(profile: "NetworkProfile", pool: int) -> list[Issued]:
    """What this user has signed for a pool."""
    path = _record(profile, pool)
    if not path.exists():
        return []
    try:
        if path.stat().st_size > MAX_RECORD:
            raise msgspec.DecodeError(f"it has more than {MAX_RECORD} bytes")
        return msgspec.json.decode(path.read_bytes(), type=list[Issued])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        remedy = "set it aside; invitations are then taken back by their file: contract pool revoke --file"
        raise CommandError(f"{path} is no list of invitations", str(error), remedy) from None


def _remember(profile: "NetworkProfile", pool: int, more: list[Issued]) -> None:
    """Before the file is written: what others may have can be taken back."""
    path = _record(profile, pool)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(path, msgspec.json.encode([*_issued(profile, pool), *more]), mode=0o600)


@question(pool_app, "invitations", example="pool invitations 7 --network base-sepolia")
async def invitations(chain: "ChainClient", pool: Pool) -> tuple[dict[str, Any], Rows]:
    """What you have signed for a pool by invitation: for whom, how many places are taken, until when."""
    now, facts = (await chain.block()).timestamp, list[dict[str, Any]]()
    for one in _issued(chain.profile, pool):
        taken = await _taken(chain, pool, one.invitee)
        facts.append(msgspec.to_builtins(one) | {"taken": taken, "state": _state(one, taken, now)})
    lines = [
        f"{one['invitee']}  {_of(one)}, until {date(one['deadline'])}  {one['state']}  {one['whose']}".rstrip()
        for one in facts
    ]
    return {"pool": pool, "invitations": facts}, lines or [f"nobody was invited into pool {pool} from this machine"]


def _of(one: dict[str, Any]) -> str:
    return f"{one['taken']} of {one['places']}" if one["taken"] is not None else f"of {one['places']}"


def _state(one: Issued, taken: int | None, now: int) -> str:
    if taken is None:
        return "taken back"
    if taken >= one.places:
        return "used up"
    return "over" if now > one.deadline else "open"


async def _taken(chain: "ChainClient", pool: int, invitee: Any) -> int | None:
    """Places of an invitation; None of one that was taken back."""
    from contracts.bindings import REVOKED

    taken = await chain.ask("read an invitation", lambda contracts: contracts.places_taken(pool, invitee))
    return None if taken == REVOKED else taken


@transaction(pool_app, "revoke", example="pool revoke 7 --file theirs.toml --network base-sepolia --key manager")
async def revoke(
    chain: "ChainClient",
    me: "Address",
    pool: Pool,
    who: Annotated[
        list[Any] | None, typer.Argument(parser=address, metavar="ADDRESS", help="As `pool invitations` has it.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Those in this file.")] = None,
    everyone: Annotated[bool, typer.Option("--all", help="All that you have signed and that are open.")] = False,
) -> CommandPlan:
    """As the manager: take invitations back. Who came by them stays."""
    from node.chain.profile import read_profile

    named = list(who or ())
    if file is not None:
        named += [one.invitee for one in read_profile(file).invitations if one.pool == pool]
    now = (await chain.block()).timestamp
    issued = _issued(chain.profile, pool) if everyone else []
    named += [one.invitee for one in issued if _state(one, await _taken(chain, pool, one.invitee), now) == "open"]
    left = [one for one in dict.fromkeys(named) if await _taken(chain, pool, one) is not None]
    if not left:
        why = "all of them were taken back before" if named else "none was named, or none is open"
        raise CommandError("there is nothing to take back", why, f"look: contract pool invitations {pool}", USAGE)
    info = await chain.pool(pool)
    if info.manager != me:
        why = f"the manager of pool {pool} is {info.manager}, the key is {me}"
        raise CommandError("only the manager can take invitations back", why, "use the manager's key")
    says = f"{len(left)} invitation(s) into pool {pool} let nobody in any more; who came by them stays; no money moves"
    call = chain.contracts.revoke_invitations(pool, left)
    return CommandPlan(
        says, f"{len(left)} invitation(s) into pool {pool} are taken back", [step("revoke invitations", call)]
    )
