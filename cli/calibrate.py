"""`intellect-node calibrate`: what is honest on this run's model, and which cuts follow from it."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cli.errors import RUN, USAGE, CommandError
from cli.output import console, print_json

if TYPE_CHECKING:
    from node.calibration.calibrate import Calibration, Outcome

EXAMPLES = (
    "Examples:  intellect-node calibrate --run run.toml --plot honest.png    "
    "intellect-node calibrate --run run.toml --dtypes float32 --samples 64 --out calibrated.toml"
)

SECONDS_BETWEEN_LINES = 10.0


def command(
    run: Annotated[Path, typer.Option("--run", help="The run file; its model and problems are used.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write the run file with its cuts; default: itself.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the measured distributions into this PNG.")] = None,
    dtypes: Annotated[str, typer.Option(help="Types that the run's engines may compute in.")] = "float32,bfloat16",
    attentions: Annotated[str, typer.Option(help="Kernels that they may use: sdpa, eager, vllm.")] = "sdpa,eager",
    devices: Annotated[str, typer.Option(help="Where to compute, e.g. cpu or cpu,cuda.")] = "cpu",
    samples: Annotated[
        int | None,
        typer.Option(
            min=16,
            max=1 << 16,
            help="Samples of each kind of work; default: 256, down to 64 for large models. The time follows from it.",
        ),
    ] = None,
    previous: Annotated[
        Path | None, typer.Option(help="Weights of an earlier step (model.safetensors), to measure real staleness.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the problems and the random numbers.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure and tell, write no run file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Measure honest differences on the run's model, and write the cuts into the run file.

    Every permitted engine makes honest work and looks at everybody's; the first one also cheats in the usual
    ways. What is permitted is up to the run's owner: the fewer types and kernels, the sharper the cuts.
    """
    from node.calibration.calibrate import Plan, calibrate
    from node.calibration.write import write_cuts
    from node.environments.registry import load_environment
    from node.inference.tokenizer import LocalTokenizer
    from node.run.file import compile_run
    from node.run.problems import place_files

    settings = _settings(dtypes, attentions, devices)
    compiled = compile_run(run)
    plan = Plan(settings, samples, seed, previous)
    with tempfile.TemporaryDirectory(prefix="intellect-calibrate-") as folder, _progress() as progress:
        assets = Path(folder)
        place_files(compiled, assets)
        environment = load_environment(compiled.spec.environment, assets, LocalTokenizer(assets / "model"))
        try:
            result, measured = calibrate(compiled.spec, assets / "model", environment, plan, progress)
        finally:
            environment.close()
    if plot is not None:
        _draw(measured, compiled.spec.verification.toploc_k, compiled.spec.name, plot)
    target = None if dry_run else out or run
    if target is not None:
        write_cuts(run, target, result.verification)
    if as_json:
        print_json(_as_json(result, target, plot))
    else:
        _show(result, target, plot)


def _settings(dtypes: str, attentions: str, devices: str):  # noqa: ANN202 - list of EngineSettings
    from node.inference.engines import kernels
    from node.inference.settings import DTYPES, EngineSettings

    chosen = [(one.strip(), other.strip()) for one in dtypes.split(",") for other in attentions.split(",")]
    for dtype, attention in chosen:
        if dtype not in DTYPES or attention not in kernels():
            known = f"types: {', '.join(DTYPES)}; kernels: {', '.join(kernels())}"
            raise CommandError("no such engine", f"{dtype!r} with {attention!r}", known, USAGE)
    places = dict.fromkeys(device.strip() for device in devices.split(","))
    return [EngineSettings(device, dtype, attention) for device in places for dtype, attention in dict.fromkeys(chosen)]


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
        if done in (0, total) or now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            self._out.print(f"{stage}: {done} of {total}")


def _draw(measured: Any, k: int, name: str, target: Path) -> None:
    from node.calibration.plot import plot

    try:
        plot(measured, k, f"{name}: honest engines and cheats", target)
    except (OSError, ValueError) as error:
        raise CommandError("the plot was not written", str(error), "choose another --plot", RUN) from error


def _as_json(result: "Calibration", target: Path | None, plot: Path | None) -> dict[str, Any]:
    import msgspec

    return {
        **msgspec.to_builtins(result),
        "run_file": None if target is None else str(target),
        "plot": None if plot is None else str(plot),
    }


def _show(result: "Calibration", target: Path | None, plot: Path | None) -> None:
    out, cuts, decision = console(), result.verification, result.verification.decision
    table = Table(
        title="What verifiers see", caption="work > who looks at it; files until suspected / convicted: median"
    )
    table.add_column("work", overflow="fold")
    for name in ("proofs", "sampling", "outside", "cut", "suspected", "convicted"):
        table.add_column(name, justify="right", no_wrap=True)
    sections = (("green", "", result.honest), ("red", "", result.cheating), ("red", ", second look", result.crossed))
    for colour, remark, outcomes in sections:
        table.add_section()
        for name, outcome in outcomes.items():
            table.add_row(f"[{colour}]{_plain(name, result)}{remark}[/]", *_cells(outcome))
    out.print(table)
    out.print(f"permitted engines: {', '.join(cuts.engines)}")
    out.print(
        f"loosest hard cuts: {cuts.exponent_mismatches} exponents, mantissa mean {cuts.mantissa_mean:g}, median "
        f"{cuts.mantissa_median:g}, sampling mean {cuts.sampling_mean:g}, outside {cuts.sampling_outside:.2%}"
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
    """A row's name, without the hardware where all was measured on the same."""
    hardware = {part.partition("/")[0] for pair in result.honest for part in pair.split(">")}
    if len(hardware) == 1:
        name = name.replace(f"{hardware.pop()}/", "")
    return name.replace(">", " > ")


def _cells(outcome: "Outcome") -> list[str]:
    def files(value: float | None) -> str:
        return "never" if value is None else f"{value:g}"

    return [
        f"{outcome.proof_distance:.3g}",
        f"{outcome.sampling:.2g}",
        f"{outcome.outside:.1%}",
        f"{outcome.cut:.0%}",
        files(outcome.suspected),
        files(outcome.convicted),
    ]
