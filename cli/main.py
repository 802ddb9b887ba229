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
    difficulty,
    doctor,
    env,
    join,
    keys,
    leave,
    logs,
    peers,
    report,
    run,
    samples,
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
    verifiers,
    weights,
    weights_serve,
)
from cli.errors import describe, exit_code
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


app.command("demo", epilog=demo.EXAMPLES)(demo.command)
app.command("join", epilog=join.EXAMPLES)(join.command)
app.command("doctor", epilog=doctor.EXAMPLES)(doctor.command)
app.command("status", epilog=status.EXAMPLES)(status.command)
app.command("top", epilog=top.EXAMPLES)(top.command)
app.command("peers", epilog=peers.EXAMPLES)(peers.command)
app.command("contributions", epilog=contributions.EXAMPLES)(contributions.command)
app.command("stop", epilog=stop.EXAMPLES)(stop.command)
app.command("leave", epilog=leave.EXAMPLES)(leave.command)
app.command("logs", epilog=logs.EXAMPLES)(logs.command)
app.add_typer(service.app, name="service")
app.command("update", epilog=update.EXAMPLES)(update.command)
app.command("report", epilog=report.EXAMPLES)(report.command)
app.command("answers", epilog=samples.EXAMPLES)(samples.command)
app.command("train", epilog=train.EXAMPLES)(train.command)
app.add_typer(trainer.app, name="trainer")
run.app.command("difficulty", epilog=difficulty.EPILOG)(difficulty.command)
run.app.command("size", epilog=size.EPILOG)(size.command)
app.add_typer(run.app, name="run")
app.add_typer(env.app, name="env")
app.add_typer(task.app, name="task")
app.command("audit", epilog=audit.EXAMPLES)(audit.command)
app.add_typer(calibrate.app, name="calibrate", epilog=calibrate.EXAMPLES)
app.add_typer(devnet.app, name="devnet")
app.add_typer(contract.app, name="contract")
contract.app.command("economics", epilog=contract_economics.EXAMPLE)(contract_economics.economics)
app.add_typer(keys.app, name="keys")
app.add_typer(config.app, name="config")
weights.app.command("serve", epilog=weights_serve.EXAMPLES)(weights_serve.serve)
app.add_typer(weights.app, name="weights")
app.add_typer(sandbox.app, name="sandbox")
app.add_typer(verifiers.app, name="verifiers")


@cache
def _command() -> Any:
    """The tree of all commands, read from their functions' signatures."""
    return typer.main.get_command(app)


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
