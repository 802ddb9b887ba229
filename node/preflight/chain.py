"""What the chain says: its endpoints, its clock and peers', the pool, the stake, and what the owner types next."""

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from shlex import quote
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from contracts.bindings import NOBODY, Contracts, PoolInfo, PostedEarnings
from node.chain.bonds import Bond, read_bond
from node.chain.endpoints import EndpointFailed, SerialConnection
from node.chain.errors import ChainError, OtherContracts, RpcUnreachable, shown, tokens
from node.chain.faucet import is_devnet
from node.chain.invitations import OPEN_DOOR, InvitationCheck
from node.chain.invitations import look as look_for_invitation
from node.chain.profile import NetworkProfile
from node.chain.refusals import EndpointRefused
from node.config import NodeConfig
from node.errors import KeyError_
from node.preflight.finding import CheckFinding, failure, ok, warning
from node.state.keystore import claimed_address, read_keystore
from node.units import DAY
from protocol.economics import daily_gas
from protocol.errors import IntellectError
from protocol.identity import Address, InvalidIdentity
from protocol.liveness import AHEAD

if TYPE_CHECKING:  # web3 takes a second, and `join` refuses before it
    from node.chain.client import ChainClient

# The chain's endpoints: do they answer, are they the right chain, how old is what they know, how far back do they go

LOG_BLOCKS = 10
Endpoint = dict[str, Any]


def check_rpc(profile: NetworkProfile, now: float, *, deep: bool = False, timeout: float = 8.0) -> list[CheckFinding]:
    """One finding for each endpoint, and one for all of them where none can be used. deep: also ask for old logs;
    timeout: seconds for each question."""
    probed = [probe(url, profile, deep=deep, timeout=timeout) for url in profile.rpc_urls]
    found = [judge(endpoint, profile, now) for endpoint in probed]
    if serving := sum(endpoint.get("chain_id") == profile.chain_id for endpoint in probed):
        return [*found, check_witnesses(profile, serving)]
    what = f"no endpoint of {profile.name} can be used: {'; '.join(one.what for one in found)}"
    remedy = (
        "devnet: intellect-node devnet up" if profile.name == "local" else "use another RPC in rpc_urls of the profile"
    )
    return [*found, failure("rpc", what[:500], remedy)]


def probe(url: str, profile: NetworkProfile, *, deep: bool, timeout: float) -> Endpoint:
    """What one endpoint says of itself. Credentials in its URL are left out."""
    found: Endpoint = {"endpoint": shown(url)}
    try:
        with closing(SerialConnection(timeout)) as line:
            began = time.monotonic()
            found["chain_id"] = int(line.ask(url, "eth_chainId"), 16)
            found["seconds"] = round(time.monotonic() - began, 3)
            block = line.ask(url, "eth_getBlockByNumber", "latest", False)
            found["block"], found["timestamp"] = int(block["number"], 16), int(block["timestamp"], 16)
            if deep and profile.deployed:
                found["logs_from"] = _logs_from(line, url, profile, found["block"])
    except (EndpointFailed, EndpointRefused, ValueError, TypeError, KeyError) as error:
        found["error"] = (str(error) or type(error).__name__)[:200]
    return found


def judge(endpoint: Endpoint, profile: NetworkProfile, now: float, *, lag: float = 60.0) -> CheckFinding:
    """Pure. now: unix seconds."""
    name, another = endpoint["endpoint"], "take it out of rpc_urls in the profile, or name a better one"
    if "error" in endpoint:
        return warning("rpc", f"{name}: {endpoint['error']}", another, **endpoint)
    if endpoint["chain_id"] != profile.chain_id:
        what = f"{name} is chain {endpoint['chain_id']}, {profile.name} is chain {profile.chain_id}"
        return warning("rpc", what, another, **endpoint)
    age = now - endpoint["timestamp"]
    pace = f"{max(age, 0):.0f} s old, answers in {endpoint['seconds']:.2f} s"
    told = f"{name}: chain {profile.chain_id}, block {endpoint['block']}, {pace}"
    logs = endpoint.get("logs_from")
    if logs is not None and logs > profile.deployed_block:
        what = f"{told}; it tells logs from block {logs} on, the contracts are from {profile.deployed_block}"
        return warning("rpc", what, "use an RPC with all logs (an archive is not needed)", **endpoint)
    if endpoint["seconds"] > 1.5:  # seconds per answer from which on following the chain is a burden
        return warning("rpc", f"{told}: slow", another, **endpoint)
    if age > lag:
        return warning("rpc", f"{told}: it lags, or the chain stands still", another, **endpoint)
    return ok("rpc", told, **endpoint)


