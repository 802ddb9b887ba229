"""`intellect-node train`: a run at one desk: the learner and engines, without chain or peers."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from cli import pretraining
from cli.config import build_config
from cli.errors import USAGE, CommandError, unwrap
from cli.options import Sets, hear
from cli.output import console, duration, print_json, rounded

if TYPE_CHECKING:
    from cli.run_directory import RunDirectory, TrainingMeans
    from node.local.pretraining import LocalPretraining
    from node.local.rollouts import LocalRollouts
    from node.run.file import CompiledRun, RunFile
    from node.training.planner import TrainingPlan

EXAMPLES = (
    "Examples:  intellect-node train my-run.toml   |   "
    "intellect-node train Qwen/Qwen3-0.6B openai/gsm8k#main/train --set recipe.steps=50   |   "
    "intellect-node train models/mine rows.jsonl --set recipe.lora.rank=16 --set recipe.learning_rate=2e-4   |   "
    "intellect-node train --run my-run.toml --steps 20 --json   |   "
    "intellect-node train --run my-run.toml --recipe dppo --async-level 4 --dir runs/dppo-4   |   "
    "intellect-node train --dir runs/dppo-4 --resume --steps 300   |   "
    "intellect-node train --run examples/pretrain.toml --peers 4"
)


def command(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE | MODEL DATASET]",
            help="A run file (TOML); or a model and rows, paths or names on the hub, for which `run new` writes one.",
        ),
    ] = None,
    run: Annotated[Path | None, typer.Option("--run", help="Run file (TOML); see `intellect-node run new`.")] = None,
    sets: Sets = None,
    adapter: Annotated[
        str | None,
        typer.Option(help="Go on with an adapter to the model: PEFT's directory, a `train`'s, or a name on the hub."),
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where everything goes. Default: runs/NAME here.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="--set recipe.steps=N: steps or rounds; with --resume: train on to this one."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="--set recipe.seed=N.")] = None,
    async_level: Annotated[
        int | None,
        typer.Option(
            "--async-level",
            min=0,
            max=8,
            help="Steps by which sampling lags. Default: 1, or 0 if the run allows no staleness.",
        ),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="--set recipe.name=NAME: another preset, with its own loss.")
    ] = None,
    peers: Annotated[
        int | None, typer.Option(min=1, help="Of a run with [diloco]: trainers that meet once a round. Default: 1.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --dir, exactly.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete an earlier run in --dir.")] = False,
    log_to: Annotated[
        str, typer.Option("--metrics-log", help="Also send metrics to: wandb, trackio, tensorboard (comma between).")
    ] = "",
    trainer: Annotated[
        list[str] | None,
        typer.Option(
            "--trainer", help="NAME=VALUE, for this machine: world_size=2, micro_batch_tokens=8192 ... May be repeated."
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option("--nnodes", min=1, help="Machines that train together: `trainer rank` is started on the others."),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option("--rdzv-endpoint", help="HOST:PORT of this machine where the others find it, with --nnodes."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="What computes: torch, vllm, or auto (the default: vllm on a GPU if it is installed)."),
    ] = None,
    engine_command: Annotated[
        str | None, typer.Option("--engine-command", help="Another program that speaks the engine protocol.")
    ] = None,
    metrics_address: Annotated[
        str | None,
        typer.Option(
            "--metrics-address",
            help="HOST:PORT: serve /metrics (Prometheus) while training. It has no password: 127.0.0.1:9464 keeps it "
            "on this machine.",
        ),
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Draw no curves.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per step on standard output, a summary as the last.")
    ] = False,
) -> None:
    """Train at this desk: learner and engines, no chain, no swarm. Ctrl-C is safe: --resume goes on exactly.

    Which GPUs learn and which sample, in passes of which length, is planned and said; --trainer overrides each choice.

    Of a model and rows alone it writes the run file by itself, as `run new` does, and says each number's reason.

    The directory holds metrics.jsonl, the report with its curves, the trained model, and all that resuming needs.
    The same run file and seed give the same curve. A run file with [pretraining] learns from text instead. Where it has
    [diloco], --peers trainers learn by themselves and meet once a round.
    """
    from cli.resume import RunOverrides, begin, go_on, must_hold_a_run
    from cli.run import require_training
    from cli.run_directory import RunDirectory, TrainingMeans, quiet_children
    from cli.trainer import how_the_others_come, words_of
    from node.run.file import load_run_file
    from node.run.sources import whole

    # Everything that can be refused without torch comes before it.
    run, pair = _meant(what or [], run)
    _check_flags(run or (Path(pair[1]) if pair else None), directory, resume, fresh)
    require_training("training needs torch, which is not installed", "install")
    program = build_config(engine=engine, engine_command=engine_command).engine_argv
    means = TrainingMeans.of(program, log_to, [*(trainer or []), *words_of(nodes, endpoint)], metrics_address)
    short = {"recipe.name": recipe, "recipe.steps": steps, "recipe.seed": seed}
    words = tuple(f"{name}={value}" for name, value in short.items() if value is not None)
    if adapter is not None:
        words += (f"adapter={json.dumps(whole(adapter, 'model', Path.cwd()))}",)
    overrides = RunOverrides(sets=(*words, *(sets or ())), async_level=async_level, peers=peers)
    # Of a run that goes on the file must say what it said: words are put into what was begun.
    run_file = load_run_file(run, () if resume else overrides.sets) if run else None
    name = run_file.name if run_file else name_of(pair[1]) if pair else ""
    home = RunDirectory((directory or Path("runs") / _safe(name)).resolve())
    if resume:
        # Before the lock, which makes the directory: a mistyped --dir leaves nothing behind.
        must_hold_a_run(home)
    # Two programs that write into one spool would make two runs of one name.
    with home.hold():
        if resume:
            compiled, level = go_on(home, run_file, run, overrides)
        else:
            begun = load_run_file(run) if run else None
            if run is None or run_file is None:
                assert pair is not None
                run, run_file = home.begun_file, written(*pair, name, overrides.sets)
            compiled, level = begin(home, run_file, run, overrides, fresh=fresh, begun=begun)
        with quiet_children(home.log) as (out, err):
            view = TrainJsonView(out) if as_json else ProgressView(err, compiled)
            if means.settings.nodes > 1:
                print(how_the_others_come(means.settings), file=err)
            try:
                summary = train(home, compiled, level, means, view)
            except KeyboardInterrupt:
                print(f"stopped; go on with: intellect-node train --dir {home.directory} --resume", file=err)
                raise
        finish(home, compiled, summary, report=not no_report)
    say_goodbye(summary, home, as_json=as_json)


def train(
    home: "RunDirectory", compiled: "CompiledRun", level: int, means: "TrainingMeans", view: "TrainView"
) -> dict[str, Any]:
    """Run until the end or Ctrl-C; returns the summary. Raises NothingFits where this machine is too small."""
    import trio

    from cli.invocation import until_signalled
    from cli.run_directory import assemble, assemble_pretraining, planned
    from node.logs import set_up_logging

    home.log.parent.mkdir(parents=True, exist_ok=True)
    set_up_logging(home.log.parent, "info")
    plan = planned(compiled, home.assets, means)
    view.plan(plan)
    assembled = assemble if compiled.spec.pretraining is None else assemble_pretraining
    local, observer, served = assembled(home, compiled, level, means, plan, view.step, view.activity)
    try:
        with view:
            trio.run(until_signalled, served)
    except BaseExceptionGroup as group:
        # trio wraps what a task raised; a person wants the error itself.
        raise unwrap(group) from group
    finally:
        observer.close()
    return summarise(compiled, local, home, level) | {"plan": plan.facts}


def finish(home: "RunDirectory", compiled: "CompiledRun", summary: dict[str, Any], *, report: bool) -> None:
    """The trained model, the summary, and the curves."""
    from cli.demo.report import copy_model

    copy_model(home.spool, home.model, summary["steps"])
    home.report.mkdir(parents=True, exist_ok=True)
    (home.report / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    if report:
        from cli.report import write_report

        write_report([home.directory], home.report)


def summarise(
    compiled: "CompiledRun", local: "LocalRollouts | LocalPretraining", home: "RunDirectory", level: int
) -> dict[str, Any]:
    """Rewards: means of the first and last `reward_window` evaluations; losses instead where a run pre-trains."""
    from node.metrics.journal import ends_of, read_records

    records = list(read_records(home.directory / "metrics.jsonl"))
    rewards = [r["eval_reward"] for r in records if isinstance(r.get("eval_reward"), float)]
    last, ends = records[-1] if records else {}, ends_of(rewards)
    how: dict[str, Any] = {"recipe": compiled.spec.recipe.name, "seed": compiled.spec.recipe.seed, "async_level": level}
    learnt: dict[str, Any] = {
        "reward_first": rounded(ends.first),
        "reward_last": rounded(ends.last),
        "reward_window": ends.window,
        "reward_best": max(rewards, default=None),
    }
    if compiled.spec.length_budget.targets:
        learnt["lengths"] = {name: _ends(records, f"eval_length_{name}") for name in ("error", "correlation")}
    if compiled.spec.pretraining is not None:
        how = {"kind": "pretrain", "seed": compiled.spec.recipe.seed, "peers": level}
        learnt = pretraining.summarise(records)
    elif compiled.spec.diloco is not None:
        how["peers"] = home.read_peers()
        learnt["outer_root"] = last.get("outer_root")
    return {
        "run": compiled.spec.name,
        **how,
        "steps": last.get("step", -1),
        "seconds": last.get("elapsed"),
        **learnt,
        "ended_by": local.ended_by or "its last step",
        "alarms": [{"name": alarm.name, "step": alarm.step, "text": alarm.text} for alarm in local.rung],
        "directory": str(home.directory),
    }


def _ends(records: Sequence[dict[str, Any]], name: str) -> list[float | None]:
    """[first, last] of a figure of the evaluations, as of their rewards."""
    from node.metrics.journal import ends_of

    ends = ends_of([record[name] for record in records if isinstance(record.get(name), float)])
    return [rounded(ends.first), rounded(ends.last)]


class TrainView:
    """Where progress is shown; this one shows nothing."""

    def __enter__(self) -> "TrainView":
        return self

    def __exit__(self, *problem: object) -> None:
        return None

    def plan(self, plan: "TrainingPlan") -> None:
        """What was planned, before anything starts."""

    def step(self, record: dict[str, Any]) -> None:
        """A new step's record."""

    def activity(self, text: str) -> None:
        """What goes on between two records."""


