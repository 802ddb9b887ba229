"""The program `intellect-node`: its commands, and the one place where errors become three lines and an exit code.

Command modules import what they need when they run, so that `--help` answers at once.
"""

import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer

from cli import (
    audit,
    calibrate,
    config,
    contract,
    contract_economics,
    contributions,
    demo,
    devnet,
    doctor,
    env,
    evaluate,
    join,
    keys,
    leave,
    logs,
    peers,
    report,
    run,
    sandbox,
    service,
    size,
    status,
    stop,
    task,
    top,
    train,
    trainer,
    update,
    weights,
    weights_serve,
)
from cli.errors import describe, exit_code
from cli.help import arrange
from cli.invocation import Invocation
from cli.output import print_error

EXIT_CODES = (
    "Exit codes: 0 done, 1 unexpected, 2 usage, 3 configuration or state directory, 4 chain, 5 network, "
    "6 run file, model or dataset, 7 evicted or slashed, 130 interrupted."
)

app = typer.Typer(
    name="intellect-node",
    help="A peer-to-peer swarm that trains language models with verifiable reinforcement learning.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"intellect-node {version('intellect-node')}")
        except PackageNotFoundError:
            print("intellect-node (not installed)")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the program itself."""


for name, module in (
    ("demo", demo),
    ("join", join),
    ("doctor", doctor),
    ("stop", stop),
    ("leave", leave),
    ("update", update),
    ("status", status),
    ("top", top),
    ("peers", peers),
    ("contributions", contributions),
    ("logs", logs),
    ("report", report),
    ("audit", audit),
    ("train", train),
    ("eval", evaluate),
):
    app.command(name, epilog=module.EXAMPLES)(module.command)
app.command("answers", epilog=report.ANSWERS_EXAMPLES)(report.answers)
run.app.command("difficulty", epilog=size.DIFFICULTY_EPILOG)(size.difficulty)
run.app.command("size", epilog=size.EPILOG)(size.command)
contract.app.command("economics", epilog=contract_economics.EXAMPLE, rich_help_panel="Look")(
    contract_economics.economics
)
weights.app.command("serve", epilog=weights_serve.EXAMPLES)(weights_serve.serve)
for name, group in (
    ("service", service.app),
    ("keys", keys.app),
    ("config", config.app),
    ("trainer", trainer.app),
    ("run", run.app),
    ("calibrate", calibrate.app),
    ("weights", weights.app),
    ("contract", contract.app),
    ("devnet", devnet.app),
    ("env", env.app),
    ("task", task.app),
    ("sandbox", sandbox.app),
    ("verifiers", sandbox.verifiers_app),
):
    app.add_typer(group, name=name)


@cache
def _command() -> Any:
    """The tree of all commands, read from their functions' signatures."""
    program = typer.main.get_command(app)
    arrange(program)
    return program


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code. arguments: of this process where none are given, which is then the
    program's own: its commands may fork it (their context's `obj`)."""
    own_process = arguments is None
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        _command().main(args=words, prog_name="intellect-node", obj=Invocation(words, own_process))
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except BaseException as error:  # the outermost frame: everything ends as three lines and a code
        print_error(describe(error))
        return exit_code(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
