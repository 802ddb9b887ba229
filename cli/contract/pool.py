"""Pools: open one, fund it, rule it, end it; join and leave."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from cli.contract.frame import CommandPlan, Rows, app, pool_app, question, step, transaction, when
from cli.contract.stake import Amount, approve_steps
from cli.contract.values import (
    MAX_POOL,
    MAX_TOTAL,
    MAX_UNITS,
    address,
    time_option,
    tokens_option,
    usual_quorum,
    word,
)
from cli.errors import CHAIN, USAGE, CommandError
from cli.keyring import open_node_key
from cli.options import Sets
from cli.output import clean, duration, ether

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from contracts.bindings import PoolParams
    from node.chain.client import ChainClient
    from node.chain.connection import Receipt
    from node.chain.simulate import SimulatedStep
    from protocol.identity import Address

Pool = Annotated[int, typer.Argument(min=1, max=MAX_POOL, help="The pool's number.")]
MEMBERS = "Run"
"""The panel of help in which a pool's run, trainer and validators stand together."""
Validators = Annotated[
    list[str] | None, typer.Option(rich_help_panel=MEMBERS, help="Address of a validator's node; repeatable.")
]
Threshold = Annotated[
    int | None,
    typer.Option(
        min=1, max=16, help="Verdicts that make a quorum. Default: a majority of three validators or more, else 1."
    ),
]
FUND = "fund the pool"
PER = 1000
"""Rewards are told in tokens per this many units (output tokens)."""


@transaction(
    pool_app,
    "create",
    example="pool create --run run.toml --trainer-state nodes/trainer --validator-state nodes/validator",
)
async def create(
    chain: "ChainClient",
    me: "Address",
    run: Annotated[Path | None, typer.Option("--run", rich_help_panel=MEMBERS, help="The run file (TOML).")] = None,
    sets: Sets = None,
    run_root: Annotated[
        Any,
        typer.Option(
            parser=word,
            metavar="ROOT",
            rich_help_panel=MEMBERS,
            help="Instead of --run: the root of a run that exists already, 64 hex digits.",
        ),
    ] = None,
    trainer: Annotated[
        str | None, typer.Option(rich_help_panel=MEMBERS, help="Address of the trainer's node, which manages the pool.")
    ] = None,
    trainer_state: Annotated[
        Path | None,
        typer.Option(rich_help_panel=MEMBERS, help="Instead: the trainer's state directory; a missing key is made."),
    ] = None,
    validator: Validators = None,
    validator_state: Annotated[
        list[Path] | None,
        typer.Option(rich_help_panel=MEMBERS, help="Instead: a validator's state directory; repeatable."),
    ] = None,
    threshold: Threshold = None,
    reward: Annotated[int, tokens_option("Tokens per 1000 units (output tokens).")] = "1",  # type: ignore[assignment]
    fund: Annotated[int, tokens_option("Tokens to put into the pool at once.")] = "1000",  # type: ignore[assignment]
    slash: Annotated[int, tokens_option("Tokens that an objective fault costs.")] = "100",  # type: ignore[assignment]
    epoch: Annotated[int | None, time_option("Length of an epoch. Default: 1m on local, else 1h.")] = None,
    window: Annotated[
        int | None, time_option("Time between an epoch's end and its pay. Default: the profile's window_seconds.")
    ] = None,
    delay: Annotated[
        int | None,
        time_option("Time that a table of earnings waits until it counts. Default: a quarter of --window."),
    ] = None,
    guardian: Annotated[
        Any,
        typer.Option(
            parser=address,
            metavar="ADDRESS",
            rich_help_panel=MEMBERS,
            help="May hold a table that waits, once, for the arbiter to look at. Default: who opens the pool.",
        ),
    ] = None,
    lease: Annotated[int, time_option("How long a membership lasts without a renewal.")] = "8d",  # type: ignore[assignment]
    max_units: Annotated[
        int, typer.Option(min=1, max=MAX_UNITS, help="Most units paid per node, epoch and declared unit.")
    ] = 10**8,
    units_per_epoch: Annotated[
        int, typer.Option(min=1, max=MAX_TOTAL, help="Most units paid to all nodes together in an epoch.")
    ] = 10**9,
    invited: Annotated[bool, typer.Option("--invited", help="Only nodes with the manager's invitation.")] = False,
    attested: Annotated[
        bool, typer.Option("--attested", help="Only units that the validators attested count.")
    ] = False,
    bootnode: Annotated[list[str] | None, typer.Option(help="Multiaddr of a node to start from; repeatable.")] = None,
    uri: Annotated[str, typer.Option(help="About the run: a line, or a link. Default: from the run file.")] = "",
) -> CommandPlan:
    """Open a pool for a run and fund it; on a local devnet it becomes the profile's default pool."""
    from contracts.bindings import NOBODY, PoolParams
    from node.chain.faucet import is_devnet

    name, root, about = _run_of(run, sets or (), run_root)
    local = is_devnet(chain.profile)
    manager, judges = _one_address(trainer, trainer_state, "trainer"), _validators(validator, validator_state)
    if manager == me:
        why = f"{me} would open the pool, name its judges and get what is left, from the trainer's machine"
        raise CommandError("one key cannot be both", why, "open the pool with another --key, kept elsewhere", USAGE)
    if manager in judges:
        why = f"{manager} is named as both: it would judge its own work"
        raise CommandError("the trainer cannot be a validator", why, "name two nodes", USAGE)
    params = PoolParams(
        run_root=root,
        run_uri=uri or about,
        manager=manager,
        # Rounded down, to whole wei: a pool never promises more than was said.
        reward_per_unit=reward // PER,
        window=window or chain.profile.window_seconds,
        delay=delay or 0,
        guardian=guardian or NOBODY,
        # A minute on a devnet, so that somebody who watches sees a payment.
        epoch_seconds=epoch or (60 if local else 3600),
        lease_seconds=lease,
        max_units_per_epoch=max_units,
        units_per_epoch=units_per_epoch,
        slash_amount=slash,
        validators=judges,
        threshold=threshold or usual_quorum(len(judges)),
        invited=invited,
        attested=attested,
        bootnodes=tuple(bootnode or ()),
    )
    number = await chain.pool_count() + 1
    return CommandPlan(
        f"a pool for the run {name} is opened. {ether(fund)} tokens of {me} become its rewards, paid for work at "
        f"{ether(reward)} per {PER} units, and what nobody earns comes back to {me} after the end.",
        f"the pool for the run {name} ({root.hex()[:16]}) is open with {ether(fund)} tokens",
        await _open_steps(chain, me, params, number, fund),
        lambda receipts: _opened(chain, receipts, root),
        lambda step, receipts: _with_number(chain, step, receipts, fund),
        last=lambda facts: _what_now(chain, facts, invited=invited),
    )


