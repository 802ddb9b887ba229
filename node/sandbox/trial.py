"""Tries a sandbox out: every attack, whether it still answers after each, and how fast."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from node.sandbox.attacks import ATTACKS, breach
from node.sandbox.base import Call, Limits, Outcome, Sandbox, Status

LIMITS = Limits(fuel=500_000_000, memory_mib=128, output_bytes=1 << 16, seconds=20.0)
_TIMED = 20


@dataclass(frozen=True, slots=True)
class Trial:
    """attacks: name -> whether the sandbox held; milliseconds: wall time of a call that does nothing."""

    attacks: dict[str, bool]
    milliseconds: float


def try_out(sandbox: Sandbox, told: Callable[[str, bool, str], object] = lambda *_: None) -> Trial:
    """told: hears each attack's name, whether it was held, and how it ended. Raises Undecided where nothing runs."""
    attacks: dict[str, bool] = {}
    for name in ATTACKS:
        held, how = attack(sandbox, name)
        attacks[name] = held
        told(name, held, how)
    started = time.monotonic()
    for _ in range(_TIMED):
        sandbox.call("hello", "world")
    return Trial(attacks, (time.monotonic() - started) * 1000 / _TIMED)


def attack(sandbox: Sandbox, name: str) -> tuple[bool, str]:
    """Whether it was held, and how it ended. Held: it got nothing, left nothing, and the sandbox still answers."""
    outcome = next(sandbox.run([Call(name)]))
    how = f"{outcome.status.value} {outcome.error}" if isinstance(outcome, Outcome) else f"undecided: {outcome.why}"
    after, traces = sandbox.call("hello", name), sandbox.call("traces")
    whole = after.value == f"hello {name}" and traces.status is Status.OK and traces.value is None
    return breach(outcome) is None and whole, breach(outcome) or (how if whole else "the sandbox was changed")
