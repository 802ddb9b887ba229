"""`intellect-node update --check`: is there a newer version, and do the daemons here run the installed one?"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import NETWORK, USAGE, CommandError
from cli.output import AsJson, clean, console, print_json

if TYPE_CHECKING:
    from packaging.version import Version

EXAMPLES = "Examples:  intellect-node update --check   |   intellect-node update --check --json | jq .newer"
PACKAGE = "intellect-node"
NEWER = 100
"""Exit code where a newer version is offered, as of `dnf check-update`."""
DEADLINE, ONE_ANSWER = 90.0, 15
"""Seconds for all of it, and for each answer of an index."""
OFFERED = re.compile(r"^Available versions: (.+)$", re.MULTILINE)
UNREACHABLE = ("Retrying (", "connection broken", "Could not fetch URL", "Failed to establish")


def command(
    check: Annotated[bool, typer.Option("--check", help="Compare; nothing is installed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare the installed version with what the package index offers that pip is configured with.

    Exit code 0: nothing newer; 100: something newer is offered; 5: the index does not know the package or cannot be
    asked. Whose package an index offers under this name is for you to judge. Members do not say which version they run.
    """
    if not check:
        raise CommandError(
            "this program does not update itself",
            "it holds a key and a stake: what runs on this machine is for you to choose",
            "look with --check; then `git pull && make install` in a clone, `pip install --upgrade` elsewhere",
            USAGE,
        )
    from node.config import program_version

    own = program_version()
    offered = newest(own, index_versions())
    stale = _stale_daemons(own)
    if as_json:
        print_json({"installed": own, "offered": offered, "newer": offered is not None, "stale_daemons": stale})
    else:
        _tell(own, offered, stale)
    if offered is not None:
        raise typer.Exit(NEWER)


def index_versions(pip: Sequence[str] = (sys.executable, "-m", "pip")) -> list[str]:
    """Every version that pip's index offers. Raises CommandError where it cannot be asked or knows none."""
    words = ["index", "versions", PACKAGE, "--retries", "1", "--timeout", str(ONE_ANSWER)]
    # An index that asks for a password would wait until the deadline.
    environment = {**os.environ, "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        done = subprocess.run(
            [*pip, *words], capture_output=True, text=True, timeout=DEADLINE, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        raise _unknown("the package index does not answer", f"{DEADLINE:g} s passed") from None
    found = OFFERED.search(done.stdout)
    if found:
        return [version.strip() for version in found[1].split(",")]
    # pip warns of every index that it is configured with, before it says what is wrong.
    said = clean(" ".join(line for line in done.stderr.splitlines() if not line.startswith("WARNING")).strip(), 300)
    if "No module named pip" in done.stderr:
        raise _unknown("there is no pip beside this program", "its environment was made without")
    if any(mark in done.stderr for mark in UNREACHABLE):
        raise _unknown("the package index cannot be reached", said)
    raise _unknown(f"the package index does not know {PACKAGE}", said or "it offers no version")


def newest(own: str, offered: Sequence[str]) -> str | None:
    """The newest release that is newer than `own`; None where there is none. Pre-releases only for who has one."""
    from packaging.version import InvalidVersion, Version

    def parsed(text: str) -> "Version | None":
        try:
            return Version(text)
        except InvalidVersion:  # an index may hold anything
            return None

    mine = parsed(own)
    known = [version for text in offered if (version := parsed(text)) is not None]
    fit = [version for version in known if mine is None or mine.is_prerelease or not version.is_prerelease]
    best = max(fit, default=None)
    return str(best) if best is not None and (mine is None or best > mine) else None


def _stale_daemons(own: str) -> list[dict[str, Any]]:
    """Daemons of this machine that were started before the program was changed."""
    from cli import api

    nodes = [status.node for status in api.known_daemons()]
    return [
        {"address": node.address, "version": node.version, "state_dir": node.state_dir}
        for node in nodes
        if node.version and node.version != own
    ]


def _tell(own: str, offered: str | None, stale: list[dict[str, Any]]) -> None:
    say = console().print
    say(f"installed {own}; " + (f"the index offers {offered}" if offered else "the index offers nothing newer"))
    for daemon in stale:
        line = f"the daemon in {daemon['state_dir']} runs {daemon['version']}: start it again"
        say(clean(line, 400), soft_wrap=True, markup=False)


def _unknown(what: str, why: str) -> CommandError:
    remedy = "see what pip is told: pip config list; a clone is updated by `git pull && make install`"
    return CommandError(what, why, remedy, NETWORK)