def _run_of(run: Path | None, sets: "Sequence[str]", run_root: bytes | None) -> tuple[str, bytes, str]:
    """A run's name, its root, and a line about it; a run file is checked as its members will use it."""
    from cli.pools import about_run
    from node.run.file import compile_run
    from node.run.problems import check_run

    if (run is None) == (run_root is None):
        raise CommandError("which run?", "give --run or --run-root, one of them", "see --help", USAGE)
    if run_root is not None:
        return run_root.hex()[:16], run_root, ""
    compiled = compile_run(run or Path(), sets=sets)
    check_run(compiled)
    return compiled.spec.name, compiled.root, about_run(compiled.spec)


async def _open_steps(
    chain: "ChainClient", me: "Address", params: "PoolParams", number: int, fund: int
) -> "list[SimulatedStep]":
    """An approval, the pool, its money. number: a guess, good enough to simulate with."""
    steps = await approve_steps(chain, me, chain.profile.contracts.payroll, fund)
    steps.append(step("open a pool", chain.contracts.create_pool(params)))
    if fund:
        steps.append(step(FUND, chain.contracts.fund_pool(number, fund)))
    return steps


def _with_number(
    chain: "ChainClient", planned: "SimulatedStep", receipts: "list[Receipt]", fund: int
) -> "SimulatedStep":
    """The money goes to the pool that was opened, whatever its number came to be."""
    number = _number(receipts)
    # While it is simulated no receipt says the number, and the guess stays.
    if planned.action != FUND or number is None:
        return planned
    return step(FUND, chain.contracts.fund_pool(number, fund))


