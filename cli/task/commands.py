"""The commands of `intellect-node task`. Each asks, waits and tells; what is heavy is imported when it runs."""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import USAGE, CommandError
from cli.options import Density, Method, Options, Scale, Seed, Weight, command_of, numbers_of
from cli.output import clean, console, print_json, short
from cli.places import StateDir, chosen_directory

if TYPE_CHECKING:
    from rich.table import Table

    from cli.task.asking import Sizes, TaskDraft, TaskOffice

app = typer.Typer(
    name="task",
    help="Have the swarm generate, filter, evaluate, judge, review or merge. Asked for at the trainer's node.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Policy = Annotated[str, typer.Option(help="newest, a step, or the beginning of a policy's root.")]
Samples = Annotated[int, typer.Option(min=1, max=256, help="Answers to each problem.")]
ShardSize = Annotated[int, typer.Option(min=1, max=256, help="Problems that one worker does at a time.")]
MostTokens = Annotated[int, typer.Option(min=0, help="Most tokens of an answer. 0: the run's limit.")]
Temperature = Annotated[float, typer.Option(min=0, max=10, help="Sampling temperature. 0: the run's.")]
Lease = Annotated[float, typer.Option(min=1, max=86_400, help="Seconds after which others may take a shard over.")]
Device = Annotated[str, typer.Option(help="What workers must compute on: any, cpu or cuda.")]
Nonce = Annotated[str, typer.Option(help="Any text: the same task with another one draws other random numbers.")]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait/--no-wait", rich_help_panel="Options", help="Wait for the result, or leave it to `task export`."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on the last line.")]
Out = Annotated[Path, typer.Option(help="The file to write: JSONL, or parquet by its name.")]
MaybeOut = Annotated[Path | None, typer.Option(help="Write the result there too, as JSON.")]
Lowest = Annotated[float, typer.Option("--min", min=0, max=1, help="Least solve rate to keep.")]
Highest = Annotated[float, typer.Option("--max", min=0, max=1, help="Greatest solve rate to keep.")]
Problems = Annotated[int, typer.Option(min=0, help="How many problems. 0: all.")]
First = Annotated[int, typer.Option(min=0, help="Number of the first problem.")]

_COMMON: Options = {
    "state_dir": (StateDir, None),
    "samples": (Samples, 1),
    "policy": (Policy, "newest"),
    "shard_size": (ShardSize, 16),
    "max_output_tokens": (MostTokens, 0),
    "temperature": (Temperature, 0.0),
    "lease": (Lease, 120.0),
    "device": (Device, "any"),
    "nonce": (Nonce, ""),
    "out": (MaybeOut, None),
    "wait": (Wait, True),
    "as_json": (Json, False),
}
"""Options of every task."""
_OURS = ("state_dir", "out", "wait", "as_json")
"""Of them, those that are no `Sizes`."""


@dataclass(frozen=True, slots=True)
class TaskCommand:
    """What every kind of task is asked with. directory: the node's state; scratch: a directory until the end."""

    directory: Path
    sizes: "Sizes"
    scratch: Path

    @property
    def bench(self) -> "TaskOffice":
        from cli.task.asking import TaskOffice

        return TaskOffice(self.directory)


Asker = Callable[..., "TaskDraft"]


def asks(name: str, example: str, *, without: str = "", **defaults: Any) -> Callable[[Asker], Asker]:
    """Register `def asker(ask: Asking, **own arguments) -> TaskDraft` as the command `name`, with the options of
    every task less those named in `without`, and with these defaults for some."""
    common = {
        option: (kind, defaults.get(option, default))
        for option, (kind, default) in _COMMON.items()
        if option not in without.split()
    }

    def register(asker: Asker) -> Asker:
        command = command_of(asker, ("ask",), common, lambda given: _carry_out(asker, given))
        app.command(name, epilog=example)(command)
        return asker

    return register


EVALUATE = (
    "Examples:  intellect-node task evaluate --samples 8   |   intellect-node task evaluate --policy 40 --json   |   "
    "intellect-node task evaluate --model merged"
)


@asks("evaluate", EVALUATE)
def evaluate(
    ask: TaskCommand,
    problems: Problems = 0,
    first: First = 0,
    model: Annotated[
        Path | None, typer.Option(help="A model that is no policy, as `task merge` writes it; workers fetch it.")
    ] = None,
) -> "TaskDraft":
    """A policy, or a merged model, on the run's held-out problems: mean score with its standard error, pass@k."""
    from cli.task.asking import of_own, with_model

    if model is not None and ask.sizes.policy != "newest":
        raise CommandError("which weights?", "--model and --policy are two", "give one of them", USAGE)
    draft = of_own(ask.bench, "evaluate", "held_out", first, problems, ask.sizes)
    return with_model(draft, model) if model is not None else draft


FILTER = (
    "Examples:  intellect-node task filter rows.jsonl --out kept.jsonl --samples 8 --min 0.125 --max 0.5   |   then in "
    "the run file: dataset = 'kept.jsonl' and, below [environment.args], solve_rate_field = 'solve_rate'"
)


