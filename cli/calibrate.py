"""`intellect-node calibrate`: what is honest on this run's model, and which thresholds follow from it."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cli.errors import RUN, USAGE, CommandError
from cli.options import hear
from cli.output import AsJson, console, print_json
from cli.places import complete_networks

if TYPE_CHECKING:
    from node.calibration.calibrate import Calibration, DecisionOutcome, Measured
    from node.chain.client import ChainClient
    from node.environments.base import Environment
    from node.inference.settings import EngineSettings
    from protocol.run import RunSpec

EXAMPLES = (
    "Examples:  intellect-node calibrate --run run.toml --plot honest.png    "
    "intellect-node calibrate --run run.toml --dtypes float32 --samples 64 --out calibrated.toml    "
    "with several machines: calibrate export on each, calibrate look ALL.work on each, calibrate merge ALL.looks"
)
app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]})
Shown = Callable[[str, int, int], None]
RunFile = Annotated[Path | None, typer.Option("--run", help="The run file; its model and problems are used.")]
Pool = Annotated[
    int | None,
    typer.Option(min=0, help="Instead of --run: the run of this pool, asked of its members.", show_default=False),
]
Network = Annotated[str, typer.Option(help="Of --pool: a network profile.", autocompletion=complete_networks)]
Dtypes = Annotated[str, typer.Option(help="Types that the run's engines may compute in.")]
Attentions = Annotated[str, typer.Option(help="Kernels that they may use: sdpa, eager, vllm.")]
Devices = Annotated[str, typer.Option(help="Where to compute, e.g. cpu or cpu,cuda.")]
Parallel = Annotated[int, typer.Option(min=1, help="GPUs that vLLM splits one model over: a class of its own.")]
Workers = Annotated[
    str,
    typer.Option(help="Types of --dtypes that workers may compute in; the others only look at suspects. Default: all."),
]
Samples = Annotated[
    int | None,
    typer.Option(
        min=16,
        max=1 << 16,
        help="Samples of each kind of work; default: 256, down to 64 for large models. The time follows from it.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the problems and the random numbers.")]
RunOut = Annotated[Path | None, typer.Option(help="Where to write the run file with its thresholds; default: itself.")]
Plot = Annotated[Path | None, typer.Option(help="Draw the measured distributions into this PNG.")]
FileOut = Annotated[Path, typer.Option(help="Directory for the file.")]


@app.callback(invoke_without_command=True)
def command(
    context: typer.Context,
    run: RunFile = None,
    out: RunOut = None,
    plot: Plot = None,
    dtypes: Dtypes = "float32,bfloat16",
    workers: Workers = "",
    attentions: Attentions = "sdpa,eager",
    devices: Devices = "cpu",
    parallel: Parallel = 1,
    samples: Samples = None,
    previous: Annotated[
        Path | None, typer.Option(help="Weights of an earlier step (model.safetensors), to measure real staleness.")
    ] = None,
    seed: Seed = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure and print; write no run file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure how honest engines differ on the run's model, and write the thresholds (the checks' limits) into the run
    file.

    Every permitted engine makes honest work and looks at everybody's; the first one also cheats in the usual
    ways. What is permitted is up to the run's owner: the fewer types and kernels, the sharper the thresholds. Only
    classes that were measured may work: those of other machines come by `export`, `look` and `merge`.
    """
    # Typer calls the group's own function before a subcommand's.
    if context.invoked_subcommand:
        return
    from node.calibration.calibrate import CalibrationPlan, calibrate

    if run is None:
        raise CommandError("no run to measure", "--run is missing", "intellect-node calibrate --run run.toml", USAGE)
    plan = CalibrationPlan(
        _settings(dtypes, attentions, devices, parallel), samples, seed, previous, _makers(workers, dtypes)
    )
    with _measuring(run) as (spec, model, environment, progress):
        result, measured = calibrate(spec, model, environment, plan, progress)
    _conclude(result, measured, run, out, plot, dry_run=dry_run, as_json=as_json)


