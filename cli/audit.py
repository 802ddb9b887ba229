"""`intellect-node audit`: every check that a validator would make, on one's own file."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from cli.errors import RUN
from cli.output import clean, console, print_json

if TYPE_CHECKING:
    from node.self_audit import SelfAudit

EXAMPLES = (
    "Examples:  intellect-node audit rollout.arrow --run run.toml   |   "
    "intellect-node audit rollout.arrow --run run.toml --policy policy-12.safetensors --json"
)


def command(
    file: Annotated[Path, typer.Argument(help="A rollout file (Arrow), as the worker would commit to it.")],
    run: Annotated[Path, typer.Option("--run", help="The run file (TOML).")],
    policy: Annotated[
        Path | None, typer.Option(help="The policy's bf16 image (safetensors); default: the run's start model.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Check a rollout file as a validator would, before committing to it.

    Exit code 0 if it would be accepted, 6 if it would be rejected. Reasons are those of the validators' verdicts.
    """
    from node.problems import place_files
    from node.runfile import compile_run
    from node.self_audit import audit_file

    compiled = compile_run(run)
    image = policy or _start_model(compiled.files)
    with tempfile.TemporaryDirectory(prefix="intellect-audit-") as folder, _telling(as_json):
        assets = Path(folder)
        place_files(compiled, assets)
        result = audit_file(file, compiled.spec, assets, image)
    if as_json:
        print_json(as_dict(result))
    else:
        _show(result)
    if not result.passed:
        raise typer.Exit(RUN)


def _start_model(files: dict[str, Path]) -> Path:
    return next(path for name, path in sorted(files.items()) if name.endswith(".safetensors"))


@contextmanager
def _telling(quiet: bool) -> Iterator[None]:
    if quiet:
        yield
        return
    with console().status("recomputing every group"):
        yield


def as_dict(result: "SelfAudit") -> dict[str, Any]:
    """The result with names beside the numbers that stand in verdicts."""
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(result)
    plain["outcome_name"] = result.outcome.name.lower()
    plain["reason_name"] = result.reason.name.lower()
    plain["passed"] = result.passed
    return plain


def _show(result: "SelfAudit") -> None:
    out = console()
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    verdict = "would be accepted" if result.passed else f"would be refused ({result.outcome.name.lower()})"
    grid.add_row("verdict", Text(verdict, style="green" if result.passed else "bold red"))
    if not result.passed:
        grid.add_row("reason", f"{result.reason.value} {result.reason.name.lower()}")
        grid.add_row("seen", Text(clean(result.detail)))
    grid.add_row("file", f"{result.root[:16]}…  submission {result.index}  {result.units:,} units")
    if result.groups:
        grid.add_row("recomputed", f"{result.groups} groups in {result.seconds:.1f} s  mean reward {result.reward:.3f}")
    for name, value in sorted(result.statistics.items()):
        grid.add_row(name.replace("_", " "), f"{value:.4g}")
    grid.add_row("not checked here", ", ".join(result.not_checked))
    out.print(grid)
