"""Which engine computes here, whether the run knows its class, and whether it starts."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import trio

from node.inference.client import CALIBRATE, EngineProcess
from node.inference.errors import EngineError
from node.inference.vllm.installed import check_version
from node.preflight.finding import CheckFinding, failure, ok, warning
from node.processes.forkserver import Anew, Starter
from protocol.errors import UNREADABLE, IntellectError
from protocol.run import RunSpec, VerificationSpec, encode_run

# Which engine will compute, whether it is here, and whether a run knows the classes that it computes as

NAMES = (sys.executable, "-m", "node.inference.options")


def check_engines(wanted: str, *, gpu: bool, own: str | None) -> CheckFinding:
    """Blocking. wanted: of the settings, auto included; own: another program that computes, which is not looked at."""
    if own:
        return ok("engines", f"another program computes: {own}", engine="own")
    try:
        here, why = check_version(), ""
    except EngineError as error:
        if wanted == "vllm":
            return failure("engines", f"{error.what}: {error.why}", error.remedy, engine="vllm")
        here, why = "", error.what
    engine = "vllm" if wanted == "vllm" or (wanted == "auto" and gpu and here) else "torch"
    asides = f"; {why}" if gpu and why and wanted == "auto" else ""
    return ok("engines", f"the engine is {engine}{asides}", engine=engine)


async def check_class(
    rules: VerificationSpec,
    role: str,
    options: Sequence[str] = (),
    starter: Starter | None = None,
    *,
    class_deadline: float = 120.0,
) -> CheckFinding:
    """Whether the run admits a class that this machine's own engine computes as: asked before a stake is put up for it,
    of a process that loads no model. options: the engine's."""
    try:
        with trio.fail_after(class_deadline):  # seconds: libraries that load on a busy machine
            said = await (starter or Anew()).said([*NAMES, *options])
        names = names_in(said)
    except (OSError, trio.TooSlowError, *UNREADABLE) as error:
        why = str(error)[:300] or f"nothing within {class_deadline:g} s"
        return warning("class", f"how this machine computes is not known: {why}", "run intellect-node doctor --engine")
    return judge_class(rules, role, names)


def names_in(said: bytes) -> list[str]:
    """The classes that a process of NAMES told. Raises msgspec's errors."""
    # The last line: libraries print what they like before it.
    return msgspec.json.decode(said.strip().split(b"\n")[-1], type=list[str])


def judge_class(rules: VerificationSpec, role: str, names: Sequence[str]) -> CheckFinding:
    """Pure. names: all classes that the machine offers, best first."""
    refused = [rules.blind(name) if role == "validator" else rules.objection(name) for name in names]
    fitting = [name for name, why in zip(names, refused, strict=True) if not why]
    data = {"classes": list(names), "admitted": list(rules.admitted)}
    if fitting:
        return ok("class", f"the run knows how this machine computes: {fitting[0]}", **data)
    what = f"this machine computes as {names[0]}: {refused[0]}; admitted: {', '.join(rules.admitted)}"[:500]
    return failure("class", what, CALIBRATE, **data)


# Whether the engine's child starts with the run and answers in time


async def check_engine(
    argv: Sequence[str], run: RunSpec, assets: Path, starter: Starter | None = None, *, deadline: float = 180.0
) -> CheckFinding:
    """Start it, wait until it is ready, ask whether the run admits it, stop it."""
    child = EngineProcess(argv, encode_run(run), assets, starter=starter)
    began = time.monotonic()
    try:
        with trio.fail_after(deadline):
            async with trio.open_nursery() as nursery:
                await nursery.start(child.run)
                child.check_permitted(run.verification)
                nursery.cancel_scope.cancel()
    except trio.TooSlowError:
        return failure("engine", f"it was not ready within {deadline:g} s", "look for what keeps this machine busy")
    except BaseExceptionGroup as group:
        expected, rest = group.split(IntellectError)
        if expected is None or rest is not None:
            raise
        return _refused(expected)
    seconds = time.monotonic() - began
    return ok("engine", f"{child.engine_name} was ready after {seconds:.1f} s", seconds=round(seconds, 1))


def _refused(group: BaseExceptionGroup[IntellectError]) -> CheckFinding:
    error = group.exceptions[0]
    if isinstance(error, BaseExceptionGroup):
        return _refused(error)
    return failure("engine", f"{error.what}: {error.why}", error.remedy)
