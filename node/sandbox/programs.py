"""Runs an answer that is a Python program, on many inputs. What it should have said never enters: the caller compares.

Each input is a call of its own, in the same fresh state: what a program does on one tells it nothing on the next. So a
caller who has seen a wrong output takes no more of them, and a program that runs out of fuel does so on one input.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from node.sandbox import guest
from node.sandbox.base import Call, Outcome, Sandbox, Status
from node.sandbox.errors import Undecided

ENTRY = "programs"
FILES = {f"{ENTRY}.py": Path(guest.__file__ or "").with_name("programs.py").read_bytes()}
"""What a sandbox for programs is opened with: `open_wasi(FILES, ENTRY, limits, runtime)`."""


def outputs(
    sandbox: Sandbox, source: str, inputs: Sequence[bytes], *, fuel: int | None = None, total: int | None = None
) -> Iterator[Outcome | Undecided]:
    """The program run once for each standard input; `printed` of an outcome is its standard output.

    fuel: of one input, by default the sandbox's limit; total: of all of them, after which the rest is OUT_OF_FUEL.
    """
    calls = [Call("run", [source], stdin, fuel) for stdin in inputs]
    return _within(sandbox, calls, total)


def returns(
    sandbox: Sandbox,
    source: str,
    function: str,
    arguments: Sequence[Sequence[Any]],
    *,
    fuel: int | None = None,
    total: int | None = None,
) -> Iterator[Outcome | Undecided]:
    """A function of the program (or a method of its class Solution) called once with each list of arguments."""
    calls = [Call("call", [source, function, list(each)], b"", fuel) for each in arguments]
    return _within(sandbox, calls, total)


def _within(sandbox: Sandbox, calls: Sequence[Call], total: int | None) -> Iterator[Outcome | Undecided]:
    left = total
    for call in calls:
        if left is not None and left <= 0:
            yield Outcome(Status.OUT_OF_FUEL, error="the calls before used up what all may use together")
            continue
        bounds = [bound for bound in (call.fuel, left) if bound is not None]
        for outcome in sandbox.run([Call(call.function, call.arguments, call.stdin, min(bounds, default=None))]):
            left = left - outcome.fuel if left is not None and isinstance(outcome, Outcome) else left
            yield outcome
