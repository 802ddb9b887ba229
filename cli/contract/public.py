"""`contract pool plan --public FILE`: all that a pool for strangers takes, in order, with sums.

Asks the chain for the price of gas, of data on the layer below, and for its pace; sends nothing. The plan's own checks
come first, and what is wrong here is told with theirs.
"""

import math
import shlex
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec

from cli.contract.values import address_of, eth
from cli.output import duration, ether, quiet_logs
from node.units import DAY
from protocol.economics import daily_gas
from protocol.errors import IntellectError

if TYPE_CHECKING:
    from cli.contract.plan import PlanFile
    from node.chain.profile import NetworkProfile

GAS = {
    "contract faucet": 70_000,
    "contract provider register": 170_000,
    "contract node register": 130_000,
    "contract pool create": 500_000,
}
"""What a command takes, its approvals with it; `tests/cli/test_public_pool.py` sends them all."""
PLAIN_BYTES = 400
"""Of a signed transaction that is no deployment."""


class RoadPart(msgspec.Struct, frozen=True):
    """A part of the road. commands: what it is, what is typed; sums: for programs."""

    title: str
    lines: list[str]
    commands: list[tuple[str, str]] = []
    sums: dict[str, Any] = {}


class Quote(msgspec.Struct, frozen=True):
    """gas: wei each; data: wei for a byte on the layer below; block: seconds between two blocks."""

    gas: int
    data: float
    block: float

    def cost(self, gas: int, size: int = PLAIN_BYTES) -> int:
        """Of one transaction, in wei."""
        return gas * self.gas + math.ceil(size * self.data)


def requests_a_day(poll: float, block: float) -> int:
    """Of one member: it looks for a newer block, and asks once for the logs of each that it finds."""
    return round(DAY / poll + DAY / max(poll, block))


def road_of(plan: "PlanFile") -> list[RoadPart]:
    """What is wrong is added to the plan's findings; without a chain that answers there is no road."""
    from node.preflight.chain import check_rpc

    profile = plan.profile
    if profile is None:
        return []
    if profile.lan and plan.network == "local":
        plan.wrong("network", "the local chain is nobody else's", "name base-sepolia, base, or a profile of yours")
        return []
    for found in check_rpc(profile, time.time()):
        if found.level == "failure":
            plan.wrong("network", found.what, found.remedy)
            return []
        if found.level == "warning":
            plan.warnings.append(f"{found.what}: {found.remedy}")
    try:
        quote = _ask(profile)
    except IntellectError as error:
        plan.wrong("network", f"{error.what}: {error.why}", error.remedy)
        return []
    _check_bootnodes(plan, profile)
    return [
        _roles(plan),
        _endpoint(plan, profile, quote),
        _coin(plan, profile, quote),
        _commands(plan),
        _verification(plan, profile),
        _nodes(plan, profile),
        _alerts(),
        _people(plan, profile, quote),
    ]


def _ask(profile: "NetworkProfile") -> Quote:
    """Raises ChainError."""
    import trio

    from contracts.bindings import TransactionCall
    from node.chain.client import ChainClient
    from node.chain.simulate import l1_fee

    async def ask(chain: ChainClient) -> Quote:
        newest = await chain.block()
        older = await chain.block(max(newest.number - 100, 0))  # over which the chain's pace is measured
        pace = (newest.timestamp - older.timestamp) / max(newest.number - older.number, 1)
        sample = TransactionCall(profile.contracts.swarm, bytes(range(1, 251)) * 4)
        data = await chain.ask("ask for the fee for data", lambda contracts: l1_fee(contracts.eth, sample))
        share = data / len(sample.data) if profile.l1_fees else 0.0
        return Quote(await chain.gas_price(), share, max(pace, 0.1))

    async def main() -> Quote:
        with closing(ChainClient(profile)) as chain:
            return await ask(chain)

    with quiet_logs():
        return trio.run(main)


# The stretches, in their order


