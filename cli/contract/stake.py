"""Stake: bond, unbond, rebond, withdraw; the faucet of test networks; providers and nodes: who answers for whom."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from cli.contract.frame import (
    CommandPlan,
    Network,
    Rows,
    app,
    node_app,
    provider_app,
    question,
    read,
    step,
    transaction,
    when,
)
from cli.contract.values import MAX_UNITS, Moment, address, address_option, read_json, wei, when_option
from cli.errors import CHAIN, USAGE, CommandError
from cli.events import events_of
from cli.keyring import open_node_key
from cli.output import duration, ether, print_json
from cli.places import state_dir_option

if TYPE_CHECKING:
    from contracts.bindings import NodeInfo
    from node.chain.client import ChainClient
    from node.chain.simulate import SimulatedStep
    from protocol.identity import Address

Amount = Annotated[int, typer.Argument(parser=wei, metavar="TOKENS", help="Tokens, e.g. 100 or 0.5.")]


@transaction(app, "faucet", example="faucet 0xAb.. 1000 --network base-sepolia --key me")
async def faucet(
    chain: "ChainClient",
    me: "Address",
    to: Annotated[Any, typer.Argument(parser=address, metavar="ADDRESS", help="Address that gets them.")],
    amount: Amount,
) -> CommandPlan:
    """Mint test tokens, on networks whose token is a test token; a local devnet gives coin for gas too."""
    from node.chain.faucet import COIN_FOR_GAS, DevnetFaucet, is_devnet

    async def give_coin() -> None:
        if is_devnet(chain.profile):
            await DevnetFaucet(chain).fund(to, coin=COIN_FOR_GAS)

    says = f"{ether(amount)} new test tokens, worth nothing, go to {to}; you pay the gas"
    steps = [step("mint test tokens", chain.contracts.mint(to, amount))]
    return CommandPlan(says, f"{ether(amount)} test tokens for {to}", steps, before=give_coin)


@transaction(app, "stake", example="stake 100 --network base-sepolia --key provider")
async def stake(
    chain: "ChainClient",
    me: "Address",
    amount: Amount,
    provider: Annotated[Any, address_option("Whose stake; default: the signer's own.")] = None,
) -> CommandPlan:
    """Bond tokens as a provider's stake; it answers for all of that provider's nodes."""
    whose = provider or me
    return CommandPlan(
        f"{ether(amount)} tokens of {me} become stake of {whose}. They answer for all its nodes: the contract takes "
        f"from them when a node of its cheats. They come back after unstake and {await _unbonding(chain)}.",
        f"{ether(amount)} tokens bonded for {whose}",
        await bond_steps(chain, me, whose, amount),
    )


@transaction(app, "unstake", example="unstake 50 --network base-sepolia --key provider")
async def unstake(chain: "ChainClient", me: "Address", amount: Amount) -> CommandPlan:
    """Begin to take stake out. It can still be slashed until it is withdrawn."""
    says = (
        f"{ether(amount)} tokens of your stake begin to unbond. They earn no trust any more but can still be slashed, "
        f"and you can withdraw them after {await _unbonding(chain)}."
    )
    return CommandPlan(
        says, f"{ether(amount)} tokens unbonding", [step("unbond stake", chain.contracts.unbond(amount))]
    )


@transaction(app, "rebond", example="rebond --network base-sepolia --key provider")
async def rebond(
    chain: "ChainClient",
    me: "Address",
    amount: Annotated[
        Any, typer.Argument(parser=wei, metavar="[TOKENS]", help="Default: everything that is unbonding.")
    ] = None,
) -> CommandPlan:
    """Make unbonding tokens stake again."""
    whole = (await chain.stake_of(me)).unbonding if amount is None else amount
    if whole == 0:
        raise CommandError("there is nothing to rebond", f"nothing of {me} is unbonding", "see: contract provider show")
    says = f"{ether(whole)} tokens of yours that were unbonding become stake again"
    return CommandPlan(
        says, f"{ether(whole)} tokens bonded again", [step("bond stake again", chain.contracts.rebond(whole))]
    )


@transaction(app, "withdraw", example="withdraw --network base-sepolia --key provider")
async def withdraw(chain: "ChainClient", me: "Address") -> CommandPlan:
    """Take out what has finished unbonding."""
    amount = (await chain.stake_of(me)).unbonding
    says = f"{ether(amount)} tokens that have unbonded come back to {me}"
    return CommandPlan(says, f"{ether(amount)} tokens withdrawn", [step("withdraw stake", chain.contracts.withdraw())])


async def bond_steps(chain: "ChainClient", me: "Address", provider: "Address", amount: int) -> "list[SimulatedStep]":
    """Approve where that is needed, then bond."""
    if amount == 0:
        raise CommandError("nothing to stake", "the amount is 0", "give a number of tokens", USAGE)
    vault = chain.profile.contracts.vault
    return [*await approve_steps(chain, me, vault, amount), step("bond stake", chain.contracts.bond(provider, amount))]


async def approve_steps(chain: "ChainClient", me: "Address", spender: "Address", amount: int) -> "list[SimulatedStep]":
    """Let a contract take `amount` of my tokens, unless it may already. Raises OtherContracts: what is put into a
    contract of somebody else's may never come out."""
    chain.require_own_code()
    allowed = await chain.ask("read an allowance", lambda c: c.allowance(me, spender))
    # The exact amount, never an unlimited one: what is approved can be taken, should that contract be wrong.
    return [step("approve tokens", chain.contracts.approve(spender, amount))] if allowed < amount else []


