"""`intellect-node trainer`: machines that train together with one on which `train` or the daemon runs."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import USAGE, CommandError, unwrap
from cli.output import clean, console, duration, print_json

if TYPE_CHECKING:
    from node.training.machine_spool import MachineSpool
    from node.training.settings import TrainerSettings

RANK_EXAMPLES = (
    "Examples:  intellect-node trainer rank --rdzv-endpoint 10.0.0.1:29500 --nnodes 2 --node-rank 1   |   "
    "intellect-node trainer rank --rdzv-endpoint gpu0:29500 --nnodes 4 --node-rank 3 --trainer world_size=8 --json"
)
app = typer.Typer(help="A trainer that spans machines.", no_args_is_help=True)


@app.command("rank", epilog=RANK_EXAMPLES)
def rank(
    endpoint: Annotated[
        str, typer.Option("--rdzv-endpoint", help="HOST:PORT at machine 0, as in its trainer.rendezvous.")
    ],
    nodes: Annotated[int, typer.Option("--nnodes", min=2, help="How many machines there are.")] = 2,
    node_rank: Annotated[int, typer.Option("--node-rank", min=1, help="Which one this is: 1 to nnodes - 1.")] = 1,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where the run's files and checkpoints go. Default: trainer-RANK here.")
    ] = None,
    trainer: Annotated[
        list[str] | None,
        typer.Option("--trainer", help="NAME=VALUE, for this machine: world_size, interface ... May be repeated."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per event on standard output, a summary as the last.")
    ] = False,
) -> None:
    """Lend this machine's processes to the trainer on machine 0, until that has done its last step.

    Run, model, settings and batches come from there; only the endpoint must be known. Checkpoints of this machine's
    shards stay in --dir: start it again with the same one after an interruption. Ctrl-C is safe.

    What travels between the machines is neither encrypted nor authenticated, and who reaches the ports can run code
    here: use a network of your own, or WireGuard between them.
    """
    from cli.places import directory_lock
    from cli.run_directory import quiet_children, trainer_settings
    from node.training.machine_spool import machine_spool

    words = [*words_of(nodes, endpoint), f"node_rank={node_rank}"]
    settings = trainer_settings([*(trainer or []), *words])
    place = (directory or Path(f"trainer-{node_rank}")).resolve()
    with directory_lock(place, "training"):
        spool = machine_spool(place)
        with quiet_children(place / "logs" / "processes.log") as (out, err):
            view = TrainerView(settings, out if as_json else err, as_json=as_json)
            summary = lend(spool, settings, view)
    if as_json:
        print_json({"summary": summary})
    else:
        console().print(f"done: {clean(str(summary['run']))}, {duration(summary['seconds'])}", soft_wrap=True)


def lend(spool: "MachineSpool", settings: "TrainerSettings", view: "TrainerView") -> dict[str, Any]:
    """Until machine 0 is done. Raises TrainingError, KeyboardInterrupt."""
    import trio

    from cli.invocation import until_signalled
    from node.logs import set_up_logging
    from node.training.client import TrainerProcess

    set_up_logging(spool.root.parent / "logs", "info")
    process = TrainerProcess(spool, settings=settings)
    started = time.monotonic()

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(view.follow, spool)
            await process.run()
            nursery.cancel_scope.cancel()

    try:
        trio.run(until_signalled, work)
    except BaseExceptionGroup as group:
        raise unwrap(group) from group
    return {
        "machine": settings.node_rank,
        "run": spool.run_name() or "",
        "checkpoint": spool.newest_step(),
        "restarts": process.restarts,
        "seconds": round(time.monotonic() - started, 1),
    }


class TrainerView:
    """Says which run it is, and every checkpoint."""

    def __init__(self, settings: "TrainerSettings", out: Any, *, as_json: bool) -> None:
        self._out, self._json = out, as_json
        self._who = f"machine {settings.node_rank} of {settings.nodes}"
        self._say(f"{self._who}, machine 0 at {settings.rendezvous}", event="started", machine=settings.node_rank)

    async def follow(self, spool: "MachineSpool") -> None:
        """Until it is cancelled."""
        import trio

        name, newest = None, spool.newest_step()
        while True:
            await trio.sleep(0.5)
            found, step = await trio.to_thread.run_sync(spool.run_name), spool.newest_step()
            if found != name:
                self._say(f"the run is {clean(str(found))}", event="run", run=found)
            if step > newest:
                self._say(f"checkpoint of step {step}", event="checkpoint", step=step)
            name, newest = found, step

    def _say(self, text: str, **fields: Any) -> None:
        print(json.dumps(fields) if self._json else text, file=self._out, flush=True)


def how_the_others_come(settings: "TrainerSettings") -> str:
    """What machine 0 tells whoever sits before it."""
    others = "1" if settings.nodes == 2 else f"1 to {settings.nodes - 1}"
    command = f"trainer rank --nnodes {settings.nodes} --node-rank N --rdzv-endpoint {settings.rendezvous}"
    return f"begins when the others are there; on each (N is {others}): intellect-node {command}"


def words_of(nodes: int | None, endpoint: str | None) -> list[str]:
    """Flags as words of --trainer. Raises CommandError for machines without a place to meet."""
    if (nodes or 1) > 1 and not endpoint:
        raise CommandError(
            f"--nnodes {nodes} needs --rdzv-endpoint",
            "the other machines must know where to find this one",
            "give an address of this machine that they reach, and a free port: --rdzv-endpoint 10.0.0.1:29500",
            USAGE,
        )
    return [*([f"nodes={nodes}"] if nodes else []), *([f"rendezvous={endpoint}"] if endpoint else [])]