@asks("filter", FILTER, without="out", samples=8, shard_size=64, lease=300.0)
def filter_(
    ask: TaskCommand,
    data: Annotated[Path, typer.Argument(help="A data set of the published form: JSONL or parquet.")],
    out: Out,
    lowest: Lowest = 0.125,
    highest: Highest = 0.5,
    template: Annotated[str, typer.Option(help="How the model is asked: plain or chat.")] = "plain",
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be scored, and say how many.")
    ] = False,
) -> "TaskDraft":
    """Keep the rows of a data set that a policy solves sometimes: the offline filter of INTELLECT-2.

    Every row is answered --samples times; the share that is right becomes its column `solve_rate`.
    """
    from cli.task.asking import of_data

    if lowest > highest:
        raise CommandError("nothing can be kept", f"--min {lowest:g} is above --max {highest:g}", "swap them", USAGE)
    if out.resolve() == data.resolve():
        raise CommandError(f"will not overwrite {data}", "--out is the data itself", "name another file", USAGE)
    return of_data(ask.bench, data, template, ask.sizes, skip=skip_bad_rows)


GENERATE = (
    "Examples:  intellect-node task generate --problems 1000 --samples 4 --out data.parquet   |   "
    "intellect-node task generate --out data.jsonl --problems 64 --policy 40"
)


@asks("generate", GENERATE, without="out")
def generate(
    ask: TaskCommand,
    out: Out,
    problems: Annotated[int, typer.Option(min=1, help="How many problems.")],
    first: First = 0,
) -> "TaskDraft":
    """Answers to the run's problems with the verifiers' scores, and where each comes from: node, policy, signatures."""
    from cli.task.asking import of_own

    return of_own(ask.bench, "generate", "training", first, problems, ask.sizes)


JUDGE = "Example:  intellect-node task judge 3f09… --policy 40 --out scores.json"


@asks("judge", JUDGE, without="samples", shard_size=64)
def judge(
    ask: TaskCommand,
    file: Annotated[str, typer.Argument(help="Root of an accepted rollout file that this node holds, 64 hex digits.")],
) -> "TaskDraft":
    """Three nodes judge every answer of a rollout file; the median counts where they agree within a quarter.

    The judge is the policy that is named. Its own tokens are replayed like any others'.
    """
    from cli.task.asking import of_file

    return of_file(ask.bench, file, ask.sizes)


REVIEW = "Example:  intellect-node task review my_env.py --out report.json"


@asks("review", REVIEW, without="samples policy shard_size max_output_tokens temperature device", lease=600.0)
def review(
    ask: TaskCommand,
    package: Annotated[Path, typer.Argument(help="A proposed environment: a .py module, a directory or a .tar.")],
    units: Annotated[int, typer.Option(min=1, max=1 << 20, help="Units of work that each report is paid as.")] = 10_000,
) -> "TaskDraft":
    """Three nodes check a proposed environment package; equal reports of two confirm it."""
    from cli.task.asking import of_package

    return of_package(package, ask.scratch, ask.sizes, units)


MERGE = (
    "Examples:  intellect-node task merge 38 39 newest --out merged   |   "
    "intellect-node task merge 40 52 --method ties --base 0 --density 0.2 --out merged --json"
)


@asks("merge", MERGE, without="samples policy shard_size max_output_tokens temperature device out", lease=300.0)
def merge(
    ask: TaskCommand,
    models: Annotated[list[str], typer.Argument(help="Policies: newest, a step, or the beginning of a root.")],
    out: Annotated[Path, typer.Option(help="The model directory to make; it must not exist.")],
    method: Method = "average",
    base: Annotated[str, typer.Option(help="The policy whose differences ties and dare merge.")] = "",
    weight: Weight = None,
    density: Density = 0.5,
    scale: Scale = 1.0,
    seed: Seed = 0,
    shard_size: Annotated[int, typer.Option(min=1, max=16, help="Million numbers that one worker merges.")] = 8,
    units: Annotated[int, typer.Option(min=1, max=1 << 20, help="Units of work that each shard is paid as.")] = 1_000,
) -> "TaskDraft":
    """Merge policies of this run into one model. Validators compute every shard again; it is the same to the byte."""
    from cli.task.asking import of_policies

    # Before the swarm is asked: a result that cannot be written would have been paid for nothing.
    if out.exists():
        raise CommandError(f"{out} exists", "a model directory is written whole or not at all", "name another", USAGE)
    rule = numbers_of(method, len(models), weight, density, scale, seed)
    return of_policies(models, base, rule, ask.sizes, shard_size, units)


EXPORT = "Example:  intellect-node task export 8d41 --out kept.jsonl --min 0.125 --max 0.5"