def _roles(plan: "PlanFile") -> RoadPart:
    deploy, pool = plan.deploy, plan.pool
    opener, arbiter = pool["key"], deploy["arbiter"] or (deploy["key"] if plan.deploys else None)
    lines = []
    if plan.deploys:
        lines.append(f"deployer   {deploy['key']}: pays for the contracts; nothing is its own afterwards. Cold.")
    if arbiter:
        lines.append(f"arbiter    {arbiter}: may undo a quorum's slash. Cold, best a contract of several keys.")
    lines += [
        f"opener     {opener}: funds the pool, names judges and trainers, ends it, gets what nobody has earned. Cold.",
        f"guardian   {pool['guardian'] or opener}: may hold a table of earnings that waits, so that the arbiter looks.",
        f"manager    {pool['trainer'] or pool['trainer_state']}: trains, signs policies, invites, pauses. Hot: it is on"
        " the trainer's machine, so keep no money there but gas.",
        *(f"validator  {one}: {_quorum(pool)} decide what is paid. Hot." for one in _judges(pool)),
        *(f"provider   {one['key']}: stakes for {len(one['nodes'])} node(s), is paid. Cold." for one in plan.providers),
        "backup     each cold key: intellect-node keys export NAME --to FILE; each node: intellect-node state export",
    ]
    if plan.deploys and deploy["arbiter"] is None:
        plan.warnings.append("deploy.arbiter: whoever deploys also decides appeals; name another address")
    if len(_judges(pool)) < 3:
        plan.warnings.append(f"pool.validator: {_quorum(pool)} decide what everybody is paid; three or more are safer")
    if len(plan.providers) == 1 and len(_judges(pool)) > 1:
        plan.warnings.append("provider: all validators stand on one stake, so nobody outside has a say")
    return RoadPart("Roles and keys", lines)


def _judges(pool: dict[str, Any]) -> list[str]:
    return [*pool["validator"], *pool["validator_state"]]


def _quorum(pool: dict[str, Any]) -> str:
    return f"{pool['threshold']} of {len(_judges(pool))}"


def _endpoint(plan: "PlanFile", profile: "NetworkProfile", quote: Quote) -> RoadPart:
    members, allowed = plan.public["members"] + len(_states(plan)), plan.public["requests"]
    from node.chain.follower import HEAD_SECONDS

    each = requests_a_day(HEAD_SECONDS, quote.block)
    lines = [
        f"{len(profile.rpc_urls)} endpoint(s); a block each {quote.block:.1f} s, {profile.confirmations} on top of it",
        f"each member asks {each:,} times a day, {members} members {members * each:,}",
    ]
    sums = {"each": each, "all": members * each, "members": members}
    if len(profile.rpc_urls) < 2:
        plan.warnings.append("network: rpc_urls names one endpoint, and its word is all there is; name two makers")
    if allowed is None:
        lines.append("what your endpoint's plan allows is not said: [public] requests, a day")
    elif members * each > allowed:
        poll = _slower(members, quote.block, allowed)
        way = (
            f"have members set chain_poll to {poll:g} (intellect-node config set chain_poll {poll:g}), or"
            if poll
            else ""
        )
        what = f"{members * each:,} requests a day of {members} members are more than the {allowed:,} of [public]"
        plan.warnings.append(f"{what}: {way} give members endpoints of their own (pool invite --rpc-url)")
    else:
        lines.append(f"your plan allows {allowed:,} a day: enough")
    return RoadPart("The chain's endpoint", lines, sums=sums)


def _slower(members: int, block: float, allowed: int) -> float | None:
    """Seconds between two looks at which the plan is enough; None where even a minute is too often."""
    return next((poll for poll in (8.0, 15.0, 30.0, 60.0) if members * requests_a_day(poll, block) <= allowed), None)


def _states(plan: "PlanFile") -> list[str]:
    pool = plan.pool
    named = [node for one in plan.providers for node in one["nodes"]]
    return list(dict.fromkeys([*named, *(one for one in (pool["trainer_state"], *pool["validator_state"]) if one)]))


