"""`intellect-node contract`: what people do on chain themselves: stake, register nodes, open pools, look."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.table import Table
from rich.text import Text

from cli.errors import USAGE, CommandError
from cli.keyring import open_key, open_node_key
from cli.output import clean, console, ether, print_json, short

if TYPE_CHECKING:
    from node.chain.client import ChainClient, Receipt
    from node.chain.profile import NetworkProfile
    from protocol.identity import NodeKey

TOKEN = 10**18
T = TypeVar("T")

app = typer.Typer(help="Look at the chain, and act on it with your own key.", no_args_is_help=True)
pool_app = typer.Typer(help="Pools: where a run's members, rules and money stand.", no_args_is_help=True)
app.add_typer(pool_app, name="pool")

Network = Annotated[str, typer.Option(help="A network profile (TOML file), or a name such as 'local'.")]
KeyFile = Annotated[
    Path | None, typer.Option("--key", help="Keystore of the account that acts; a local devnet makes one up.")
]
PasswordFile = Annotated[Path | None, typer.Option("--password-file", help="Password of that key (mode 0600).")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Amount = Annotated[float, typer.Argument(min=0, help="Tokens, e.g. 100 or 0.5.")]


@app.command("faucet", epilog="Example:  intellect-node contract faucet 0xAb.. 1000 --network local")
def faucet(
    to: Annotated[str, typer.Argument(help="Who gets them.")],
    amount: Amount,
    network: Network = "local",
    key: KeyFile = None,
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Mint test tokens, on networks whose token is a test token; a local devnet gives coin for gas too."""
    from cli.pools import COIN, signer_for
    from node.chain.faucet import DevnetFaucet, is_devnet

    address, account = _address(to), _open(key, password_file)

    async def act(chain: "ChainClient") -> "Receipt":
        if is_devnet(chain.profile):
            await DevnetFaucet(chain).fund(address, coin=COIN)
        return await chain.faucet(address, _wei(amount), key=await signer_for(chain, account))

    receipt = _run(network, act)
    _show_receipt(f"{ether(_wei(amount))} test tokens for {address}", receipt, as_json)


@app.command(
    "stake", epilog="Example:  intellect-node contract stake 100 --network base-sepolia.toml --key provider.json"
)
def stake(
    amount: Amount,
    network: Network = "local",
    key: KeyFile = None,
    password_file: PasswordFile = None,
    provider: Annotated[str | None, typer.Option(help="Whose stake; default: the key's own.")] = None,
    as_json: AsJson = False,
) -> None:
    """Bond tokens as a provider's stake; it answers for all of that provider's nodes."""
    from cli.pools import signer_for

    account = _open(key, password_file)
    whose = _address(provider) if provider else account.address if account else None
    if whose is None:
        raise CommandError("whose stake?", "neither --key nor --provider was given", "give one of them", USAGE)

    async def act(chain: "ChainClient") -> "Receipt":
        return await chain.bond(whose, _wei(amount), key=await signer_for(chain, account, _wei(amount)))

    _show_receipt(f"{ether(_wei(amount))} tokens bonded for {whose}", _run(network, act), as_json)