class TrainJsonView(TrainView):
    """One line per step."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def step(self, record: dict[str, Any]) -> None:
        print(json.dumps(record, sort_keys=True), file=self._out, flush=True)


class ProgressView(TrainView):
    """A bar with the step's main numbers; plain lines where there is no terminal."""

    def __init__(self, out: IO[str], compiled: "CompiledRun", *, silence: float = 20.0) -> None:
        # Seconds after which one wants to know what it is doing, where there is no bar to look at.
        self._silence = silence
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(file=out, highlight=False)
        self._total = compiled.spec.recipe.steps
        self._live = self._console.is_terminal
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._progress.add_task(compiled.spec.name, total=self._total, numbers="starting")
        self._numbers = ""
        self._said_at = -silence

    def __enter__(self) -> "ProgressView":
        if self._live:
            self._progress.start()
        else:
            self._console.print(f"training {self._progress.tasks[0].description}: {self._total} steps")
        return self

    def __exit__(self, *problem: object) -> None:
        if self._live:
            self._progress.stop()

    def plan(self, plan: "TrainingPlan") -> None:
        self._console.print(f"plan: {plan.line}", soft_wrap=True)
        for one in plan.told:
            self._console.print(f"  {one}", soft_wrap=True)

    def step(self, record: dict[str, Any]) -> None:
        numbers = self._numbers = numbers_of(record)
        every, barren = max(self._total // 20, 1), record.get("barren_batches") if record.get("updates") == 0 else None
        if self._live:
            self._progress.update(self._task, completed=record["step"], numbers=numbers)
        # Twenty lines for a log, however long the run.
        elif (barren or record["step"]) % every == 0 or barren == 1 or record["step"] == self._total:
            self._say(f"step {record['step']}/{self._total}  {numbers}")

    def activity(self, text: str) -> None:
        """Beside the numbers; without a terminal only where nothing else was said in a while."""
        if self._live:
            self._progress.update(self._task, numbers=f"{self._numbers}  [dim]{text}[/]".strip())
        elif time.monotonic() - self._said_at >= self._silence:
            self._say(f"  {text}")

    def _say(self, line: str) -> None:
        self._said_at = time.monotonic()
        self._console.print(line, soft_wrap=True)


def numbers_of(record: dict[str, Any]) -> str:
    """'reward 0.42  eval 0.40  entropy 0.31  grad 0.8  stale 1.0  5,100 tok/s'"""
    if "outer_root" in record and "replicas" not in record:
        return pretraining.numbers_of(record)
    parts: list[str] = []
    for name, label, form in (
        ("reward_mean", "reward", ".3f"),
        ("eval_reward", "eval", ".3f"),
        ("entropy", "entropy", ".3g"),
        ("grad_norm", "grad", ".2g"),
        ("tokens_per_second", "", ",.0f"),
    ):
        value = record.get(name)
        if isinstance(value, int | float):
            parts.append(f"{label} {value:{form}}" if label else f"{value:{form}} tok/s")
    if isinstance(record.get("micro_batch_tokens"), int):
        parts.append(f"passes of {record['micro_batch_tokens']:,} tokens: memory ran out")
    if record.get("updates") == 0:
        barren = record.get("barren_batches", 0)
        several = f" in {barren} batch{'es' * (barren > 1)}" if barren else ""
        parts.append(f"nothing learnt: no group carried signal{several}")
    return "  ".join(parts)


def say_goodbye(summary: dict[str, Any], home: "RunDirectory", *, as_json: bool) -> None:
    from node.metrics.journal import Ends

    if as_json:
        print_json({"summary": summary})
        return
    if summary.get("kind") == "pretrain":
        pretraining.say_goodbye(summary, home)
        return
    out = console()
    ends = Ends(summary["reward_first"], summary["reward_last"], summary["reward_window"])
    if ends.first is not None and ends.last is not None:
        out.print(f"[bold]mean reward on held-back problems {ends.first:.3f} -> {ends.last:.3f}[/] ({ends.words})")
    if lengths := summary.get("lengths"):
        parts = [f"{name} {_arrow(*lengths[name])}" for name in ("error", "correlation")]
        out.print(f"lengths asked for and given: {', '.join(parts)} (error in tokens)", soft_wrap=True)
    out.print(
        f"{_steps(summary)} in {duration(summary['seconds'] or 0)}, async level {summary['async_level']};"
        f" ended by {summary['ended_by']}",
        soft_wrap=True,
    )
    for alarm in summary["alarms"]:
        out.print(f"[yellow]alarm {alarm['name']}[/] at step {alarm['step']}: {alarm['text']}", soft_wrap=True)
    out.print(f"report: {home.report}   model: {home.model}", soft_wrap=True)


def _steps(summary: dict[str, Any]) -> str:
    peers = summary.get("peers")
    return f"{summary['steps']} rounds of {peers} trainers" if peers else f"{summary['steps']} steps"


def _arrow(first: float | None, last: float | None) -> str:
    return " -> ".join("-" if value is None else f"{value:.3f}" for value in (first, last))


def _meant(what: Sequence[str], run: Path | None) -> tuple[Path | None, tuple[str, str] | None]:
    """(run file, None) or (None, (model, rows)). Raises CommandError."""
    if len(what) > 2 or (what and run is not None):
        why = f"{' '.join(what)}{f' and --run {run}' if run else ''}"
        raise CommandError("what is to be trained?", why, "give a run file, or a model and rows", USAGE)
    if len(what) == 2:
        return None, (what[0], what[1])
    if what and Path(what[0]).suffix != ".toml" and not Path(what[0]).is_file():
        why = f"{what[0]} is no run file, and a model alone has nothing to learn from"
        raise CommandError("which rows?", why, f"intellect-node train {what[0]} ROWS", USAGE)
    return (Path(what[0]) if what else run), None


def name_of(rows: str) -> str:
    """A run's name by its data: 'gsm8k' of openai/gsm8k#main/train, 'sums' of my/sums.jsonl."""
    place = rows.removeprefix("hf:").partition("#")[0].partition("@")[0].rstrip("/*")
    return _safe(Path(place).name.partition(".")[0])


def written(model: str, rows: str, name: str, sets: Sequence[str]) -> "RunFile":
    """What `run new` writes of these two, with `sets` in it. Raises RunFileError, ModelError, DatasetError."""
    import tomllib

    from cli.fit import fitted
    from cli.run import arguments_in
    from cli.run_template import template
    from node.run.file import run_file_of
    from node.run.settings import with_words
    from node.run.sources import whole

    here = Path.cwd()
    fit = fitted(model, rows, here, hear, said=arguments_in(sets))
    for setting, (value, why) in (fit.numbers | fit.arguments).items():
        hear(f"{setting} = {value}" + (f": {why}" if why else ""))
    places = {"model": whole(fit.model, "model", here), "dataset": whole(fit.dataset or rows, "dataset", here)}
    text = template("small", file="run.toml", name=name, environment="dataset", recipe=None, fit=fit, **places)
    return run_file_of(with_words(tomllib.loads(text), sets), Path(f"{model} {rows}"))


def _check_flags(run: Path | None, directory: Path | None, resume: bool, fresh: bool) -> None:
    if run is None and not (resume and directory):
        why = "no run file was named, and no model with rows"
        raise CommandError("nothing to train", why, "give FILE, or MODEL ROWS, or --dir DIR --resume", USAGE)
    if resume and fresh:
        raise CommandError("--resume and --fresh contradict", "one goes on, one deletes", "give one of them", USAGE)


def _safe(name: str) -> str:
    """A run's name as that of a directory."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip(".") or "run"
