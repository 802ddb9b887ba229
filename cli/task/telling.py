"""What a finished task is made into, and how it is told: files for programs, lines for people."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.errors import USAGE, CommandError
from cli.output import clean, console, duration, print_json

if TYPE_CHECKING:
    from node.tasks.records import TaskFolder
    from protocol.run import EnvironmentSpec

Maker = Callable[["TaskFolder"], dict[str, Any]]
"""Makes what was asked for of the collected results; what is told of it."""


def evaluation(out: Path | None) -> Maker:
    def make(folder: "TaskFolder") -> dict[str, Any]:
        import msgspec

        from node.tasks.exports import write_json
        from node.tasks.findings import evaluate

        measures = evaluate(folder)
        if out is not None:
            write_json(out, measures)
        return {**msgspec.to_builtins(measures, str_keys=True), "file": str(out) if out else None}

    return make


def filtering(source: Path | None, out: Path, lowest: float, highest: float) -> Maker:
    def make(folder: "TaskFolder") -> dict[str, Any]:
        import msgspec

        from node.tasks.exports import write_filtered

        return {**msgspec.to_builtins(write_filtered(folder, source, out, lowest, highest)), "file": str(out)}

    return make


def generating(environment: "EnvironmentSpec", assets: Path, out: Path) -> Maker:
    """environment: of the node's run, whose files lie in `assets`."""

    def make(folder: "TaskFolder") -> dict[str, Any]:
        from node.inference.tokenizer import LocalTokenizer
        from node.tasks.exports import write_generated

        rows = write_generated(folder, LocalTokenizer(assets / "model"), out, environment, assets)
        return {"rows": rows, "file": str(out)}

    return make


def judging(out: Path | None) -> Maker:
    def make(folder: "TaskFolder") -> dict[str, Any]:
        import msgspec

        from node.tasks.exports import write_json
        from node.tasks.findings import judgement

        found = judgement(folder)
        if out is not None:
            write_json(out, found)
        return {**msgspec.to_builtins(found), "file": str(out) if out else None}

    return make


def reviewing(out: Path | None) -> Maker:
    def make(folder: "TaskFolder") -> dict[str, Any]:
        import msgspec

        from node.tasks.exports import write_json
        from node.tasks.findings import review

        found = review(folder)
        if out is not None:
            write_json(out, found)
        return {**msgspec.to_builtins(found), "file": str(out) if out else None}

    return make


def tell(task: dict[str, Any], made: dict[str, Any], *, as_json: bool) -> None:
    """The end of a command that waited."""
    facts = {name: task.get(name) for name in ("id", "kind", "shards", "gathered", "taken_over", "seconds")}
    if as_json:
        print_json({"task": facts, "result": made})
        return
    taken = f", {task['taken_over']} taken over" if task.get("taken_over") else ""
    say = console().print
    say(f"{task['kind']} {task['id'][:8]}: {task['shards']} shards in {duration(task['seconds'])}{taken}")
    for name, value in made.items():
        if value not in (None, {}, ()):
            say(f"  {name.replace('_', ' ')}: {clean(_shown(value), 1000)}", soft_wrap=True)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_shown(one)}" for name, one in list(value.items())[:20])
    return str(value)


def complete(folder: "TaskFolder") -> None:
    """Raise CommandError for a task that was cancelled, or waits for results."""
    state, missing = folder.state(), folder.spec().shards - len(folder.done())
    if missing and state.closed is None:
        raise CommandError(
            "the task is not done", f"{missing} shards are missing", "wait: intellect-node task status", USAGE
        )
    if missing:
        raise CommandError("the task was cancelled", f"{missing} shards are missing", "ask for it again", USAGE)