def _coin(plan: "PlanFile", profile: "NetworkProfile", quote: Quote) -> RoadPart:
    """What each key's account must hold, twice over: fees move."""
    needs: dict[str, int] = {}
    for row in plan.commands():
        words = row["command"][1:]
        if row["sends"]:
            key = words[words.index("--key") + 1] if "--key" in words else "devnet account"
            needs[key] = needs.get(key, 0) + _cost(plan, words, quote)
    days, running = plan.public["days"], _day(plan, quote)
    for state in _states(plan):
        needs[state] = _joining(quote) + days * running
    doubled = {who: 2 * wei for who, wei in needs.items()}
    lines = [f"{who:<24} {eth(wei)} ETH{_whose(who, days)}" for who, wei in doubled.items()]
    lines.append(f"{'in all':<24} {eth(sum(doubled.values()))} ETH, twice of what it costs now: fees move")
    where = profile.coin or "from an exchange or a bridge that serves this chain"
    lines.append(f"where from: {where}")
    token = (
        "a test token: `contract faucet` makes it" if plan.deploys and plan.deploy["token"] is None else "the network's"
    )
    lines += [f"{key or 'devnet account'} needs {ether(wei)} tokens ({token})" for key, wei in plan.needs().items()]
    return RoadPart("Coin for gas, and tokens", lines, sums={who: str(wei) for who, wei in doubled.items()})


def _whose(who: str, days: int) -> str:
    """After the amount: for how long a node's lasts, and where a key's goes to."""
    account = address_of(who)
    return f", to {account}" if account else f", joins and works for {days} days"


def _cost(plan: "PlanFile", words: list[str], quote: Quote) -> int:
    from contracts.bindings import Contracts, TransactionCall, artifact
    from node.chain.simulate import guess_gas

    if words[:2] == ["contract", "deploy"]:
        names = [name for name in Contracts.SLOTS.values() if name != "TestToken" or plan.deploy["token"] is None]
        codes = [bytes.fromhex(artifact(name)["bytecode"].removeprefix("0x")) for name in names]
        gas = sum(guess_gas(TransactionCall(None, code)) for code in codes)
        return quote.cost(gas + 200_000, sum(map(len, codes)) + 4 * PLAIN_BYTES)
    name = " ".join(words[: next(number for number, word in enumerate([*words, "-"]) if word.startswith(("-", "0x")))])
    each_validator = 60_000
    more = each_validator * len(_judges(plan.pool)) if name == "contract pool create" else 0
    return quote.cost(GAS[name] + more, 2 * PLAIN_BYTES)


def _joining(quote: Quote) -> int:
    from node.preflight.chain import JOIN_GAS

    return quote.cost(JOIN_GAS, 2 * PLAIN_BYTES)  # transactions: the invitation, and the membership