async def _unbonding(chain: "ChainClient") -> str:
    period = await chain.ask("read a parameter", lambda c: c.view("vault", "unbondingPeriod"))
    return f"{period // 86_400} days" if period >= 2 * 86_400 else duration(period)


# providers and nodes: a node consents by its own signature, wherever its key lies


Units = Annotated[int, typer.Option(min=1, max=MAX_UNITS, help="How much the node can do; each unit needs stake.")]
NodeAddress = Annotated[Any, typer.Argument(parser=address, metavar="NODE", help="The node's address.")]
PasswordFile = Annotated[Path | None, typer.Option("--password-file", help="Password of the node's key (mode 0600).")]


@transaction(provider_app, "register", example="provider register --units 2 --network base-sepolia --key provider")
async def provider_register(chain: "ChainClient", me: "Address", units: Units = 1) -> CommandPlan:
    """Become a provider: bond what the contract asks for `units` more than your nodes have now."""
    required, bonded = await chain.required_stake(me, units), (await chain.stake_of(me)).bonded
    # The contract asks for the stake of all nodes together, those of yours that left and answer still among them.
    missing = required - bonded
    if missing <= 0:
        raise CommandError(
            "the stake is large enough already",
            f"{ether(bonded)} tokens are bonded, {ether(required)} are needed",
            "register the node",
        )
    says = (
        f"{ether(missing)} tokens of {me} become its stake, which is then enough for {units} more unit(s). The "
        "contract takes from it when a node of yours cheats."
    )
    return CommandPlan(says, f"{ether(missing)} tokens bonded for {me}", await bond_steps(chain, me, me, missing))


@transaction(provider_app, "remove", example="provider remove --network base-sepolia --key provider")
async def provider_remove(chain: "ChainClient", me: "Address") -> CommandPlan:
    """Stop: remove all your nodes, and begin to unbond the whole stake."""
    nodes, bonded = await _nodes_of(chain, me), (await chain.stake_of(me)).bonded
    # Nodes first: stake that a registered node needs cannot be unbonded.
    steps = [step("remove the nodes", chain.contracts.remove_provider(nodes))] if nodes else []
    steps += [step("unbond stake", chain.contracts.unbond(bonded))] if bonded else []
    if not steps:
        raise CommandError("there is nothing to remove", f"{me} has no nodes and no stake", "nothing to do")
    says = (
        f"your {len(nodes)} node(s) are removed and cannot work any more; {ether(bonded)} tokens of stake begin to "
        "unbond (withdraw them later), and answer till then for what the nodes did. What they earned stays due."
    )
    return CommandPlan(says, f"{len(nodes)} node(s) removed, {ether(bonded)} tokens unbonding", steps)


