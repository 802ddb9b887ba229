"""What a finished task is made into, and how it is told: files for programs, lines for people."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.errors import USAGE, CommandError
from cli.output import clean, console, duration, print_json

if TYPE_CHECKING:
    from node.tasks.records import TaskFolder


def make(
    directory: Path, folder: "TaskFolder", out: Path | None, data: Path | None, lowest: float, highest: float
) -> dict[str, Any]:
    """Make the collected results of a task what its kind asks for, in the file `out`, and say what they come to.

    directory: the node's state; data: what a filter reads, None for what the node keeps of it; lowest, highest: solve
    rates of the rows that it keeps.
    """
    import msgspec

    from node.state.reader import StateFiles
    from node.tasks import exports, findings

    spec, files = folder.spec(), StateFiles(directory)
    told = {"file": str(out) if out else None}
    if spec.kind == "generate" and out is not None:
        from node.inference.tokenizer import LocalTokenizer

        run, assets = files.run()
        rows = exports.write_generated(folder, LocalTokenizer(assets / "model"), out, run.environment, assets)
        return {"rows": rows, **told}
    if spec.kind == "filter" and out is not None:
        source = data or (files.blob(spec.assets[0].root) if spec.assets else None)
        return {**msgspec.to_builtins(exports.write_filtered(folder, source, out, lowest, highest)), **told}
    if spec.kind == "merge" and out is not None:
        from node.weights.merge import assemble

        root = assemble((file for _, file, _ in folder.results()), files.run()[1] / "model", out)
        return {"weights_root": root.hex(), **told}
    find = {"evaluate": findings.evaluate, "judge": findings.judgement, "review": findings.review}[spec.kind]
    found = find(folder)
    if out is not None:
        exports.write_json(out, found)
    return {**msgspec.to_builtins(found, str_keys=True), **told}


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
