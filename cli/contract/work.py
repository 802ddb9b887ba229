"""Work and rewards: what was committed, when it is due, and settling it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.contract.frame import (
    AsJson,
    DryRun,
    KeyName,
    Network,
    OnlyPool,
    PasswordFile,
    Plan,
    StateDir,
    Yes,
    carry_out,
    read,
    transaction,
    when,
)
from cli.contract.groups import app, work_app
from cli.contract.pool import Pool
from cli.contract.values import MAX_EPOCH, MAX_UNITS, address, word
from cli.errors import USAGE, CommandError
from cli.output import console, ether, print_facts, print_json

if TYPE_CHECKING:
    from node.chain.client import ChainClient
    from node.chain.simulate import Step
    from protocol.identity import Address

Node = Annotated[Any, typer.Argument(parser=address, metavar="NODE", help="The node's address.")]
Epoch = Annotated[int, typer.Argument(min=0, max=MAX_EPOCH, help="The epoch's number.")]
BATCH = 32
"""Epochs settled in one transaction: far below a block's gas."""


@work_app.command(
    "show", epilog="Example:  intellect-node contract work show 7 0xNode 41 --network base-sepolia --json"
)
def show(pool: Pool, node: Node, epoch: Epoch, network: Network = "local", as_json: AsJson = False) -> None:
    """What a node committed for an epoch, and when it is due."""

    async def look(chain: "ChainClient") -> tuple[Any, Any, int]:
        return await chain.pool(pool), await chain.work(pool, node, epoch), (await chain.block()).timestamp

    info, work, now = read(network, look)
    state = _state(work, info.maturity(epoch), now)
    facts = {"pool": pool, "node": node, "epoch": epoch, "root": work.root.hex(), "units": work.units}
    facts |= {"reserved_wei": str(work.reserved), "matures_at": info.maturity(epoch), "state": state}
    if as_json:
        print_json(facts)
        return
    rows = [("root", work.root.hex()), ("units", work.units), ("tokens", ether(work.reserved)), ("state", state)]
    print_facts([("pool", pool), ("node", node), ("epoch", epoch), *rows, ("matures", when(info.maturity(epoch), now))])


@transaction(work_app, "commit", example="work commit 7 41 <root> 12000 --state-dir nodes/a --network base-sepolia")
async def commit(
    chain: "ChainClient",
    me: "Address",
    pool: Pool,
    epoch: Epoch,
    root: Annotated[Any, typer.Argument(parser=word, metavar="ROOT", help="Merkle root of the files, 64 hex digits.")],
    units: Annotated[int, typer.Argument(min=1, max=MAX_UNITS, help="Sum of their units.")],
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Also more than the node's journal says that it has earned.")
    ] = False,
    state_dir: Path | None = None,
) -> Plan:
    """As a node: commit an epoch's work. (The daemon does this by itself, and publishes the leaves, too.)"""
    from node.chain.simulate import Step

    if not unchecked:
        _require_earned(state_dir, epoch, units)
    info = await chain.pool(pool)
    worth, paid = units * info.reward_per_unit, min(units * info.reward_per_unit, info.escrow)
    says = (
        f"{units:,} units of work are claimed for epoch {epoch}: {ether(paid)} tokens of pool {pool}, due after its "
        "window. Claiming work that was not done costs your provider's stake."
    )
    if paid < worth:
        says += f" The pool has too little money: {ether(worth - paid)} tokens' worth of it waits for more."
    call = chain.contracts.commit_work(pool, epoch, root, units)
    return Plan(says, f"epoch {epoch} is committed with {units:,} units", [Step("commit work", call)])


@transaction(work_app, "top-up", example="work top-up 7 0xNode 41 --network base-sepolia --key anybody")
async def top_up(chain: "ChainClient", me: "Address", pool: Pool, node: Node, epoch: Epoch) -> Plan:
    """Reserve pay for committed work that lacks it, as far as the pool has money again. Anybody may do this.

    (A worker's daemon does it for its own work.)
    """
    from node.chain.simulate import Step

    info, work = await chain.pool(pool), await chain.work(pool, node, epoch)
    more = min((work.units - work.reserved_units) * info.reward_per_unit, info.escrow)
    says = f"{ether(more)} tokens of pool {pool} that nobody has a claim on are reserved for epoch {epoch} of {node}"
    call = chain.contracts.top_up(pool, node, epoch)
    return Plan(says, f"epoch {epoch} of {node} is topped up", [Step(f"top up epoch {epoch}", call)])


