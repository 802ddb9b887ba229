"""Which engine will compute, whether it is here, and whether a run knows the classes that it computes as."""

import sys
from collections.abc import Sequence

import msgspec
import trio

from node.inference.client import CALIBRATE
from node.inference.errors import EngineError
from node.inference.vllm.installed import check_version
from node.preflight.finding import Finding, failure, ok, warning
from protocol.run import VerificationSpec

NAMES = (sys.executable, "-m", "node.inference.wish")
DEADLINE = 120.0
"""Seconds: libraries that load on a busy machine."""


def check_engines(wanted: str, *, gpu: bool, own: str | None) -> Finding:
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


async def check_class(rules: VerificationSpec, role: str, options: Sequence[str] = ()) -> Finding:
    """Whether the run admits a class that this machine's own engine computes as: asked before a stake is put up for it,
    of a process that loads no model. options: the engine's."""
    try:
        with trio.fail_after(DEADLINE):
            done = await trio.run_process([*NAMES, *options], capture_stdout=True, capture_stderr=True, check=False)
        names = msgspec.json.decode(done.stdout.strip().split(b"\n")[-1], type=list[str])
    except (OSError, trio.TooSlowError, msgspec.MsgspecError) as error:
        why = str(error)[:300] or f"nothing within {DEADLINE:g} s"
        return warning("class", f"how this machine computes is not known: {why}", "run intellect-node doctor --engine")
    return judge_class(rules, role, names)


def judge_class(rules: VerificationSpec, role: str, names: Sequence[str]) -> Finding:
    """Pure. names: all classes that the machine offers, best first."""
    refused = [rules.blind(name) if role == "validator" else rules.objection(name) for name in names]
    fitting = [name for name, why in zip(names, refused, strict=True) if not why]
    data = {"classes": list(names), "admitted": list(rules.admitted)}
    if fitting:
        return ok("class", f"the run knows how this machine computes: {fitting[0]}", **data)
    what = f"this machine computes as {names[0]}: {refused[0]}; admitted: {', '.join(rules.admitted)}"[:500]
    return failure("class", what, CALIBRATE, **data)
