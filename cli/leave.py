"""`intellect-node leave`: out of the pool for good, and the way back to the stake."""

import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import CHAIN, USAGE, CommandError
from cli.output import AsJson, asking, console, date, duration, ether, print_json, quiet_logs
from cli.places import StateDir, chosen_directory, complete_networks
from cli.stop import PATIENCE, daemon_of, stop

if TYPE_CHECKING:
    from contracts.bindings import NodeInfo, Stake
    from node.chain.client import ChainClient
    from protocol.identity import Address, NodeKey

EXAMPLES = (
    "Examples:  intellect-node leave   |   intellect-node leave --state-dir ~/nodes/a --network base-sepolia   |   "
    "intellect-node leave --yes --json"
)
OWN_PROVIDER = "provider-key.json"
"""Where a node that set itself up on a devnet keeps its provider's key."""


def command(
    state_dir: StateDir = None,
    network: Annotated[
        str | None, typer.Option(help="Default: where it joined last.", autocompletion=complete_networks)
    ] = None,
    password_file: Annotated[
        Path | None, typer.Option("--password-file", help="Password of the node's key (mode 0600).")
    ] = None,
    patience: Annotated[float, typer.Option(min=0, max=86_400, help="Seconds that a daemon may drain.")] = PATIENCE,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing, even if work would go unpaid.")] = False,
    as_json: AsJson = False,
) -> None:
    """Leave the pool: the daemon drains, the chain is told, and the steps back to the stake are printed with dates.

    Works without a daemon, too. The steps back need the provider's key, so this command does not take them.
    """
    from node.state.reader import StateFiles

    say: Callable[[str], None] = (lambda _: None) if as_json else lambda text: console().print(text, soft_wrap=True)
    directory = chosen_directory(state_dir)
    where = network or _last_network(directory)
    key = _node_key(directory, password_file)  # before anything is stopped: without it nothing can be told the chain
    # Asked while the daemon still runs: it is the only one that can still get these into a table.
    unclaimed = StateFiles(directory).untabled_units()
    if unclaimed:
        say(f"{unclaimed:,} units were accepted and are in no table yet: only if it joins again are they paid")
        # A script goes on with the warning alone: to leave loses no stake, and the units can still be had by joining
        # again.
        with asking():
            agreed = yes or as_json or not sys.stdin.isatty() or typer.confirm("Leave all the same?", err=True)
        if not agreed:
            raise CommandError(
                "the node stays in the pool", "the answer was no", "wait for the next table of earnings", USAGE
            )
    stopped, pool = None, 0
    if daemon_of(directory) is not None:
        # Before it is stopped: afterwards the chain no longer says which pool it was.
        pool = _pool_now(directory)
        say("the daemon finishes what is under way, and leaves")
        stopped, _ = stop(directory, patience, say)
    outcome = _leave(where, key, directory, pool)
    if as_json:
        told = {"state_dir": str(directory), "network": where, "stopped": stopped, "unclaimed_units": unclaimed}
        print_json(told | outcome.facts())
        return
    for line in outcome.lines(where):
        say(line)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a node stands on chain after it has left. free: wei that can be unbonded once the node is removed; period:
    seconds of unbonding; now: the chain's; key: how the provider's key is named."""

    node: "NodeInfo"
    pool_left: int
    stake: "Stake | None"
    free: int
    period: int
    now: int
    key: str

    def facts(self) -> dict[str, Any]:
        """JSON-ready."""
        stake = self.stake
        facts: dict[str, Any] = {
            "node": self.node.node,
            "provider": self.node.owner,
            "left_pool": self.pool_left or None,
        }
        if stake is None:
            return facts | {"steps": []}
        facts |= {"bonded_wei": str(stake.bonded), "unbonding_wei": str(stake.unbonding), "free_wei": str(self.free)}
        return facts | {"withdrawable_at": self._withdrawable(), "steps": self.steps()}

    def lines(self, network: str) -> list[str]:
        """For people."""
        left = f"left pool {self.pool_left}" if self.pool_left else "it is in no pool any more"
        lines = [f"{self.node.node}: {left}"]
        if self.stake is None or self.node.owner is None:
            return [*lines, "no provider stakes for it: there is nothing to unbond"]
        bonded, unbonding = ether(self.stake.bonded), ether(self.stake.unbonding)
        lines.append(f"provider {self.node.owner}: {bonded} tokens bonded, {unbonding} unbonding")
        if not self.steps():
            return [*lines, "nothing of its stake is free: other nodes of the provider need it"]
        lines.append("to have the stake back, with the provider's key:")
        steps = [
            f"  {number}. {step} --network {network} --key {self.key}" for number, step in enumerate(self.steps(), 1)
        ]
        return [*lines, *steps, f"the last one from {date(self._withdrawable())} on ({self._when()})"]

    def steps(self) -> list[str]:
        """Commands, in their order."""
        remove = [f"intellect-node contract node remove {self.node.node}"] if self.node.registered else []
        # Without the commas that people are shown: the line is to be copied into a terminal.
        unstake = [f"intellect-node contract unstake {ether(self.free).replace(',', '')}"] if self.free else []
        unbonding = self.stake is not None and self.stake.unbonding
        withdraw = ["intellect-node contract withdraw"] if unstake or unbonding else []
        return [*remove, *unstake, *withdraw]

    def _withdrawable(self) -> int:
        """When everything can be taken out, if the steps are done now."""
        known = self.stake.withdrawable_at if self.stake and self.stake.unbonding else 0
        return max(known, self.now + self.period) if self.free else known

    def _when(self) -> str:
        wait = f"unbonding takes {duration(self.period)}; until then a slash can still take it"
        return f"if you unstake now; {wait}" if self.free else wait


def _pool_now(directory: Path) -> int:
    """The pool that the running daemon is in, 0 where it does not say."""
    from cli import api

    try:
        return max(api.get_status(api.socket_of(directory)).network.pool or 0, 0)
    except CommandError:  # one that hangs is stopped all the same
        return 0


def _leave(network: str, key: "NodeKey", directory: Path, pool: int) -> Outcome:
    """pool: the one that the daemon has just left, 0 for none."""
    import trio

    from cli.contract.frame import alone, outbox_of, profile_of
    from node.chain.client import ChainClient

    profile = profile_of(network)

    async def main() -> Outcome:
        with closing(ChainClient(profile, key, outbox=outbox_of(profile))) as chain:
            await chain.connect()
            # A daemon that was killed, or never ran, has told the chain nothing.
            left = await _tell_chain(chain, key.address) or pool
            return await _look(chain, key.address, left, directory)

    with alone(key.address), quiet_logs():
        return trio.run(main)


async def _tell_chain(chain: "ChainClient", node: "Address") -> int:
    """The pool that the node was still in and has left now, or 0 where the daemon did it."""
    pool = (await chain.node_info(node)).pool
    if pool:
        await chain.leave(pool)
    return pool


async def _look(chain: "ChainClient", address: "Address", left: int, directory: Path) -> Outcome:
    node, now = await chain.node_info(address), (await chain.block()).timestamp
    period = await chain.ask("read a parameter", lambda c: c.vault.functions.unbondingPeriod().call())
    key = str(directory / OWN_PROVIDER) if (directory / OWN_PROVIDER).exists() else "PROVIDER"
    if node.owner is None:
        return Outcome(node, left, None, 0, period, now, key)
    stake = await chain.stake_of(node.owner)
    # As it will be once the node is removed, which is the first of the steps that are told.
    less = -node.units if node.registered else 0
    free = max(stake.bonded - await chain.required_stake(node.owner, less), 0)
    return Outcome(node, left, stake, free, period, now, key)


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
