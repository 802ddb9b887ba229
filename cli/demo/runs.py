"""The run that a demo trains: its own, or the user's file, with the overrides of the command line.

Whatever it is, the demo writes it as DIR/run.toml, so that it can be read, kept, and joined by hand.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cli.demo.cast import DemoOptions
from cli.demo.scene import Scene
from cli.runtext import render_run, with_real_paths

if TYPE_CHECKING:
    from node.run.file import RunFile

OWN_RUN = Path(__file__).with_name("sort.toml")


def write_run(options: DemoOptions, scene: Scene) -> "RunFile":
    """Write scene.run_file; returns what it says. Raises RunFileError for a user's file with mistakes."""
    from node.run.file import load_run_file

    source = options.run_file or OWN_RUN
    run = load_run_file(source)
    recipe = msgspec.structs.replace(run.recipe, seed=options.seed, steps=options.steps or run.recipe.steps)
    run = msgspec.structs.replace(run, recipe=recipe)
    if options.run_file is not None:
        base = options.run_file.resolve().parent
        run = with_real_paths(run, base)
    scene.run_file.write_text(render_run(run), encoding="utf-8")
    return run
