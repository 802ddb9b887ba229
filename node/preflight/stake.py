"""Whether the chain lets this node in: its pool, its registration, the stake that answers for it, and its gas.

What is missing comes with the commands that mend it, to be copied as they are.
"""

import msgspec

from contracts.bindings import NOBODY, Contracts, PoolInfo
from node.chain.client import ChainClient
from node.chain.errors import tokens
from node.preflight.finding import Finding, failure, ok, warning
from protocol.economics import daily_gas
from protocol.identity import Address, parse_address

DAY = 86_400
JOIN_GAS = 500_000
"""What joining and leaving may take, on the safe side: an account is asked for twice the present fee."""
DAYS = 7
"""Days of gas below which a node's owner is warned."""


class Standing(msgspec.Struct, frozen=True):
    """What the chain knows of a node. Amounts in wei; gas: wei for joining; day: wei for a day's commitments."""

    node: Address
    provider: Address | None
    bonded: int
    required: int
    coin: int
    gas: int
    day: int

    @property
    def registered(self) -> bool:
        return self.provider is not None

    @property
    def staked(self) -> bool:
        return self.registered and self.bonded >= self.required

    @property
    def ready(self) -> bool:
        """Whether it may join, and pay for it."""
        return self.staked and self.coin >= self.gas


async def look_up(
    chain: ChainClient, node: Address, pool: PoolInfo, units: int, candidate: Address | None = None
) -> Standing:
    """candidate: whose stake would answer for a node that is not registered yet. Raises ChainError."""
    info = await chain.node_info(node)
    provider = info.provider
    whose = provider or candidate
    bonded = (await chain.stake_of(whose)).bonded if whose else 0
    required = await chain.required_stake(whose or NOBODY, 0 if provider else units)
    coin = (await chain.balances(node)).coin
    price = await chain.gas_price()
    day = daily_gas(max(DAY // max(pool.epoch_seconds, 1), 1)) * price
    return Standing(node, provider, bonded, required, coin, JOIN_GAS * price, day)


def check_stake(standing: Standing, commands: list[str]) -> Finding:
    """Pure. commands: what to type if it is missing."""
    data = msgspec.to_builtins(standing, builtin_types=(int,)) | {"commands": commands}
    data |= {name: str(data[name]) for name in ("bonded", "required", "coin", "gas", "day")}
    if not standing.registered:
        asked = f"{tokens(standing.required)} tokens of stake are asked"
        what = f"no provider has registered the node {standing.node}; {asked}"
        return failure("stake", what, "; then ".join(commands), **data)
    if not standing.staked:
        what = f"{tokens(standing.bonded)} of {tokens(standing.required)} tokens are bonded for {standing.provider}"
        return failure("stake", what, "; then ".join(commands), **data)
    return ok("stake", f"{tokens(standing.bonded)} tokens of {standing.provider} answer for this node", **data)


def check_gas(standing: Standing) -> Finding:
    """Pure."""
    days = (standing.coin - standing.gas) / standing.day if standing.day else float("inf")
    data = {"coin_wei": str(standing.coin), "join_wei": str(standing.gas), "day_wei": str(standing.day)}
    send = gas_step(standing)
    if standing.coin < standing.gas:
        what = f"the node's account has {coins(standing.coin)}, joining may cost {coins(standing.gas)}"
        return failure("gas", what, f"{send}: enough to join and for {DAYS} days", **data)
    if days < DAYS:
        what = f"the node's gas lasts {days:.1f} days: {coins(standing.coin)}, {coins(standing.day)} a day"
        return warning("gas", what, send, **data)
    lasts = "for years" if days > 1000 else f"for {days:.0f} days"
    return ok("gas", f"the node's account has {coins(standing.coin)}: gas {lasts}", **data)


def check_pool(pool: PoolInfo) -> Finding:
    """Pure."""
    data = {"pool": pool.id, "ended": pool.ended, "paused": pool.paused, "invited": pool.invited}
    if pool.ended:
        return failure("pool", f"pool {pool.id} has ended", "choose another: intellect-node contract pool list", **data)
    if pool.paused:
        return failure(
            "pool", f"pool {pool.id} is paused", "wait until its owner resumes it, or choose another", **data
        )
    if not pool.escrow:
        return warning("pool", f"pool {pool.id} has no money for new work", "ask its owner: contract pool fund", **data)
    paid = f"pays {tokens(pool.reward_per_unit * 1000)} tokens per 1000 units, {tokens(pool.escrow)} in escrow"
    return ok("pool", f"pool {pool.id} {paid}", **data)


class Powers(msgspec.Struct, frozen=True):
    """Who stands above every pool of a deployment. burn_bps: of what a slash takes, in 10,000; min_window: seconds."""

    arbiter: Address
    treasury: Address
    burn_bps: int
    appeal_seconds: int
    min_window: int


def read_powers(contracts: Contracts) -> Powers:
    """Blocks on the network."""
    vault = contracts.vault.functions
    arbiter, treasury = parse_address(vault.arbiter().call()), parse_address(vault.treasury().call())
    return Powers(arbiter, treasury, vault.burnBps().call(), vault.appealSeconds().call(), contracts.min_window())


def who_takes_what(pool: PoolInfo, powers: Powers) -> list[str]:
    """For whoever is about to stake something here: who can take it, and who can take it back."""
    quorum, slash = f"{pool.threshold} of {len(pool.validators)} validators", tokens(pool.slash_amount)
    return [
        f"{quorum} say what everybody has earned, and can take {slash} tokens of a member's stake",
        f"the arbiter {powers.arbiter} can give that back for {_time(powers.appeal_seconds)}; then those who "
        "signed pay as much to whom they wronged",
        f"{powers.burn_bps / 100:g} % of it are burned, the treasury {powers.treasury} gets the rest",
        f"the manager {pool.manager} pauses and ends the pool; it names other validators {_time(pool.window)} ahead",
        f"the opener {pool.opener} ends it, too, and gets what nobody has earned",
        f"no pool here pays sooner than {_time(powers.min_window)} after an epoch",
    ]


def _time(seconds: int) -> str:
    hours = seconds / 3600
    return f"{hours / 24:g} days" if hours >= 48 else f"{hours:g} h" if hours >= 1 else f"{seconds} s"


def gas_step(standing: Standing) -> str:
    """What to send to the node's account: enough to join and for some days."""
    return f"send {coins(standing.gas + DAYS * standing.day - standing.coin)} of the chain's coin to {standing.node}"


def coins(wei: int) -> str:
    """Coin for people: six digits are enough."""
    return f"{max(wei, 0) / 10**18:.6f}".rstrip("0").rstrip(".")
