"""All checks of the contracts: `python -m contracts.verify [build|forge|slither|mutants ...]`, by default all four.

`--only TEXT` tries those mutants whose name has the text in it: `verify mutants --only "Pools.sol: terms."`. Beside the
other checks mutants have a few minutes, and the next run goes on with the rest; `verify mutants` tries all of them.

Knows the tools and installs them where they are missing: forge from npm's lock file in `forge/`, slither into a
virtual environment of its own in `.tools/`. What each check finds is its own business.
"""

import argparse
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from contracts import build, mutants
from contracts.javascript import JavaScriptError, find_installed, node_command
from protocol.errors import IntellectError

HERE = Path(__file__).resolve().parent
TOOLS = HERE / ".tools"
# 0.11.6 cannot read the transient re-entrancy guard, and goes blind for contracts that inherit it: ours use storage
SLITHER = "slither-analyzer==0.11.6"
SECONDS = 1800
USUAL_MINUTES = 4.0
"""For mutants beside the other checks. All of them take half an hour of two quiet cores."""
CALLS = re.compile(r"^\| Crowd +\| (\w+) +\| (\d+) +\| (\d+) +\| (\d+) +\|$", re.MULTILINE)
"""A row of forge's table: name, calls, reverts, discards."""
_PACKAGES = {
    ("Linux", "x86_64"): "forge-linux-amd64",
    ("Darwin", "arm64"): "forge-darwin-arm64",
}


class CheckFailed(IntellectError):
    """A check found something."""


def find_forge() -> Path:
    """The pinned forge, installed now if need be (npm, about 85 MB); where there is none, the one in PATH.

    Raises JavaScriptError.
    """
    package = _PACKAGES.get((platform.system(), platform.machine()))
    if package is None:
        found = shutil.which("forge")
        if found:
            return Path(found)
        why = f"there is no ready-made one for {platform.system()} on {platform.machine()}"
        raise JavaScriptError("forge was not found", why, "install Foundry and put forge into PATH")
    return find_installed(HERE / "forge", HERE / "forge", f"@foundry-rs/{package}/bin/forge")


def is_at_hand() -> bool:
    """Whether `find_forge` and the compiler install nothing."""
    package = _PACKAGES.get((platform.system(), platform.machine()), "")
    ready = (HERE / "forge" / "node_modules" / "@foundry-rs" / package / "bin" / "forge").is_file()
    return (ready or (not package and bool(shutil.which("forge")))) and (HERE / "node_modules" / "solc").is_dir()


def environment(forge: Path) -> dict[str, str]:
    """With forge and node in PATH: slither calls the one, the compiler's wrapper the other."""
    path = [str(forge.parent), str(Path(node_command()[0]).parent), os.environ.get("PATH", "")]
    return {**os.environ, "PATH": os.pathsep.join(path), "FOUNDRY_DISABLE_NIGHTLY_WARNING": "1"}


def check_build() -> None:
    """The checked-in artifacts are what the sources compile to, byte for byte."""
    artifacts = build.compile_sources()
    stale = build.differing(artifacts)
    if stale:
        raise CheckFailed("stale artifacts", ", ".join(stale), "run: python -m contracts.build")
    print(f"build: {len(artifacts)} artifacts are what the sources compile to")


def check_forge(short: bool = False) -> None:
    """The Solidity tests, fuzzed, with invariants; on the checked-in artifacts. short: few runs of each, in which the
    crowd need not come to everything."""
    forge = find_forge()
    runs = environment(forge) | (mutants.QUICK if short else {})
    result = subprocess.run(
        [str(forge), "test"], cwd=HERE, env=runs, stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=False
    )
    print(result.stdout)
    if result.returncode != 0:
        raise CheckFailed("a Solidity test failed", f"forge ended with {result.returncode}", "read the lines above")
    calls = went_through(result.stdout)
    print("forge: what the crowd did:", ", ".join(f"{name} {count}" for name, count in sorted(calls.items())))
    idle = [name for name, count in calls.items() if not count]
    if not calls or (idle and not short):
        why = f"of {len(calls)} kinds of calls these never went through: {', '.join(idle) or 'all'}"
        raise CheckFailed("the crowd does not do all that it can", why, "give them a chance in test/Invariants.t.sol")


def went_through(said: str) -> dict[str, int]:
    """How many calls of each kind changed something, in all runs of the invariants together: neither reverted nor put
    aside. said: what forge printed."""
    return {name: int(calls) - int(reverts) - int(aside) for name, calls, reverts, aside in CALLS.findall(said)}


def check_slither() -> None:
    """Static analysis: no findings, and no ERROR lines either, because then slither has not seen everything."""
    forge = find_forge()
    command = [str(_find_slither()), ".", "--compile-force-framework", "foundry", "--foundry-compile-all"]
    result = subprocess.run(
        [*command, "--config-file", "slither.config.json"],
        cwd=HERE,
        env=environment(forge),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    said = result.stdout + result.stderr
    blind = "ERROR" in said or "Error" in said or ", 0 result(s) found" not in said
    if blind:
        raise CheckFailed("slither is not content", said[-6000:], "mend the sources, or say there why it is right")
    print("slither:", next(line for line in said.splitlines() if "result(s) found" in line))


def _find_slither() -> Path:
    folder = TOOLS / "slither"
    binary = folder / "bin" / "slither"
    if not binary.is_file():
        venv.create(folder, with_pip=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", SLITHER]
        subprocess.run(pip, timeout=SECONDS, check=True)
    return binary


def check_mutants(only: str = "", minutes: float = math.inf) -> None:
    """Every small change to the money paths is noticed by a Solidity test, or explained. `only`: part of its name."""
    forge = find_forge()
    survivors = mutants.run(forge, environment(forge), TOOLS / "mutants", only, minutes)
    if survivors:
        raise CheckFailed(
            f"{len(survivors)} mutants live", "\n".join(survivors), "write the test that kills them, or explain them"
        )


CHECKS: dict[str, Callable[[], None]] = {
    "build": check_build,
    "forge": check_forge,
    "slither": check_slither,
    "mutants": check_mutants,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m contracts.verify", description="Checks the contracts.")
    parser.add_argument("checks", nargs="*", choices=[*CHECKS, []], help="which ones; all by default")
    parser.add_argument("--only", metavar="TEXT", default="", help="only mutants with this text in their name")
    parser.add_argument("--minutes", type=float, help="for mutants: all of them where they are named, else 4 minutes")
    args = parser.parse_args()
    usual = math.inf if args.only or "mutants" in args.checks else USUAL_MINUTES
    minutes = usual if args.minutes is None else args.minutes
    checks = CHECKS | {"mutants": lambda: check_mutants(args.only, minutes)}
    for name in args.checks or checks:
        try:
            checks[name]()
        except IntellectError as error:
            print(f"{error.what}\n  why: {error.why}\n  do:  {error.remedy}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
