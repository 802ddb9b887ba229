"""What a check found, and what all of them together mean."""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from node.errors import NodeError

Level = Literal["ok", "warning", "failure"]
_RANK: dict[Level, int] = {"ok": 0, "warning": 1, "failure": 2}


class CheckFinding(msgspec.Struct, frozen=True):
    """name: the check, one plain word; what: what was found; remedy: what to do, empty where all is well; data: the
    numbers behind it, for programs."""

    name: str
    level: Level
    what: str
    remedy: str = ""
    data: dict[str, Any] = {}


class PreflightFailed(NodeError):
    """A check before joining failed. findings: all of them."""

    def __init__(self, findings: list[CheckFinding]) -> None:
        failures = [finding for finding in findings if finding.level == "failure"]
        first, more = failures[0], len(failures) - 1
        also = f" (and {more} more: intellect-node doctor)" if more else ""
        super().__init__(f"this node cannot join yet: {first.name}", first.what + also, first.remedy)
        self.findings = findings


def ok(name: str, what: str, **data: Any) -> CheckFinding:
    return CheckFinding(name, "ok", what, "", data)


def warning(name: str, what: str, remedy: str, **data: Any) -> CheckFinding:
    return CheckFinding(name, "warning", what, remedy, data)


def failure(name: str, what: str, remedy: str, **data: Any) -> CheckFinding:
    return CheckFinding(name, "failure", what, remedy, data)


def worst(findings: Iterable[CheckFinding]) -> Level:
    """Of nothing: ok."""
    levels: list[Level] = ["ok", *(finding.level for finding in findings)]
    return max(levels, key=_RANK.__getitem__)
