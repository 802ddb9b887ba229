"""Versions of the program, and which of them work together in one pool (docs/stability.md)."""

import re

_MINOR = re.compile(r"(\d{1,4})\.(\d{1,4})(?:[.+-].*)?")


def minor_of(version: str) -> tuple[int, int] | None:
    """(major, minor); None of what is no released version."""
    found = _MINOR.fullmatch(version)
    return (int(found[1]), int(found[2])) if found else None


def understand(one: str, other: str) -> bool | None:
    """Whether members of two versions are promised to understand each other: of one minor version, or of two that
    follow each other. None where one of them says none."""
    first, second = minor_of(one), minor_of(other)
    if first is None or second is None:
        return None
    return first[0] == second[0] and abs(first[1] - second[1]) <= 1
