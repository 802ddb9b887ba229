"""Every `intellect-node` command in the documents exists, with each option that it is shown with."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from cli.main import app

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?:bash|sh|console)?[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(intellect-node [^`\n]+)`")
PLACEHOLDER = re.compile(r"[\[\]<>|]|\.\.\.| v\d$")
"""Patterns of a command, and the tags that hashes begin with (`intellect-node tensor v1`)."""
PROGRAM: Any = typer.main.get_command(app)
GROUPS = sorted(name for name, command in PROGRAM.commands.items() if hasattr(command, "commands"))
SHORT = re.compile(rf"`((?:{'|'.join(GROUPS)}) [a-z][^`\n]*)`")
"""A command of a group as prose names it, without the program's name."""


def commands(text: str) -> Iterator[str]:
    """Command lines of code blocks, continued lines joined, and those in backticks. What is a pattern is left out."""
    blocks = "\n".join(FENCE.findall(text)).replace("\\\n", " ")
    prose = FENCE.sub("", text)
    short = [f"intellect-node {line}" for line in SHORT.findall(prose)]
    for line in [*blocks.splitlines(), *INLINE.findall(prose), *short]:
        words = re.split(r"\s#", line)[0].strip()
        if words.startswith("intellect-node ") and not PLACEHOLDER.search(words):
            yield words


def fault(line: str) -> str | None:
    """What is wrong with a command line, before anything runs."""
    words, command = shlex.split(line)[1:], PROGRAM
    context: Any = command.make_context("intellect-node", [], resilient_parsing=True)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name = words.pop(0)
        if (inner := command.commands.get(name)) is None:
            return f"there is no command {name!r}: {line}"
        command = inner
        context = command.make_context(name, [], parent=context, resilient_parsing=True)
    options = {
        option: parameter for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]
    }
    known = {*options, "--help", "-h", "--version", "--install-completion", "--show-completion"}
    given = [word.partition("=")[0] for word in words[: words.index("--") if "--" in words else None]]
    unknown = [word for word in given if word.startswith("--") and word not in known]
    return f"unknown {', '.join(unknown)}: {line}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_command_of_a_page_is_one_of_ours(page: Path) -> None:
    assert [wrong for line in commands(page.read_text(encoding="utf-8")) if (wrong := fault(line))] == []


@pytest.mark.parametrize(
    "line", ["intellect-node nothing", "intellect-node demo --nothing", "intellect-node run nothing"]
)
def test_what_is_no_command_is_found(line: str) -> None:
    assert fault(line)


def test_commands_are_found_in_prose_too() -> None:
    text = "Say `weights fetch --out a` or `intellect-node status`, not `run.toml` or `run`."
    assert list(commands(text)) == ["intellect-node status", "intellect-node weights fetch --out a"]