def _require_earned(state_dir: Path | None, epoch: int, units: int) -> None:
    """Refuse to claim what the node has not earned: validators take the stake for it."""
    from node.state.reader import StateFiles

    remedy = "claim what was accepted; or give --unchecked, if you know better than the node's journal"
    if state_dir is None:
        why = "only the journal in its state directory tells"
        raise CommandError("nobody knows what this node has earned", why, f"give --state-dir; {remedy}", USAGE)
    earned = StateFiles(state_dir).units_for(epoch)
    if units > earned:
        why = f"of {units:,} units its journal knows {earned:,} as accepted and in no other epoch"
        raise CommandError(f"the node has not earned that for epoch {epoch}", why, remedy, USAGE)


@app.command("rewards", epilog="Example:  intellect-node contract rewards 0xAb.. --network base-sepolia --json")
def rewards(
    who: Annotated[Any, typer.Argument(parser=address, metavar="ADDRESS", help="A node or a provider.")],
    pool: OnlyPool = None,
    collect: Annotated[bool, typer.Option("--collect", help="Settle all that is due. Anybody may.")] = False,
    network: Network = "local",
    key: KeyName = None,
    state_dir: StateDir = None,
    password_file: PasswordFile = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """What a node, or all nodes of a provider, earned: paid, due, and still in its window.

    With --collect all that is due is settled, in every pool and for each of the nodes; it goes to the provider.
    """
    if collect:
        common = {"network": network, "key": key, "state_dir": state_dir, "password_file": password_file}
        own = {"who": who, "pool": pool}
        carry_out("rewards", _collect, own | common | {"dry_run": dry_run, "yes": yes, "as_json": as_json})
        return

    async def look(chain: "ChainClient") -> tuple[list[dict[str, Any]], int]:
        return await entries_of(chain, who, pool), (await chain.block()).timestamp

    entries, now = read(network, look)
    totals = {state: 0 for state in ("paid", "due", "in its window")}
    for entry in entries:
        totals[entry["state"]] = totals.get(entry["state"], 0) + int(entry["amount_wei"])
    if as_json:
        sums = {f"{name.replace(' ', '_')}_wei": str(amount) for name, amount in totals.items()}
        print_json({"account": who, "epochs": entries, "totals": sums})
        return
    for entry in entries:
        line = f"pool {entry['pool']}  epoch {entry['epoch']:>5}  {entry['node']}  {entry['units']:>12,} units"
        due = f", due {when(entry['matures_at'], now)}" if entry["state"] == "in its window" else ""
        console().print(f"{line}  {ether(int(entry['amount_wei'])):>12}  {entry['state']}{due}", soft_wrap=True)
    print_facts([(name, f"{ether(amount)} tokens") for name, amount in totals.items()])


async def _collect(chain: "ChainClient", me: "Address", who: "Address", pool: int | None) -> Plan:
    """Settle everything of a node or provider that is due."""
    due = [entry for entry in await entries_of(chain, who, pool) if entry["state"] == "due"]
    if not due:
        raise CommandError(
            "nothing is due", f"no epoch of {who} waits to be paid", "see: intellect-node contract rewards"
        )
    places = sorted({(entry["pool"], entry["node"]) for entry in due})
    steps: list[Step] = []
    for place in places:
        steps += _settle_steps(chain, *place, [e["epoch"] for e in due if (e["pool"], e["node"]) == place])
    amount, providers = sum(int(entry["amount_wei"]) for entry in due), {entry["provider"] for entry in due}
    says = (
        f"{ether(amount)} tokens go to {', '.join(sorted(providers))} for {len(due)} epoch(s) of {len(places)} node(s)"
    )
    return Plan(says, f"{len(due)} epoch(s) are settled, {ether(amount)} tokens", steps)


def _settle_steps(chain: "ChainClient", pool: int, node: "Address", epochs: list[int]) -> "list[Step]":
    from node.chain.simulate import Step

    batches = [epochs[start : start + BATCH] for start in range(0, len(epochs), BATCH)]
    return [Step(f"settle {len(b)} epoch(s)", chain.contracts.settle(pool, node, b)) for b in batches]


@transaction(app, "settle", example="settle 7 0xNode --network base-sepolia --key anybody")
async def settle(
    chain: "ChainClient",
    me: "Address",
    pool: Pool,
    node: Node,
    epoch: Annotated[
        list[int] | None, typer.Argument(min=0, max=MAX_EPOCH, help="Epochs; default: all that are due.")
    ] = None,
) -> Plan:
    """Pay a node's provider for epochs whose window is over. Anybody may do this."""
    due = [entry for entry in await entries_of(chain, node, pool) if entry["state"] == "due"]
    chosen = sorted(set(epoch)) if epoch else [entry["epoch"] for entry in due]
    if not chosen:
        raise CommandError(
            "nothing is due",
            f"no epoch of {node} in pool {pool} waits to be paid",
            "see: intellect-node contract rewards",
        )
    amount = sum(int(entry["amount_wei"]) for entry in due if entry["epoch"] in chosen)
    provider = (await chain.node_info(node)).owner
    says = f"{ether(amount)} tokens of pool {pool} go to {provider}, the provider of {node}, for {len(chosen)} epoch(s)"
    return Plan(says, f"{len(chosen)} epoch(s) of {node} are settled", _settle_steps(chain, pool, node, chosen))


@transaction(app, "release", example="release 7 0xNode 41 --network base-sepolia --key anybody")
async def release(chain: "ChainClient", me: "Address", pool: Pool, node: Node, epoch: Epoch) -> Plan:
    """Give the money of an epoch that a slash voided back to its pool. Anybody may do this."""
    from node.chain.simulate import Step

    work = await chain.work(pool, node, epoch)
    says = f"{ether(work.reserved)} tokens reserved for epoch {epoch} of {node} go back into pool {pool}"
    call = chain.contracts.release(pool, node, epoch)
    return Plan(says, f"epoch {epoch} of {node} is released", [Step(f"release epoch {epoch}", call)])


async def entries_of(chain: "ChainClient", who: "Address", pool: int | None) -> list[dict[str, Any]]:
    """Every epoch that somebody committed who is, or works for, `who`; JSON-ready, oldest first."""
    from contracts.bindings import Settled, WorkCommitted, parse_log, topic_of

    head = await chain.block()
    kinds = ["0x" + topic_of(kind).hex() for kind in (WorkCommitted, Settled)]
    logs = await chain.logs(chain.profile.deployed_block, head.number, [kinds])
    events = [event for log in logs if (event := parse_log(log, chain.profile.contracts)) is not None]
    paid = {(e.pool, e.node, e.epoch): e.amount for e in events if isinstance(e, Settled)}
    mine = [e for e in events if isinstance(e, WorkCommitted) and pool in (None, e.pool)]
    owners = {node: (await chain.node_info(node)).owner for node in {e.node for e in mine}}
    pools = {number: await chain.pool(number) for number in {e.pool for e in mine}}
    entries: list[dict[str, Any]] = []
    for event in mine:
        if who not in (event.node, owners[event.node]):
            continue
        place = (event.pool, event.node, event.epoch)
        maturity = pools[event.pool].maturity(event.epoch)
        facts: dict[str, Any] = {"pool": event.pool, "node": event.node, "epoch": event.epoch, "units": event.units}
        facts["provider"] = owners[event.node]
        if place in paid:
            state, amount = "paid", paid[place]
        else:
            work = await chain.work(*place)
            state, amount = _state(work, maturity, head.timestamp), work.reserved
        entries.append(facts | {"state": state, "amount_wei": str(amount), "matures_at": maturity})
    return entries


def _state(work: Any, maturity: int, now: int) -> str:
    if not any(work.root) or not work.units:
        return "nothing due"
    if work.voided:
        return "voided"
    if not work.reserved:
        return "unfunded"
    return "due" if now >= maturity else "in its window"


def require_epoch(epoch: int | None) -> int:
    """For cases: which epoch the file was committed under."""
    if epoch is None:
        raise CommandError("which epoch?", "the case does not say", "add epoch to the case file", USAGE)
    return epoch
