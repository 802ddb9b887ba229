"""Answers that are programs: each run begins in a fresh copy of a sandbox, and shows what it printed or returned.

What was expected never goes in. Whoever compares is outside (`task_types.code`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

from node.environments.guests import guest
from node.sandbox import (
    CallOutcome,
    CallStatus,
    Sandbox,
    SandboxCall,
    SandboxError,
    SandboxLimits,
    Undecided,
    find_runtime,
    shelf,
)

MAX_SOURCE = 256 * 1024
TOTAL = 16
"""Times the fuel of one trial that all trials of a program may use together."""
Opener = Callable[[Mapping[str, bytes], str, SandboxLimits], Sandbox]
"""(files, entry module, limits) -> a sandbox that has loaded it."""
# As CommonMark has it: behind the marks of a fence stands no further one, else it is code in a line.
_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})([^\n`]*)$", re.MULTILINE)
_PYTHON = re.compile(r"\{?\.?[ \t]*(?:python|py|pypy|ipython)[0-9.]{0,6}\b", re.IGNORECASE)
_STATEMENT = re.compile(r"\b(?:import|def|class|lambda|for|while|return|print|input)\b")
"""What most programs have and most outputs have not."""
_ENTRY = "intellect_program"


@dataclass(frozen=True, slots=True)
class ProgramTrial:
    """One run. function: empty for a script, which reads `stdin`; else it is called with `arguments` (JSON), or with
    the list that `python` writes."""

    stdin: str = ""
    function: str = ""
    arguments: tuple[Any, ...] = ()
    python: str = ""


def last_block(text: str) -> str | None:
    """The program of an answer after its reasoning, without its indent: the last block that says it is Python, else the
    last one without a name that reads like a program, else the last one without a name. None for none, or one too long.

    Fence by fence, each line once: an expression for whole blocks looks for the end of every one that is never closed.
    """
    named, nameless, reads = "", "", False
    for tag, block in _blocks(text.rpartition("</think>")[2]):
        if not block.strip():
            continue
        if _PYTHON.match(tag):
            named = block
        elif not tag and (found := bool(_STATEMENT.search(block))) >= reads:
            nameless, reads = block, found
    block = named or nameless
    return block if block and len(block) <= MAX_SOURCE else None


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """(what stands behind the opening fence, the lines without the fence's indent and what they have in common)."""
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        tag = fence[3].strip()
        if opened is None:
            opened = fence
        # A closing fence has nothing behind it, and as many marks. Another one stands inside of the block.
        elif not tag and fence[2].startswith(opened[2]):
            lines = text[opened.end() + 1 : fence.start()].splitlines(keepends=True)
            indent = len(opened[1])
            yield opened[3].strip(), dedent("".join(line[min(indent, _blanks(line)) :] for line in lines))
            opened = None


def _blanks(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def finished(outcome: CallOutcome) -> bool:
    """Whether a program came to its end: it returned, or exited with 0."""
    return outcome.status is CallStatus.OK or (outcome.status is CallStatus.EXITED and outcome.value == 0)


class ProgramRunner:
    """Opened when first needed; for one thread."""

    def __init__(self, opener: Opener, limits: SandboxLimits) -> None:
        self._opener = opener
        self._limits = limits
        self._sandbox: Sandbox | None = None

    def run(self, source: str, trials: Sequence[ProgramTrial]) -> Iterator[CallOutcome | Undecided]:
        """One outcome for each trial, as they come. A caller who has seen enough takes no more of them.

        All together may use TOTAL times what one may; after that, the rest is out of fuel.
        """
        if self._sandbox is None:
            self._sandbox = self.open(_ENTRY, guest(_ENTRY))
        # A call for each trial. One for all would save some forks. But a program would see its later inputs, one
        # endless trial would take the others' outputs, and nobody could stop at the first wrong one.
        # A program may be endless for each of its inputs, 256 of a package: a validator would pay for all of them.
        left = TOTAL * self._limits.fuel
        for trial in trials:
            if left <= 0:
                yield CallOutcome(CallStatus.OUT_OF_FUEL, error="the trials before used up what all may use together")
                continue
            for outcome in self._sandbox.run([_call(source, trial, min(left, self._limits.fuel))]):
                left -= outcome.fuel if isinstance(outcome, CallOutcome) else 0
                yield outcome

    def another(self) -> "ProgramRunner":
        """The same for another thread."""
        return ProgramRunner(self._opener, self._limits)

    def open(self, entry: str, text: bytes) -> Sandbox:
        """A sandbox of its own for another module, under the same limits."""
        return self._opener({f"{entry}.py": text}, entry, self._limits)

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None


def _call(source: str, trial: ProgramTrial, fuel: int) -> SandboxCall:
    if trial.python:
        return SandboxCall("call_written", (source, trial.function, trial.python), trial.stdin.encode(), fuel)
    if trial.function:
        return SandboxCall("call", (source, trial.function, list(trial.arguments)), trial.stdin.encode(), fuel)
    return SandboxCall("run", (source,), trial.stdin.encode(), fuel)


# Which sandbox strangers' code runs in: CPython for WASI, whose outcomes are the same on every machine.
# The interpreter is a file of the run (`RUNTIME`), or the user's own copy of it, known by its hash.
RUNTIME = "python.wasm"
"""Its path among a run's assets."""


def opener_for(assets: Path | None = None, *, optimised: bool = True) -> Opener:
    """Opens sandboxes with the interpreter of a run, else the user's. Raises SandboxError where there is none.

    optimised: whether the compiler takes its time for fast code; outcomes are the same.
    """

    def opened(files: Mapping[str, bytes], entry: str, limits: SandboxLimits) -> Sandbox:
        from node.sandbox import open_wasi
        from node.sandbox.opening import SandboxPool
        from node.sandbox.wasi.settings import Settings

        # Looked for when a sandbox is opened: problems without programs need no interpreter on their machine.
        runtime, settings = find_runtime(assets), Settings(optimised=optimised)
        return SandboxPool(lambda: open_wasi(files, entry, limits, runtime, settings=settings))

    return opened


def sandbox_files(packages: Iterable[str] = ()) -> dict[str, Path]:
    """What a run needs for a sandbox with these packages, by asset. Raises SandboxError."""
    return {RUNTIME: find_runtime(), **{one.asset: shelf.find(one) for one in shelf.wanted(packages)}}


def own_copy(asset: str) -> Path | None:
    """This user's copy of an asset that all runs share; None where there is none."""
    package = shelf.ASSETS.get(asset)
    try:
        return find_runtime() if asset == RUNTIME else shelf.find(package) if package else None
    except SandboxError:
        return None