@app.command(
    "export", epilog="Example:  intellect-node calibrate export --run run.toml --dtypes bfloat16 --devices cuda"
)
def export_(
    run: RunFile = None,
    pool: Pool = None,
    network: Network = "local",
    out: FileOut = Path(),
    dtypes: Dtypes = "float32,bfloat16",
    attentions: Attentions = "sdpa",
    devices: Devices = "cpu",
    parallel: Parallel = 1,
    samples: Samples = None,
    seed: Seed = 0,
    honest_only: Annotated[
        bool, typer.Option("--honest-only", help="No cheats: one machine's are enough for a run.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make work with this machine's engines, for others to look at: a file called by its root."""
    from node.calibration.between import export
    from node.calibration.calibrate import CalibrationPlan

    plan = CalibrationPlan(_settings(dtypes, attentions, devices, parallel), samples, seed)
    with _measuring(run, pool, network) as (spec, model, environment, progress):
        data = export(spec, model, environment, plan, progress, cheats=not honest_only)
    _keep(data, out, "work", as_json)


@app.command("look", epilog="Example:  intellect-node calibrate look *.work --run run.toml --devices cuda")
def look_(
    works: Annotated[list[Path], typer.Argument(help="Files of `calibrate export`, this machine's own among them.")],
    run: RunFile = None,
    pool: Pool = None,
    network: Network = "local",
    out: FileOut = Path(),
    dtypes: Dtypes = "float32,bfloat16",
    attentions: Attentions = "sdpa",
    devices: Devices = "cpu",
    parallel: Parallel = 1,
    as_json: AsJson = False,
) -> None:
    """Look at others' work with this machine's engines: a file called by its root, for the run's owner to merge."""
    from node.calibration.between import look, read_file

    exports = [read_file(path) for path in works]
    settings = _settings(dtypes, attentions, devices, parallel)
    with _measuring(run, pool, network) as (spec, model, environment, progress):
        data = look(spec, model, environment, settings, exports, progress)
    _keep(data, out, "looks", as_json)


@app.command("merge", epilog="Example:  intellect-node calibrate merge *.looks --run run.toml --plot thresholds.png")
def merge_(
    looks: Annotated[list[Path], typer.Argument(help="Files of `calibrate look`, of any number of machines.")],
    run: Annotated[Path, typer.Option("--run", help="The run file that was measured.")],
    out: RunOut = None,
    plot: Plot = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the files that are drawn from the samples.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the thresholds; write no run file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Derive thresholds and tables from what all machines saw, and write them into the run file."""
    from node.calibration.between import gather, read_file
    from node.calibration.calibrate import derive
    from node.run.file import compile_run

    spec = compile_run(run, reach="whole", on_progress=hear).spec
    measured = gather(spec, [read_file(path) for path in looks])
    with _progress() as progress:
        result = derive(spec, measured, seed, progress)
    _conclude(result, measured, run, out, plot, dry_run=dry_run, as_json=as_json)


@contextlib.contextmanager
def _measuring(
    run: Path | None, pool: int | None = None, network: str = ""
) -> "Iterator[tuple[RunSpec, Path, Environment, Shown]]":
    """The run, its model and its environment, laid out in a directory that goes away."""
    from node.environments.registry import load_environment
    from node.inference.tokenizer import LocalTokenizer

    if (run is None) == (pool is None):
        raise CommandError("no run to measure", "either --run or --pool is needed", "give one of them", USAGE)
    with tempfile.TemporaryDirectory(prefix="intellect-calibrate-") as folder, _progress() as progress:
        spec, assets = _placed(run, Path(folder)) if run is not None else _asked(pool or 0, network, Path(folder))
        tokenizer = LocalTokenizer(assets / "model")
        with contextlib.closing(load_environment(spec.environment, assets, tokenizer)) as environment:
            yield spec, assets / "model", environment, progress


def _placed(run: Path, assets: Path) -> "tuple[RunSpec, Path]":
    from node.run.file import compile_run
    from node.run.problems import place_files

    compiled = compile_run(run, reach="whole", on_progress=hear)
    place_files(compiled, assets)
    return compiled.spec, assets


def _asked(number: int, network: str, folder: Path) -> "tuple[RunSpec, Path]":
    """The run of a pool, from its members."""
    from cli.contract.frame import read
    from node.preflight.reach import ReachVisit, visit

    async def ask(chain: "ChainClient") -> ReachVisit:
        return await visit(chain, await chain.pool(number), folder)

    visited = read(network, ask)
    if visited.run is None:
        raise CommandError("the pool's run cannot be fetched", visited.finding.what, visited.finding.remedy, RUN)
    return visited.run.spec, visited.run.assets


def _keep(data: bytes, directory: Path, suffix: str, as_json: bool) -> None:
    from node.calibration.between import root_of
    from node.state.files import write_whole

    root = root_of(data)
    # By its root: files of several machines lie in one directory, and a name cannot be for another's bytes.
    path = directory / f"{root[:16]}.{suffix}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    except OSError as error:
        raise CommandError(f"cannot write {path}", error.strerror or str(error), "choose another --out", RUN) from error
    if as_json:
        print_json({"file": str(path), "root": root, "bytes": len(data)})
    else:
        console().print(f"written: {path} ({len(data):,} bytes, root {root})", soft_wrap=True)


def _conclude(
    result: "Calibration",
    measured: "Measured",
    run: Path,
    out: Path | None,
    plot: Path | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Write, draw and tell."""
    from node.calibration.write import write_thresholds
    from node.run.file import load_run_file

    if plot is not None:
        _draw(measured, result.verification.toploc_k, load_run_file(run).name, plot)
    target = None if dry_run else out or run
    if target is not None:
        write_thresholds(run, target, result.verification)
    if as_json:
        places = {"run_file": str(target) if target else None, "plot": str(plot) if plot else None}
        print_json(msgspec.to_builtins(result) | places)
    else:
        _show(result, target, plot)


def _makers(workers: str, dtypes: str) -> tuple[str, ...]:
    allowed, chosen = (tuple(one.strip() for one in text.split(",")) for text in (dtypes, workers or dtypes))
    if unknown := [one for one in chosen if one not in allowed]:
        raise CommandError("no such type", f"--workers names {unknown[0]!r}", f"one of --dtypes: {dtypes}", USAGE)
    return chosen


def _settings(dtypes: str, attentions: str, devices: str, parallel: int) -> "list[EngineSettings]":
    from node.inference.engines import kernels
    from node.inference.settings import ATTENTIONS, DTYPES, EngineSettings

    chosen = [(one.strip(), other.strip()) for one in dtypes.split(",") for other in attentions.split(",")]
    for dtype, attention in chosen:
        if dtype not in DTYPES or attention not in kernels():
            known = f"types: {', '.join(DTYPES)}; kernels: {', '.join(kernels())}"
            raise CommandError("no such engine", f"{dtype!r} with {attention!r}", known, USAGE)
    places = dict.fromkeys(device.strip() for device in devices.split(","))
    return [
        # Only vLLM splits a model; of torch's own kernels another number would be another class.
        EngineSettings(device, dtype, attention, parallel=1 if attention in ATTENTIONS else parallel)
        for device in places
        for dtype, attention in dict.fromkeys(chosen)
    ]


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Bars on a terminal, elsewhere a line from time to time; on standard error, beside the answer."""
    columns = (TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    out = Console(stderr=True, highlight=False)
    if not out.is_terminal:
        yield _Lines(out)
        return
    with Progress(*columns, console=out, transient=True) as shown:
        tasks: dict[str, Any] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = shown.add_task(stage, total=total)
            shown.update(tasks[stage], completed=done)

        yield tell


class _Lines:
    """A line at the beginning and the end of each stage, and every few seconds between."""

    def __init__(self, out: Console) -> None:
        self._out, self._last = out, 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        seconds_between_lines = 10.0
        if done in (0, total) or now - self._last >= seconds_between_lines:
            self._last = now
            self._out.print(f"{stage}: {done} of {total}")


def _draw(measured: Any, k: int, name: str, target: Path) -> None:
    from node.calibration.write import plot

    try:
        plot(measured, k, f"{name}: honest engines and cheats", target)
    except (OSError, ValueError) as error:
        raise CommandError("the plot was not written", str(error), "choose another --plot", RUN) from error


def _show(result: "Calibration", target: Path | None, plot: Path | None) -> None:
    out, thresholds, decision = console(), result.verification, result.verification.decision
    table = Table(
        title="What verifiers see", caption="work > who looks at it; files until suspected / convicted: median"
    )
    table.add_column("work", overflow="fold")
    for name in ("proofs", "sampling", "outside", "refused", "suspected", "convicted"):
        table.add_column(name, justify="right", no_wrap=True)
    sections = (("green", "", result.honest), ("red", "", result.cheating), ("red", ", second look", result.crossed))
    for colour, remark, outcomes in sections:
        table.add_section()
        for name, outcome in outcomes.items():
            table.add_row(f"[{colour}]{_plain(name, result)}{remark}[/]", *_cells(outcome))
    out.print(table)
    out.print(f"permitted engines: {', '.join(thresholds.engines)}")
    out.print(
        f"loosest hard thresholds: {thresholds.exponent_mismatches} exponents, mantissa mean "
        f"{thresholds.mantissa_mean:g}, median {thresholds.mantissa_median:g}, sampling mean "
        f"{thresholds.sampling_mean:g}, outside {thresholds.sampling_outside:.2%}"
    )
    alarms = sum(outcome.false_alarms for outcome in result.honest.values())
    allowance = max(table.allowance for table in decision.honest.values())
    out.print(
        f"decision: mean ratio of held-out honest samples at most {max(result.expectation.values()):.3g}, allowances "
        f"up to {allowance:.3g}, {alarms} honest workers suspected"
    )
    if alarms:
        out.print("[yellow]honest work is not told apart well: use more --samples, or permit fewer engines[/]")
    if plot is not None:
        out.print(f"plot: {plot}")
    out.print("run file not written (--dry-run)" if target is None else f"written: {target}")


def _plain(name: str, result: "Calibration") -> str:
    """A row's name, without the parts that all classes have in common."""
    classes = [part.split("/") for pair in result.honest for part in pair.split(">")]
    differing = [len(set(column)) > 1 for column in zip(*classes, strict=False)]
    # Type and kernel are always shown: they are what --dtypes and --attentions may leave out.
    differing[1:3] = [True, True]

    def short(one: str) -> str:
        return "/".join(part for part, tells in zip(one.split("/"), differing, strict=False) if tells)

    return " > ".join(short(one) if "/" in one else one for one in name.split(">"))


def _cells(outcome: "DecisionOutcome") -> list[str]:
    def files(value: float | None) -> str:
        return "never" if value is None else f"{value:g}"

    return [
        f"{outcome.proof_distance:.3g}",
        f"{outcome.sampling:.2g}",
        f"{outcome.outside:.1%}",
        f"{outcome.refused:.0%}",
        files(outcome.suspected),
        files(outcome.convicted),
    ]
