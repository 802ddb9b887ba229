"""The run that a demo trains: its own, or the user's file, with the overrides of the command line.

Whatever it is, the demo writes it as DIR/run.toml, so that it can be read, kept, and joined by hand.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cli.demo.cast import DemoOptions
from cli.demo.scene import Scene

if TYPE_CHECKING:
    from node.runfile import RunFile

OWN_RUN = Path(__file__).with_name("sort.toml")


def write_run(options: DemoOptions, scene: Scene) -> "RunFile":
    """Write scene.run_file; returns what it says. Raises RunFileError for a user's file with mistakes."""
    from node.runfile import load_run_file

    source = options.run_file or OWN_RUN
    run = load_run_file(source)
    recipe = msgspec.structs.replace(run.recipe, seed=options.seed, steps=options.steps or run.recipe.steps)
    run = msgspec.structs.replace(run, recipe=recipe)
    if options.run_file is not None:
        base = options.run_file.resolve().parent
        dataset = str(base / run.dataset) if run.dataset is not None else None
        run = msgspec.structs.replace(run, model=str(base / run.model), dataset=dataset)
    scene.run_file.write_text(render_run(run), encoding="utf-8")
    return run


def render_run(run: "RunFile") -> str:
    """A run file in TOML that reads back as the same run."""
    plain: dict[str, Any] = msgspec.to_builtins(run)
    top = {name: value for name, value in plain.items() if not isinstance(value, dict) and value is not None}
    lines = [f"{name} = {_value(value)}" for name, value in top.items()]
    for section, table in plain.items():
        if isinstance(table, dict):
            lines += ["", f"[{section}]"]
            lines += [f"{name} = {_value(value)}" for name, value in table.items() if value is not None]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {_value(one)}" for name, one in value.items()) + " }"
    return json.dumps(value)  # strings, numbers and booleans of JSON are TOML's too