def check_witnesses(profile: NetworkProfile, serving: int | None = None) -> CheckFinding:
    """Whether two endpoints tell what money follows from. serving: of those in the profile, where they were asked."""
    urls = len(profile.rpc_urls)
    serving = urls if serving is None else serving
    if serving > 1:
        told = f"{serving} endpoints: two must agree on who judges, leads and is paid, and on events and receipts"
        return ok("witnesses", told, endpoints=urls, serving=serving)
    which = "one endpoint" if urls == 1 else f"one of {urls} endpoints serves this chain now, and it"
    what = f"{which} alone says who judges, leads and is paid, what happened, and which contracts these are"
    if profile.lan:
        return ok("witnesses", f"{what}; it is on this machine or in this network", endpoints=urls, serving=serving)
    return warning(
        "witnesses",
        f"{what}: nothing checks it",
        "name a second one, run by somebody else, in rpc_urls of the network profile",
        endpoints=urls,
        serving=serving,
    )


def check_contracts(profile: NetworkProfile, other: Sequence[str], astray: Sequence[str]) -> CheckFinding:
    """Pure. other: contracts that have other code than this program's; astray: ties to others than the profile's."""
    if other or astray:
        error = OtherContracts(other, profile.name, astray)
        about = f"{error.what}: {error.why}"
        return failure("contracts", about, error.remedy, other=list(other), astray=list(astray))
    return ok("contracts", "they have the code of this program's contracts, and each knows the others of the profile")


def _logs_from(line: SerialConnection, url: str, profile: NetworkProfile, head: int) -> int:
    """The first block of which logs are told, found by halving between the contracts' first block and the newest."""
    low, high = min(profile.deployed_block, head), head
    if _tells_logs(line, url, profile, low):
        return low
    probes = 16
    for _ in range(probes):
        if high - low <= LOG_BLOCKS:
            break
        middle = (low + high) // 2
        low, high = (low, middle) if _tells_logs(line, url, profile, middle) else (middle, high)
    return high


def _tells_logs(line: SerialConnection, url: str, profile: NetworkProfile, block: int) -> bool:
    wanted = {"address": profile.contracts.swarm, "fromBlock": hex(block), "toBlock": hex(block + LOG_BLOCKS)}
    try:
        # An endpoint that has thrown old logs away refuses the question; that is what is looked for.
        return isinstance(line.ask(url, "eth_getLogs", wanted), list)
    except EndpointRefused:
        return False


# This machine's clock against the chain's and the peers'. Pure: times are unix seconds

SLACK = 15.0
"""Seconds that a clock may be off: blocks come in steps, and messages take a moment."""
REMEDY = "let the system keep its time: timedatectl set-ntp true (or your system's NTP service)"


def against_chain(newest_block: float, now: float, *, rehearsal: bool = False) -> CheckFinding:
    """newest_block: its timestamp; rehearsal: of a local chain, whose clock anybody may have moved."""
    ahead = now - newest_block
    data = {"chain_seconds_behind": round(ahead, 1)}
    if ahead < -SLACK:
        # Seconds behind at which signed roots, leases and epochs are no longer understood.
        tell = failure if ahead < -300.0 and not rehearsal else warning
        return tell("clock", f"the newest block is {-ahead:.0f} s in this machine's future", REMEDY, **data)
    if ahead > 120.0:  # seconds without a block after which a chain stands still, or this clock is ahead of it
        what = f"the newest block is {ahead:.0f} s old: the RPC lags, the chain stands still, or this clock is ahead"
        return warning("clock", what, f"compare with https://time.is; {REMEDY}; or use another RPC", **data)
    return ok("clock", f"within {abs(ahead):.0f} s of the newest block", **data)


def against_peers(offsets: Sequence[float]) -> CheckFinding | None:
    """offsets: this clock minus each peer's, seconds; None where nobody is heard."""
    if not offsets:
        return None
    off = median(offsets)
    data = {"peers": len(offsets), "median_seconds_ahead": round(off, 1)}
    way = "ahead of" if off > 0 else "behind"
    what = f"this clock is {abs(off):.0f} s {way} most of {len(offsets)} peers'"
    if off > AHEAD:
        return failure("clock", f"{what}: they do not believe what it says", REMEDY, **data)
    if abs(off) > SLACK:
        return warning("clock", what, REMEDY, **data)
    return ok("clock", f"agrees with {len(offsets)} peers' within {abs(off):.1f} s", **data)


