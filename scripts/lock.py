"""`python scripts/lock.py --index URL`: writes locked/*.txt, the files that the two set-up commands install, by hash.

Run in an environment that holds all of `constraints.txt` (make test). Which packages an installation needs follows
from their own metadata there; the hashes of each one's files, for every system that is supported, come from the simple
index at URL (PEP 691). The index is an argument, since none is named in this repository.
"""

import argparse
import itertools
import json
import re
import sys
import urllib.request
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import NoReturn

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

ROOT = Path(__file__).resolve().parent.parent
LOCKED = ROOT / "locked"
SETS = {"node": "", "train": "train", "dev": "dev", "devnet": "devnet"}
"""File -> extra of pyproject.toml; `train` and `dev` hold what the one before does not."""
ABOVE = {"train": ("node",), "dev": ("node", "train"), "devnet": ("node",)}
BUILD = ("setuptools",)
"""What makes the program's own installation."""
REPLACED = {"fastecdsa": "4.0.0"}
"""libp2p 0.8.1 asks for 2.3.2, which comes as source for Linux: a compiler, GMP's and Python's headers. It is imported
there for keys on P-256 alone, which libp2p itself cannot sign with; 4.0.0 has wheels for every system."""
UNHASHED = ("torch",)
"""Its wheel for CPUs comes from an index or a folder of one's own: scripts/bootstrap.py asks for it by version."""
PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = (("linux", "Linux", "x86_64"), ("linux", "Linux", "aarch64"), ("darwin", "Darwin", "arm64"))
TAGS = re.compile(r"(manylinux|macosx).*(x86_64|aarch64|arm64|universal2)$|^any$")
InvalidName = (InvalidSdistFilename, InvalidWheelFilename)
MOST = 64 << 20
"""Bytes of an index's page."""


def environments() -> Iterator[dict[str, str]]:
    for python, (platform, system, machine) in itertools.product(PYTHONS, MACHINES):
        yield {
            "python_version": python,
            "python_full_version": f"{python}.9",
            "sys_platform": platform,
            "platform_system": system,
            "platform_machine": machine,
            "os_name": "posix",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
        }


def pins() -> dict[str, str]:
    """Name -> version, of constraints.txt."""
    lines = (line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
    found = (Requirement(line) for line in lines if line)
    return {canonicalize_name(one.name): next(iter(one.specifier)).version for one in found}


def closure(extra: str, environment: dict[str, str]) -> set[str]:
    """Names of all that the program needs there with an extra, the program not among them."""
    seen: set[tuple[str, str]] = set()
    waiting = [("intellect-node", extra)]
    while waiting:
        name, wanted = one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        try:
            asked = requires(name) or []
        except PackageNotFoundError:
            sys.exit(
                f"error: {name} is not installed here\n  why: its own needs are unknown\n  do:  make test, then again"
            )
        for requirement in map(Requirement, asked):
            if requirement.marker is None or requirement.marker.evaluate({**environment, "extra": wanted}):
                below = canonicalize_name(requirement.name)
                waiting += [(below, more) for more in ("", *requirement.extras)]
    return {name for name, _ in seen} - {"intellect-node"}


def needed(extra: str) -> dict[str, str]:
    """Name -> marker (empty: everywhere) of all that is needed with an extra."""
    places = list(environments())
    found = [closure(extra, place) for place in places]
    return {
        name: _marker([place for place, names in zip(places, found, strict=True) if name in names], places)
        for name in sorted(set().union(*found))
    }


def _marker(there: list[dict[str, str]], places: list[dict[str, str]]) -> str:
    """The shortest marker that is true in exactly these places."""
    if len(there) == len(places):
        return ""
    for keys in (("sys_platform",), ("python_version",), ("platform_machine",), ("sys_platform", "platform_machine")):
        values = dict.fromkeys(tuple(place[key] for key in keys) for place in there)
        text = " or ".join(" and ".join(f'{k} == "{v}"' for k, v in zip(keys, value, strict=True)) for value in values)
        if [place for place in places if Marker(text).evaluate(place)] == there:
            return text
    fail("no short marker fits", str(there), "teach scripts/lock.py another pair of keys")


def hashes(index: str, name: str, version: str) -> list[str]:
    """Of the wheels that a supported system may take; of the source where there are none for some of them."""
    request = urllib.request.Request(
        f"{index.rstrip('/')}/{name}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        files = json.loads(answer.read(MOST))["files"]
    wheels, sources = [], []
    for file in files:
        about, digest = file["filename"], file["hashes"].get("sha256", "")
        if not re.fullmatch("[0-9a-f]{64}", digest):
            continue
        try:
            if about.endswith(".whl"):
                _, made, _, tags = parse_wheel_filename(about)
                if str(made) == version and any(_fits(tag.interpreter, tag.abi, tag.platform) for tag in tags):
                    wheels.append(digest)
            elif str(parse_sdist_filename(about)[1]) == version:
                sources.append(digest)
        except InvalidName:  # an index holds files of other times
            continue
    if not wheels and not sources:
        sys.exit(
            f"error: the index has no file of {name} {version}\n  why: another index?\n  do:  name one that has it"
        )
    return sorted({*wheels, *sources})


def _fits(interpreter: str, abi: str, platform: str) -> bool:
    ours = [f"cp{python.replace('.', '')}" for python in PYTHONS]
    speaks = interpreter in ("py3", "py2.py3", *ours) or (abi == "abi3" and interpreter.startswith("cp3"))
    return speaks and TAGS.search(platform) is not None


def write(name: str, index: str, above: set[str]) -> set[str]:
    versions, lines = {**pins(), **REPLACED}, []
    wanted = needed(SETS[name]) | (dict.fromkeys(BUILD, "") if name == "node" else {})
    own = {package: marker for package, marker in sorted(wanted.items()) if package not in above}
    for package, marker in own.items():
        if package in UNHASHED:
            continue
        if package not in versions:
            fail(f"constraints.txt has no {package}", f"{name} needs it", "pin it there, and again")
        found = hashes(index, package, versions[package])
        head = f"{package}=={versions[package]}" + (f" ; {marker}" if marker else "")
        lines += [" \\\n    ".join([head, *[f"--hash=sha256:{one}" for one in found]])]
        print(f"\r\033[K{name}: {package}", end="", flush=True)
    what = "what the program needs" if not SETS[name] else f"what the extra {name} adds"
    note = f"# Made by scripts/lock.py from constraints.txt: {what}. Not to be edited.\n"
    (LOCKED / f"{name}.txt").write_text(note + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"\r\033[K{name}: {len(lines)} packages")
    return set(own)


def fail(what: str, why: str, remedy: str) -> NoReturn:
    sys.exit(f"error: {what}\n  why: {why}\n  do:  {remedy}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--index", required=True, help="a simple index that speaks JSON (PEP 691)")
    index = parser.parse_args().index
    LOCKED.mkdir(exist_ok=True)
    done: dict[str, set[str]] = {}
    for name in SETS:
        done[name] = write(name, index, set().union(*[done[one] for one in ABOVE.get(name, ())]))


if __name__ == "__main__":
    main()
