"""The program `intellect-node`: its commands, and the one place where errors become three lines and an exit code.

Command modules import what they need when they run, so that `--help` answers at once.
"""

import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from rich.markup import escape

from cli import (
    api_describe,
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
    get,
    join,
    keys,
    leave,
    logs,
    pause,
    peers,
    push,
    report,
    run,
    sandbox,
    serve,
    service,
    size,
    state,
    status,
    stop,
    task,
    train,
    trainer,
    verifiers,
    warm_start,
    weights,
    weights_serve,
)
from cli.errors import describe, exit_code, is_named
from cli.invocation import Invocation
from cli.output import print_error
from node.places import check_words

HELP = ("-h", "--help")
COMMANDS = {
    "Run a node": "demo join doctor pause resume stop leave service keys state config",
    "Look": "status peers contributions logs report answers eval audit chat serve api",
    "Train": "train get trainer run calibrate weights push",
    "Money": "contract devnet",
    "Make": "env task sandbox verifiers",
}
"""Panel -> commands of the program."""
OPTIONS = {
    "Run": "run sets run_file",
    "Identity": "role state_dir vouch key as_ key_file password_file provider_key provider validator node",
    "Network": "network pool listen announce lan bootnode relay http_source wait rpc_url dry_run preflight",
    "Engine": "engine engine_command auto_setup trainer endpoint nodes node_rank backend device",
    "Serving": "gateway gateway_tls gateway_announce page page_host metrics_address metrics_log address",
    "Output": "as_json logs log_level detach quiet verbose report out csv watch follow screenshot plain yes keep",
}
"""Panel -> parameters, in whichever command they stand."""
VALUES = {"int": "N", "float": "X", "str": "TEXT", "path": "PATH", "Path": "PATH", "bool": "", "Any": ""}
"""Python's name of a type -> what stands in the help for a value of it."""
_PANEL_OF_COMMAND = {name: panel for panel, names in COMMANDS.items() for name in names.split()}
_PANEL_OF_OPTION = {name: panel for panel, names in OPTIONS.items() for name in names.split()}


def arrange(program: Any) -> None:
    """Put the help of a click group and of all that is below it in order."""
    for name, command in program.commands.items():
        command.rich_help_panel = _PANEL_OF_COMMAND.get(name)
        _arrange(command)


def _arrange(command: Any) -> None:
    command.help = escape(command.help or "")  # what stands in brackets is a section's name, not markup
    for param in command.params:
        param.help = escape(getattr(param, "help", None) or "")
        _name_value(param)
    # Asked for once, it is kept: the switch that click adds is named like the others.
    _name_value(command.get_help_option(typer.Context(command, help_option_names=list(HELP))))
    _examples_first(command)
    options = [one for one in command.params if one.param_type_name == "option"]
    if len(options) >= 6:  # so many are shown in panels
        for option in options:
            option.rich_help_panel = getattr(option, "rich_help_panel", None) or _PANEL_OF_OPTION.get(option.name)
        command.params.sort(key=_place)
    for below in getattr(command, "commands", {}).values():
        _arrange(below)


def _name_value(param: Any) -> None:
    """Typer names values by Python's types: `--yes <bool>` looks as if it took a word, and tokens may be 0.5 where it
    says `<int>`."""
    if not hasattr(param, "display_type"):
        return  # a typer of before: it writes TEXT and INTEGER, and nothing for a switch
    if param.param_type_name == "argument":
        param.display_type_rich = lambda ctx: ""  # its name is told already
    elif param.metavar is None:
        param.display_type_rich = lambda ctx: _plain(param.display_type(ctx))
    if (getattr(param, "max", None) or 0) >= 2**31:
        # A bound that nobody meets by hand takes the width that the explanation needs.
        param._get_number_range_help_str = lambda: f"x>={param.min}"


def _plain(typed: str) -> str:
    """'<list[Path]>' -> 'PATH'; a choice shows its words."""
    found = re.fullmatch(r"<(?:list\[)?(\w+)(?: range)?\]?>", typed)
    return VALUES.get(found[1], typed) if found else typed.strip("<>")


def _place(param: Any) -> int:
    """Options in the order of their panels, so that these come in the same order in every command."""
    panel = getattr(param, "rich_help_panel", None)
    return list(OPTIONS).index(panel) if panel in OPTIONS else -1


