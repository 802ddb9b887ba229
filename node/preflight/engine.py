"""Whether the engine's child starts with the run and answers in time."""

import time
from collections.abc import Sequence
from pathlib import Path

import trio

from node.inference.client import EngineProcess
from node.preflight.finding import Finding, failure, ok
from protocol.errors import IntellectError
from protocol.run import RunSpec, encode_run

DEADLINE = 180.0


async def check_engine(argv: Sequence[str], run: RunSpec, assets: Path, deadline: float = DEADLINE) -> Finding:
    """Start it, wait until it is ready, ask whether the run admits it, stop it. deadline: seconds."""
    child = EngineProcess(argv, encode_run(run), assets)
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


def _refused(group: BaseExceptionGroup[IntellectError]) -> Finding:
    error = group.exceptions[0]
    if isinstance(error, BaseExceptionGroup):
        return _refused(error)
    return failure("engine", f"{error.what}: {error.why}", error.remedy)