# Whether the chain lets this node in: its pool, its registration, the stake that answers for it, and its gas

JOIN_GAS = 500_000
"""What joining and leaving may take, on the safe side: an account is asked for twice the present fee."""
DAYS = 7
"""Days of gas below which a node's owner is warned."""


class ChainStanding(msgspec.Struct, frozen=True):
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
    chain: "ChainClient",
    node: Address,
    pool: PoolInfo,
    units: int,
    candidate: Callable[[], Awaitable["Provider | None"]],
) -> tuple[ChainStanding, "Provider | None"]:
    """candidate: asks whose stake would answer for a node that is not registered yet; its answer is returned, too.
    Raises IntellectError."""
    found, info, balances, price = await together(
        candidate, lambda: chain.node_info(node), lambda: chain.balances(node), chain.gas_price
    )
    provider = info.provider
    whose = provider or (found.address if found else None)
    required, *stake = await together(
        lambda: chain.required_stake(whose or NOBODY, 0 if provider else units, node),
        *([lambda: chain.stake_of(whose)] if whose else []),
    )
    bonded = stake[0].bonded if stake else 0
    day = daily_gas(max(DAY // max(pool.delay, pool.epoch_seconds, 1), 1)) * price
    return ChainStanding(node, provider, bonded, required, balances.coin, JOIN_GAS * price, day), found


def check_stake(standing: ChainStanding, commands: list[str]) -> CheckFinding:
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


def check_gas(standing: ChainStanding) -> CheckFinding:
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


def check_bond(bond: Bond, common: str) -> CheckFinding:
    """Pure. Of a validator: without it the slash that a quorum agrees on does not arrive. common: how a command names
    the network and the provider's key."""
    data = {"needed_wei": str(bond.needed), "own_wei": str(bond.own), "allowed_wei": str(bond.allowed)}
    if bond.is_there:
        return ok("bond", f"{tokens(bond.needed)} tokens are at hand for the bond of a case", **data)
    what = f"this validator cannot carry a slash, which takes a bond for each unit of who is slashed: {bond.why}"
    return warning("bond", what, "; then ".join(bond.steps(common)), **data)


async def look_at_bond(chain: "ChainClient", node: Address, pool: PoolInfo, config: NodeConfig) -> CheckFinding | None:
    """None for who carries no slash, or has no stake yet, and on a devnet, which gives the bond. Raises ChainError."""
    if node not in pool.validators or is_devnet(chain.profile):
        return None
    provider = (await chain.node_info(node)).provider
    if provider is None:
        return None
    read = partial(read_bond, node=node, provider=provider, slash=pool.slash_amount)
    file = provider_file(config)
    key = FIRST_KEY if file is None else key_word(file, config)
    common = f"--network {quote(network_word(config.network))} --key {quote(key)}"
    return check_bond(await chain.ask("read a bond", read), common)


def check_pool(pool: PoolInfo, posted: PostedEarnings | None = None) -> CheckFinding:
    """Pure. posted: its newest table, where that is known."""
    data = {"pool": pool.id, "ended": pool.ended, "paused": pool.paused, "invited": pool.invited}
    if pool.ended:
        remedy = "choose another: intellect-node contract pool list"
        remedy += "; who worked here is paid by: intellect-node leave --when-paid"
        return failure("pool", f"pool {pool.id} has ended", remedy, **data)
    if pool.paused:
        return failure(
            "pool", f"pool {pool.id} is paused", "wait until its owner resumes it, or choose another", **data
        )
    if not pool.escrow:
        return warning("pool", f"pool {pool.id} has no money for new work", "ask its owner: contract pool fund", **data)
    paid = f"pays {tokens(pool.reward_per_unit * 1000)} tokens per 1000 units, {tokens(pool.escrow)} in escrow"
    if posted and posted.last_units and posted.last_units >= pool.units_per_epoch * posted.last_epochs:
        most = f"its newest table paid all {pool.units_per_epoch:,} units that an epoch may have"
        return warning(
            "pool",
            f"pool {pool.id} {paid}, and {most}",
            "expect less for a unit, or later: all who work here share them",
            **data,
        )
    return ok("pool", f"pool {pool.id} {paid}", **data)


async def look_at_door(chain: "ChainClient", pool: PoolInfo, node: Address, config: NodeConfig) -> InvitationCheck:
    """Whether the pool takes a node, or one of the profile's invitations lets it in. Raises ChainError."""
    if not pool.invited:
        return OPEN_DOOR
    now = (await chain.block()).timestamp
    given = (chain.domain, pool, chain.profile.invitations, node, provider_address(config), now)
    return await chain.ask("look for an invitation", lambda contracts: look_for_invitation(contracts, *given))


def check_invitation(door: InvitationCheck) -> CheckFinding:
    """Pure."""
    if not door.shut:
        return ok("invitation", door.why)
    what = f"the pool takes invited nodes only: {door.why}"
    remedy = "ask its manager for an invitation, a file, and join by it: intellect-node join FILE"
    return failure("invitation", what, remedy)


class Powers(msgspec.Struct, frozen=True):
    """Who stands above every pool of a deployment. burn_bps: of what a slash takes, bond_bps: of it that its
    carrier puts up, in 10,000; min_window: seconds."""

    arbiter: Address
    treasury: Address
    burn_bps: int
    bond_bps: int
    appeal_seconds: int
    min_window: int


def read_powers(contracts: Contracts) -> Powers:
    """Blocks on the network."""
    of_vault = partial(contracts.view, "vault")
    return Powers(
        of_vault("arbiter"),
        of_vault("treasury"),
        of_vault("burnBps"),
        of_vault("bondBps"),
        of_vault("appealSeconds"),
        contracts.min_window(),
    )


def who_takes_what(pool: PoolInfo, powers: Powers) -> list[str]:
    """For whoever is about to stake something here: who can take it, and who can take it back."""
    quorum, slash = f"{pool.threshold} of {len(pool.validators)} validators", tokens(pool.slash_amount)
    return [
        f"{quorum} say what everybody has earned, and can take {slash} tokens of stake for each unit of a member",
        f"their table counts {_time(pool.delay)} later; the guardian {pool.guardian} can hold it until then, and the "
        f"arbiter drop it for {_time(powers.appeal_seconds)} from then: each who signed it is slashed as much",
        f"the arbiter {powers.arbiter} can give that back for {_time(powers.appeal_seconds)}; whoever carried "
        f"the slash then loses its bond, {powers.bond_bps / 100:g} % of it",
        f"{powers.burn_bps / 100:g} % of it are burned, the treasury {powers.treasury} gets the rest",
        f"the manager {pool.manager} pauses the pool and invites",
        f"the opener {pool.opener} names other validators and trainers {_time(pool.window)} ahead, ends the pool, and "
        "gets what no table has and nobody filed, three windows after the last epoch at the soonest",
        f"no pool here pays sooner than {_time(powers.min_window)} after an epoch",
    ]


def _time(seconds: int) -> str:
    hours = seconds / 3600
    return f"{hours / 24:g} days" if hours >= 48 else f"{hours:g} h" if hours >= 1 else f"{seconds} s"


def gas_step(standing: ChainStanding) -> str:
    """What to send to the node's account: enough to join and for some days."""
    return f"send {coins(standing.gas + DAYS * standing.day - standing.coin)} of the chain's coin to {standing.node}"


def coins(wei: int) -> str:
    """Coin for people: six digits are enough."""
    return f"{max(wei, 0) / 10**18:.6f}".rstrip("0").rstrip(".")


# The provider that stakes for this node, as far as it is known here, and what its owner types next, in order

PROVIDER_GAS = 1_000_000
"""For approving, bonding and registering: four times what it takes."""
FIRST_KEY = "provider"


class Provider(msgspec.Struct, frozen=True):
    """key: what commands call its key; coin, token: wei that the account has; needs: wei of coin for the steps below;
    mintable: whether the network's token is a test token, which anybody may make."""

    key: str
    address: Address
    coin: int
    token: int
    needs: int
    mintable: bool


def provider_file(config: NodeConfig) -> Path | None:
    """The provider's keystore: that of the settings, or the one key of this user, or the one called "provider"."""
    if config.provider_key_file is not None:
        return config.provider_key_file
    files = sorted((config.home / "keys").glob("*.json"))
    named = [file for file in files if file.stem == FIRST_KEY]
    return named[0] if named else files[0] if len(files) == 1 else None


async def look(
    chain: "ChainClient", node: Address, pool: PoolInfo, config: NodeConfig, directory: Path
) -> tuple[ChainStanding, list[str]]:
    """Where a node stands on chain, and what its owner types until it may join. Raises ChainError."""
    standing, provider = await look_up(chain, node, pool, config.units, lambda: find_provider(chain, config))
    return standing, next_steps(standing, provider, network_word(config.network), directory, config.units)


def provider_address(config: NodeConfig) -> Address | None:
    """Of the key that would stake for this node; None where none is known."""
    file = provider_file(config)
    return None if file is None else _address_in(file, named=config.provider_key_file is not None)


async def find_provider(chain: "ChainClient", config: NodeConfig) -> Provider | None:
    """None where no key is known. The keystore stays locked: its address stands in it. Raises ChainError, and
    KeyError_ for a file that was named and does not say its address."""
    file, address = provider_file(config), provider_address(config)
    if file is None or address is None:
        return None
    key = key_word(file, config)
    balances, price, mintable = await together(
        lambda: chain.balances(address), chain.gas_price, lambda: _is_mintable(chain, address)
    )
    return Provider(key, address, balances.coin, balances.token, PROVIDER_GAS * price, mintable)


def key_word(file: Path, config: NodeConfig) -> str:
    """What a command calls the key in this keystore."""
    return file.stem if file.parent == config.home / "keys" else str(file)


def _address_in(file: Path, *, named: bool) -> Address | None:
    """What a keystore says of itself; of one that was named, an answer or an error."""
    try:
        address = claimed_address(read_keystore(file))
        if address is not None or not named:
            return address
    except (KeyError_, InvalidIdentity) as error:
        if not named:
            return None
        if isinstance(error, KeyError_):
            raise
        raise KeyError_(f"the provider's key {file} cannot be used", str(error), "name a keystore v3 file") from error
    raise KeyError_(
        f"the provider's key {file} does not say its address",
        "the file leaves it out, as foundry's `cast wallet import` does; only its password opens it",
        f"take it in once: intellect-node keys import provider --keystore {quote(str(file))}",
    )


async def together(*questions: Callable[[], Awaitable[Any]]) -> list[Any]:
    """The answers to questions that do not wait for each other, in their order. Raises what the first of those raises
    that fail."""
    answers: dict[int, Any] = {}
    errors: dict[int, IntellectError] = {}

    async def ask(place: int) -> None:
        try:
            answers[place] = await questions[place]()
        except IntellectError as error:
            errors[place] = error

    async with trio.open_nursery() as nursery:
        for place in range(len(questions)):
            nursery.start_soon(ask, place)
    if errors:
        raise errors[min(errors)]
    return [answers[place] for place in range(len(questions))]


def network_word(network: str) -> str:
    """What a command calls the network, in whatever directory it is typed."""
    return str(Path(network).resolve()) if "/" in network or network.endswith(".toml") else network


def next_steps(
    standing: ChainStanding, provider: Provider | None, network: str, directory: Path, units: int
) -> list[str]:
    """Commands to copy, and what to send to whom, until this node may join. Pure. Without a known provider the first
    step only: the others name its address."""
    gas = [] if standing.coin >= standing.gas else [f"{gas_step(standing)} (this node, for gas)"]
    if standing.staked:
        return gas
    if provider is None:
        return [f"intellect-node keys new {FIRST_KEY}"]
    common = f"--network {quote(network)} --key {quote(provider.key)}"
    return [*gas, *_provisions(standing, provider, common), *_staking(standing, common, directory, units)]


def _provisions(standing: ChainStanding, provider: Provider, common: str) -> list[str]:
    """What the provider's account lacks: coin for gas, tokens for the stake."""
    steps: list[str] = []
    if provider.coin < provider.needs:
        lacking = coins(provider.needs - provider.coin)
        steps.append(f"send {lacking} of the chain's coin to {provider.address} (the provider, for gas)")
    missing = max(standing.required - standing.bonded, 0) - provider.token
    if missing > 0 and provider.mintable:
        steps.append(f"intellect-node contract faucet {provider.address} {tokens(missing)} {common}")
    elif missing > 0:
        steps.append(f"send {tokens(missing)} of the network's tokens to {provider.address} (the provider)")
    return steps


def _staking(standing: ChainStanding, common: str, directory: Path, units: int) -> list[str]:
    if standing.registered:
        lacking = tokens(standing.required - standing.bonded)
        return [f"intellect-node contract stake {lacking} --provider {standing.provider} {common}"]
    bond = [f"intellect-node contract provider register --units {units} {common}"]
    register = f"intellect-node contract node register --units {units} --node-state {quote(str(directory))} {common}"
    return [*(bond if standing.bonded < standing.required else ()), register]


async def _is_mintable(chain: "ChainClient", address: Address) -> bool:
    try:
        # A call that is only simulated: whether it reverts says what kind of token this is.
        await chain.ask("try the faucet", lambda c: c.eth.call({**c.mint(address, 1).fields(), "from": address}))
    except RpcUnreachable:
        raise
    except ChainError:
        return False
    return True