async def amounts_of(chain: "ChainClient", account: "Address") -> dict[str, str]:
    """Coin, tokens and stake of an account, in wei, JSON-ready."""
    balances, bond = await chain.balances(account), await chain.stake_of(account)
    amounts = {"coin_wei": balances.coin, "token_wei": balances.token, "bonded_wei": bond.bonded}
    amounts |= {"unbonding_wei": bond.unbonding, "frozen_wei": bond.frozen}
    amounts |= {"required_wei": await chain.required_stake(account), "credit_wei": await chain.credit_of(account)}
    return {name: str(amount) for name, amount in amounts.items()}


def amount_rows(amounts: dict[str, str]) -> list[tuple[str, Any]]:
    return [(name.removesuffix("_wei"), ether(int(amount))) for name, amount in amounts.items()]


@question(provider_app, "show", example="provider show 0xAb.. --network local --json")
async def provider_show(
    chain: "ChainClient",
    provider: Annotated[Any, typer.Argument(parser=address, metavar="PROVIDER", help="The provider's address.")],
) -> tuple[dict[str, Any], Rows]:
    """A provider: coin, tokens, stake, and its nodes."""
    amounts, bond = await amounts_of(chain, provider), await chain.stake_of(provider)
    infos, now = await _infos_of(chain, provider), (await chain.block()).timestamp
    nodes = [info.node for info in infos if info.provider == provider]
    leaving = [info for info in infos if not info.registered and info.units]
    facts = {"provider": provider, **amounts, "withdrawable_at": bond.withdrawable_at, "nodes": nodes, "now": now}
    facts |= {"leaving": [{"node": info.node, "units": info.units, "free_at": info.free_at} for info in leaving]}
    rows = [("provider", provider), *amount_rows(amounts)]
    if bond.unbonding:
        rows.append(("withdrawable", when(bond.withdrawable_at, now)))
    rows += [("node", node) for node in nodes]
    return facts, [*rows, *(("leaving", f"{info.node}, answers until {when(info.free_at, now)}") for info in leaving)]


@node_app.command(
    "consent", epilog="Example:  intellect-node contract node consent 0xProvider --state-dir nodes/a > consent.json"
)
def node_consent(
    provider: Annotated[Any, typer.Argument(parser=address, metavar="PROVIDER", help="Who may register this node.")],
    state_dir: Annotated[Path, state_dir_option("State directory of the node.")],
    units: Units = 1,
    until: Annotated[Moment, when_option("+24h, a date, or unix seconds.")] = "+24h",  # type: ignore[assignment]
    network: Network = "local",
    password_file: PasswordFile = None,
) -> None:
    """Where the node runs: sign that a provider may register it. Prints JSON for `node register --consent`."""
    key = open_node_key(state_dir, password_file)

    async def sign(chain: "ChainClient") -> tuple[int, bytes]:
        # A consent that never ended could be used years later, when the node is somebody else's.
        deadline = until((await chain.block()).timestamp)
        return await chain.register_node_signature(key, provider, units, deadline=deadline)

    deadline, signature = read(network, sign)
    facts = {"node": key.address, "provider": provider, "units": units, "deadline": deadline}
    print_json(facts | {"signature": "0x" + signature.hex()})


@transaction(node_app, "register", example="node register --node-state nodes/a --network base-sepolia --key provider")
async def node_register(
    chain: "ChainClient",
    me: "Address",
    node_state: Annotated[
        Path | None, typer.Option("--node-state", help="State directory of the node; its key consents.")
    ] = None,
    consent: Annotated[
        Path | None, typer.Option("--consent", help="Or the node's consent, from `node consent` on its machine.")
    ] = None,
    units: Units = 1,
) -> CommandPlan:
    """Register a node under your provider: your stake answers for it."""
    if (node_state is None) == (consent is None):
        raise CommandError("which node?", "give --node-state or --consent, one of them", "see --help", USAGE)
    if node_state is not None:
        key = open_node_key(node_state)
        node, (deadline, signature) = key.address, await chain.register_node_signature(key, me, units)
    else:
        node, units, deadline, signature = _read_consent(consent or Path(), me)
    free = await _releasable(chain, me)
    steps = [step("release removed nodes", chain.contracts.release(free))] if free else []
    steps.append(step("register the node", chain.contracts.register_node(node, units, deadline, signature)))
    says = (
        f"the node {node} joins your provider {me} with {units} unit(s), for good: it can never have another provider. "
        "From now on your stake answers for what it does."
    )
    return CommandPlan(says, f"node {node} registered under {me}", steps)


