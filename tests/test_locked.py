"""What the two set-up commands install: every package by hash, and the versions that were tested together."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
SETS = ("node", "train", "dev", "devnet")
REPLACED, UNHASHED = {"fastecdsa": "4.0.0"}, {"torch"}


def locked(name: str) -> dict[str, tuple[str, list[str]]]:
    """Package -> its version and its hashes."""
    text = (ROOT / "locked" / f"{name}.txt").read_text(encoding="utf-8").replace("\\\n", "")
    found: dict[str, tuple[str, list[str]]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            head, *hashes = line.split("--hash=")
            one = Requirement(head)
            found[one.name] = next(iter(one.specifier)).version, [each.strip() for each in hashes]
    return found


def test_every_locked_package_has_the_tested_version_and_hashes() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [Requirement(line.split("#")[0]) for line in lines if line.split("#")[0].strip()]
    versions = {canonicalize_name(one.name): next(iter(one.specifier)).version for one in pinned} | REPLACED
    for name in SETS:
        for package, (version, hashes) in locked(name).items():
            assert versions[package] == version, f"{package}: run scripts/lock.py again"
            assert hashes and all(re.fullmatch("sha256:[0-9a-f]{64}", one) for one in hashes)


def test_what_pyproject_asks_for_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = {"node": project["dependencies"], **{name: extras[name] for name in SETS[1:]}}
    have: set[str] = set()
    for name in SETS:
        have |= set(locked(name))
        for text in asked[name]:
            wanted = canonicalize_name(Requirement(text).name)
            assert wanted in have | UNHASHED | {"intellect-node"}, f"{wanted}: run scripts/lock.py again"
            if wanted not in UNHASHED | {"intellect-node"}:
                (version,) = (locked(one)[wanted][0] for one in SETS if wanted in locked(one))
                assert Requirement(text).specifier.contains(version, prereleases=True)
