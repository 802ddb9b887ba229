"""Earnings: the table that a quorum signed, putting it on chain, and claiming what a node's line says; after a pool's
end, filing and redeeming what no table has."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from cli.contract.frame import CommandPlan, OnlyPool, Rows, app, earnings_app, question, step, transaction, when
from cli.contract.pool import Pool
from cli.contract.values import MAX_EPOCH, MAX_POOL, MAX_TOTAL, address, read_json
from cli.errors import CHAIN, CommandError
from cli.events import events_of, pool_topics
from cli.output import duration, ether
from cli.places import chosen_directory, state_dir_option

if TYPE_CHECKING:
    from contracts.bindings import WaitingEarnings
    from node.chain.client import ChainClient
    from node.state.earned import OwnLine
    from protocol.filing import Filing
    from protocol.identity import Address

Node = Annotated[Any, typer.Argument(parser=address, metavar="NODE", help="The node's address.")]
FORM = "see docs/contracts-cli.md for the form of tables and lines"
Word = Annotated[str, msgspec.Meta(pattern="^(0x)?[0-9a-fA-F]{64}$")]
Signature = Annotated[str, msgspec.Meta(pattern="^(0x)?[0-9a-fA-F]{130}$")]
Total = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOTAL)]


class SignedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of earnings with a quorum's signatures, as validators hand it out."""

    pool: Annotated[int, msgspec.Meta(ge=1, le=MAX_POOL)]
    epoch: Annotated[int, msgspec.Meta(ge=0, le=MAX_EPOCH)]
    number: Annotated[int, msgspec.Meta(ge=0, le=MAX_EPOCH)]
    root: Word
    total: Total
    blob: Word
    signatures: Annotated[tuple[Signature, ...], msgspec.Meta(min_length=1, max_length=16)]


class ClaimLine(msgspec.Struct, frozen=True):
    """A node's line of the newest table. units: since the pool began; proof: from it to the table's root."""

    units: Total
    proof: Annotated[tuple[Word, ...], msgspec.Meta(max_length=32)]


class ShownLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node's line under a validator's root. seat: the validator's place on its bench; proof: up to the root."""

    seat: Annotated[int, msgspec.Meta(ge=0, le=255)]
    number: Annotated[int, msgspec.Meta(ge=0, le=MAX_EPOCH)]
    root: Word
    total: Total
    blob: Word
    signature: Signature
    units: Total
    proof: Annotated[tuple[Word, ...], msgspec.Meta(max_length=32)]


class ShownFiling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a quorum named of a node in one epoch. bench: the number of the one that sat when the epoch began."""

    epoch: Annotated[int, msgspec.Meta(ge=0, le=MAX_EPOCH)]
    bench: Annotated[int, msgspec.Meta(ge=1, lt=2**32)]
    threshold: Annotated[int, msgspec.Meta(ge=1, le=255)]
    validators: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=16)]
    lines: Annotated[tuple[ShownLine, ...], msgspec.Meta(min_length=1, max_length=256)]


class ShownFilings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a node can file, as `earnings filing` writes it."""

    pool: Annotated[int, msgspec.Meta(ge=1, le=MAX_POOL)]
    node: str
    filings: Annotated[tuple[ShownFiling, ...], msgspec.Meta(min_length=1, max_length=4096)]