def _number(receipts: "list[Receipt]") -> int | None:
    from contracts.bindings import PoolCreated

    # From the event, not from a count: somebody else may have opened a pool in between.
    events = [event for receipt in receipts for event in receipt.events]
    return next((event.pool for event in events if isinstance(event, PoolCreated)), None)


def _what_now(chain: "ChainClient", facts: "Mapping[str, Any]", *, invited: bool) -> str:
    """For people: the pool's number, and how it is joined."""
    number, network = facts["pool"], chain.profile.name
    if invited:
        let_in = f"intellect-node contract pool invite {number} --bearer 20 --out theirs.toml --network {network}"
        return (
            f"It is pool {number}, by invitation. Let others in with: {let_in} and the manager's --key or --state-dir"
        )
    where = f"--network {network}" + ("" if facts["default"] else f" --pool {number}")
    return f"It is pool {number}. Others join it with: intellect-node join {where}"


def _opened(chain: "ChainClient", receipts: "list[Receipt]", run_root: bytes) -> dict[str, Any]:
    from cli.pools import remember_pool

    number = _number(receipts)
    is_default = number is not None and remember_pool(chain.profile, number)
    return {"pool": number, "run_root": run_root.hex(), "default": is_default}


@transaction(pool_app, "fund", example="pool fund 7 500 --network base-sepolia --key owner")
async def fund(chain: "ChainClient", me: "Address", pool: Pool, amount: Amount) -> CommandPlan:
    """Add tokens to a pool's rewards."""
    says = (
        f"{ether(amount)} tokens of {me} become rewards of pool {pool} (as far as they make whole units); what nobody "
        "earns goes to who opened it after its end"
    )
    steps = await approve_steps(chain, me, chain.profile.contracts.payroll, amount)
    steps.append(step(f"fund pool {pool}", chain.contracts.fund_pool(pool, amount)))
    return CommandPlan(says, f"pool {pool} is funded with {ether(amount)} tokens more", steps)


@transaction(pool_app, "set-run", example="pool set-run 7 <64 hex digits> --network base-sepolia --key manager")
async def set_run(
    chain: "ChainClient",
    me: "Address",
    pool: Pool,
    run_root: Annotated[Any, typer.Argument(parser=word, metavar="ROOT", help="The run's root, 64 hex digits.")],
) -> CommandPlan:
    """As the manager, before any node has joined: name another run."""
    says = f"pool {pool} is for the run {run_root.hex()[:16]} from now on; no money moves"
    return CommandPlan(
        says, f"pool {pool} has a new run", [step("name the run", chain.contracts.set_pool_run(pool, run_root))]
    )


@transaction(
    pool_app, "bootnodes", example="pool bootnodes 7 --bootnode /ip4/203.0.113.7/tcp/4001/p2p/16Uiu2.. --key manager"
)
async def bootnodes(
    chain: "ChainClient",
    me: "Address",
    pool: Pool,
    bootnode: Annotated[
        list[str] | None, typer.Option(help="Multiaddr of a node; repeatable. Without it: no bootnodes.")
    ] = None,
) -> CommandPlan:
    """As the manager: say where newcomers may start from."""
    call = chain.contracts.set_bootnodes(pool, tuple(bootnode or ()))
    says = f"newcomers of pool {pool} are told to start from {len(bootnode or ())} node(s); no money moves"
    return CommandPlan(says, f"pool {pool} has {len(bootnode or ())} bootnode(s)", [step("name bootnodes", call)])


@transaction(pool_app, "pause", example="pool pause 7 --network base-sepolia --key manager")
async def pause(chain: "ChainClient", me: "Address", pool: Pool) -> CommandPlan:
    """As the manager: take no new members. What was worked is still paid."""
    says = f"nobody can join pool {pool}; what is earned is still paid"
    return CommandPlan(says, f"pool {pool} is paused", [step(f"pause pool {pool}", chain.contracts.pause_pool(pool))])


@transaction(pool_app, "resume", example="pool resume 7 --network base-sepolia --key manager")
async def resume(chain: "ChainClient", me: "Address", pool: Pool) -> CommandPlan:
    """As the manager: go on after a pause."""
    says = f"pool {pool} takes members and work again; no money moves"
    return CommandPlan(says, f"pool {pool} goes on", [step(f"resume pool {pool}", chain.contracts.resume_pool(pool))])


