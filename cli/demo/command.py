"""The command `intellect-node demo`: its options, and what it says at the end."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import USAGE, CommandError
from cli.options import Sets
from cli.output import console, duration, ether
from cli.places import complete_networks

if TYPE_CHECKING:
    from cli.demo.view import DemoView

EXAMPLES = (
    "Examples:  intellect-node demo   |   intellect-node demo --no-cheat --workers 3 --steps 40   |   "
    "intellect-node demo --seed 7 --json   |   intellect-node demo --run my-run.toml   |   "
    "intellect-node demo --validators 3 --cheat int4 --cheat zip-bomb   |   intellect-node demo --trainers 2   |   "
    "intellect-node demo --network my-hardhat.toml"
)
LIARS = {
    "false-accuser": "calls every file a fraud",
    "statistical-accuser": "calls every file another model's",
    "rubber-stamp": "accepts unseen, with values of its own",
    "poisoner": "says the contrary of every reward",
    "spiked": "log-probabilities of the right mean, all on one token",
    "lazy-stamp": "recomputes nothing, and says so",
    "silent": "never says a word",
    "second-look": "an unasked second look with values of its own",
    "turncoat": "calls a file a fraud once it was accepted",
    "looking-turncoat": "the same, by a second look",
    "copier": "waits for another's verdict, and says the same",
    "sealer": "seals every verdict, and shows one in four",
    "unserving": "serves no report",
    "old-disputer": "denies old files; with --validators 5, twice",
    "rusher": "speaks first in every round (a run with rounds)",
}
LEADERS = {
    "censor": "uses nothing of one worker",
    "stalled": "publishes nothing after its first policies",
    "far-steps": "states policies of step 2^40 beside its own",
    "dismissed": "its owner dismisses it, and it goes on",
    "former-far-steps": "is dismissed, and states step 2^40",
    "framing-standby": "stands by, and invents what would convict the leader",
}
"""What --liar and --leader take, for the help: the tables in tests/cheats cost seconds to import."""


def _one_a_line(text: str, names: Mapping[str, str]) -> str:
    return "\n\n".join((text, *(f"{name}: {what}" for name, what in names.items())))


def command(
    workers: Annotated[int | None, typer.Option(min=1, max=32, help="Honest workers (2).")] = None,
    validators: Annotated[
        int | None, typer.Option(min=1, max=8, help="Validators (1); more than half of them decide.")
    ] = None,
    trainers: Annotated[
        int | None,
        typer.Option(min=1, max=4, help="Trainers (1); with more one is killed on the way, and another one goes on."),
    ] = None,
    cheat: Annotated[
        list[str] | None,
        typer.Option(
            help="How a cheating worker cheats (own-problems); any of tests/cheats, one worker for each given."
        ),
    ] = None,
    liar: Annotated[
        list[str] | None, typer.Option(help=_one_a_line("How a validator lies; for two liars twice.", LIARS))
    ] = None,
    leader: Annotated[
        str | None,
        typer.Option(help=_one_a_line("How a trainer cheats; with --trainers 2 or more.", LEADERS)),
    ] = None,
    no_cheat: Annotated[bool, typer.Option("--no-cheat", help="Only honest nodes.")] = False,
    no_kill: Annotated[bool, typer.Option("--no-kill", help="No worker or trainer is killed on the way.")] = False,
    worker_engine: Annotated[
        str | None,
        typer.Option(help="What honest workers compute with: a program that speaks the engine protocol, e.g. on vLLM."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Optimiser steps. Default: the run's own, or until its goal is reached.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the start model and the training (0).")] = None,
    run: Annotated[Path | None, typer.Option("--run", help="Train your own run file (TOML) instead.")] = None,
    sets: Sets = None,
    network: Annotated[
        str | None,
        typer.Option(
            help="The profile of a local chain that runs already, a name or file. Default: a chain of its own.",
            autocompletion=complete_networks,
        ),
    ] = None,
    directory: Annotated[Path, typer.Option("--dir", help="Where state, keys and report go.")] = Path("demo"),
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh/--resume", help="Start anew (default), or go on where the last demo stopped, with the same nodes."
        ),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Last line of standard output: one JSON object.")] = False,
    no_page: Annotated[
        bool, typer.Option("--no-page", help="No page in the browser (it is for this machine only).")
    ] = False,
    no_view: Annotated[bool, typer.Option("--no-view", help="Plain lines instead of the live picture.")] = False,
) -> None:
    """A whole swarm on this machine trains a model: chain, trainer, workers, validator, and a cheat who is caught.

    Each is its own process and the very daemon that `join` runs. Ctrl-C stops everything cleanly.
    """
    import msgspec
    import trio

    from cli.demo.cast import (
        Casting,
        DemoOptions,
        Scene,
        cheats,
        chosen,
        leaders,
        liars,
        nodes,
        remembered,
        round_liars,
        standbys,
    )

    if not fresh and run is not None:
        raise CommandError("--resume and --run contradict", "a resumed demo has its run", "give one of them", USAGE)
    before = Casting() if fresh else remembered(Scene(directory.resolve()))
    pretrains, replicas = False, before.replicas
    if run is not None or sets:
        from cli.demo.prepare import OWN_RUN
        from node.run.file import load_run_file

        # a mistake in it is told before there is a chain and a directory
        said = load_run_file(run or OWN_RUN, sets or ())
        pretrains = said.pretraining is not None
        replicas = said.diloco is not None and not pretrains
    from cli.demo.story import run_demo
    from cli.run import require_training

    honest = no_cheat or (pretrains and not cheat)  # a default cheat makes rollouts, of which such a run has none
    wanted = () if honest else chosen(cheat, cheats() | nodes(), "cheat") if cheat else before.cheats
    lies = chosen(liar, liars() | round_liars(), "liar") if liar else before.liars
    judges = before.validators if validators is None else validators
    if len(lies) > judges:
        raise CommandError(
            "more liars than validators", f"{len(lies)} of {judges}", f"--validators {2 * len(lies) + 1}", USAGE
        )
    of_rounds = round_liars().keys()
    if fresh and not (pretrains or replicas) and (lost := of_rounds & lies):
        raise CommandError(
            f"{', '.join(lost)}: this run has no rounds",
            "it lies in what a round comes to",
            "--run FILE with rounds",
            USAGE,
        )
    if fresh and pretrains and (lost := set(lies) - of_rounds):
        why = "its validators look at no rollouts, which this liar judges"
        raise CommandError(f"{', '.join(lost)}: not in a run that pre-trains", why, f"--liar {min(of_rounds)}", USAGE)
    if pretrains and (trainers or 1) > 1:
        raise CommandError(
            "a run with [pretraining] takes no --trainers", "its peers have no leader", "leave --trainers out", USAGE
        )
    led_by = chosen([leader], leaders() | standbys(), "leader")[0] if leader else before.leader
    several = before.trainers if trainers is None else trainers
    if led_by and several < 2:
        why = "with one trainer nobody goes on when its term ends"
        raise CommandError("a leader that cheats needs a standby", why, "--trainers 2", USAGE)
    if led_by and (replicas or pretrains):
        why = "its trainers learn in rounds, and none of them leads"
        raise CommandError("this run has no leader that could cheat", why, "leave --leader out", USAGE)
    stage: Path | None = None
    if (named := network or before.network) is not None:
        from cli.demo.chain import playground

        stage = playground(named)
    require_training("the demo trains a model here, and torch is not installed", "demo")
    options = DemoOptions(
        directory=directory,
        workers=before.workers if workers is None else workers,
        validators=judges,
        cheats=wanted,
        liars=lies,
        steps=steps,
        seed=before.seed if seed is None else seed,
        run_file=run,
        sets=tuple(sets or ()),
        resume=not fresh,
        page=None if no_page else free_place(),
        # Only where somebody can press a key, and nobody waits for the JSON.
        lingers=not no_page and not as_json and sys.stdin.isatty() and sys.stdout.isatty(),
        worker_engine=worker_engine or before.worker_engine,
        churn=pretrains and not no_kill,
        kills=not no_kill,
        trainers=several,
        replicas=replicas,
        leader=led_by,
        network=stage,
    )
    with make_view(live=_can_draw() and not no_view, errors=as_json) as view:
        summary = trio.run(run_demo, options, view)
    say_goodbye(summary, directory, to_errors=as_json)
    if as_json:
        print(msgspec.json.encode(summary).decode(), flush=True)


def free_place() -> str:
    """HOST:PORT for this machine only, free at this moment."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