@question(earnings_app, "show", example="earnings show 7 0xNode --network base-sepolia --json")
async def show(
    chain: "ChainClient",
    pool: Pool,
    node: Annotated[
        Any, typer.Argument(parser=address, metavar="[NODE]", help="A node's address: show what it was paid, too.")
    ] = None,
) -> tuple[dict[str, Any], Rows]:
    """The newest table of earnings of a pool: until which epoch, how much, what is owed; and what a node was paid.

    Also the one that waits: what it adds, until when it can be held, and whether it is. Of a pool that has ended: until
    when what no table has can be filed, from when it is redeemed, and what the node filed.
    """
    info, posted, now = await chain.pool(pool), await chain.earnings(pool), (await chain.block()).timestamp
    waiting = await chain.waiting(pool)
    paid = await chain.claimed(pool, node) if node else 0
    allowed = await chain.ask("read what a node may claim", lambda c: c.allowance_of(pool, node)) if node else 0
    after = -1 if posted.epoch is None else posted.epoch
    facts: dict[str, Any] = {"pool": pool, "epoch": posted.epoch, "root": posted.root.hex(), "total": posted.total}
    facts |= {"owed_wei": str(info.owed), "free_wei": str(info.escrow), "next_at": info.next_table(after + 1)}
    facts["waiting"] = _waiting(waiting) if waiting else None
    filed = await chain.ask("read what was filed", lambda c: c.filed_by(pool, node)) if node else 0
    facts["filing"] = msgspec.to_builtins(info.filing) if info.ended else None
    facts |= {"node": node, "claimed": paid, "allowed_now": allowed, "filed": filed} if node else {}
    rows: list[tuple[str, Any]] = [("pool", pool)]
    if posted.epoch is None:
        rows.append(("table", "none yet"))
    else:
        rows += [("table", f"through epoch {posted.epoch}: {posted.total:,} units"), ("root", posted.root.hex())]
    rows += [("owed", f"{ether(info.owed)} tokens"), ("free", f"{ether(info.escrow)} tokens")]
    if waiting:
        held = f"the guardian {info.guardian} holds it; " if waiting.held else ""
        more = f"{waiting.total - posted.total:,} units more, through epoch {waiting.epoch}"
        rows.append(("waits", f"{more}; {held}it counts {when(waiting.counts_at, now)}"))
    elif not info.ended or now < info.filing.starts:
        rows.append(("next table", f"of epoch {after + 1}, {when(info.next_table(after + 1), now)} or later"))
    if info.ended:
        times = info.filing
        rows += [("filing", f"of what no table has: {when(times.starts, now)} to {when(times.ends, now)}")]
        rows += [("redeemed", f"{times.filed:,} units, from {when(times.redeems, now)} on")]
    if node and filed:
        rows.append(("filed", f"{filed:,} units of {node}"))
    if node:
        worth = ether(paid * info.reward_per_unit)
        rows += [("node", node), ("claimed", f"{paid:,} units, {worth} tokens"), ("at once", f"{allowed:,} units")]
    return facts, rows


