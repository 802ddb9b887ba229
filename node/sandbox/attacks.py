"""The catalogue of attacks on a sandbox, and how each of them ends in WASI, on every machine (under LIMITS).

The programs are in `guest/attacks.py`. Shown by `intellect-node sandbox check`, played by the tests as root and as
nobody, measured by benchmarks.sandbox at af57af2.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from node.sandbox import guest
from node.sandbox.base import CallOutcome, CallStatus, Sandbox, SandboxCall, SandboxLimits
from node.sandbox.errors import Undecided

ENTRY = "attacks"
FILES = {f"{ENTRY}.py": Path(guest.__file__ or "").with_name("attacks.py").read_bytes()}
_RAISED, _FUEL, _MEMORY, _LONG = (
    CallStatus.RAISED,
    CallStatus.OUT_OF_FUEL,
    CallStatus.OUT_OF_MEMORY,
    CallStatus.TOO_LONG,
)

ATTACKS: dict[str, CallStatus] = {
    "fork_bomb": _RAISED,
    "thread_bomb": _RAISED,
    "subprocess_run": _RAISED,
    "execute": _RAISED,
    "posix_spawn": _RAISED,
    "kill_others": _RAISED,
    "kill_everybody": _RAISED,
    "trace_parent": _RAISED,
    "read_parents_memory": _RAISED,
    "endless_loop": _FUEL,
    "endless_in_c": _FUEL,
    "endless_and_deaf": _FUEL,
    "giant_power": _FUEL,
    "sleep_for_ever": CallStatus.OK,
    "ten_gigabytes": _RAISED,
    "all_memory": _MEMORY,
    "hidden_memory": _RAISED,
    "zip_bomb": _FUEL,
    "deep_recursion": _FUEL,
    "deep_objects": CallStatus.CRASHED,
    "raise_limits": _RAISED,
    "secrets_in_environment": CallStatus.OK,
    "read_secrets": CallStatus.OK,
    "read_proc": CallStatus.OK,
    "read_devices": CallStatus.OK,
    "look_around": CallStatus.OK,
    "write_files": CallStatus.OK,
    "change_own_module": _RAISED,
    "symlinks": _RAISED,
    "hard_links": _RAISED,
    "remove_files": _RAISED,
    "rename_files": _RAISED,
    "many_descriptors": _RAISED,
    "tcp": _RAISED,
    "udp": _RAISED,
    "names": _RAISED,
    "abstract_socket": _RAISED,
    "system_calls": _RAISED,
    "other_words": _RAISED,
    "become_somebody": _RAISED,
    "change_root": _RAISED,
    "bad_pointer": _RAISED,
    "abort": CallStatus.CRASHED,
    "flood_output": _LONG,
    "flood_errors": _LONG,
    "flood_reply": _LONG,
    "no_number": _RAISED,
    "half_a_character": _RAISED,
    "deep_reply": _RAISED,
    "exit_well": CallStatus.EXITED,
    "forge_replies": CallStatus.OK,
    "leave_marks": CallStatus.OK,
}


def breach(outcome: CallOutcome | Undecided) -> str | None:
    """What the attacker says it got, None where nothing. A forged reply of its own call is none: what a call returns is
    the word of who was called."""
    told = outcome.value if isinstance(outcome, CallOutcome) and outcome.status is CallStatus.OK else None
    return told[:200] if isinstance(told, str) else None


LIMITS = SandboxLimits(fuel=500_000_000, memory_mib=128, output_bytes=1 << 16, seconds=20.0)


@dataclass(frozen=True, slots=True)
class SandboxTrial:
    """attacks: name -> whether the sandbox held; milliseconds: wall time of a call that does nothing."""

    attacks: dict[str, bool]
    milliseconds: float


def try_out(sandbox: Sandbox, on_progress: Callable[[str, bool, str], object] = lambda *_: None) -> SandboxTrial:
    """on_progress: hears each attack's name, whether it was held, and how it ended. Raises Undecided where nothing
    runs."""
    attacks: dict[str, bool] = {}
    for name in ATTACKS:
        held, how = attack(sandbox, name)
        attacks[name] = held
        on_progress(name, held, how)
    started = time.monotonic()
    timed = 20
    for _ in range(timed):
        sandbox.call("hello", "world")
    return SandboxTrial(attacks, (time.monotonic() - started) * 1000 / timed)


def attack(sandbox: Sandbox, name: str) -> tuple[bool, str]:
    """Whether it was held, and how it ended. Held: it got nothing, left nothing, and the sandbox still answers."""
    outcome = next(sandbox.run([SandboxCall(name)]))
    how = f"{outcome.status.value} {outcome.error}" if isinstance(outcome, CallOutcome) else f"undecided: {outcome.why}"
    after, traces = sandbox.call("hello", name), sandbox.call("traces")
    whole = after.value == f"hello {name}" and traces.status is CallStatus.OK and traces.value is None
    return breach(outcome) is None and whole, breach(outcome) or (how if whole else "the sandbox was changed")
