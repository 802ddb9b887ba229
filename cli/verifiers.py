"""`intellect-node verifiers`: packages of verifiers v1 in an environment of their own, and behind a server."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from cli.errors import RUN, USAGE, CommandError
from cli.output import AsJson, console, print_json

app = typer.Typer(
    help="Packages of verifiers v1 in an environment of their own: for a desk, or behind a server.",
    no_args_is_help=True,
)


@app.command(
    "install",
    epilog="Examples:  intellect-node verifiers install ./my_taskset   |   intellect-node verifiers install "
    "'wordle-v1==0.2.0' --json   |   intellect-node verifiers install",
)
def install(
    packages: Annotated[
        list[str] | None, typer.Argument(help="What pip installs beside verifiers: names, paths, wheels.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make the environment, about 570 MB, with pip as you have configured it; again: add packages to it.

    Packages run with all that you may do, as with any pip install: read what you install.
    """
    from node.environments.verifiers.environment import PYTHON_VARIABLE, VERSION, own_place

    place = own_place()
    interpreter = place / "bin" / "python"
    if not interpreter.exists():
        typer.echo(f"making an environment in {place}", err=True)
        _run_program(sys.executable, "-m", "venv", str(place), what="the environment cannot be made")
    wanted = [f"verifiers=={VERSION}", *(packages or [])]
    _run_program(str(interpreter), "-m", "pip", "install", *wanted, what=f"pip could not install {', '.join(wanted)}")
    _run_program(str(interpreter), "-c", "import verifiers.v1", what=f"verifiers {VERSION} cannot be imported")
    if as_json:
        print_json({"python": str(interpreter), "verifiers": VERSION, "packages": packages or []})
        return
    said = f"verifiers {VERSION} is in {place}; runs find it there, or where {PYTHON_VARIABLE} says"
    console().print(escape(said), soft_wrap=True)


@app.command(
    "serve",
    epilog="Examples:  intellect-node verifiers serve my_taskset --rows rows.jsonl   |   intellect-node verifiers "
    "serve my_taskset --tasks 64 --host 0.0.0.0 --port 8000 --config '{\"num_tasks\": 64}'",
)
def serve(
    taskset: Annotated[str, typer.Argument(help="The package's name.")],
    rows: Annotated[Path | None, typer.Option(help="Write the rows of a run here: problems, prompts, tasks.")] = None,
    tasks: Annotated[int, typer.Option(min=1, max=1 << 20, help="How many of its first tasks.")] = 256,
    config: Annotated[str, typer.Option(help="The taskset's own settings, a JSON object.")] = "{}",
    host: Annotated[str, typer.Option(help="Address to listen on; 127.0.0.1 is this machine alone.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    seconds: Annotated[float, typer.Option(min=0.1, help="That the package may take over a turn.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Serve a package as an OpenEnv server, for runs of class witnessed; until Ctrl-C.

    The package runs with all that you may do. Whoever reaches the port can play its tasks: members of a run must.
    """
    import json

    from node.environments.verifiers.environment import python

    try:
        settings = json.loads(config)
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise CommandError(
            "the taskset's settings cannot be read",
            f"{config[:80]!r} is no JSON object",
            """for example '{"n": 9}'""",
            USAGE,
        )
    asked = {"taskset": taskset, "config": settings, "tasks": tasks, "rows": rows is not None}
    asked |= {"host": host, "port": port, "seconds": seconds}
    with _served(str(python())) as child:
        assert child.stdin is not None and child.stdout is not None  # they were asked for
        with suppress(BrokenPipeError):  # it has ended: what it said stands below
            os.write(child.stdin.fileno(), json.dumps(asked).encode() + b"\n")
        # Nothing comes from a process that ended before it could say what is wrong.
        told = json.loads(child.stdout.readline() or "{}")
        if "url" not in told:
            why = str(told.get("wrong", "its process ended; what it said stands above"))
            raise CommandError(f"{taskset!r} cannot be served", why, "intellect-node verifiers install PACKAGE", RUN)
        if rows is not None:
            rows.write_text("".join(json.dumps(row) + "\n" for row in told["rows"]), encoding="utf-8")
        if as_json:
            print_json({"url": told["url"], "tasks": told["tasks"], "rows": str(rows) if rows else None})
        else:
            said = f"{told['tasks']} tasks of {taskset} at {told['url']}" + (
                f"; their rows are in {rows}" if rows else ""
            )
            console().print(escape(said), soft_wrap=True)
        # Ctrl-C goes to the server as well, which is in the same process group.
        with suppress(KeyboardInterrupt):
            if child.wait():
                raise CommandError(f"{taskset!r} is not served any more", "its process ended", "see above", RUN)


@contextmanager
def _served(interpreter: str) -> Iterator[subprocess.Popen[str]]:
    """The server's process, which ends with what is done here."""
    from node.environments import verifiers

    program = Path(verifiers.__file__ or "").with_name("serve.py")
    try:
        # -P: else the script's directory comes first on the path, and its neighbours pass for packages.
        child = subprocess.Popen(
            [interpreter, "-P", str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    except OSError as error:
        why = f"{interpreter}: {error.strerror or error}"
        raise CommandError(
            "the package verifiers is not installed", why, "intellect-node verifiers install PACKAGE", RUN
        ) from error
    with child:
        try:
            yield child
        finally:
            child.kill()


def _run_program(*command: str, what: str) -> None:
    """A program whose progress goes to standard error. Raises CommandError if it fails."""
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
