"""How often honest work is refused or suspected: proofs across attention kernels, compute types and batch sizes.

    python -m benchmarks.honest [--models small,large] [--quick] [--json FILE]

Every engine that the regime permits makes honest work (a quarter of it one sample at a time, the rest in batches), and
every one looks at all of it, under rules that were calibrated on other problems. A file here is as many samples as the
run's files have, drawn from the work at random; a worker is a sequence of 50 such files.
"""

import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.command import parser_of, save
from benchmarks.proof_models import WORK, Subject, subjects
from node.calibration.calibrate import CalibrationPlan, calibrate, look_at_honest_work
from node.inference.settings import EngineSettings
from protocol.checks import check_activations, check_sampling
from protocol.decision import Decision, Evidence, Likelihoods, SampleStatistics, SuspicionLevel, proof_distance
from protocol.run import VerificationSpec
from protocol.thresholds import Thresholds

SAMPLES = {"small": 384, "large": 48}
FILES, WORKERS, FILES_EACH = 50, 40, 50


def main() -> None:
    parser = parser_of(__doc__, "the small model, a quarter of the samples")
    parser.add_argument("--models", default="small,large")
    parser.add_argument("--samples", type=int, default=0, help="per engine; default 384 small, 48 large")
    parser.add_argument("--work", type=Path, default=WORK)
    a = parser.parse_args()
    if a.quick:
        a.models = "small"
    result: dict[str, Any] = {"rows": [], "proofs": 0, "false positives": 0}
    for subject in subjects(a.work, a.models.split(",")):
        for regime in REGIMES:
            samples = (a.samples or SAMPLES[subject.name]) // (4 if a.quick else 1)
            plan = CalibrationPlan(engines(subject, regime), samples, seed=7)
            looks = look_at_honest_work(subject.run, subject.model, subject.environment(), plan, lambda *_: None)
            verification = rules(subject, regime, a.work, a.quick)
            result["rows"] += [_row(subject, regime, name, seen, verification) for name, seen in looks.items()]
    result["proofs"] = sum(row["proofs"] for row in result["rows"])
    result["false positives"] = sum(row["proofs refused"] for row in result["rows"])
    show(result["rows"], "honest work (worker > verifier)")
    print(f"\n{result['proofs']} honest proofs, {result['false positives']} beyond the hard thresholds")
    save(a.json, result)


def _row(
    subject: Subject, regime: str, name: str, samples: list[SampleStatistics], verification: VerificationSpec
) -> dict[str, Any]:
    errors = [error for sample in samples for error in sample.errors]
    worker, _, verifier = name.partition(">")
    thresholds = verification.thresholds(worker, verifier)
    likelihoods = Likelihoods(verification.decision, verification.toploc_k, verifier, worker)
    ratios = likelihoods.of_samples(samples)
    random = np.random.default_rng(0)
    chosen = random.integers(len(samples), size=(FILES, subject.run.rollout.prompts_per_file))
    evidence = [
        Evidence(dict(zip(likelihoods.names, likelihoods.of_file(ratios[one]).tolist(), strict=True))) for one in chosen
    ]
    return {
        "model": subject.name,
        "permitted": regime,
        "work": name,
        "proofs": len(errors),
        "proofs refused": sum(check_activations([error], thresholds) is not None for error in errors),
        "most exponents": max(error.exponent_mismatches for error in errors),
        "distance": round(float(np.mean([proof_distance(error, verification.toploc_k) for error in errors])), 4),
        "mantissa mean, max": max(error.mantissa_mean for error in errors),
        "files refused": f"{sum(_refused([samples[i] for i in one], thresholds) for one in chosen)}/{FILES}",
        "workers suspected": f"{_suspected(verification, evidence)}/{WORKERS}",
    }


def _refused(file: list[SampleStatistics], thresholds: Thresholds) -> bool:
    return check_sampling(np.concatenate([sample.distances for sample in file]), thresholds) is not None


def _suspected(verification: VerificationSpec, evidence: list[Evidence]) -> int:
    random, suspected = np.random.default_rng(1), 0
    for _ in range(WORKERS):
        worker = Decision(verification.decision)
        levels = [worker.update(evidence[int(i)]).level for i in random.integers(len(evidence), size=FILES_EACH)]
        suspected += max(levels) >= SuspicionLevel.SUSPECT
    return suspected


# What the measurements of honest work and of cheats share: calibrated rules per model, and files looked at once.
# Rules are calibrated with other problems and random numbers than those they are tried on, and kept in the working
# directory. Two regimes: `float32` permits fp32 engines with either attention kernel; `mixed` permits bf16 ones, too.
REGIMES: dict[str, tuple[EngineSettings, ...]] = {
    "float32": (EngineSettings(), EngineSettings(attention="eager")),
    "mixed": (
        EngineSettings(dtype="bfloat16"),
        EngineSettings(attention="eager"),
        EngineSettings(),
        EngineSettings(dtype="bfloat16", attention="eager"),
    ),
}
LAB_SAMPLES = {"small": 512, "large": 64}
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
    samples = LAB_SAMPLES[subject.name] // (2 if quick else 1)
    started = time.monotonic()
    plan = CalibrationPlan(engines(subject, regime), samples, seed=1000)
    result, _ = calibrate(subject.run, subject.model, subject.environment(), plan, _say)
    path.write_bytes(msgspec.json.encode(result.verification))
    print(f"calibrated {subject.name}/{regime} in {time.monotonic() - started:.0f} s", file=sys.stderr)
    return result.verification


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


if __name__ == "__main__":
    main()
