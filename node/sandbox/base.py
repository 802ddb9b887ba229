"""The interface of a sandbox: call a function of a module that strangers wrote, from the same state every time.

Every call begins in the state after the entry module was imported: nothing of one call reaches another. Arguments and
results are JSON. Calls block: make them in a child or a thread, never on the event loop.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from node.sandbox.errors import Undecided

MAX_FUEL = 10**12
MAX_MEMORY_MIB = 2048
MAX_OUTPUT_BYTES = 16 << 20
MAX_SECONDS = 600.0
MAX_DISK_BYTES = 64 << 20


class SandboxLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one call may use. Raises ValueError where a limit is not above 0 or above what this program allows.

    fuel: instructions of one call; load_fuel: of loading the module; memory_mib: of the guest, its interpreter
    included; output_bytes: of a reply, and of everything printed; seconds: wall clock, which only ever leads to
    Undecided; disk_bytes: what may be written to files below `work`, 0: no file can be written; packages: what may be
    imported besides Python's own modules (`shelf`).
    """

    fuel: int = 20_000_000_000
    load_fuel: int = 40_000_000_000
    memory_mib: int = 512
    output_bytes: int = 1 << 20
    seconds: float = 60.0
    disk_bytes: int = 0
    packages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _within("fuel", self.fuel, MAX_FUEL)
        _within("load_fuel", self.load_fuel, MAX_FUEL)
        _within("memory_mib", self.memory_mib, MAX_MEMORY_MIB, least=32)
        _within("output_bytes", self.output_bytes, MAX_OUTPUT_BYTES)
        _within("seconds", self.seconds, MAX_SECONDS)
        # 0 is allowed here alone, so both sides are one more.
        _within("disk_bytes", self.disk_bytes + 1, MAX_DISK_BYTES + 1)


class CallStatus(StrEnum):
    """How a call ended. Each of them is an ordinary result, in WASI equal on every machine."""

    OK = "ok"
    RAISED = "raised"
    EXITED = "exited"
    OUT_OF_FUEL = "out of fuel"
    OUT_OF_MEMORY = "out of memory"
    TOO_LONG = "too long"
    """reply, or what was printed, over output_bytes"""
    CRASHED = "crashed"
    """the interpreter itself trapped"""


@dataclass(frozen=True, slots=True)
class SandboxCall:
    """A function of the entry module, its arguments (JSON), what it reads on standard input.

    fuel: less than the limit's, where this call shall have less.
    """

    function: str
    arguments: Sequence[Any] = ()
    stdin: bytes = b""
    fuel: int | None = None


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What came of a call.

    value: the JSON value that the function returned, the exit code where it EXITED, else None; error: for people, the
    exception's type and message, printable and short; fuel: used by this call, 0 natively; printed, complained: its
    standard output and error, together cut at output_bytes; state: of a session, 32 bytes that are the same wherever
    its machine is the same: memory, files, clock.
    """

    status: CallStatus
    value: Any = None
    error: str = ""
    fuel: int = 0
    printed: bytes = b""
    complained: bytes = b""
    state: bytes = b""


class Sandbox(Protocol):
    """An entry module that was loaded, behind a wall. For one thread."""

    def call(self, function: str, *arguments: Any) -> CallOutcome:
        """Raises Undecided."""
        ...

    def call_all(self, function: str, calls: Sequence[Sequence[Any]]) -> list[CallOutcome | Undecided]:
        """One outcome for each list of arguments."""
        ...

    def run(self, calls: Iterable[SandboxCall]) -> Iterator[CallOutcome | Undecided]:
        """One outcome for each call, as they come. A caller who has seen enough takes no more of them."""
        ...

    def session(self) -> "SandboxSession":
        """A machine of its own that lives through several calls."""
        ...

    def close(self) -> None:
        """End its processes. Twice is as good as once."""
        ...


class SandboxSession(Protocol):
    """A machine that remembers: each call begins where the one before ended. `sessions` builds it anew where it is
    lost."""

    def call(self, call: SandboxCall) -> CallOutcome:
        """With the state after it. Raises Undecided; what does not end OK leaves no machine to go on with."""
        ...

    def close(self) -> None:
        """End it. Twice is as good as once."""
        ...


def _within(name: str, value: float, most: float, least: float = 0) -> None:
    # In this form NaN is refused, too: it compares false with everything.
    if not (value > 0 and least <= value <= most):
        raise ValueError(f"{name} is {value}, not between {least} and {most}")
