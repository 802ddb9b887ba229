"""`intellect-node leave`: out of the pool for good, with everything that was earned, and the way back to the stake."""

import json
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import CHAIN, EXPELLED, NETWORK, USAGE, CommandError
from cli.output import AsJson, asking, console, date, duration, ether, print_json, quiet_logs
from cli.places import StateDir, chosen_directory, complete_networks
from cli.stop import PATIENCE, daemon_of, stop

if TYPE_CHECKING:
    from contracts.bindings import MembershipRecord, NodeInfo, Stake
    from node.chain.client import ChainClient
    from node.state.reader import StateFiles
    from node.status_schema import DaemonStatus
    from protocol.identity import Address, NodeKey

EXAMPLES = (
    "Examples:  intellect-node leave --when-paid   |   intellect-node leave --now --state-dir ~/nodes/a   |   "
    "intellect-node leave --now --yes --json"
)
OWN_PROVIDER, OWN_PASSWORD = "provider-key.json", "password"
"""Where a node that set itself up on a devnet keeps its provider's key, and the password that `join` made."""


def command(
    state_dir: StateDir = None,
    network: Annotated[
        str | None, typer.Option(help="Default: where it joined last.", autocompletion=complete_networks)
    ] = None,
    password_file: Annotated[
        Path | None, typer.Option("--password-file", help="Password of the node's key (mode 0600).")
    ] = None,
    when_paid: Annotated[
        bool, typer.Option("--when-paid", help="Take no new work, and leave once everything is paid.")
    ] = False,
    now: Annotated[bool, typer.Option("--now", help="At once; says what is lost by that.")] = False,
    stay: Annotated[bool, typer.Option("--stay", help="Take back the request to leave once it is paid.")] = False,
    patience: Annotated[float, typer.Option(min=0, max=86_400, help="Seconds that a daemon may drain.")] = PATIENCE,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --now: do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Leave the pool: with --when-paid once everything is paid, with --now at once. Prints the way back to the stake.

    Whoever is interrupted says it again: it goes on where it was. The stake needs the provider's key, so this command
    leaves it alone.
    """
    from node.state.reader import StateFiles

    if when_paid + (now or yes) + stay > 1:
        raise CommandError("when?", "--when-paid, --now and --stay exclude each other", "give one of them", USAGE)
    say: Callable[[str], None] = (lambda _: None) if as_json else lambda text: console().print(text, soft_wrap=True)
    directory = chosen_directory(state_dir)
    if stay:
        return _stay(directory, say)
    where = network or _last_network(directory)
    key = _node_key(directory, password_file)  # before anything is stopped: without it nothing can be told the chain
    files = StateFiles(directory)
    # While the daemon still runs: it knows what no table has yet, and the journal alone does not.
    unpaid = _unpaid(directory, files, where, key.address)
    if when_paid or not (now or yes or unpaid.units == 0):
        when_paid = when_paid or _waits(unpaid, say)
    if when_paid and daemon_of(directory) is None and unpaid.units:
        _start(directory, where, files.pool(), password_file, unpaid, say)
    if when_paid and daemon_of(directory) is not None:
        _leave_when_paid(directory, say)
    elif unpaid.waiting and not (when_paid or yes):
        _warn(unpaid, say, asked=now)
    stopped, pool = None, files.pool()
    if daemon_of(directory) is not None:
        say("the daemon finishes what is under way, and leaves")
        stopped, _ = stop(directory, patience, say)
    outcome = _leave(where, key, directory, pool, password_file)
    # Only once the chain has it: whoever is interrupted before finds the request still standing.
    _take_back(directory)
    if as_json:
        told = {"state_dir": str(directory), "network": where, "stopped": stopped, "unpaid_units": unpaid.units}
        print_json(told | outcome.facts())
        return
    for line in outcome.lines(where):
        say(line)


# what is not paid yet


@dataclass(frozen=True, slots=True)
class Unpaid:
    """waiting: units in no table; tabled: in one, and not claimed; until: the chain's time at which the last of them
    can be in a table; price: wei; evicted: whether the node was slashed."""

    waiting: int = 0
    tabled: int = 0
    until: int = 0
    price: int = 0
    evicted: bool = False

    @property
    def units(self) -> int:
        return self.waiting + self.tabled

    def amount(self, units: int) -> str:
        return f"{units:,} units" + (f" ({ether(units * self.price)} tokens)" if self.price else "")

    def lines(self) -> list[str]:
        """What --now loses, and what it does not."""
        told: list[str] = []
        if self.waiting:
            told.append(
                f"{self.amount(self.waiting)} are in no table of earnings yet. Leaving now loses of them what a quorum "
                "of validators has not accepted by then"
            )
            told.append(f"the rest is in the table of {date(self.until)} at the latest, without this node")
        if self.tabled:
            told.append(
                f"{self.amount(self.tabled)} are in the table: they stay owed, and validators claim them a day later"
            )
        return told


def _unpaid(directory: Path, files: "StateFiles", network: str, node: "Address") -> Unpaid:
    """By the running daemon, which knows best; else by the journal and the chain."""
    if (status := _status(directory)) is not None and status.pay is not None:
        pay, units = status.pay, status.pay.units
        until = status.leaving.until if status.leaving else pay.last_at
        price = int(pay.reward_per_unit_wei or 0)
        waiting = units.made + units.accepted + units.certified + units.filed
        return Unpaid(waiting, units.in_table + units.owed, until, price)
    known = files.pay()
    if known is None:  # it never looked at its pay: it has made nothing
        return Unpaid()
    on_chain = _on_chain(network, files.pool(), node) or (known.through, known.claimed, 0, False)
    posted, claimed, price, evicted = on_chain
    line = max(known.line, claimed)
    sums = files.sums(node, posted, line, known.quorum)
    last = max([sums.undecided, *sums.certified])
    waiting = 0 if known.over else sums.made + sums.accepted + sum(sums.certified.values())
    return Unpaid(waiting, line - claimed, known.claimable_at(last) if last >= 0 else 0, price, evicted)


def _on_chain(network: str, pool: int, node: "Address") -> tuple[int, int, int, bool] | None:
    """(the last epoch that is tabled, units that were claimed, wei a unit, whether the node was slashed); None where
    the chain is silent."""
    from cli.contract.frame import read
    from node.chain.errors import RpcUnreachable

    async def look(chain: "ChainClient") -> tuple[int, int, int, bool]:
        posted, info = await chain.earnings(pool), await chain.pool(pool)
        through, standing = -1 if posted.epoch is None else posted.epoch, await chain.standing(pool, node)
        return through, await chain.claimed(pool, node), info.reward_per_unit, standing.evicted

    try:
        return read(network, look)
    # What this machine knows by itself is still told: the owner may be leaving because of the network.
    except RpcUnreachable:
        return None


def _waits(unpaid: Unpaid, say: Callable[[str], None]) -> bool:
    """Ask whether to wait. Raises CommandError where nobody can be asked."""
    for line in unpaid.lines():
        say(line)
    if not sys.stdin.isatty():
        raise CommandError(
            f"when shall it leave? {unpaid.amount(unpaid.units)} are not paid yet",
            "there is no terminal to ask at",
            "give --when-paid to wait for them, or --now",
            USAGE,
        )
    last = f" (about {date(unpaid.until)})" if unpaid.until else ""
    with asking():
        return typer.confirm(f"Wait until they are paid{last}? no: leave now", default=True, err=True)


def _warn(unpaid: Unpaid, say: Callable[[str], None], *, asked: bool) -> None:
    """Say what leaving at once loses, and ask, where somebody is there and was not asked before."""
    for line in unpaid.lines() if asked else ():
        say(line)
    if asked and sys.stdin.isatty():
        with asking():
            agreed = typer.confirm("Leave all the same?", err=True)
        if not agreed:
            raise CommandError("the node stays in the pool", "the answer was no", "wait: leave --when-paid", USAGE)


# waiting


def _start(
    directory: Path, network: str, pool: int, password_file: Path | None, unpaid: Unpaid, say: Callable[[str], None]
) -> None:
    """A daemon that comes for its pay alone: nothing is certified, tabled or claimed for a node that is not there.
    Returns once it runs, or has left. Raises CommandError where it does not start."""
    from cli.join import start_detached
    from node.state.reader import StateFiles

    if unpaid.evicted:
        raise CommandError(
            "nothing is paid to a slashed node before its case is final",
            f"{unpaid.amount(unpaid.units)} are held until then",
            "see the case: intellect-node contract case list. To go all the same: intellect-node leave --now",
            EXPELLED,
        )
    # First: a daemon reads the request as it starts, and would else take work.
    _intend(directory)
    last = f", the last of them from {date(unpaid.until)} on" if unpaid.until else ""
    say(f"{unpaid.amount(unpaid.units)} wait{last}. No daemon runs: one is started, which takes no new work")
    words = ["join", "--role", "auto", "--network", network, "--pool", str(pool), "--state-dir", str(directory)]
    words += ["--password-file", str(password_file.absolute())] if password_file else []
    try:
        start_detached([*words, "--json"], directory, say)
    except CommandError:
        if StateFiles(directory).fact("leaving"):  # else all was paid at once, and it has left
            raise


def _leave_when_paid(directory: Path, say: Callable[[str], None]) -> None:
    """Have the daemon leave once it is paid, and wait for that. Raises CommandError where it ends before."""
    from cli import api
    from node.state.reader import StateFiles

    status = _status(directory)
    if status is None or "departure" not in status.services:
        raise CommandError(
            "the daemon cannot be told yet",
            "it is still starting",
            "say it again in a moment: leave --when-paid",
            NETWORK,
        )
    api.ask(api.socket_of(directory), "POST", "/leave", b"{}")
    say("it takes no new work, and leaves once it is paid; Ctrl-C ends this view alone (take it back: leave --stay)")
    told = ""
    while daemon_of(directory) is not None:
        status = _status(directory)
        if status is not None and status.leaving is not None and status.leaving.activity != told:
            told = status.leaving.activity
            say(f"  {told}")
        time.sleep(2.0)  # seconds between two looks at a daemon that waits for its pay
    if StateFiles(directory).fact("leaving"):
        raise CommandError(
            "the node has not left yet",
            "its daemon ended before everything was paid, or before the chain was told",
            f"say it again: intellect-node leave --when-paid --state-dir {shlex.quote(str(directory))}; or leave --now",
            NETWORK,
        )


def _intend(directory: Path) -> None:
    """Write the request down for the next daemon."""
    from node.state.directory import FACT
    from node.state.leave import LEAVING

    _in_journal(directory, lambda journal: journal.remember(LEAVING, journal.recall(FACT) or b""))


def _take_back(directory: Path) -> bool:
    """Whether there was one."""
    from node.state.leave import LEAVING

    def forget(journal: Any) -> bool:
        intended = bool(journal.recall(LEAVING))
        if intended:
            journal.remember(LEAVING, b"")
        return intended

    return _in_journal(directory, forget)


def _in_journal(directory: Path, work: Callable[[Any], Any]) -> Any:
    """Raises CommandError where a daemon has it."""
    from node.state.directory import JOURNAL_NAME
    from node.state.journal import Journal
    from node.state.locks import FileLock

    lock = FileLock(directory / "lock")
    if not lock.acquire():
        why, remedy = f"process {lock.holder} has its journal", "intellect-node stop, then say it again"
        raise CommandError("its daemon runs", why, remedy, USAGE)
    try:
        journal = Journal(directory / JOURNAL_NAME)
        try:
            return work(journal)
        finally:
            journal.close()
    finally:
        lock.release()


def _stay(directory: Path, say: Callable[[str], None]) -> None:
    intended = _take_back(directory)
    say("it does not leave any more: `intellect-node join` works again" if intended else "nobody asked it to leave")


def _status(directory: Path) -> "DaemonStatus | None":
    """What its daemon says; None where none does."""
    from cli import api

    try:
        return api.get_status(api.socket_of(directory)) if daemon_of(directory) is not None else None
    except CommandError:
        return None


# the chain, and the way back


@dataclass(frozen=True, slots=True)
class LeaveOutcome:
    """How a node stands on chain after it has left. free: wei that can be unbonded once the node is removed; period:
    seconds of unbonding; now: the chain's; key: how the provider's key is named, with its password; brought: units that
    were claimed by this command; evicted: whether it was slashed, and nobody overturned it."""

    node: "NodeInfo"
    pool_left: int
    stake: "Stake | None"
    free: int
    period: int
    now: int
    key: list[str] = field(default_factory=list)
    brought: int = 0
    evicted: bool = False

    def facts(self) -> dict[str, Any]:
        """JSON-ready."""
        stake = self.stake
        facts: dict[str, Any] = {
            "node": self.node.node,
            "provider": self.node.owner,
            "left_pool": self.pool_left or None,
            "claimed_units": self.brought,
            "slashed": self.evicted,
        }
        if stake is None:
            return facts | {"steps": []}
        facts |= {"bonded_wei": str(stake.bonded), "unbonding_wei": str(stake.unbonding), "free_wei": str(self.free)}
        return facts | {"withdrawable_at": self._withdrawable(), "steps": self.steps()}

    def lines(self, network: str) -> list[str]:
        """For people."""
        left = f"left pool {self.pool_left}" if self.pool_left else "it is in no pool any more"
        lines = [f"{self.node.node}: {left}"]
        if self.brought:
            lines.append(f"{self.brought:,} units of the table were claimed")
        if self.stake is None or self.node.owner is None:
            return [*lines, "no provider stakes for it: there is nothing to unbond"]
        bonded, unbonding = ether(self.stake.bonded), ether(self.stake.unbonding)
        lines.append(f"provider {self.node.owner}: {bonded} tokens bonded, {unbonding} unbonding")
        if self.evicted:
            frozen = f", and {ether(self.stake.frozen)} tokens are frozen" if self.stake.frozen else ""
            lines.append(
                f"it was slashed: what the table owes it is held until that is final{frozen} (contract case list)"
            )
        if not self.steps():
            return [*lines, "nothing of its stake is free: other nodes of the provider need it"]
        command = shlex.join([*self.steps()[0].split(), "--network", network, *self.key])
        lines.append("to have the stake back, with the provider's key, now and once more when the date has come:")
        return [*lines, f"  {command}", f"it can be taken out from {date(self._withdrawable())} on ({self._when()})"]

    def steps(self) -> list[str]:
        """The one command; none where nothing is to be had."""
        some = self.node.registered or self.free or (self.stake is not None and self.stake.unbonding)
        return [f"intellect-node contract node retire {self.node.node}"] if self.stake is not None and some else []

    def _withdrawable(self) -> int:
        """When everything can be taken out, if the steps are done now."""
        known = self.stake.withdrawable_at if self.stake and self.stake.unbonding else 0
        return max(known, self.now + self.period) if self.free else known

    def _when(self) -> str:
        wait = f"unbonding takes {duration(self.period)}; until then a slash can still take it"
        return f"if you unstake now; {wait}" if self.free else wait


def _leave(network: str, key: "NodeKey", directory: Path, pool: int, password_file: Path | None) -> LeaveOutcome:
    """pool: the one that its journal names."""
    import trio

    from cli.contract.frame import alone, outbox_of, profile_of
    from node.chain.client import ChainClient
    from node.chain.errors import RpcUnreachable

    profile = profile_of(network)

    async def main() -> LeaveOutcome:
        with closing(ChainClient(profile, key, outbox=outbox_of(profile))) as chain:
            await chain.connect()
            # A daemon that was killed, or never ran, has told the chain nothing.
            left = await _tell_chain(chain, key.address) or pool
            brought = await _claim(chain, left, key.address, directory)
            return await _look(chain, key.address, left, directory, password_file, brought)

    try:
        with alone(key.address), quiet_logs():
            return trio.run(main)
    except RpcUnreachable as error:
        raise CommandError(
            "the chain could not be told that the node leaves",
            error.why,
            "say it again once the chain answers: intellect-node leave --now; until then its lease runs out by itself",
            CHAIN,
        ) from error


async def _tell_chain(chain: "ChainClient", node: "Address") -> int:
    """The pool that the node was still in and has left now, or 0 where the daemon did it."""
    pool = (await chain.node_info(node)).pool
    if pool:
        await chain.leave(pool)
    return pool


async def _claim(chain: "ChainClient", pool: int, node: "Address", directory: Path) -> int:
    """Bring home what the newest table owes, if its daemon has read it. Units; whoever does not get them now is claimed
    for by others, so nothing stops the leaving."""
    from node.chain.errors import Reverted
    from node.state.reader import StateFiles

    if not pool:
        return 0
    posted, before = await chain.earnings(pool), await chain.claimed(pool, node)
    share = StateFiles(directory).share(pool, posted.root, posted.total, node) if posted.total else None
    if share is None or not share.units or share.units <= before:
        return 0
    try:
        await chain.claim(pool, node, share.units, share.proof)
    except Reverted:
        return 0
    return await chain.claimed(pool, node) - before


async def _look(
    chain: "ChainClient", address: "Address", left: int, directory: Path, password_file: Path | None, brought: int = 0
) -> LeaveOutcome:
    node, now = await chain.node_info(address), (await chain.block()).timestamp
    period = await chain.ask("read a parameter", lambda c: c.view("vault", "unbondingPeriod"))
    standing: MembershipRecord | None = await chain.standing(left, address) if left else None
    told = (brought, standing is not None and standing.evicted)
    if node.owner is None:
        return LeaveOutcome(node, left, None, 0, period, now, [], *told)
    stake = await chain.stake_of(node.owner)
    # As it will be once the node is removed, which is the first of the steps that are told.
    less = -node.units if node.registered else 0
    free = max(stake.bonded - await chain.required_stake(node.owner, less), 0)
    return LeaveOutcome(node, left, stake, free, period, now, _key_of(node.owner, directory, password_file), *told)


def _key_of(provider: "Address", directory: Path, password_file: Path | None) -> list[str]:
    """Options that open the provider's key, where it lies on this machine."""
    from cli.keyring import key_directory

    directory = directory.absolute()  # it is typed again when the date has come, wherever that is
    own = directory / OWN_PROVIDER
    if own.exists():
        # `join` made it with the node's password, and mostly made that, too.
        password = password_file or directory / OWN_PASSWORD
        return ["--key", str(own), *(["--password-file", str(password)] if password.exists() else [])]
    for path in sorted(key_directory().glob("*.json")):
        if _address_in(path) == provider.removeprefix("0x").lower():
            return ["--key", path.stem]
    return ["--key", "PROVIDER"]


def _address_in(keystore: Path) -> str:
    """As it is written there, without opening it."""
    try:
        told = json.loads(keystore.read_bytes())
        return str(told["address"]).removeprefix("0x").lower()
    except (OSError, ValueError, KeyError, TypeError):  # no keystore, or one that does not say
        return ""


def _last_network(directory: Path) -> str:
    """Where the daemon of this directory joined last. Raises CommandError where it does not say."""
    from node.state.reader import StateFiles

    told = StateFiles(directory).fact("network")
    if not told:
        raise CommandError(
            "on which network?", f"the journal in {directory} does not say", "give --network NAME", USAGE
        )
    return told.decode()


def _node_key(directory: Path, password_file: Path | None) -> "NodeKey":
    from cli.keyring import NODE_KEY, open_node_key

    if not (directory / NODE_KEY).exists():
        raise CommandError(
            f"there is no node in {directory}", f"it holds no {NODE_KEY}", "name the right one: --state-dir DIR", CHAIN
        )
    return open_node_key(directory, password_file)
