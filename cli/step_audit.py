"""`intellect-node audit step K`: one step of a training, computed again and compared with what was published."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from cli.output import clean, console

if TYPE_CHECKING:
    from node.audit.findings import Audit

STYLES = {"holds": "green", "broken": "bold red", "undecided": "yellow"}


def audit_directory(directory: Path, step: int, words: Sequence[str]) -> "Audit":
    """words: NAME=VALUE of [trainer], where others than the trainer's are wanted. Raises TrainingError."""
    from cli.run_directory import trainer_settings
    from node.audit.desk import audit_at_desk

    return audit_at_desk(directory, step, trainer_settings(words) if words else None)


def as_dict(audit: "Audit") -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(audit)
    return plain | {"says": str(audit.says), "passed": not audit.broken}


def show(audit: "Audit") -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    grid.add_row("step", f"{audit.step}: policy {audit.step} -> policy {audit.step + 1}")
    same = "the same as here" if not audit.differences else f"here {audit.own}: {'; '.join(audit.differences)}"
    grid.add_row("class", Text(f"{audit.claimed}, {same}"))
    for one in audit.findings:
        numbers = "  ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in one.figures.items())
        line = Text(f"{one.says.value:<10}", style=STYLES[one.says.value]) + Text(clean(one.text), style="default")
        grid.add_row(one.test, line + Text(f"\n{'':10}{numbers}" if numbers else "", style="dim"))
    took = "  ".join(f"{name} {seconds:.2f} s" for name, seconds in audit.seconds.items())
    grid.add_row("took", took)
    console().print(grid)
