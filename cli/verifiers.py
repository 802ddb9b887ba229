"""`intellect-node verifiers`: an environment of its own for packages of verifiers v1, which are never imported here."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from cli.errors import RUN, CommandError
from cli.output import console, print_json

app = typer.Typer(
    help="Packages of verifiers v1 in an environment of their own, for training at a desk.", no_args_is_help=True
)


@app.callback()
def group() -> None:
    """A group although it has one command."""


@app.command(
    epilog="Examples:  intellect-node verifiers install ./my_taskset   |   intellect-node verifiers install "
    "'wordle-v1==0.2.0' --json   |   intellect-node verifiers install",
)
def install(
    packages: Annotated[
        list[str] | None, typer.Argument(help="What pip installs beside verifiers: names, paths, wheels.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")] = False,
) -> None:
    """Make the environment, about 570 MB, with pip as you have configured it; again: add packages to it.

    Packages run with all that you may do, as with any pip install: read what you install.
    """
    from node.environments.verifiers.place import PYTHON_VARIABLE, VERSION, own_place

    place = own_place()
    interpreter = place / "bin" / "python"
    if not interpreter.exists():
        typer.echo(f"making an environment in {place}", err=True)
        _run(_this_python(), "-m", "venv", str(place), what="the environment cannot be made")
    wanted = [f"verifiers=={VERSION}", *(packages or [])]
    _run(str(interpreter), "-m", "pip", "install", *wanted, what=f"pip could not install {', '.join(wanted)}")
    _run(str(interpreter), "-c", "import verifiers.v1", what=f"verifiers {VERSION} cannot be imported")
    if as_json:
        print_json({"python": str(interpreter), "verifiers": VERSION, "packages": packages or []})
        return
    said = f"verifiers {VERSION} is in {place}; runs find it there, or where {PYTHON_VARIABLE} says"
    console().print(escape(said), soft_wrap=True)


def _this_python() -> str:
    import sys

    return sys.executable


def _run(*command: str, what: str) -> None:
    """A program whose progress goes to standard error. Raises CommandError if it fails."""
    import subprocess
    import sys

    try:
        done = subprocess.run(command, stdout=sys.stderr.fileno(), check=False)
    except OSError as error:
        raise CommandError(what, f"{Path(command[0]).name}: {error.strerror or error}", "see above", RUN) from error
    if done.returncode:
        raise CommandError(
            what,
            f"{' '.join(command[1:4])} ended with {done.returncode}; what it said stands above",
            "correct what it complains about (pip's index, the disk, the package's name) and repeat the command",
            RUN,
        )