@transaction(pool_app, "end", example="pool end 7 --network base-sepolia --key opener")
async def end(chain: "ChainClient", me: "Address", pool: Pool) -> CommandPlan:
    """As who opened it: end the pool for ever. What was worked is still paid."""
    info, now = await chain.pool(pool), (await chain.block()).timestamp
    # As if it ended now: a table that is posted late or held puts all but the first off.
    times = msgspec.structs.replace(info, stopped_at=now).filing
    says = (
        f"pool {pool} ends for ever. {ether(info.owed)} tokens are owed and stay claimable; {ether(info.escrow)} are "
        f"free. Tables may come until {when(times.starts, now)}. What no table has, nodes file until "
        f"{when(times.ends, now)}, and redeem from {when(times.redeems, now)} on. `pool sweep` returns the rest to "
        f"{info.opener}: from {when(times.ends, now)} on, or from {when(times.redeems, now)} on if anybody files."
    )
    return CommandPlan(
        says,
        f"pool {pool} has ended",
        [step(f"end pool {pool}", chain.contracts.end_pool(pool))],
        lambda _: {"tables_until": times.starts, "files_until": times.ends, "redeems_from": times.redeems},
    )


@transaction(pool_app, "sweep", example="pool sweep 7 --network base-sepolia --key anybody")
async def sweep(chain: "ChainClient", me: "Address", pool: Pool) -> CommandPlan:
    """Give what no table of earnings promises and no node has filed back to who opened the pool.

    Three windows after its last epoch, and a table's delay later if anybody filed: `pool show` has the dates.
    """
    info, now = await chain.pool(pool), (await chain.block()).timestamp
    if info.ended and now < info.swept_from:
        raise CommandError(
            f"pool {pool} may not be swept yet",
            f"what no table has can be filed until {when(info.filing.ends, now)}, and is redeemed from "
            f"{when(info.filing.redeems, now)} on",
            f"sweep it {when(info.swept_from, now)}",
            CHAIN,
        )
    filed = f"; {info.filing.filed:,} units that nodes filed stay" if info.filing.filed else ""
    says = f"{ether(info.left)} tokens that nobody earned go to {info.opener}{filed}"
    return CommandPlan(says, f"pool {pool} is swept", [step(f"sweep pool {pool}", chain.contracts.sweep(pool))])


@transaction(
    pool_app,
    "validators",
    example="pool validators 7 --validator 0xAb.. --validator 0xCd.. --threshold 2 --key opener",
)
async def validators(
    chain: "ChainClient",
    me: "Address",
    pool: Pool,
    validator: Validators = None,
    threshold: Threshold = None,
    apply: Annotated[bool, typer.Option("--apply", help="Let those who were proposed before take office.")] = False,
) -> CommandPlan:
    """As who opened the pool: propose other validators, who can take office one window later (--apply, by anybody).

    Proposing anew undoes what was proposed. Nobody takes office in a pool that has ended.
    """
    if apply:
        change = step("change the validators", chain.contracts.apply_validators(pool))
        says = f"the proposed validators of pool {pool} take office; no money moves"
        return CommandPlan(says, f"pool {pool} has new validators", [change])
    judges = _validators(validator, None)
    info, threshold = await chain.pool(pool), threshold or usual_quorum(len(judges))
    says = (
        f"{len(judges)} validator(s) with a quorum of {threshold} are proposed for pool {pool}; in "
        f"{duration(info.window)} they can take office in place of all present ones; no money moves"
    )
    change = step("propose validators", chain.contracts.propose_validators(pool, judges, threshold))
    return CommandPlan(says, f"validators are proposed for pool {pool}", [change])