@transaction(node_app, "lend", example="node lend 0xNode 100 --network base-sepolia --key provider")
async def node_lend(chain: "ChainClient", me: "Address", node: NodeAddress, amount: Amount) -> CommandPlan:
    """Let a node put up bonds out of your account: a validator's daemon carries slashes, and each takes a bond.

    The tokens stay yours until a case needs them. 0 takes the permission back.
    """
    owner = (await chain.node_info(node)).provider
    if owner != me and amount:
        why = f"its provider is {owner or 'nobody'}, the signer is {me}"
        raise CommandError("this node is not yours", why, "sign with its key", CHAIN)
    says = (
        f"the node {node} may take up to {ether(amount)} tokens out of your account, to put them up for slashes that "
        "it carries. Whoever has its key may take them for anything. What comes back of them stays with the node, for "
        "its next case"
        if amount
        else f"the node {node} may take nothing out of your account any more"
    )
    done = f"{node} may put up {ether(amount)} tokens of yours"
    return CommandPlan(says, done, [step("approve tokens", chain.contracts.approve(node, amount))])


@transaction(node_app, "remove", example="node remove 0xNode --network base-sepolia --key provider")
async def node_remove(chain: "ChainClient", me: "Address", node: NodeAddress) -> CommandPlan:
    """Remove a node of yours; what it earned is still paid, and its stake answers until the unbonding is over."""
    says = (
        f"the node {node} can no longer work for you. The stake that it needed can unbond; for "
        f"{await _unbonding(chain)} it answers for what the node did, and stands behind no new node"
    )
    return CommandPlan(says, f"node {node} removed", [step("remove the node", chain.contracts.remove_node(node))])


@transaction(node_app, "retire", example="node retire 0xNode --network base-sepolia --key provider")
async def node_retire(chain: "ChainClient", me: "Address", node: NodeAddress) -> CommandPlan:
    """The way back to a node's stake: take out what has unbonded, remove the node, unbond what no node of yours needs.

    Say it once to begin, and again when the date has come. Interrupted, it goes on where it was.
    """
    info, bond, now = await chain.node_info(node), await chain.stake_of(me), (await chain.block()).timestamp
    if info.owner != me:
        owner = info.owner or "nobody"
        raise CommandError(
            "this node is not yours", f"its provider is {owner}, the signer is {me}", "sign with its key", CHAIN
        )
    free = max(bond.bonded - await chain.required_stake(me, -info.units if info.registered else 0), 0)
    steps, says = list["SimulatedStep"](), list[str]()
    # First: what is unbonded now would have this wait for another period.
    if bond.unbonding and now >= bond.withdrawable_at:
        steps.append(step("withdraw stake", chain.contracts.withdraw()))
        says.append(f"{ether(bond.unbonding)} tokens that have unbonded come back to {me}")
    if info.registered:
        steps.append(step("remove the node", chain.contracts.remove_node(node)))
        says.append(f"the node {node} can no longer work for you; what it earned stays due")
    elif info.units and now >= info.free_at:
        steps.append(step("release the node", chain.contracts.release([node])))
        says.append(f"the node {node} binds no stake any more")
    if free:
        steps.append(step("unbond stake", chain.contracts.unbond(free)))
        says.append(
            f"{ether(free)} tokens that no node of yours needs can be withdrawn after {await _unbonding(chain)}"
        )
    if not steps:
        rest = f"{ether(bond.unbonding)} tokens are unbonding" if bond.unbonding else "nothing is unbonding"
        then = f"say it again from {when(bond.withdrawable_at, now)} on" if bond.unbonding else "nothing to do"
        raise CommandError("there is nothing to take out now", rest, then, CHAIN)
    return CommandPlan("; ".join(says), f"node {node}: " + ", ".join(each.action for each in steps), steps)


@transaction(node_app, "release", example="node release --network base-sepolia --key provider")
async def node_release(
    chain: "ChainClient",
    me: "Address",
    nodes: Annotated[
        list[Any] | None,
        typer.Argument(parser=address, metavar="[NODE]...", help="Default: all of yours that are free."),
    ] = None,
) -> CommandPlan:
    """Free the stake that removed nodes bind, once they need not answer any more. Anybody may do this."""
    free = list(nodes) if nodes else await _releasable(chain, me)
    if not free:
        what = f"no removed node of {me} has answered long enough"
        raise CommandError("there is nothing to release", what, "see: contract provider show", CHAIN)
    says = f"{len(free)} removed node(s) bind no stake any more: it can stand behind others"
    return CommandPlan(
        says, f"{len(free)} node(s) released", [step("release removed nodes", chain.contracts.release(free))]
    )