def _examples_first(command: Any) -> None:
    found = examples(command.epilog or "")
    if not found:
        command.epilog = escape(command.epilog or "")
        return
    summary, _, rest = (command.help or "").partition("\n\n")
    rest = "\n\n".join(paragraph.replace("\n", " ") for paragraph in rest.split("\n\n"))
    # The markup keeps what is indented so: typer takes off an indentation that all lines share.
    lines = "\n".join(f"[none]{escape(line)}[/none]" for example in found for line in folded(example))
    command.help = "\n\n".join(part for part in (summary, f"Examples:\n{lines}", rest) if part)
    command.epilog = None


def examples(epilog: str) -> list[str]:
    """The commands of "Example(s):  one   |   another"; none where the epilog says something else."""
    head, _, told = epilog.partition(":")
    if head not in ("Example", "Examples"):
        return []
    return [" ".join(one.split()) for one in told.split("   |   ")]


def folded(example: str) -> list[str]:
    """An example as indented lines that a shell reads as one."""
    lines, line = [], "  "
    for word in _words(example):
        # Characters of a line of an example: longer ones go on behind a backslash, so that they can be copied.
        if len(line) + len(word) > 76 and line.strip():
            lines.append(line + "\\")
            line = "      "
        line += word + " "
    return [*lines, line.rstrip()]


def _words(example: str) -> list[str]:
    """Split where a shell would, with the quotes kept; at blanks where it is prose."""
    try:
        # posix=False keeps the quotes: the line is to be copied as it stands.
        return shlex.split(example, comments=False, posix=False)
    except ValueError:
        return example.split()


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
    # Typer's own would print local variables, a password among them.
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": list(HELP)},
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
    ("pause", pause),
    ("stop", stop),
    ("leave", leave),
    ("status", status),
    ("peers", peers),
    ("contributions", contributions),
    ("logs", logs),
    ("report", report),
    ("audit", audit),
    ("train", train),
    ("eval", evaluate),
    ("get", get),
    ("push", push),
):
    app.command(name, epilog=module.EXAMPLES)(module.command)
app.command("resume", epilog=pause.RESUME_EXAMPLES)(pause.resume)
app.command("chat", epilog=serve.CHAT_EXAMPLES)(serve.chat)
app.command("serve", epilog=serve.EXAMPLES)(serve.serve)
app.command("answers", epilog=report.ANSWERS_EXAMPLES)(report.answers)
run.app.command("difficulty", epilog=size.DIFFICULTY_EPILOG)(size.difficulty)
run.app.command("warm-start", epilog=warm_start.EXAMPLES)(warm_start.command)
run.app.command("size", epilog=size.EPILOG)(size.command)
contract.app.command("economics", epilog=contract_economics.EXAMPLE, rich_help_panel="Look")(
    contract_economics.economics
)
weights.app.command("serve", epilog=weights_serve.EXAMPLES)(weights_serve.serve)
for name, group in (
    ("service", service.app),
    ("api", api_describe.app),
    ("keys", keys.app),
    ("state", state.app),
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
    ("verifiers", verifiers.app),
):
    app.add_typer(group, name=name)
# What is mostly typed of `contract`: understood without that word, and told in one place of the help only.
app.add_typer(contract.pool_app, name="pool", hidden=True)


@cache
def _command() -> Any:
    """The tree of all commands, read from their functions' signatures."""
    program = typer.main.get_command(app)
    arrange(program)
    return program


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code. arguments: of this process where none are given, which is then the
    program's own: its commands may fork it (their context's `obj`)."""
    # Tests and other programs call `main` with words: their process must not be forked into a daemon.
    own_process = arguments is None
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal, or a pipe, that says it knows no more than ASCII
            with suppress(OSError):  # what stands behind it was exchanged after a fork: it stays as it is
                stream.reconfigure(errors="backslashreplace")
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        check_words(words)
        said = Invocation(words, own_process)
        # Else the parser prints its own errors, in a frame of its own.
        done = _command().main(args=words, prog_name="intellect-node", obj=said, standalone_mode=False)
        return done if isinstance(done, int) else 0
    except SystemExit as done:
        # As Python itself does it: a text is a failure, nothing is success.
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except BaseException as error:  # the outermost frame: everything ends as three lines and a code
        if is_named(error, "NoArgsIsHelpError"):
            error.show()  # type: ignore[attr-defined] - a group that was named alone
        else:
            print_error(describe(error))
        return exit_code(error)


if __name__ == "__main__":
    sys.exit(main())