@transaction(
    app, "join", example="join 7 --contact /ip4/203.0.113.7/tcp/4001/p2p/16Uiu2.. --state-dir nodes/a --network base"
)
async def join(
    chain: "ChainClient",
    me: "Address",
    pool: Pool,
    contact: Annotated[str, typer.Option(help="Multiaddr under which the node can be reached.")] = "",
) -> CommandPlan:
    """As a node: join a pool, renew the lease, or tell a new contact. (The daemon does this by itself.)

    In a pool by invitation: by one that the network's profile carries.
    """
    from node.chain.invitations import admission, look

    says = (
        f"the node {me} becomes a member of pool {pool} and leaves any other; its provider's stake answers for its work"
    )
    steps, info = [step(f"join pool {pool}", chain.contracts.join(pool, contact))], await chain.pool(pool)
    if info.invited:
        given = (chain.domain, info, chain.profile.invitations, me, None, (await chain.block()).timestamp)
        door = await chain.ask("look for an invitation", lambda contracts: look(contracts, *given))
        if door.shut:
            raise CommandError(f"pool {pool} takes invited nodes only", door.why, "ask its manager for one", CHAIN)
        if door.by is not None:
            says += f"; it comes by {door.why}"
            enter = admission(chain.contracts, chain.domain, me, door.by)
            steps.insert(0, step(f"enter pool {pool} by invitation", enter))
    return CommandPlan(says, f"{me} is a member of pool {pool}", steps)


@transaction(app, "leave", example="leave 7 --state-dir nodes/a --network base-sepolia")
async def leave(chain: "ChainClient", me: "Address", pool: Pool) -> CommandPlan:
    """As a node: leave a pool. What was earned is still paid."""
    says = f"the node {me} is no member of pool {pool} any more; what it earned is still paid"
    return CommandPlan(says, f"{me} has left pool {pool}", [step(f"leave pool {pool}", chain.contracts.leave(pool))])


@question(pool_app, "list", example="pool list --network base-sepolia --json")
async def list_(chain: "ChainClient") -> tuple[dict[str, Any], Rows]:
    """Every pool: what it trains, whom it takes, what it pays and what it risks.

    What it trains is its owner's word: a member fetches the run by its root, and checks it before it works.
    """
    from contracts.bindings import NOBODY

    pools = [await chain.pool(number) for number in range(1, await chain.pool_count() + 1)]
    # Of nobody: what the first node of a provider costs who has none yet.
    stake, now = await chain.required_stake(NOBODY, 1), (await chain.block()).timestamp
    members = [sum(_state_of(one, now) == "member" for one in await chain.members(pool.id)) for pool in pools]
    facts = [_facts(pool) | {"members": count} for pool, count in zip(pools, members, strict=True)]
    lines = [line for pool, count in zip(pools, members, strict=True) for line in _lines_of(pool, count)]
    lines.append(f"A provider bonds {ether(stake)} tokens for its first node; every fault can cost more.")
    told = {"pools": facts, "stake_of_one_node_wei": str(stake), "now": now}
    return told, lines if pools else ["there is no pool yet"]


def _lines_of(pool: Any, members: int) -> list[str]:
    # Whoever opens a pool may write what he likes there, control characters of a terminal included.
    about = clean(pool.run_uri) or f"run {pool.run_root.hex()[:16]}"
    reward = f"pays {ether(pool.reward_per_unit * PER)} per {PER} units, {ether(pool.escrow)} tokens left"
    doors = [word for word, closed in (("by invitation", pool.invited), ("units attested", pool.attested)) if closed]
    crowd = f"{members} members, {pool.threshold} of {len(pool.validators)} validators decide"
    return [
        f"{pool.id:>4}  {_state(pool)}  {about}",
        f"      {reward}; a fault costs {ether(pool.slash_amount)} a unit",
        f"      {', '.join([crowd, *doors])}",
    ]