@app.command("export", epilog=EXPORT)
def export(
    task: Annotated[str, typer.Argument(help="How the task's id begins.")],
    out: Out,
    state_dir: StateDir = None,
    lowest: Lowest = 0.125,
    highest: Highest = 0.5,
    as_json: Json = False,
) -> None:
    """Write the result of a task that is done: of one that was asked for with --no-wait, or once more."""
    from cli.task.asking import named

    directory = chosen_directory(state_dir)
    _tell_result(directory, named(directory, task), {"out": out, "lowest": lowest, "highest": highest}, as_json)


STATUS = "Examples:  intellect-node task status   |   intellect-node task status 8d41 --json"


@app.command("status", epilog=STATUS)
def status(
    task: Annotated[str, typer.Argument(help="How the task's id begins. Default: all that the node knows.")] = "",
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Tasks that this node knows: how far each is, who holds which shard, how many were taken over. Any node knows."""
    import msgspec

    from cli import api

    told = api.get_status(api.socket_of(chosen_directory(state_dir))).tasks
    # Of its own tasks a node knows more than what was announced: what it gathered, and where.
    own = {one.id: one for one in told.own}
    tasks = [own.get(one.id, one) for one in told.known]
    tasks += [one for id, one in own.items() if id not in {known.id for known in told.known}]
    rows = [msgspec.to_builtins(one) for one in tasks if one.id.startswith(task.lower())]
    if task and not rows:
        raise CommandError("no such task", f"none begins with {clean(task, 64)!r}", "leave the id out", USAGE)
    if as_json:
        work = msgspec.to_builtins(told.work) if told.work else None
        print_json({"tasks": rows, "work": work})
        return
    console().print(_table(rows) if rows else "no task was offered")


CANCEL = "Example:  intellect-node task cancel 8d41"


@app.command("cancel", epilog=CANCEL)
def cancel(
    task: Annotated[str, typer.Argument(help="How the task's id begins.")],
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Wait for no more results of a task. What was accepted of it is paid, and stays."""
    from cli.task import asking

    directory = chosen_directory(state_dir)
    found = asking.named(directory, task)
    asking.cancel(directory, found["id"])
    if as_json:
        print_json({"task": found["id"], "cancelled": True})
    else:
        console().print(f"{found['kind']} {found['id'][:8]} is cancelled")


def _carry_out(asker: Asker, given: dict[str, Any]) -> None:
    """Submit what was asked for, wait with a bar, make the result, tell."""
    from cli.task.asking import Sizes, submit

    directory, as_json = chosen_directory(given["state_dir"]), given["as_json"]
    sizes = Sizes(**{name: given[name] for name in _COMMON if name in given and name not in _OURS})
    if sizes.device not in ("any", "cpu", "cuda"):
        what = f"no device {clean(sizes.device, 20)!r}"
        raise CommandError(what, "tasks may ask for any, cpu or cuda", "name one", USAGE)
    # Some commands have an option of their own by a common name: `out`, `shard_size`.
    own = {name: value for name, value in given.items() if name not in _COMMON or name in signature(asker).parameters}
    with tempfile.TemporaryDirectory(prefix="intellect-task-") as scratch:
        draft = asker(TaskCommand(directory, sizes, Path(scratch)), **own)
        id = submit(directory, draft)
        if not given["wait"]:
            if as_json:
                print_json({"task": {"id": id, "kind": draft.spec.kind, "shards": draft.spec.shards}, "result": None})
            else:
                console().print(f"{draft.spec.kind} {id[:8]}: {draft.spec.shards} shards offered; task status {id[:8]}")
            return
        task = _watch(directory, id, draft.spec.shards, quiet=as_json)
    _tell_result(directory, task, given, as_json)


def _tell_result(directory: Path, task: dict[str, Any], given: dict[str, Any], as_json: bool) -> None:
    from cli.task.asking import complete, make, tell
    from node.tasks.records import TaskFolder

    folder = TaskFolder(Path(task["path"]))
    complete(folder)
    rates = given.get("lowest", 0.0), given.get("highest", 1.0)
    tell(task, make(directory, folder, given["out"], given.get("data"), *rates), as_json=as_json)


def _watch(directory: Path, id: str, shards: int, *, quiet: bool) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import Progress

    from cli.task.asking import wait

    with Progress(console=Console(stderr=True), disable=quiet and not sys.stderr.isatty()) as progress:
        bar = progress.add_task(f"task {id[:8]}", total=shards)
        return wait(directory, id, lambda task: progress.update(bar, completed=task["gathered"], total=task["shards"]))


def _table(rows: list[dict[str, Any]]) -> "Table":
    from rich.table import Table

    table = Table("task", "kind", "policy", "problems", "shards", "done", "held by", "taken over", "state", box=None)
    for row in rows:
        held = ", ".join(f"{shard}: {short(node)}" for shard, node in list(row["held"].items())[:4])
        state = "open" if row["open"] else "over"
        figures = [f"{row[name]:,}" for name in ("problems", "shards", "done")]
        table.add_row(row["id"][:8], row["kind"], str(row["step"]), *figures, held, str(row["taken_over"]), state)
    return table