def make_view(*, live: bool, errors: bool) -> "DemoView":
    """The live picture or plain lines; with `errors` on standard error, so that output stays for the JSON."""
    from rich.console import Console

    from cli.demo.view import LiveView, PlainView

    if live:
        return LiveView(Console(stderr=errors, highlight=False))
    stream = sys.stderr if errors else sys.stdout

    def write(line: str) -> None:
        print(line, file=stream, flush=True)

    return PlainView(write, asks=5.0)  # as often as there is a line


def say_goodbye(summary: dict[str, Any], directory: Path, *, to_errors: bool) -> None:
    """What came of it, and what to try next."""
    from rich.console import Console

    from node.metrics.journal import Ends

    out = Console(stderr=True, highlight=False) if to_errors else console()
    say = partial(out.print, soft_wrap=True)
    ends = Ends(summary["reward_first"], summary["reward_last"], summary["reward_window"])
    if ends.first is not None and ends.last is not None:
        say(f"\n[bold]mean reward on held-back problems {ends.first:.2f} -> {ends.last:.2f}[/] ({ends.words})")
    if rounds := summary["pretraining"]:
        equal = rounds["outer_states"]
        text = "" if rounds["of_rollouts"] else f", on held-back text {rounds['eval_loss']}"
        say(
            f"\n[bold]{rounds['rounds']} rounds, loss {rounds['loss_first']} -> {rounds['loss_last']}[/]{text}; "
            f"outer states equal {equal['equal']} of {equal['of']}: {rounds['outer_root']}"
        )
    say(
        f"{summary['steps']} steps in {duration(summary['seconds'])} of training,"
        f" {duration(summary['seconds_total'])} in all; {summary['verdicts']['accepted']} rollout files accepted,"
        f" {summary['verdicts']['rejected']} rejected"
    )
    if summary["ended_by"]:
        say(f"the run ended: {summary['ended_by']}")
    names = {member["address"]: member["name"] for member in summary["members"]}
    if summary["validators"] > 1:
        say(
            f"{summary['quorum']} of {summary['validators']} validators decided;"
            f" {summary['disputes'].get('raised', 0)} disputes between them"
        )
    say(_paid(summary))
    for address, why in summary["quarantined"].items():
        say(f"{names.get(address, 'a validator')} {address} is not believed any more: {why}")
    for address, transaction in summary["slashed"].items():
        say(f"{names.get(address, 'a node')} {address} lost its stake in transaction {transaction}")
    say(f"\nreport: {directory / 'report'}  (reward.png, reward.svg, metrics.jsonl, events.jsonl, model/)")
    say(
        "\n[dim]try next:[/]\n"
        "  intellect-node demo --cheat other-weights      a cheat with another model: rejected, unpaid\n"
        "  intellect-node demo --validators 3             three of them, and two must agree\n"
        "  intellect-node demo --no-cheat --workers 3     honest people only\n"
        "  intellect-node demo --run my-run.toml          your model, your data\n"
        "  intellect-node devnet up                       a swarm of your own: docs/tutorials/run-a-pool.md"
    )


def _paid(summary: dict[str, Any]) -> str:
    """Who was paid how much, by how many tables of earnings."""
    pay = summary["pay"]
    got = [(member["name"], int(member["paid_wei"])) for member in summary["members"]]
    shares = ", ".join(f"{name} {ether(wei)}" for name, wei in got if wei)
    if not shares:
        return "nobody was paid yet: an epoch is paid when its window is over"
    posted = f"{pay['tables']} table{'s' if pay['tables'] > 1 else ''} of earnings posted"
    owed = sum(int(member["owed_wei"]) for member in summary["members"])
    rest = f"; {ether(owed)} more were certified, and their window was not over" if owed else ""
    return f"{posted}, {ether(int(pay['paid_wei']))} tokens claimed: {shares}{rest}"


def _can_draw() -> bool:
    size = console().size
    # columns and, with 20 lines, the least terminal for the live view
    return sys.stdout.isatty() and size.width >= 60 and size.height >= 20