@app.command(
    "register",
    epilog="Example:  intellect-node contract register --node-state nodes/a --network x.toml --key provider.json",
)
def register(
    node_state: Annotated[Path, typer.Option("--node-state", help="State directory of the node; its key consents.")],
    key: Annotated[Path, typer.Option("--key", help="Keystore of the provider.")],
    units: Annotated[int, typer.Option(min=1, help="How much the node can do; each unit needs stake.")] = 1,
    network: Network = "local",
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Register a node under the key's provider: the provider's stake answers for it."""
    provider_key = open_key(key, password_file)
    node_key = open_node_key(node_state)

    async def act(chain: "ChainClient") -> "Receipt":
        deadline, signature = await chain.register_node_signature(node_key, provider_key.address, units)
        return await chain.register_node(node_key.address, units, deadline, signature, key=provider_key)

    _show_receipt(f"node {node_key.address} registered under {provider_key.address}", _run(network, act), as_json)


@app.command("show", epilog="Example:  intellect-node contract show 0xAb.. --network local --json")
def show(
    account: Annotated[str, typer.Argument(help="A provider or a node.")],
    network: Network = "local",
    as_json: AsJson = False,
) -> None:
    """An account: its coin, tokens, stake, and whether it is a registered node."""
    address = _address(account)

    async def read(chain: "ChainClient") -> dict[str, Any]:
        balances, bond = await chain.balances(address), await chain.stake_of(address)
        node, required = await chain.node_info(address), await chain.required_stake(address)
        return {
            "account": address,
            "coin_wei": str(balances.coin),
            "token_wei": str(balances.token),
            "bonded_wei": str(bond.bonded),
            "unbonding_wei": str(bond.unbonding),
            "required_wei": str(required),
            "provider": node.provider,
            "units": node.units,
        }

    facts = _run(network, read)
    if as_json:
        print_json(facts)
        return
    rows = [(name.removesuffix("_wei"), ether(int(v)) if name.endswith("_wei") else v) for name, v in facts.items()]
    _show_facts(rows)


@app.command("events", epilog="Example:  intellect-node contract events --network local --pool 1 --json")
def events(
    network: Network = "local",
    pool: Annotated[int | None, typer.Option(min=1, help="Only those of one pool.")] = None,
    as_json: AsJson = False,
) -> None:
    """Everything that the contracts have told, oldest first."""
    from cli.events import describe_event, event_rows

    rows = [row for row in _run(network, event_rows) if pool is None or row.get("pool") in (None, pool)]
    if as_json:
        print_json({"events": rows})
        return
    table = Table(box=None, header_style="dim", padding=(0, 2), show_edge=False)
    for name in ("block", "event", "what", "transaction"):
        table.add_column(name)
    for row in rows:
        table.add_row(str(row["block"]), row["event"], Text(clean(describe_event(row))), short(row["transaction"]))
    console().print(table)


@pool_app.command(
    "create",
    epilog="Example:  intellect-node contract pool create --network local --run run.toml --trainer-state nodes/trainer "
    "--validator-state nodes/validator",
)
def pool_create(
    run: Annotated[Path, typer.Option("--run", help="The run file (TOML).")],
    trainer: Annotated[str | None, typer.Option(help="Address of the trainer's node.")] = None,
    trainer_state: Annotated[Path | None, typer.Option(help="Or its state directory; a missing key is made.")] = None,
    validator: Annotated[list[str] | None, typer.Option(help="Address of a validator's node; repeatable.")] = None,
    validator_state: Annotated[list[Path] | None, typer.Option(help="Or its state directory; repeatable.")] = None,
    threshold: Annotated[int, typer.Option(min=1, max=16, help="Verdicts that make a quorum.")] = 1,
    reward: Annotated[float, typer.Option(min=0, help="Tokens per 1000 units (output tokens).")] = 1.0,
    fund: Annotated[float, typer.Option(min=0, help="Tokens put into the pool at once.")] = 1000.0,
    slash: Annotated[float, typer.Option(min=0, help="Tokens that an objective fault costs.")] = 100.0,
    epoch: Annotated[int, typer.Option(min=1, help="Seconds of an epoch.")] = 60,
    window: Annotated[int, typer.Option(min=1, help="Seconds in which an epoch's work can be voided.")] = 120,
    network: Network = "local",
    key: KeyFile = None,
    password_file: PasswordFile = None,
    as_json: AsJson = False,
) -> None:
    """Open a pool for a run, fund it, and on a local devnet make it the profile's default pool."""
    from cli.pools import PoolTerms, open_pool, remember_pool, signer_for
    from node.problems import check_run
    from node.runfile import compile_run

    compiled = compile_run(run)
    check_run(compiled)
    manager = _one_address(trainer, trainer_state, "trainer")
    judges = [_address(one) for one in validator or []]
    judges += [open_node_key(directory, create=True).address for directory in validator_state or []]
    if not judges:
        raise CommandError("no validator", "a pool needs at least one", "give --validator or --validator-state", USAGE)
    terms = PoolTerms(
        run_root=compiled.root,
        trainer=manager,
        validators=tuple(judges),
        threshold=threshold,
        reward_per_unit=_wei(reward) // 1000,
        fund=_wei(fund),
        slash=_wei(slash),
        epoch_seconds=epoch,
        window=window,
    )
    account = _open(key, password_file)

    async def act(chain: "ChainClient") -> int:
        return await open_pool(chain, terms, await signer_for(chain, account, terms.fund))

    number = _run(network, act)
    is_default = remember_pool(network, number)
    if as_json:
        print_json({"pool": number, "run_root": compiled.root.hex(), "default": is_default})
        return
    console().print(f"pool {number} is open for run {compiled.spec.name} ({compiled.root.hex()[:16]})", soft_wrap=True)


@pool_app.command("show", epilog="Example:  intellect-node contract pool show 1 --network local --json")
def pool_show(
    number: Annotated[int, typer.Argument(min=1, help="The pool's number.")],
    network: Network = "local",
    as_json: AsJson = False,
) -> None:
    """A pool's rules, money and members."""
    import msgspec

    async def read(chain: "ChainClient") -> tuple[Any, Any]:
        return await chain.pool(number), await chain.members(number)

    pool, members = _run(network, read)
    if as_json:
        facts = msgspec.to_builtins(pool) | {"run_root": pool.run_root.hex()}
        print_json({"pool": facts, "members": [msgspec.to_builtins(member) for member in members]})
        return
    _show_facts(
        [
            ("pool", str(number)),
            ("run", pool.run_root.hex()),
            ("trainer", pool.manager),
            ("validators", ", ".join(pool.validators)),
            ("quorum", f"{pool.threshold} of {len(pool.validators)}"),
            ("escrow", ether(pool.escrow)),
            ("reserved", ether(pool.reserved)),
            ("slash", ether(pool.slash_amount)),
            ("epoch", f"{pool.epoch_seconds} s, window {pool.window} s"),
        ]
    )
    for member in members:
        state = "evicted" if member.evicted else "left" if member.left else "member"
        console().print(f"  {member.node}  {state}  {clean(member.contact)}", soft_wrap=True, markup=False)


# ---- inside


def _run(network: str, action: "Callable[[ChainClient], Awaitable[T]]") -> T:
    """Connect, act, close; in a trio of its own."""
    import trio

    from node.chain.client import ChainClient

    profile = _profile(network)

    async def main() -> T:
        chain = ChainClient(profile)
        try:
            await chain.connect()
            return await action(chain)
        finally:
            chain.close()

    return trio.run(main)


def _profile(network: str) -> "NetworkProfile":
    from node.chain.profile import load_profile
    from node.config import default_home

    return load_profile(network, home=default_home())


def _open(key: Path | None, password_file: Path | None) -> "NodeKey | None":
    return None if key is None else open_key(key, password_file)


def _address(text: str) -> Any:
    from protocol.errors import ProtocolError
    from protocol.identity import parse_address

    try:
        return parse_address(text)
    except ProtocolError as error:
        raise CommandError(f"{text[:60]!r} is no address", error.why, "give 0x and 40 hex digits", USAGE) from None


def _one_address(address: str | None, state_dir: Path | None, what: str) -> Any:
    if (address is None) == (state_dir is None):
        raise CommandError(f"which {what}?", f"give --{what} or --{what}-state, one of them", "see --help", USAGE)
    return _address(address) if address else open_node_key(Path(state_dir or ""), create=True).address


def _wei(tokens: float) -> int:
    from decimal import Decimal

    return int(Decimal(str(tokens)) * TOKEN)


def _show_receipt(text: str, receipt: "Receipt", as_json: bool) -> None:
    if as_json:
        print_json({"transaction": receipt.transaction, "block": receipt.block, "gas_used": receipt.gas_used})
        return
    console().print(f"{text}\ntransaction {receipt.transaction} in block {receipt.block}", soft_wrap=True)


def _show_facts(rows: list[tuple[str, Any]]) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, Text("-" if value is None else clean(str(value))))
    console().print(grid)
