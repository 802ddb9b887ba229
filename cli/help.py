"""How `--help` looks, for every command alike: examples first and one a line, options and commands in panels.

Commands give their examples in the epilog, as "Examples:  one   |   another". Nothing else is asked of them.
"""

import shlex
from typing import Any

from rich.markup import escape

WIDTH = 76
"""Characters of a line of an example: longer ones go on behind a backslash, so that they can be copied."""
MANY = 6
"""Options of a command from which on they are shown in panels."""
COMMANDS = {
    "Run a node": "demo join doctor stop leave service update keys config",
    "Look": "status top peers contributions logs report answers eval audit",
    "Train": "train trainer run calibrate weights",
    "Money": "contract devnet",
    "Make": "env task sandbox verifiers",
}
"""Panel -> commands of the program."""
OPTIONS = {
    "Identity": "role state_dir key as_ key_file password_file provider_key provider validator node",
    "Network": "network pool run listen announce lan bootnode relay http_source wait rpc_url dry_run preflight",
    "Engine": "engine engine_command auto_setup trainer endpoint nodes node_rank backend device",
    "Serving": "gateway gateway_tls gateway_announce page page_host metrics_address metrics_log address",
    "Output": "as_json logs log_level detach quiet verbose report out csv watch follow screenshot plain yes keep",
}
"""Panel -> parameters, in whichever command they stand."""
_PANEL_OF_COMMAND = {name: panel for panel, names in COMMANDS.items() for name in names.split()}
_PANEL_OF_OPTION = {name: panel for panel, names in OPTIONS.items() for name in names.split()}


def arrange(program: Any) -> None:
    """Put the help of a click group and of all that is below it in order."""
    for name, command in program.commands.items():
        command.rich_help_panel = _PANEL_OF_COMMAND.get(name)
        _arrange(command)


def _arrange(command: Any) -> None:
    _examples_first(command)
    options = [one for one in command.params if one.param_type_name == "option"]
    if len(options) >= MANY:
        for option in options:
            option.rich_help_panel = getattr(option, "rich_help_panel", None) or _PANEL_OF_OPTION.get(option.name)
        command.params.sort(key=_place)
    for below in getattr(command, "commands", {}).values():
        _arrange(below)


def _place(param: Any) -> int:
    """Options in the order of their panels, so that these come in the same order in every command."""
    panel = getattr(param, "rich_help_panel", None)
    return list(OPTIONS).index(panel) if panel in OPTIONS else -1


def _examples_first(command: Any) -> None:
    found = examples(command.epilog or "")
    if not found:
        return
    summary, _, rest = (command.help or "").partition("\n\n")
    rest = "\n\n".join(paragraph.replace("\n", " ") for paragraph in rest.split("\n\n"))
    lines = "\n".join(escape(line) for example in found for line in folded(example))
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
        if len(line) + len(word) > WIDTH and line.strip():
            lines.append(line + "\\")
            line = "      "
        line += word + " "
    return [*lines, line.rstrip()]


def _words(example: str) -> list[str]:
    """Split where a shell would, with the quotes kept; at blanks where it is prose."""
    try:
        return shlex.split(example, comments=False, posix=False)
    except ValueError:
        return example.split()
