"""What the measurements of honest work and of cheats share: calibrated rules per model, and files looked at once.

Rules are calibrated with other problems and random numbers than those they are tried on, and kept in the working
directory. Two regimes: `float32` permits fp32 engines with either attention kernel; `mixed` permits bf16 ones, too.
"""

import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.proof_models import Subject
from node.calibration.calibrate import Plan, calibrate
from node.inference.settings import EngineSettings
from protocol.run import RunSpec, VerificationSpec

REGIMES: dict[str, tuple[EngineSettings, ...]] = {
    "float32": (EngineSettings(), EngineSettings(attention="eager")),
    "mixed": (
        EngineSettings(dtype="bfloat16"),
        EngineSettings(attention="eager"),
        EngineSettings(),
        EngineSettings(dtype="bfloat16", attention="eager"),
    ),
}
SAMPLES = {"small": 512, "large": 64}
_LARGE_ENGINES = 2
"""Of the large model's mixed regime: bf16 with sdpa and fp32 with eager attention, the two that differ most."""


def engines(subject: Subject, regime: str) -> tuple[EngineSettings, ...]:
    chosen = REGIMES[regime]
    return chosen[:_LARGE_ENGINES] if subject.name == "large" else chosen


def rules(subject: Subject, regime: str, work: Path, quick: bool) -> VerificationSpec:
    """The calibrated section of a run of this model, from the working directory if it is there."""
    path = work / subject.name / f"rules-{regime}{'-quick' if quick else ''}.json"
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=VerificationSpec)
    samples = SAMPLES[subject.name] // (2 if quick else 1)
    started = time.monotonic()
    plan = Plan(engines(subject, regime), samples, seed=1000)
    result, _ = calibrate(subject.run, subject.model, subject.environment(), plan, _say)
    path.write_bytes(msgspec.json.encode(result.verification))
    print(f"calibrated {subject.name}/{regime} in {time.monotonic() - started:.0f} s", file=sys.stderr)
    return result.verification


def under(subject: Subject, verification: VerificationSpec) -> RunSpec:
    """The subject's run with these rules."""
    return msgspec.structs.replace(subject.run, verification=verification)


def _say(stage: str, done: int, total: int) -> None:
    if done == total:
        print(f"  {stage}: {total}", file=sys.stderr, flush=True)


def show(rows: list[dict[str, Any]], title: str) -> None:
    """A plain table: the columns are the first row's keys."""
    columns = list(rows[0]) if rows else []
    cells = [columns, *([_text(row.get(name)) for name in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    print(f"\n{title}")
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
