"""The frame of every command that sends a transaction: who signs, what it would cost, whether to go on, the receipt.

A command is a function that turns its own arguments into a `CommandPlan`; `transaction` gives it the common options and
the rest of the story. Commands only say what happens to whose money, and with which calls.
"""

import inspect
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from cli.contract.once import Begun, already_done
from cli.contract.values import MAX_POOL, eth
from cli.errors import CHAIN, INTERRUPTED, USAGE, CommandError
from cli.keyring import key_directory, open_node_key, open_signer
from cli.options import Options, command_of
from cli.output import AsJson, asking, clean, console, date, duration, print_facts, print_json, quiet_logs
from cli.places import complete_networks, state_dir_option
from protocol.errors import IntellectError

if TYPE_CHECKING:
    from node.chain.client import ChainClient
    from node.chain.connection import Receipt
    from node.chain.profile import NetworkProfile
    from node.chain.sender import Recovered
    from node.chain.simulate import Estimate, SimulatedStep, Simulation
    from protocol.identity import Address, NodeKey

T = TypeVar("T")
LEFT_LOOKS = (0.5, 5.0)
"""Seconds between two looks for what an earlier one has sent: at first, and at most."""


def _keys(incomplete: str) -> list[str]:
    return sorted(path.stem for path in key_directory().glob(f"{incomplete}*.json"))


