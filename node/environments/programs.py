"""Answers that are programs: each run begins in a fresh copy of a sandbox, and shows what it printed or returned.

What was expected never goes in. Whoever compares is outside (`comparison`).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from node.environments.guests import guest
from node.sandbox import Call, Limits, Outcome, Sandbox, Status, Undecided

MAX_SOURCE = 256 * 1024
Opener = Callable[[Mapping[str, bytes], str, Limits], Sandbox]
"""(files, entry module, limits) -> a sandbox that has loaded it."""
_BLOCK = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_ENTRY = "intellect_program"


@dataclass(frozen=True, slots=True)
class Trial:
    """One run. function: empty for a script, which reads `stdin`; else it is called with `arguments` (JSON)."""

    stdin: str = ""
    function: str = ""
    arguments: tuple[Any, ...] = ()


def last_block(text: str) -> str | None:
    """The last fenced block of an answer after its reasoning; None if there is none, or one too long."""
    blocks = _BLOCK.findall(text.rpartition("</think>")[2])
    return blocks[-1] if blocks and 0 < len(blocks[-1].strip()) and len(blocks[-1]) <= MAX_SOURCE else None


def finished(outcome: Outcome) -> bool:
    """Whether a program came to its end: it returned, or exited with 0."""
    return outcome.status is Status.OK or (outcome.status is Status.EXITED and outcome.value == 0)


class ProgramRunner:
    """Opened when first needed; for one thread."""

    def __init__(self, opener: Opener, limits: Limits) -> None:
        self._opener = opener
        self._limits = limits
        self._sandbox: Sandbox | None = None

    def run(self, source: str, tests: Sequence[Trial]) -> Iterator[Outcome | Undecided]:
        """One outcome for each test, as they come. A caller who has seen enough takes no more of them."""
        if self._sandbox is None:
            self._sandbox = self._opener({f"{_ENTRY}.py": guest(_ENTRY)}, _ENTRY, self._limits)
        return self._sandbox.run([_call(source, test) for test in tests])

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None


def _call(source: str, test: Trial) -> Call:
    if test.function:
        return Call("call", (source, test.function, list(test.arguments)), test.stdin.encode())
    return Call("run", (source,), test.stdin.encode())