@question(pool_app, "show", example="pool show 1 --network local --json")
async def show(chain: "ChainClient", number: Pool) -> tuple[dict[str, Any], Rows]:
    """A pool's rules, money and members."""
    from node.preflight.chain import read_powers, who_takes_what

    posted, powers = await chain.earnings(number), await chain.ask("read the parameters", read_powers)
    pool, members, now = await chain.pool(number), await chain.members(number), (await chain.block()).timestamp
    left = posted.epochs_left(pool.escrow // pool.reward_per_unit) if pool.reward_per_unit else None
    facts = _facts(pool) | {"epoch": pool.epoch_at(now), "posted_epoch": posted.epoch, "posted_total": posted.total}
    facts |= {"posted_root": posted.root.hex(), "epochs_left": left} | msgspec.structs.asdict(powers)
    since = f" since {when(pool.stopped_at, now)}" if pool.stopped_at else ""
    rows: list[tuple[str, Any]] = [("pool", f"{number} ({_state(pool)}{since})"), ("run", pool.run_root.hex())]
    rows += [("about", pool.run_uri)] if pool.run_uri else []
    rows += [("manager", pool.manager), ("validators", ", ".join(pool.validators))]
    lasts = "" if left is None else f", for {left:,} epochs like the last"
    rows += [
        ("quorum", f"{pool.threshold} of {len(pool.validators)}"),
        ("free", f"{ether(pool.escrow)} tokens{lasts}"),
    ]
    table = "none yet" if posted.epoch is None else f"through epoch {posted.epoch}: {posted.total:,} units"
    rows += [("table", table), ("owed", f"{ether(pool.owed)} tokens of that table, not claimed yet")]
    rows += [
        ("reward", f"{ether(pool.reward_per_unit * PER)} tokens per {PER} units"),
        ("slash", f"{ether(pool.slash_amount)} tokens for each unit of a node"),
    ]
    epoch = pool.epoch_at(now)
    ends = f"now {epoch}, until {when(pool.epoch_end(epoch), now)}"
    rows += [("epoch", f"{duration(pool.epoch_seconds)}; {ends}"), ("window", duration(pool.window))]
    rows += [("delay", f"a table waits {duration(pool.delay)} before it counts"), ("guardian", pool.guardian)]
    rows.append(
        ("most per epoch", f"{pool.units_per_epoch:,} units in all, {pool.max_units_per_epoch:,} per unit of a node")
    )
    if pool.ended:
        rows += _ending(pool, now)
    if pool.proposed:
        rows.append(("proposed", f"{', '.join(pool.proposed)}, from {when(pool.validators_from, now)} on"))
    rows += [("bootnode", node) for node in pool.bootnodes]
    lines = [f"  {text}" for text in who_takes_what(pool, powers)]
    lines += [f"  {one.node}  {_state_of(one, now)}  {clean(one.contact)}" for one in members]
    told = {"pool": facts, "now": now, "members": [msgspec.to_builtins(member) for member in members]}
    return told, [*rows, *lines]


def _ending(pool: Any, now: int) -> list[tuple[str, Any]]:
    """What becomes of a pool's money after its end."""
    times = pool.filing
    held = f", as {pool.guardian} holds it" if times.held_until else ""
    return [
        ("tables until", when(times.starts, now)),
        ("filed", f"{times.filed:,} units that no table has, until {when(times.ends, now)}"),
        ("redeemed", f"from {when(times.redeems, now)} on{held}"),
        ("swept", f"{ether(pool.left)} tokens, from {when(pool.swept_from, now)} on"),
    ]


def _state_of(member: Any, now: int) -> str:
    if member.evicted:
        return "evicted"
    return "left" if member.left else "lapsed" if member.lease_until < now else "member"


def _facts(pool: Any) -> dict[str, Any]:
    """JSON-ready; amounts as strings, because they pass what JSON numbers hold."""
    facts: dict[str, Any] = {}
    for name in pool.__struct_fields__:
        value = getattr(pool, name)
        if name in ("escrow", "owed", "reward_per_unit", "slash_amount"):
            facts[f"{name}_wei"] = str(value)
        elif name == "filings":
            facts[name] = msgspec.to_builtins(value)
        else:
            facts[name] = value.hex() if isinstance(value, bytes) else value
    more = {"swept_from": pool.swept_from, "left_wei": str(pool.left)} if pool.ended else {}
    return facts | more | {"state": _state(pool)}


def _state(pool: Any) -> str:
    return "ended" if pool.ended else "paused" if pool.paused else "open"


def _validators(addresses: list[str] | None, directories: list[Path] | None) -> "tuple[Address, ...]":
    judges = [address(one) for one in addresses or []]
    # Made where it is missing: the pool must name its validators before they have ever started.
    judges += [open_node_key(directory, create=True).address for directory in directories or []]
    if not judges:
        raise CommandError("no validator", "a pool needs at least one", "give --validator or --validator-state", USAGE)
    return tuple(judges)


def _one_address(given: str | None, state_dir: Path | None, what: str) -> Any:
    if (given is None) == (state_dir is None):
        raise CommandError(f"which {what}?", f"give --{what} or --{what}-state, one of them", "see --help", USAGE)
    return address(given) if given else open_node_key(Path(state_dir or ""), create=True).address
