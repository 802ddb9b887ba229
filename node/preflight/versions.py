"""The program and what it is made of, against what it was tried with."""

import platform
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import InvalidRequirement, Requirement

from node.preflight.finding import Finding, ok, warning

PROGRAM = "intellect-node"
TOLD = ("torch", "transformers", "libp2p", "trio", "web3")


def check_versions(installed: dict[str, str | None] | None = None) -> Finding:
    """installed: name -> version, None for what is not there; by default what is installed."""
    have = installed_versions() if installed is None else installed
    wrong = [
        f"{need.name} is {have.get(need.name) or 'missing'}, wanted {need.specifier}"
        for need in _needs()
        if not need.specifier.contains(have.get(need.name) or "0", prereleases=True)
    ]
    data = {"python": platform.python_version(), "system": platform.platform(), "packages": have}
    if wrong:
        return warning("versions", "; ".join(wrong), "install anew: make install", **data)
    told = ", ".join(f"{name} {have[name]}" for name in TOLD if have.get(name))
    return ok(
        "versions", f"{PROGRAM} {have.get(PROGRAM) or '(source)'}, Python {platform.python_version()}, {told}", **data
    )


def installed_versions() -> dict[str, str | None]:
    """Of this program and of everything that it asks for."""
    return {name: _version(name) for name in [PROGRAM, *(need.name for need in _needs())]}


def _needs() -> list[Requirement]:
    """What the program asks for, with what an engine needs."""
    try:
        lines = requires(PROGRAM) or []
        needs = [Requirement(line) for line in lines]
    except (PackageNotFoundError, InvalidRequirement):
        return []
    return [need for need in needs if need.marker is None or need.marker.evaluate({"extra": "train"})]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