def _day(plan: "PlanFile", quote: Quote) -> int:
    delay = plan.pool["delay"] or -(-plan.pool["window"] // 4)
    tables = max(DAY // max(delay, plan.pool["epoch"], 1), 1)
    return quote.cost(daily_gas(tables), (tables + 4) * PLAIN_BYTES)


def _commands(plan: "PlanFile") -> RoadPart:
    rows = plan.commands()
    told = [(row["says"], shlex.join(row["command"])) for row in rows]
    return RoadPart("Contracts, stakes and pool", [f"{len(rows)} commands; each says what it costs and asks"], told)


def _verification(plan: "PlanFile", profile: "NetworkProfile") -> RoadPart:
    shown = f", so that {profile.explorer} shows them" if profile.explorer else ""
    command = f"intellect-node contract source --out source.json --verify --network {shlex.quote(plan.network)}"
    lines = [f"the contracts' sources, as standard JSON{shown}"]
    return RoadPart(
        "Sources for all to read", lines, [("the sources, and the exact commands that hand them in", command)]
    )


def _nodes(plan: "PlanFile", profile: "NetworkProfile") -> RoadPart:
    pool, commands = plan.pool, list[tuple[str, str]]()
    network = shlex.quote(plan.network)
    base = f"--network {network} --pool NUMBER"
    if pool["trainer_state"]:
        run = f"--run {shlex.quote(plan.path(pool['run']))} " if pool["run"] else ""
        where = shlex.quote(plan.path(pool["trainer_state"]))
        commands.append(("the trainer", f"intellect-node join --detach --role trainer {run}{base} --state-dir {where}"))
    for one in pool["validator_state"]:
        where = shlex.quote(plan.path(one))
        commands.append((f"{one}", f"intellect-node join --detach --role validator {base} --state-dir {where}"))
    told = pool["bootnode"] or profile.bootnodes
    if not told:
        signer = (
            f"--state-dir {shlex.quote(plan.path(pool['trainer_state']))}" if pool["trainer_state"] else "--key MANAGER"
        )
        words = f"intellect-node contract pool bootnodes NUMBER --bootnode ADDRESS --network {network} {signer}"
        commands.append(("where newcomers begin: the address that the trainer's `join` printed", words))
    lines = ["NUMBER is the pool's, which `pool create` printed. Each needs a port that others reach (default 4001),"]
    lines.append("or --announce; `intellect-node doctor` says whether they do.")
    return RoadPart("Your own nodes, and bootnodes", lines, commands)


def _check_bootnodes(plan: "PlanFile", profile: "NetworkProfile") -> None:
    from node.addresses import is_public
    from node.network.contacts import ip_of, parse_bootnode

    for text in (*plan.pool["bootnode"], *profile.bootnodes):
        try:
            parse_bootnode(text)
        except IntellectError as error:
            plan.wrong("pool.bootnode", f"{text[:120]}: {error.why}", error.remedy)
            continue
        where = ip_of(text)
        if where is not None and not is_public(where):
            plan.wrong("pool.bootnode", f"{text[:120]} cannot be dialled from elsewhere", "give its public address")


def _alerts() -> RoadPart:
    lines = [
        "Prometheus asks each daemon (join --metrics-address HOST:9400): rules are in docs/alerts.yml, a dashboard is",
        "docs/grafana.json. A page for all to see: join --page HOST:8080.",
    ]
    return RoadPart("Alerts", lines, [("the rules are sound", "promtool check rules docs/alerts.yml")])


def _people(plan: "PlanFile", profile: "NetworkProfile", quote: Quote) -> RoadPart:
    from node.preflight.chain import DAYS, PROVIDER_GAS

    members, stake = plan.public["members"], plan.deploy["base_stake"] + plan.deploy["stake_per_unit"]
    node, provider = _joining(quote) + DAYS * _day(plan, quote), quote.cost(PROVIDER_GAS, 4 * PLAIN_BYTES)
    each = node + provider
    lines = [
        f"each of {members} needs {ether(stake)} tokens for a node's stake, and {eth(each)} ETH: {eth(provider)} to "
        f"bond and register, {eth(node)} to join and for {DAYS} days",
        f"in all {ether(members * stake)} tokens and {eth(members * each)} ETH",
        "they type one line, and then what it says: key, coin, tokens, stake",
        f"a stake can leave {duration(plan.deploy['unbonding'])} after it is unbonded; pay comes "
        f"{duration(plan.pool['window'])} after an epoch of {duration(plan.pool['epoch'])}",
    ]
    commands: list[tuple[str, str]] = []
    if plan.pool["invited"]:
        state = plan.pool["trainer_state"]
        signer = f"--state-dir {shlex.quote(plan.path(state))}" if state else "--key MANAGER"
        network = shlex.quote(plan.network)
        words = f"intellect-node contract pool invite NUMBER --bearer {members} --out theirs.toml --network {network}"
        commands.append(("one file that lets them in; or --list people.csv", f"{words} {signer}"))
        commands.append(("what each of them types", "intellect-node join theirs.toml"))
    else:
        commands.append(
            ("what each of them types, with your profile", f"intellect-node join {shlex.quote(f'{profile.name}.toml')}")
        )
    sums = {"stake_wei": str(stake), "coin_wei": str(each), "members": members}
    return RoadPart(
        "What an invited person needs" if plan.pool["invited"] else "What a member needs", lines, commands, sums
    )
