"""How soon each cheat is found: hard cuts per file, and the sequential decision over files.

    python -m benchmarks.attacks [--models small,large] [--files 8] [--quick] [--json FILE]

Every cheat of tests/cheats works for the trained model as a swarm's engine would; its files are looked at by an
honest fp32 validator once, and judged under two sets of rules: the run permits fp32 engines only, or bf16 ones, too.
`files to suspect/convict` replays the decision with the files in random order (with replacement), median of 50.
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.proof_models import WORK, Subject, subjects
from benchmarks.verification_lab import REGIMES, rules, save, show, under
from node.inference.inspect import inspect
from node.inference.session import Session, torch_engine
from node.inference.wire import Inspect, Inspected, Produce
from protocol.checks import OBJECTIVE, Reason
from protocol.decision import Decision, DecisionSpec, Level
from protocol.identity import NodeKey
from protocol.statements import Outcome
from tests.cheats.catalogue import CHEATS, Cheat

NODE = NodeKey(b"\x07" * 32).address
ROOTS = [bytes([step]) * 32 for step in range(5)]
HONEST = Cheat("nothing", frozenset({Reason.NONE}))
REPLAYS, PATIENCE = 50, 200
FILES = {"small": 8, "large": 3}


@dataclass(frozen=True, slots=True)
class Seen:
    """One file in one regime."""

    verdict: Inspected
    tokens: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="small,large")
    parser.add_argument("--cheats", default="", help="only these, separated by commas")
    parser.add_argument("--files", type=int, default=0, help="per statistical cheat; default 8 small, 3 large")
    parser.add_argument("--quick", action="store_true", help="two files, smaller calibration")
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    names = [name.strip() for name in a.cheats.split(",") if name.strip()]
    result: dict[str, Any] = {}
    for subject in subjects(a.work, a.models.split(",")):
        files = 2 if a.quick else a.files or FILES[subject.name]
        rows = attack(subject, a.work, files, a.quick, names)
        show(rows, f"{subject.name}: {subject.parameters / 1e6:.1f} M parameters")
        result[subject.name] = {"parameters": subject.parameters, "rows": rows}
        save(a.json, result)


def attack(subject: Subject, work: Path, files: int, quick: bool, names: list[str]) -> list[dict[str, Any]]:
    """One row per cheat, honest work first."""
    verifications = {regime: rules(subject, regime, work, quick) for regime in REGIMES}
    validators = {regime: open_session(Session, subject, regime, verifications) for regime in REGIMES}
    rows = []
    for name, cheat in {"(honest)": HONEST, **CHEATS}.items():
        if names and name not in names:
            continue
        started = time.monotonic()
        exact = bool(cheat.reasons & OBJECTIVE)
        seen = try_cheat(cheat, subject, validators, 1 if exact else files)
        rows.append({"cheat": name, **_row(cheat, seen, verifications)})
        print(f"  {name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return rows


def open_session(kind: type[Session], subject: Subject, regime: str, verifications: dict[str, Any]) -> Session:
    session = kind(under(subject, verifications[regime]), subject.assets, torch_engine)
    images = [subject.four_before, *[subject.one_before] * 3, subject.model / "model.safetensors"]
    for root, image in zip(ROOTS, images, strict=True):
        session.keep(root, str(image))
    return session


def try_cheat(cheat: Cheat, subject: Subject, validators: dict[str, Session], files: int) -> dict[str, list[Seen]]:
    """The cheat's files as every validator sees them."""
    regimes = list(validators)
    worker = cheat.session(validators[regimes[0]].run, subject.assets, torch_engine)
    images = [subject.four_before, *[subject.one_before] * 3, subject.model / "model.safetensors"]
    for root, image in zip(ROOTS, images, strict=True):
        worker.keep(root, str(image))
    seen: dict[str, list[Seen]] = {regime: [] for regime in regimes}
    with tempfile.TemporaryDirectory() as folder:
        for index in range(files):
            order = Produce(
                policy_root=ROOTS[-1], node=NODE, pool=1, index=index, out_path=str(Path(folder) / str(index))
            )
            made = cheat.produce(worker, order)
            for regime, validator in validators.items():
                asked = Inspect(
                    policy_root=ROOTS[-1],
                    node=NODE,
                    pool=1,
                    index=index,
                    units=made.units,
                    path=made.path,
                    report_path=f"{made.path}.report",
                )
                seen[regime].append(Seen(inspect(validator, asked), made.units))
    worker.close()
    return seen


def _row(cheat: Cheat, seen: dict[str, list[Seen]], verifications: dict[str, Any]) -> dict[str, Any]:
    first = next(iter(seen.values()))
    row: dict[str, Any] = {"tokens/file": round(statistics.mean(one.tokens for one in first))}
    for regime, files in seen.items():
        rejected = [one for one in files if one.verdict.outcome != Outcome.ACCEPT]
        row[f"{regime}: files rejected"] = f"{len(rejected)}/{len(files)}"
        row["reason"] = row.get("reason") or (Reason(rejected[0].verdict.reason).name if rejected else None)
        if not cheat.reasons & OBJECTIVE:
            evidence = [one.verdict.evidence for one in files]
            suspect, convict = files_until(verifications[regime].decision, evidence)
            row[f"{regime}: suspect/convict"] = f"{_files(suspect)}/{_files(convict)}"
    return row


def files_until(spec: DecisionSpec, evidence: list[Any]) -> tuple[float, float]:
    """Median files until suspicion and conviction; inf if not within PATIENCE."""
    random = np.random.default_rng(0)
    found: list[tuple[float, float]] = []
    for _ in range(REPLAYS):
        worker, suspect, convict = Decision(spec), np.inf, np.inf
        for number in range(1, PATIENCE + 1):
            level = worker.update(evidence[int(random.integers(len(evidence)))]).level
            suspect = min(suspect, number) if level >= Level.SUSPECT else suspect
            if level >= Level.CONVICTED:
                convict = number
                break
            if level == Level.CLEARED and number > 50:
                break
        found.append((float(suspect), float(convict)))
    return statistics.median(one for one, _ in found), statistics.median(other for _, other in found)


def _files(count: float) -> str:
    return "never" if count == np.inf else f"{count:g}"


if __name__ == "__main__":
    main()
