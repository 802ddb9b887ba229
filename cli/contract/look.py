"""Looking: the contracts' parameters, any account, everything that was ever told."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from cli.contract.frame import Network, Rows, app, question, read
from cli.contract.stake import amount_rows, amounts_of
from cli.contract.values import MAX_POOL, address
from cli.output import AsJson, clean, console, duration, ether, print_json, short

if TYPE_CHECKING:
    from contracts.bindings import Contracts
    from node.chain.client import ChainClient

# name here -> (contract, view, what it is)
_PARAMETERS = {
    "base_stake": ("swarm", "baseStake", "tokens"),
    "stake_per_unit": ("swarm", "stakePerUnit", "tokens"),
    "min_window": ("swarm", "minWindow", "seconds"),
    "unbonding_period": ("vault", "unbondingPeriod", "seconds"),
    "appeal_seconds": ("vault", "appealSeconds", "seconds"),
    "burn_bps": ("vault", "burnBps", "share"),
    "bond_bps": ("vault", "bondBps", "share"),
    "min_bond": ("vault", "minBond", "tokens"),
    "treasury": ("vault", "treasury", "address"),
    "arbiter": ("vault", "arbiter", "address"),
    "successor": ("vault", "successor", "address"),
}


@question(app, "params", example="params --network base-sepolia --json")
async def params(chain: "ChainClient") -> tuple[dict[str, Any], Rows]:
    """The contracts' addresses, and the parameters that were set when they were deployed."""
    profile = chain.profile
    values = await chain.ask("read the parameters", read_parameters)
    contracts = {name: getattr(profile.contracts, name) for name in profile.contracts.__struct_fields__}
    plain = {_json_name(name): _json_value(name, value) for name, value in values.items()}
    facts = {"network": profile.name, "chain_id": profile.chain_id, "contracts": contracts, "parameters": plain}
    rows = [("network", f"{profile.name} (chain {profile.chain_id})")]
    rows += [(name, profile.link("address", place) or place) for name, place in contracts.items()]
    return facts, [*rows, *((name, _words(name, value)) for name, value in values.items())]


@question(app, "show", example="show 0xAb.. --network local --json")
async def show(
    chain: "ChainClient",
    account: Annotated[Any, typer.Argument(parser=address, metavar="ADDRESS", help="A provider or a node.")],
) -> tuple[dict[str, Any], Rows]:
    """An account: its coin, tokens, stake, and whether it is a registered node."""
    amounts, node = await amounts_of(chain, account), await chain.node_info(account)
    own, post = {"account": account}, {"provider": node.provider, "units": node.units}
    return own | amounts | post, [*own.items(), *amount_rows(amounts), *post.items()]


@app.command(
    "events",
    epilog="Examples:  intellect-node contract events --network local --pool 1 --json   |   contract events --follow",
)
def events(
    network: Network = "local",
    pool: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_POOL, help="Only those of one pool, and those of none: stakes, registrations, the arbiter."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C; with --json one line each.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Every event of the contracts, oldest first."""
    from cli.events import describe_event, event_rows

    if follow:
        _follow(network, pool, as_json)
        return
    rows = [row for row in read(network, event_rows) if _concerns(row, pool)]
    if as_json:
        print_json({"events": rows})
        return
    table = Table(box=None, header_style="dim", padding=(0, 2), show_edge=False)
    for name in ("block", "event", "what", "transaction"):
        table.add_column(name)
    for row in rows:
        table.add_row(str(row["block"]), row["event"], Text(clean(describe_event(row))), short(row["transaction"]))
    console().print(table)


def _concerns(row: dict[str, Any], pool: int | None) -> bool:
    """Of one pool, or of none: what becomes of its members' stakes is told without its number."""
    return pool is None or row.get("pool") in (None, pool)


def _follow(network: str, pool: int | None, as_json: bool) -> None:
    """History first, then what comes; events of replaced blocks are told to be undone."""
    import trio

    from node.chain.follower import EventFollower

    async def follow(chain: "ChainClient") -> None:
        # In memory: a command that looks leaves no file, and reads all of history from the chain. Of all pools: with a
        # pool's number the chain is not asked for what has none.
        follower = EventFollower(chain, None, ":memory:")
        async with trio.open_nursery() as nursery:
            await nursery.start(follower.run)
            async for delivery in follower.events:
                _tell(delivery, pool, as_json)

    read(network, follow)


def _tell(delivery: Any, pool: int | None, as_json: bool) -> None:
    from cli.events import describe_event, event_row
    from node.chain.follower import RolledBack

    if isinstance(delivery, RolledBack):
        rows = [row for event in delivery.events if _concerns(row := event_row(event), pool)]
        if as_json:
            print_json({"event": "RolledBack", "block": delivery.block, "undone": rows})
            return
        for row in rows:
            console().print(f"{row['block']:>8}  {row['event']} did not happen: its block was replaced", soft_wrap=True)
        return
    row = event_row(delivery)
    if not _concerns(row, pool):
        return
    if as_json:
        print_json(row)
        return
    line = f"{row['block']:>8}  {row['event']:<18}  {clean(describe_event(row))}  {short(row['transaction'])}"
    console().print(line, markup=False, soft_wrap=True)


def read_parameters(contracts: "Contracts") -> dict[str, Any]:
    return {name: contracts.view(slot, view) for name, (slot, view, _) in _PARAMETERS.items()}


def _words(name: str, value: Any) -> str:
    kind = _PARAMETERS[name][2]
    if kind == "tokens":
        return f"{ether(value)} tokens"
    if kind == "seconds":
        return f"{value // 86_400} days" if value >= 2 * 86_400 else duration(value)
    return f"{value / 100:g} %" if kind == "share" else str(value)


def _json_name(name: str) -> str:
    return f"{name}_wei" if _PARAMETERS[name][2] == "tokens" else name


def _json_value(name: str, value: Any) -> Any:
    return str(value) if _PARAMETERS[name][2] in ("tokens", "address") else value


# `contract source`: what explorers want before they show a contract's sources