@transaction(node_app, "expel", example="node expel 0xNode --network base-sepolia --key anybody")
async def node_expel(chain: "ChainClient", me: "Address", node: NodeAddress) -> CommandPlan:
    """Remove a node whose provider's stake no longer covers its nodes: until it covers the rest. Anybody may."""
    says = (
        f"the node {node} is removed, because its provider's stake is too small for all of its nodes. It comes back by "
        "registering it again, once there is enough"
    )
    return CommandPlan(says, f"node {node} expelled", [step(f"expel {node}", chain.contracts.expel(node))])


@question(node_app, "show", example="node show 0xNode --network local --json")
async def node_show(chain: "ChainClient", node: NodeAddress) -> tuple[dict[str, Any], Rows]:
    """A node: its provider, its units, its pool, and its coin for gas."""
    info, balances, now = await chain.node_info(node), await chain.balances(node), (await chain.block()).timestamp
    facts = {"node": node, "provider": info.provider, "registered": info.registered, "units": info.units}
    facts |= {"pool": info.pool or None, "lease_until": info.lease_until, "nonce": info.nonce}
    facts |= {"free_at": info.free_at or None, "coin_wei": str(balances.coin), "now": now}
    rows = [(name, facts[name]) for name in ("node", "provider", "units", "pool")]
    rows += [("answers until", when(info.free_at, now))] if info.free_at else []
    rows += [("lease", when(info.lease_until, now))] if info.pool else []
    return facts, [*rows, ("coin", ether(balances.coin))]


async def _nodes_of(chain: "ChainClient", provider: "Address") -> "list[Address]":
    """Present nodes."""
    # The contract keeps no list of a provider's nodes, so those that have left since are told apart by asking.
    return [info.node for info in await _infos_of(chain, provider) if info.provider == provider]


async def _releasable(chain: "ChainClient", provider: "Address") -> "list[Address]":
    """Removed nodes that bind stake although they need not answer any more."""
    if not await chain.ask("read a stake", lambda contracts: contracts.leaving_units(provider)):
        return []
    now, infos = (await chain.block()).timestamp, await _infos_of(chain, provider)
    return [info.node for info in infos if not info.registered and info.units and now >= info.free_at]


async def _infos_of(chain: "ChainClient", provider: "Address") -> "list[NodeInfo]":
    """All nodes that a provider ever had, from the registrations ever told."""
    from contracts.bindings import NodeRegistered

    # An indexed address fills 32 bytes in a topic.
    events = await events_of(chain, NodeRegistered, "0x" + provider.removeprefix("0x").lower().rjust(64, "0"))
    # Without doubles, in the order of the first registration: a node can be removed and registered again.
    seen = dict.fromkeys(event.node for event in events)
    return [await chain.node_info(node) for node in seen]


class Consent(msgspec.Struct, frozen=True):
    """What `node consent` prints. deadline: unix seconds; signature: 65 bytes in hex."""

    node: str
    provider: str
    units: Annotated[int, msgspec.Meta(ge=1, le=MAX_UNITS)]
    deadline: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    signature: str


def _read_consent(path: Path, me: "Address") -> tuple[Any, int, int, bytes]:
    told = read_json(path, Consent, "is no consent", "make it again: intellect-node contract node consent")
    # Said here, where the reason is known: the contract would only say that the signature is bad.
    if address(told.provider) != me:
        raise CommandError(
            "this consent is for another provider", f"it names {told.provider}, the signer is {me}", "sign with its key"
        )
    return address(told.node), told.units, told.deadline, signature_of(told.signature)


def signature_of(text: str) -> bytes:
    """65 bytes in hex."""
    digits = text.removeprefix("0x")
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        raw = b""
    if len(raw) != 65:
        raise CommandError(f"{text[:40]!r} is no signature", "it must be 65 bytes", "give 130 hex digits", USAGE)
    return raw