@question(earnings_app, "line", example="earnings line 7 0xNode --state-dir ~/nodes/a --network base-sepolia")
async def line(
    chain: "ChainClient",
    pool: Pool,
    node: Node,
    state_dir: Annotated[
        Path | None,
        state_dir_option("Of any node of the pool: it has the table, of which the chain has the root alone."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File that is written. Default: line-POOL-NODE.json.")] = None,
) -> tuple[dict[str, Any], Rows]:
    """Write a node's line of the newest table, with its proof, for `contract claim`. Of any node, by any member."""
    from node.state.files import write_whole
    from node.state.reader import StateFiles

    directory = chosen_directory(state_dir)
    posted, paid = await chain.earnings(pool), await chain.claimed(pool, node)
    share = StateFiles(directory).share(pool, posted.root, posted.total, node) if posted.total else None
    if share is None:
        through = "there is none" if posted.epoch is None else f"it is through epoch {posted.epoch}"
        raise CommandError(
            f"this node's part of the newest table of pool {pool} is not in {directory}",
            f"{through}, and no daemon has read it here",
            "the node's own daemon reads it as soon as it runs, a validator's all of it: --state-dir",
            CHAIN,
        )
    if not share.units:
        more = f"; {share.rest:,} units are owed, and payable once the pool can" if share.rest else ""
        raise CommandError(
            f"pool {pool} pays {node} nothing now",
            f"all that it had a line for is claimed{more}",
            "see: contract earnings show",
            CHAIN,
        )
    units = share.units
    path = out or Path(f"line-{pool}-{node}.json")
    facts: dict[str, Any] = {"units": units, "proof": ["0x" + word.hex() for word in share.proof]}
    write_whole(path, msgspec.json.encode(facts))
    more = {"pool": pool, "node": node, "claimed": paid, "file": str(path)}
    command = f"intellect-node contract claim {pool} {node} {shlex.quote(str(path))}"
    rows: Rows = [
        ("units", f"{units:,}, of which {paid:,} are claimed"),
        ("written", str(path)),
        f"claim it: {command}",
    ]
    return facts | more, rows


@transaction(earnings_app, "post", example="earnings post table.json --network base-sepolia --key anybody")
async def post(
    chain: "ChainClient",
    me: "Address",
    table: Annotated[
        Path, typer.Argument(metavar="FILE", help="JSON: pool, epoch, number, root, total, blob, signatures")
    ],
) -> CommandPlan:
    """Carry a table of earnings that a quorum signed to the chain. Anybody may. (Validators' daemons do it.)"""
    from node.chain.cases import unhex
    from protocol.statements import Earnings

    given = read_json(table, SignedTable, "cannot be used", FORM)
    info, posted = await chain.pool(given.pool), await chain.earnings(given.pool)
    # Tables count from the pool's beginning: what is new is the difference.
    more = max(given.total - posted.total, 0)
    says = (
        f"{more:,} units, {ether(more * info.reward_per_unit)} tokens of pool {given.pool}, are owed for what was "
        f"earned through epoch {given.epoch}, {duration(info.delay)} from now unless {info.guardian} holds it; then "
        "nodes claim them"
    )
    signatures = [unhex(one) for one in given.signatures]
    said = (given.pool, given.epoch, given.number, unhex(given.root), given.total, unhex(given.blob))
    call = chain.contracts.post_earnings(Earnings(*said), signatures)
    return CommandPlan(
        says, f"the earnings through epoch {given.epoch} are posted", [step("post a table of earnings", call)]
    )


@transaction(earnings_app, "hold", example="earnings hold 7 --network base-sepolia --key guardian")
async def hold(chain: "ChainClient", me: "Address", pool: Pool) -> CommandPlan:
    """As the pool's guardian: have the table that waits decided on by the arbiter. Once a table; silence pays it.

    Where no table may come any more: the same of all that nodes file, once a pool.
    """
    waiting, info, now = await chain.waiting(pool), await chain.pool(pool), (await chain.block()).timestamp
    hours = await chain.ask("read a parameter", lambda c: c.appeal_seconds()) / 3600
    if waiting is None and info.ended and now >= info.filing.starts:
        says = (
            f"what nodes file of pool {pool}, {info.filing.filed:,} units by now, is redeemed {hours:g} h after filing "
            f"is over ({when(info.filing.ends, now)}) at the soonest; until then the arbiter may drop it. Nobody is "
            "punished, and no money moves"
        )
        calls = [step("hold what was filed", chain.contracts.hold(pool))]
        return CommandPlan(says, f"what was filed of pool {pool} is held", calls)
    waiting = await _required(chain, pool)
    says = (
        f"the table through epoch {waiting.epoch} of pool {pool} counts {hours:g} h from now at the soonest; until "
        "then the arbiter may drop it, and who signed it loses its stake. No money moves"
    )
    return CommandPlan(says, f"the table of pool {pool} is held", [step("hold a table", chain.contracts.hold(pool))])


@transaction(earnings_app, "drop", example="earnings drop 7 --network base-sepolia --key arbiter")
async def drop(
    chain: "ChainClient",
    me: "Address",
    pool: Pool,
    filed_by: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE", help="Instead, once filing is over: what this node filed is false; repeatable."),
    ] = None,
) -> CommandPlan:
    """As the arbiter: a table that is held is false. It never counts, and who signed it is slashed.

    With --filed-by: what these nodes filed, which the guardian holds, is false. They are paid none of it, and nobody is
    punished.
    """
    from contracts.bindings import EarningsPosted

    if filed_by:
        nodes = [address(one) for one in filed_by]
        who = ", ".join(nodes)
        says = f"what {who} filed of pool {pool} is not paid; the money stays, and nobody is punished"
        calls = [step("drop what was filed", chain.contracts.drop(pool, nodes))]
        return CommandPlan(says, f"what {len(nodes)} node(s) filed is dropped", calls)
    waiting = await _required(chain, pool)
    posted = [one for one in await events_of(chain, EarningsPosted, *pool_topics(pool)) if one.root == waiting.root]
    if not posted:
        raise CommandError("who signed it is not known", "the endpoint tells no event of it", "use another one", CHAIN)
    signers = posted[-1].signers
    each = await chain.ask("read slashes", lambda contracts: [contracts.slash_of(pool, one) for one in signers])
    lost = [f"{one} (up to {ether(price)} tokens of stake)" for one, price in zip(signers, each, strict=True)]
    says = (
        f"{', '.join(lost)} lose their seats, their memberships and that stake; the table through epoch "
        f"{waiting.epoch} of pool {pool} never counts, and the pool's money stays"
    )
    call = chain.contracts.drop(pool, signers)
    return CommandPlan(says, f"the table of pool {pool} is dropped", [step("drop a table", call)])


async def _required(chain: "ChainClient", pool: int) -> "WaitingEarnings":
    waiting = await chain.waiting(pool)
    if waiting is None:
        raise CommandError(
            f"no table waits in pool {pool}", "what was posted counts", f"see: contract earnings show {pool}", CHAIN
        )
    return waiting


def _waiting(waiting: "WaitingEarnings") -> dict[str, Any]:
    """JSON-ready."""
    facts = {"epoch": waiting.epoch, "root": waiting.root.hex(), "total": waiting.total}
    return facts | {"counts_at": waiting.counts_at, "held": waiting.held}


@transaction(app, "claim", example="claim 7 0xNode line.json --network base-sepolia --key anybody")
async def claim(
    chain: "ChainClient",
    me: "Address",
    pool: Pool,
    node: Node,
    line: Annotated[Path, typer.Argument(metavar="FILE", help="JSON: units and proof, from the newest table.")],
) -> CommandPlan:
    """Pay a node's provider what the newest table owes the node. Anybody may. (The node's daemon does it by itself.)"""
    from node.chain.cases import unhex

    given = read_json(line, ClaimLine, "cannot be used", FORM)
    info, paid = await chain.pool(pool), await chain.claimed(pool, node)
    provider, due = (await chain.node_info(node)).owner, max(given.units - paid, 0)
    # Up to: what a node is paid at once is bounded by its units and the epochs that passed.
    says = f"up to {ether(due * info.reward_per_unit)} tokens of pool {pool} go to {provider}, the provider of {node}"
    call = chain.contracts.claim(pool, node, given.units, [unhex(word) for word in given.proof])
    return CommandPlan(says, f"the pay of {node} is claimed", [step("claim pay", call)])


@question(earnings_app, "filing", example="earnings filing 7 0xNode --state-dir ~/nodes/a --network base-sepolia")
async def filing(
    chain: "ChainClient",
    pool: Pool,
    node: Node,
    state_dir: Annotated[Path | None, state_dir_option("The node's own: it keeps what validators named of it.")] = None,
    out: Annotated[Path | None, typer.Option(help="File that is written. Default: filing-POOL-NODE.json.")] = None,
) -> tuple[dict[str, Any], Rows]:
    """Write what a node can file after its pool's end: what validators named of it in epochs that no table has.

    For `contract earnings file`. (The node's daemon files it by itself, if it runs.)
    """
    from node.state.files import write_whole
    from node.state.reader import StateFiles

    directory = chosen_directory(state_dir)
    info, posted, now = await chain.pool(pool), await chain.earnings(pool), (await chain.block()).timestamp
    _ended(info)
    first, last = 0 if posted.epoch is None else posted.epoch + 1, info.epoch_at(info.stopped_at)
    lines = StateFiles(directory).lines(first, last)
    found = await _filings(chain, info, lines)
    found = [one for one in found if one.units > await _filed(chain, pool, node, one.epoch)]
    if not found:
        raise CommandError(
            f"{node} has nothing to file of pool {pool}",
            f"of epochs {first} to {last} no quorum named works that {directory} has and that are not filed yet",
            "the directory must be the node's own: --state-dir",
            CHAIN,
        )
    path = out or Path(f"filing-{pool}-{node}.json")
    shown = ShownFilings(pool, node, tuple(_shown(one) for one in found))
    write_whole(path, msgspec.json.encode(shown))
    units = sum(one.units for one in found)
    facts = {"pool": pool, "node": node, "units": units, "epochs": [one.epoch for one in found], "file": str(path)}
    command = f"intellect-node contract earnings file {shlex.quote(str(path))}"
    times = info.filing
    rows: Rows = [
        ("units", f"{units:,} of {len(found)} epochs"),
        ("written", str(path)),
        ("filed", f"from {when(times.starts, now)} until {when(times.ends, now)}"),
        f"file it: {command} and the node's or its provider's --key",
    ]
    return facts | {"files_from": times.starts, "files_until": times.ends}, rows


@transaction(earnings_app, "file", example="earnings file filing.json --network base-sepolia --key provider")
async def file(
    chain: "ChainClient",
    me: "Address",
    filing: Annotated[Path, typer.Argument(metavar="FILE", help="As `earnings filing` has written it.")],
) -> CommandPlan:
    """As a node or its provider, after the pool's end: file what validators named and no table has. Redeem it later."""
    from protocol.filing import in_turn

    given = read_json(filing, ShownFilings, "cannot be used", FORM)
    info, now = await chain.pool(given.pool), (await chain.block()).timestamp
    _ended(info)
    times = info.filing
    if not times.starts <= now < times.ends:
        raise CommandError(
            f"nothing can be filed of pool {given.pool} now",
            f"filing begins {when(times.starts, now)} and is over {when(times.ends, now)}",
            "a table that is posted late or held puts it off: contract earnings show",
            CHAIN,
        )
    node, left = address(given.node), [_read(given.pool, one) for one in given.filings]
    units, steps = sum(one.units for one in left), list[Any]()
    while left:
        part = in_turn(left)
        left = left[len(part) :]
        what = f"file {len(part)} epochs from {part[0].epoch} on"
        steps.append(step(what, chain.contracts.file(given.pool, node, part)))
    says = (
        f"{units:,} units of {node} that no table of pool {given.pool} has are filed, up to "
        f"{ether(units * info.reward_per_unit)} tokens; they are redeemed from {when(times.redeems, now)} on. No money "
        "moves"
    )
    return CommandPlan(says, f"{units:,} units are filed", steps)


@transaction(earnings_app, "redeem", example="earnings redeem 7 0xNode --network base-sepolia --key anybody")
async def redeem(chain: "ChainClient", me: "Address", pool: Pool, node: Node) -> CommandPlan:
    """Pay a node's provider what the node filed, or its share of what is free. Anybody may. (Its daemon does.)"""
    info, now = await chain.pool(pool), (await chain.block()).timestamp
    _ended(info)
    filed = await chain.ask("read what was filed", lambda c: c.filed_by(pool, node))
    if not filed:
        why = "it filed nothing, or that was redeemed or dropped"
        raise CommandError(f"{node} has nothing to redeem of pool {pool}", why, "see: contract earnings show", CHAIN)
    if now < info.filing.redeems:
        why = f"all that is filed shares what is free, from {when(info.filing.redeems, now)} on"
        raise CommandError(f"nothing of pool {pool} is redeemed yet", why, "come back then", CHAIN)
    provider = (await chain.node_info(node)).owner
    says = f"up to {ether(filed * info.reward_per_unit)} tokens of pool {pool} go to {provider}, the provider of {node}"
    return CommandPlan(says, f"what {node} filed is redeemed", [step("redeem", chain.contracts.redeem(pool, node))])


def _ended(info: Any) -> None:
    if not info.ended:
        raise CommandError(
            f"pool {info.id} has not ended",
            "as long as tables may come, what validators named goes into the next one",
            f"see: contract earnings show {info.id}",
            CHAIN,
        )


async def _filed(chain: "ChainClient", pool: int, node: "Address", epoch: int) -> int:
    return await chain.ask("read what was filed", lambda c: c.filed_of(pool, node, epoch))


async def _filings(chain: "ChainClient", info: Any, lines: "list[OwnLine]") -> "list[Filing]":
    """What a quorum of the bench of each epoch named."""
    from contracts.bindings import ValidatorsSet
    from protocol.filing import Seated, filings_of, read_line

    events = await events_of(chain, ValidatorsSet, *pool_topics(info.id))
    benches = [
        Seated(number, (await chain.block(one.block)).timestamp, one.threshold, tuple(one.validators))
        for number, one in enumerate(events, 1)
    ]
    read = [read_line(chain.domain, info.id, line.raw, line.units, line.proof) for line in lines]
    return filings_of(read, benches, lambda epoch: info.epoch_end(epoch - 1))


def _shown(filing: "Filing") -> ShownFiling:
    lines = [
        ShownLine(
            line.seat,
            line.root.number,
            line.root.root.hex(),
            line.root.total,
            line.root.blob.hex(),
            line.signature.hex(),
            line.units,
            tuple(word.hex() for word in line.proof),
        )
        for line in filing.lines
    ]
    return ShownFiling(filing.epoch, filing.bench, filing.threshold, filing.validators, tuple(lines))


def _read(pool: int, shown: ShownFiling) -> "Filing":
    from node.chain.cases import unhex
    from protocol.filing import Filing, RootLine
    from protocol.statements import EpochRoot

    lines = [
        RootLine(
            one.seat,
            EpochRoot(pool, shown.epoch, one.number, unhex(one.root), one.total, unhex(one.blob)),
            unhex(one.signature),
            one.units,
            tuple(unhex(word) for word in one.proof),
        )
        for one in shown.lines
    ]
    validators = tuple(address(one) for one in shown.validators)
    return Filing(shown.epoch, shown.bench, shown.threshold, validators, tuple(lines))


@question(app, "rewards", example="rewards 0xAb.. --network base-sepolia --json")
async def rewards(
    chain: "ChainClient",
    who: Annotated[Any, typer.Argument(parser=address, metavar="ADDRESS", help="A node or a provider.")],
    pool: OnlyPool = None,
) -> tuple[dict[str, Any], Rows]:
    """What a node, or all nodes of a provider, were paid, claim by claim, and how far the tables of those pools are.

    The node's own `status` says what is certified and in no table yet.
    """
    entries, now = await claims_of(chain, who, pool), (await chain.block()).timestamp
    pools = sorted({entry["pool"] for entry in entries} | ({pool} if pool is not None else set()))
    tables = [await tables_of(chain, one) for one in pools]
    total = sum(int(entry["amount_wei"]) for entry in entries)
    rows: list[tuple[str, Any] | str] = [
        f"pool {one['pool']}  block {one['block']:>9}  {one['node']}  {one['units']:>14,} units  "
        f"{ether(int(one['amount_wei'])):>12}"
        for one in entries
    ]
    rows += [("paid", f"{ether(total)} tokens"), *(_table_row(one, now) for one in tables)]
    return {"account": who, "claims": entries, "paid_wei": str(total), "tables": tables}, rows


async def tables_of(chain: "ChainClient", pool: int) -> dict[str, Any]:
    """How far a pool's earnings are: the newest table, what is owed of it, when the next may come; JSON-ready."""
    info, posted = await chain.pool(pool), await chain.earnings(pool)
    following = 0 if posted.epoch is None else posted.epoch + 1
    return {"pool": pool, "epoch": posted.epoch, "owed_wei": str(info.owed), "next_at": info.next_table(following)}


def _table_row(table: dict[str, Any], now: int) -> tuple[str, str]:
    through = "no table yet" if table["epoch"] is None else f"in the table through epoch {table['epoch']}"
    owed = f"{ether(int(table['owed_wei']))} tokens of all nodes not claimed yet"
    return f"pool {table['pool']}", f"{through}, {owed}; the next may be posted {when(table['next_at'], now)}"


async def claims_of(chain: "ChainClient", who: "Address", pool: int | None) -> list[dict[str, Any]]:
    """Every pay of somebody who is, or works for, `who`, by tables and by filings; JSON-ready, oldest first."""
    from contracts.bindings import Claimed, Redeemed

    # Only the pool is asked for: the account may be the node or the provider, which are two topics.
    claimed = await events_of(chain, Claimed, *pool_topics(pool))
    redeemed = [one for one in await events_of(chain, Redeemed, *pool_topics(pool)) if one.amount]
    events = sorted([*claimed, *redeemed], key=lambda one: (one.block, one.log_index))
    return [
        {
            "pool": event.pool,
            "node": event.node,
            "provider": event.provider,
            "units": event.units,
            "amount_wei": str(event.amount),
            "block": event.block,
            "transaction": event.transaction,
        }
        for event in events
        if who in (event.node, event.provider)
    ]