Network = Annotated[
    str,
    typer.Option(
        help="local, base-sepolia, base, a network of your own, or a profile's file.",
        envvar="INTELLECT_NODE_NETWORK",
        autocompletion=complete_networks,
    ),
]
KeyName = Annotated[
    str | None,
    typer.Option(
        "--key",
        help="Who signs: a keystore file, or a name from `keys list`. On a local devnet: its own account.",
        autocompletion=_keys,
    ),
]
StateDir = Annotated[Path | None, state_dir_option("Instead of --key: the node with this state directory signs.")]
PasswordFile = Annotated[Path | None, typer.Option("--password-file", help="Password of that key (mode 0600).")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Simulate: what it would cost, or why it would fail.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before sending.")]
OnlyPool = Annotated[int | None, typer.Option(min=1, max=MAX_POOL, help="Only those of one pool.")]
_COMMON: Options = {
    "network": (Network, "local"),
    "key": (KeyName, None),
    "state_dir": (StateDir, None),
    "password_file": (PasswordFile, None),
    "dry_run": (DryRun, False),
    "yes": (Yes, False),
    "as_json": (AsJson, False),
}


@dataclass(frozen=True, slots=True)
class CommandPlan:
    """What a command will do. says: in words, what happens to whose money; done: what to print afterwards;
    facts: receipts -> more keys for --json; refresh: a step as it is after those receipts, for one that depends
    on what an earlier one brings about; before: to be done first, once it is confirmed; last: those facts -> the last
    line for people, in place of the facts themselves.
    """

    says: str
    done: str
    steps: "list[SimulatedStep]"
    facts: "Callable[[list[Receipt]], Mapping[str, Any]]" = field(default=lambda _: {})
    refresh: "Callable[[SimulatedStep, list[Receipt]], SimulatedStep]" = field(default=lambda step, _: step)
    before: Callable[[], Awaitable[None]] | None = None
    last: Callable[[Mapping[str, Any]], str] | None = None


@dataclass(frozen=True, slots=True)
class _Call:
    """One run of the frame: the common options, and the words for people."""

    network: str
    key: str | None
    state_dir: Path | None
    password_file: Path | None
    dry_run: bool
    yes: bool
    as_json: bool


Planner = Callable[..., Awaitable[CommandPlan]]


def transaction(app: typer.Typer, name: str, *, example: str) -> Callable[[Planner], Planner]:
    """Register `async def planner(chain, me, **own arguments) -> Plan` as the command `name`.

    me: the address that signs; a planner that names state_dir is told that option, too. The docstring is the help;
    example: what follows "intellect-node contract".
    """

    def register(planner: Planner) -> Planner:
        # These come from the frame, so they are no options of the command.
        given_by_frame = ("chain", "me", "state_dir")
        # Typer reads options from a signature: one is put together of the planner's own and the common ones.
        command = command_of(planner, given_by_frame, _COMMON, lambda given: _carry_out(planner, given))
        app.command(name, epilog=f"Example:  intellect-node contract {example}")(command)
        return planner

    return register


Rows = Sequence[tuple[str, Any] | str]
"""For people: names with their values, and whole lines."""
Looker = Callable[..., Awaitable[tuple[dict[str, Any], Rows]]]
_LOOKING: Options = {"network": (Network, "local"), "as_json": (AsJson, False)}


def question(app: typer.Typer, name: str, *, example: str) -> Callable[[Looker], Looker]:
    """Register `async def looker(chain, **own arguments) -> (facts, rows)` as the command `name`: it looks at the chain
    and prints the facts with --json, else the rows. The docstring is the help; example: as in `transaction`."""

    def register(looker: Looker) -> Looker:
        def call(given: dict[str, Any]) -> None:
            network, as_json = given.pop("network"), given.pop("as_json")
            facts, rows = read(network, lambda chain: looker(chain, **given))
            if as_json:
                print_json(facts)
                return
            # By runs of one kind: names that follow each other share one column's width.
            for named, part in groupby(rows, lambda row: isinstance(row, tuple)):
                if named:
                    print_facts([row for row in part if isinstance(row, tuple)])
                    continue
                for line in part:
                    console().print(line, soft_wrap=True, markup=False)

        command = command_of(looker, ("chain",), _LOOKING, call)
        app.command(name, epilog=f"Example:  intellect-node contract {example}")(command)
        return looker

    return register


def step(action: str, call: Any) -> "SimulatedStep":
    """One transaction of a plan; the chain's modules are loaded when the first is made."""
    from node.chain.simulate import SimulatedStep

    return SimulatedStep(action, call)


def read(network: str, action: "Callable[[ChainClient], Awaitable[T]]") -> T:
    """Connect, look, close; in a trio of its own."""
    import trio

    from node.chain.client import ChainClient

    profile = profile_of(network)

    async def main() -> T:
        with closing(ChainClient(profile)) as chain:
            await chain.connect()
            return await action(chain)

    with quiet_logs():
        return trio.run(main)


def profile_of(network: str, *, deployed: bool = True) -> "NetworkProfile":
    """The network's profile."""
    from node.chain.profile import load_profile
    from node.config import default_home

    return load_profile(network, home=default_home(), deployed=deployed)


def outbox_of(profile: "NetworkProfile") -> Path:
    """Where commands write down what they are about to send."""
    from node.config import default_home

    folder = default_home() / "outbox"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # By chain, not by name: two profiles of one chain share its nonces, so they share what is under way.
    return folder / f"{profile.chain_id}.sqlite"


def when(timestamp: int, now: int) -> str:
    """A chain's second for people: its date, and in how long or how long ago that is."""
    gap = duration(abs(timestamp - now))
    return f"{date(timestamp)} (in {gap})" if timestamp > now else f"{date(timestamp)} ({gap} ago)"


# ---- inside


def _carry_out(planner: Planner, given: dict[str, Any]) -> None:
    """The whole frame around a planner. given: its own arguments and all of the common options."""
    import trio

    call = _Call(**{option: given.pop(option) for option in _COMMON})
    profile = profile_of(call.network)
    require_somebody(call.yes or call.dry_run)
    if "state_dir" in inspect.signature(planner).parameters:
        given["state_dir"] = call.state_dir
    key = signer_of(call.network, profile, call.key, call.state_dir, call.password_file)
    with alone(key.address), quiet_logs():
        trio.run(_story, call, profile, key, planner, given)


def require_somebody(given: bool) -> None:
    """Refuse early where nobody can be asked and nothing was said before."""
    # Before the key is opened and the chain asked: a script learns at once what it lacks.
    if not given and not sys.stdin.isatty():
        raise CommandError(
            "nobody can be asked whether to go on",
            "there is no terminal, and this command would send a transaction",
            "give --yes to go on without being asked, or --dry-run to see what it would do",
            USAGE,
        )


def signer_of(
    network: str, profile: "NetworkProfile", key: str | None, state_dir: Path | None, password_file: Path | None
) -> "NodeKey":
    """Who signs; on a local devnet without a key, the account that it gives to whoever plays there."""
    if key and state_dir:
        raise CommandError("who signs?", "both --key and --state-dir were given", "give one of them", USAGE)
    if state_dir:
        return open_node_key(state_dir, password_file)
    if key:
        return open_signer(key, password_file)
    from cli.pools import devnet_account

    return devnet_account(profile, network)


@contextmanager
def alone(signer: str) -> Iterator[None]:
    """One command per key at a time: the second one waits."""
    import time

    from node.config import default_home
    from node.state.locks import FileLock

    folder = default_home() / "outbox"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Two commands of one key would take the same nonce, and one of them would lose its transaction.
    # Seconds to wait for another command that uses the same key.
    lock, limit = FileLock(folder / f"{signer}.lock"), time.monotonic() + 60.0
    while not lock.acquire():
        if time.monotonic() > limit:
            raise CommandError(
                f"another command uses the key of {signer}", f"process {lock.holder} holds it", "wait for it", CHAIN
            )
        time.sleep(0.1)
    try:
        yield
    finally:
        lock.release()


async def _story(call: _Call, profile: "NetworkProfile", key: "NodeKey", planner: Planner, own: dict[str, Any]) -> None:
    from node.chain.client import ChainClient

    path = outbox_of(profile).with_name(f"{profile.chain_id}-{key.address}.json")
    begun = Begun(path, f"{planner.__module__}.{planner.__name__}", own, profile.contracts.swarm)
    with closing(ChainClient(profile, key, outbox=outbox_of(profile), tells=True)) as chain:
        # First what an earlier command left behind: its nonce comes before ours, and what it sent may be the very thing
        # that is asked for now.
        left = await _left_behind(chain, key)
        await _warn_of_other_code(chain)
        plan, finished = await _plan(begun, left, lambda: planner(chain, key.address, **own))
        done = already_done(plan, left) if finished is None else dict(enumerate(finished))
        # What is part of this plan is told with its receipt instead.
        others = [one for one in left if one.receipt not in done.values()]
        _tell_leftovers(others)
        known = [one.receipt.transaction if one.receipt else one.pending.hash for one in others]
        await chain.told(known)

        async def tell(plan: CommandPlan, receipts: "list[Receipt]", *, recovered: bool) -> None:
            _show_receipts(call, profile, plan, receipts, recovered=recovered)
            # What was told of as pending has come into a block since.
            await chain.told([*known, *(receipt.transaction for receipt in receipts)])
            begun.end()

        if finished is not None:
            await tell(plan, finished, recovered=True)
            return
        todo = [plan.refresh(step, list(done.values())) for n, step in enumerate(plan.steps) if n not in done]
        if not todo:
            await tell(plan, list(done.values()), recovered=True)
            return
        # Before anybody is asked: a call that would fail is never offered for confirmation.
        simulation = await chain.simulate(todo, key.address)
        if call.dry_run:
            _show_dry_run(call, profile, key.address, plan, simulation)
            return
        confirm(call.yes, profile, key.address, plan.says, simulation)
        if plan.before is not None:
            # Only now: it may send coin, and the answer might have been no.
            await plan.before()
        receipts: list[Receipt] = []
        begun.start(plan)
        for number, planned in enumerate(plan.steps):
            # One after the other, each mined before the next: a later step may need what an earlier one brought about
            # (a pool's number).
            step = plan.refresh(planned, receipts)
            begun.comes_to(step.call.intent)
            receipts.append(done.get(number) or await _send(chain, step, key))
        await tell(plan, receipts, recovered=bool(done))


async def _warn_of_other_code(chain: "ChainClient") -> None:
    """Only told: who has a stake in an older deployment takes it out with this program. What puts tokens in is refused
    (`approve_steps`)."""
    from node.chain.errors import OtherContracts

    await chain.connect()
    try:
        chain.require_own_code()
    except OtherContracts as error:
        typer.echo(f"warning: {error.what}: {error.why}\n  do:  {error.remedy}", err=True)


async def _left_behind(chain: "ChainClient", key: "NodeKey") -> "list[Recovered]":
    """What earlier commands left, once it is in a block: until then nobody can say what is left to do. One that no
    block takes is left to the sending, which pays more for it."""
    import trio
    from rich.console import Console

    from node.chain.outbox import Fate

    left, (pause, most) = await chain.resume(key), LEFT_LOOKS
    left_wait = 30.0  # seconds for what an earlier one has sent
    with Console(stderr=True, highlight=False).status("waiting for what an earlier command sent", spinner="dots"):
        with trio.move_on_after(left_wait):
            while any(one.fate is Fate.PENDING for one in left):
                await trio.sleep(pause)
                pause = min(2 * pause, most)  # each look sends it again
                left = [*(one for one in left if one.fate is not Fate.PENDING), *await chain.resume(key)]
    by_hash = {one.pending.hash: one for one in left}
    return list(by_hash.values())


async def _plan(
    begun: Begun, left: "list[Recovered]", planner: Callable[[], Awaitable[CommandPlan]]
) -> "tuple[CommandPlan, list[Receipt] | None]":
    """The plan, and the receipts of all of it where an equal command carried it out and could not tell so."""
    finished = begun.finished(left)
    try:
        plan = await planner()
    except IntellectError:
        # What was done may be why it cannot be done again: the stake is bonded, the node is slashed.
        if finished is None:
            raise
        plan = CommandPlan("", finished[0], [])
    return (plan, None) if finished is None else (replace(plan, done=finished[0]), finished[1])


async def _send(chain: "ChainClient", step: "SimulatedStep", key: "NodeKey") -> "Receipt":
    from rich.console import Console

    with Console(stderr=True, highlight=False).status(f"{step.action}: waiting for a block", spinner="dots"):
        return await chain.execute(step, key)


def _tell_leftovers(left: "list[Recovered]") -> None:
    from rich.console import Console

    for one in left:
        text = f"an earlier command was interrupted: {one.pending.action} is {one.fate.value} ({one.pending.hash})"
        Console(stderr=True, highlight=False).print(text, style="dim", soft_wrap=True, markup=False)


def confirm(yes: bool, profile: "NetworkProfile", me: "Address", says: str, simulation: "Simulation") -> None:
    """Ask, unless it was said before. Raises CommandError for a no."""
    if yes:
        return
    from rich.console import Console

    # Standard output is for the answer alone: a script may read it while a person confirms.
    out = Console(stderr=True, highlight=False, soft_wrap=True)
    out.print(f"on {profile.name} (chain {profile.chain_id}), signed by {me}:", markup=False)
    out.print(f"  {says}", markup=False)
    out.print(f"  {costs(simulation)}", markup=False)
    with asking():
        agreed = typer.confirm("Go on?", err=True)
    if not agreed:
        raise CommandError("nothing was sent", "you said no", "run the command again to change your mind", INTERRUPTED)


def costs(simulation: "Simulation") -> str:
    """Gas and fees in words."""
    # The bound that the signed transaction allows; what is paid is mostly less, as base fees go.
    most = simulation.gas * simulation.max_fee + simulation.l1_fee
    words = f"gas about {simulation.gas:,}, about {eth(simulation.cost)} ETH (at most {eth(most)} ETH by today's fees)"
    if not simulation.complete:
        words += "; a guess: this endpoint cannot simulate the later steps before the first is on chain"
    return words


def dry_step(step: "Estimate") -> dict[str, Any]:
    """One step of a dry run, JSON-ready."""
    return {"action": step.action, "gas": step.gas, "exact": step.exact, "l1_fee_wei": str(step.l1_fee)}


def _show_dry_run(
    call: _Call, profile: "NetworkProfile", me: "Address", plan: CommandPlan, simulation: "Simulation"
) -> None:
    if call.as_json:
        steps = [dry_step(step) for step in simulation.steps]
        facts = {"dry_run": True, "signer": me, "says": plan.says, "steps": steps, "gas": simulation.gas}
        print_json({**facts, "cost_wei": str(simulation.cost), "complete": simulation.complete})
        return
    out = console()
    out.print(f"would do this on {profile.name} (chain {profile.chain_id}), signed by {me}:", soft_wrap=True)
    out.print(f"  {plan.says}", markup=False, soft_wrap=True)
    for step in simulation.steps:
        out.print(f"  {step.action}: gas {'' if step.exact else 'about '}{step.gas:,}", soft_wrap=True)
    out.print(f"  {costs(simulation)}\nnothing was sent", soft_wrap=True)


def _show_receipts(
    call: _Call, profile: "NetworkProfile", plan: CommandPlan, receipts: "list[Receipt]", *, recovered: bool = False
) -> None:
    last = receipts[-1]
    if call.as_json:
        facts = {"transaction": last.transaction, "block": last.block, "recovered": recovered}
        facts["gas_used"] = sum(receipt.gas_used for receipt in receipts)
        # A string: JSON readers commonly hold numbers as doubles, which are exact to 2^53 only.
        facts["cost_wei"] = str(sum(receipt.cost for receipt in receipts))
        facts["link"] = profile.link("tx", last.transaction)
        facts["transactions"] = [receipt.transaction for receipt in receipts]
        print_json(facts | dict(plan.facts(receipts)))
        return
    out = console()
    if recovered:
        out.print("done already by an earlier command that was interrupted, and not sent again:", soft_wrap=True)
    told = plan.facts(receipts)
    plain = {} if plan.last else told
    more = " ".join(f"{name} {value}" for name, value in plain.items() if isinstance(value, (int, str)))
    out.print(clean(f"{plan.done} {more}".strip(), 400), markup=False, soft_wrap=True)
    for receipt in receipts:
        cost = f"gas {receipt.gas_used:,}, {eth(receipt.cost)} ETH"
        out.print(f"transaction {receipt.transaction} in block {receipt.block}, {cost}", soft_wrap=True)
        if link := profile.link("tx", receipt.transaction):
            out.print(f"  {link}", soft_wrap=True)
    if plan.last:
        out.print(clean(plan.last(told), 400), markup=False, soft_wrap=True)


# The command groups of `intellect-node contract`, empty; the other files fill them

app = typer.Typer(help="Look at the chain, and act on it with your own key.", no_args_is_help=True)
pool_app = typer.Typer(
    help="Pools: where a run's members, rules and money stand. In short: `intellect-node pool`.",
    no_args_is_help=True,
)
provider_app = typer.Typer(help="Providers: who stakes for nodes and receives their rewards.", no_args_is_help=True)
node_app = typer.Typer(help="Nodes: the keys that work, and the provider that answers for each.", no_args_is_help=True)
earnings_app = typer.Typer(help="Earnings: what a quorum says that everybody has earned.", no_args_is_help=True)
case_app = typer.Typer(help="What was taken from whom, and frozen stakes: look, appeal, finish.", no_args_is_help=True)
chair_app = typer.Typer(help="The chair: which of a pool's trainers leads, and since when.", no_args_is_help=True)
attest_app = typer.Typer(help="Attested units: validators sign them, anybody carries them.", no_args_is_help=True)

app.add_typer(provider_app, name="provider")
app.add_typer(node_app, name="node")
app.add_typer(pool_app, name="pool")
app.add_typer(earnings_app, name="earnings")
app.add_typer(case_app, name="case")
app.add_typer(chair_app, name="chair")
app.add_typer(attest_app, name="attest")
