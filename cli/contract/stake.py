"""Stake: bond, unbond, rebond, withdraw; and the faucet of test networks."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.contract.frame import Plan, app, step, transaction
from cli.contract.values import address, wei
from cli.errors import USAGE, CommandError
from cli.output import duration, ether

if TYPE_CHECKING:
    from node.chain.client import ChainClient
    from node.chain.simulate import Step
    from protocol.identity import Address

Amount = Annotated[int, typer.Argument(parser=wei, metavar="TOKENS", help="Tokens, e.g. 100 or 0.5.")]


@transaction(app, "faucet", example="faucet 0xAb.. 1000 --network base-sepolia --key me")
async def faucet(
    chain: "ChainClient",
    me: "Address",
    to: Annotated[Any, typer.Argument(parser=address, metavar="ADDRESS", help="Address that gets them.")],
    amount: Amount,
) -> Plan:
    """Mint test tokens, on networks whose token is a test token; a local devnet gives coin for gas too."""
    from node.chain.faucet import COIN_FOR_GAS, DevnetFaucet, is_devnet

    async def give_coin() -> None:
        if is_devnet(chain.profile):
            await DevnetFaucet(chain).fund(to, coin=COIN_FOR_GAS)

    says = f"{ether(amount)} new test tokens, worth nothing, go to {to}; you pay the gas"
    steps = [step("mint test tokens", chain.contracts.mint(to, amount))]
    return Plan(says, f"{ether(amount)} test tokens for {to}", steps, before=give_coin)


@transaction(app, "stake", example="stake 100 --network base-sepolia --key provider")
async def stake(
    chain: "ChainClient",
    me: "Address",
    amount: Amount,
    provider: Annotated[
        Any, typer.Option(parser=address, metavar="ADDRESS", help="Whose stake; default: the signer's own.")
    ] = None,
) -> Plan:
    """Bond tokens as a provider's stake; it answers for all of that provider's nodes."""
    whose = provider or me
    return Plan(
        f"{ether(amount)} tokens of {me} become stake of {whose}. They answer for all its nodes: the contract takes "
        f"from them when a node of its cheats. They come back after unstake and {await _unbonding(chain)}.",
        f"{ether(amount)} tokens bonded for {whose}",
        await bond_steps(chain, me, whose, amount),
    )


@transaction(app, "unstake", example="unstake 50 --network base-sepolia --key provider")
async def unstake(chain: "ChainClient", me: "Address", amount: Amount) -> Plan:
    """Begin to take stake out. It can still be slashed until it is withdrawn."""
    says = (
        f"{ether(amount)} tokens of your stake begin to unbond. They earn no trust any more but can still be slashed, "
        f"and you can withdraw them after {await _unbonding(chain)}."
    )
    return Plan(says, f"{ether(amount)} tokens unbonding", [step("unbond stake", chain.contracts.unbond(amount))])


@transaction(app, "rebond", example="rebond --network base-sepolia --key provider")
async def rebond(
    chain: "ChainClient",
    me: "Address",
    amount: Annotated[
        Any, typer.Argument(parser=wei, metavar="[TOKENS]", help="Default: everything that is unbonding.")
    ] = None,
) -> Plan:
    """Make unbonding tokens stake again."""
    whole = (await chain.stake_of(me)).unbonding if amount is None else amount
    if whole == 0:
        raise CommandError("there is nothing to rebond", f"nothing of {me} is unbonding", "see: contract provider show")
    says = f"{ether(whole)} tokens of yours that were unbonding become stake again"
    return Plan(says, f"{ether(whole)} tokens bonded again", [step("bond stake again", chain.contracts.rebond(whole))])


@transaction(app, "withdraw", example="withdraw --network base-sepolia --key provider")
async def withdraw(chain: "ChainClient", me: "Address") -> Plan:
    """Take out what has finished unbonding."""
    amount = (await chain.stake_of(me)).unbonding
    says = f"{ether(amount)} tokens that have unbonded come back to {me}"
    return Plan(says, f"{ether(amount)} tokens withdrawn", [step("withdraw stake", chain.contracts.withdraw())])


async def bond_steps(chain: "ChainClient", me: "Address", provider: "Address", amount: int) -> "list[Step]":
    """Approve where that is needed, then bond."""
    if amount == 0:
        raise CommandError("nothing to stake", "the amount is 0", "give a number of tokens", USAGE)
    vault = chain.profile.contracts.vault
    return [*await approve_steps(chain, me, vault, amount), step("bond stake", chain.contracts.bond(provider, amount))]


async def approve_steps(chain: "ChainClient", me: "Address", spender: "Address", amount: int) -> "list[Step]":
    """Let a contract take `amount` of my tokens, unless it may already."""
    allowed = await chain.ask("read an allowance", lambda c: c.allowance(me, spender))
    return [step("approve tokens", chain.contracts.approve(spender, amount))] if allowed < amount else []


async def _unbonding(chain: "ChainClient") -> str:
    period = await chain.ask("read a parameter", lambda c: c.vault.functions.unbondingPeriod().call())
    return f"{period // 86_400} days" if period >= 2 * 86_400 else duration(period)
