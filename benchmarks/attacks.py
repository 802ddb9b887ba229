"""How soon each cheat is found: hard cuts per file, and the sequential decision over files.

    python -m benchmarks.attacks [--models small,large] [--files 8] [--quick] [--json FILE]
    python -m benchmarks.attacks --models small --says zz/float32/sdpa --cheats "(honest),int8" [--unit avx2]

Every cheat of tests/cheats works for the trained model as a swarm's engine would, in two runs: one permits fp32
engines only (the cheat says that it is one), one permits bf16 ones, too (it says that it is one of those). An honest
validator whose own engine computes in fp32 looks at each file as it would in the swarm, in the arithmetic that the
worker states, and a second time in another one. `suspected`/`convicted` replay the decision with the files in random
order (with replacement), median of 50; `second` is what the other arithmetic alone suspects after: both must
agree before a stake is touched.

--says: every worker computes in this class's arithmetic and writes its name into the header, in both runs; hardware `*`
is this machine's, as its engine says it, any other is made up. --unit: workers compute with this vector unit, in a
process of their own; the validator is where the benchmark runs. Neither unit nor name need be calibrated.
"""

import functools
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np

from benchmarks.command import parser_of, save
from benchmarks.honest import REGIMES, rules, show, under
from benchmarks.proof_models import WORK, Subject, subjects
from node.inference.engines import torch_engine
from node.inference.inspect import inspect
from node.inference.session import Session
from node.inference.settings import EngineSettings
from node.inference.wire import Inspect, Inspected, Produce, Produced
from protocol.checks import OBJECTIVE, Reason
from protocol.decision import Decision, DecisionSpec, Level
from protocol.engines import arithmetic
from protocol.identity import NodeKey
from protocol.run import VerificationSpec
from protocol.statements import Outcome
from tests.cheats.catalogue import CHEATS, Cheat
from tests.cheats.sessions import Renamed

NODE = NodeKey(b"\x07" * 32).address
ROOTS = [bytes([step]) * 32 for step in range(5)]
HONEST = Cheat("nothing", frozenset({Reason.NONE}))
REPLAYS, PATIENCE = 50, 200
FILES = {"small": 20, "large": 4}
KINDS = {"(honest)": HONEST, **CHEATS}
WORKERS = {"float32": EngineSettings(), "mixed": EngineSettings(dtype="bfloat16")}
UNITS = {"avx512": "AVX512", "avx2": "AVX2"}


@dataclass(frozen=True, slots=True)
class Guise:
    """says: the class that headers state, hardware * for this machine's; unit: vector unit of the workers; empty: as
    they are."""

    says: str = ""
    unit: str = ""

    def settings(self, regime: str) -> EngineSettings:
        if not self.says:
            return WORKERS[regime]
        dtype, attention = arithmetic(self.says)
        return EngineSettings(dtype=dtype, attention=attention)

    def dress(self, session: Session) -> Session:
        """The session under the name that its headers are to state."""
        if self.says and not self.says.startswith("*/"):
            session.engine = Renamed(session.engine, self.says)
        return session


@dataclass(frozen=True, slots=True)
class Seen:
    """One file of one run. verdict: what a validator says; crossed: the same at a second look; tokens: of output."""

    verdict: Inspected
    crossed: Inspected
    tokens: int


def main() -> None:
    parser = parser_of(__doc__, "the small model, honest work and int8, two files")
    parser.add_argument("--models", default="small,large")
    parser.add_argument("--cheats", default="", help="only these, separated by commas")
    parser.add_argument("--files", type=int, default=0, help="per statistical cheat; default 20 small, 4 large")
    parser.add_argument("--says", default="", help="the class that headers state, such as zz/float32/sdpa")
    parser.add_argument("--unit", default="", choices=UNITS, help="the workers' vector unit; default: the machine's")
    parser.add_argument("--work", type=Path, default=WORK)
    a = parser.parse_args()
    if a.quick:
        a.models, a.cheats = "small", a.cheats or "(honest),int8"
    names = [name.strip() for name in a.cheats.split(",") if name.strip()]
    result: dict[str, Any] = {}
    for subject in subjects(a.work, a.models.split(",")):
        files = 2 if a.quick else a.files or FILES[subject.name]
        rows = attack(subject, a.work, files, a.quick, names, Guise(a.says, a.unit))
        show(rows, f"{subject.name}: {subject.parameters / 1e6:.1f} M parameters")
        result[subject.name] = {"parameters": subject.parameters, "rows": rows}
        save(a.json, result)


def attack(
    subject: Subject, work: Path, files: int, quick: bool, names: list[str], guise: Guise
) -> list[dict[str, Any]]:
    """One row per cheat, honest work first."""
    verifications = {regime: rules(subject, regime, work, quick) for regime in REGIMES}
    validators = {regime: open_session(Session, subject, verifications[regime], EngineSettings()) for regime in REGIMES}
    rows = []
    for name, cheat in KINDS.items():
        if names and name not in names:
            continue
        started = time.monotonic()
        exact = bool(cheat.reasons & OBJECTIVE)
        seen = {
            regime: try_cheat(name, subject, regime, validator, 1 if exact else files, guise)
            for regime, validator in validators.items()
        }
        rows.append({"cheat": name, **_row(cheat, seen, verifications)})
        print(f"  {name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return rows


def open_session(
    kind: type[Session], subject: Subject, verification: VerificationSpec, settings: EngineSettings
) -> Session:
    factory = functools.partial(torch_engine, settings=settings)
    session = kind(under(subject, verification), subject.assets, factory)
    images = [subject.four_before, *[subject.one_before] * 3, subject.model / "model.safetensors"]
    for root, image in zip(ROOTS, images, strict=True):
        session.keep(root, str(image))
    return session


def try_cheat(name: str, subject: Subject, regime: str, validator: Session, files: int, guise: Guise) -> list[Seen]:
    """The cheat's files as a validator sees them."""
    with tempfile.TemporaryDirectory() as folder:
        order = (name, subject, validator.run.verification, regime, guise, Path(folder), files)
        made = _elsewhere(*order) if guise.unit else produce_files(*order)
        return [_look(validator, index, one) for index, one in enumerate(made)]


def produce_files(
    name: str, subject: Subject, verification: VerificationSpec, regime: str, guise: Guise, folder: Path, files: int
) -> list[Produced]:
    """One worker's files, cheating in the way of this name."""
    cheat = KINDS[name]
    worker = guise.dress(open_session(cheat.session, subject, verification, guise.settings(regime)))
    orders = [
        Produce(policy_root=ROOTS[-1], node=NODE, pool=1, index=index, out_path=str(folder / str(index)))
        for index in range(files)
    ]
    made = [cheat.produce(worker, order) for order in orders]
    worker.close()
    return made


def _elsewhere(*order: Any) -> list[Produced]:
    """`produce_files` in a process whose kernels are chosen as on a machine with that vector unit."""
    unit = UNITS[order[4].unit]
    chosen = {"ATEN_CPU_CAPABILITY": unit.lower(), "MKL_ENABLE_INSTRUCTIONS": unit}
    if unit == "AVX2":
        chosen["ONEDNN_MAX_CPU_ISA"] = unit
    with patch.dict(os.environ, chosen), ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as machine:
        return machine.submit(produce_files, *order).result()


def _look(validator: Session, index: int, made: Produced) -> Seen:
    asked = Inspect(
        policy_root=ROOTS[-1],
        node=NODE,
        pool=1,
        index=index,
        units=made.units,
        path=made.path,
        report_path=f"{made.path}.report",
    )
    crossed = inspect(validator, msgspec.structs.replace(asked, second_look=True))
    return Seen(inspect(validator, asked), crossed, made.units)


def _row(cheat: Cheat, seen: dict[str, list[Seen]], verifications: dict[str, VerificationSpec]) -> dict[str, Any]:
    first = next(iter(seen.values()))
    row: dict[str, Any] = {"tokens/file": round(statistics.mean(one.tokens for one in first))}
    for regime, files in seen.items():
        rejected = [one for one in files if one.verdict.outcome != Outcome.ACCEPT]
        row[f"{regime}: rejected"] = f"{len(rejected)}/{len(files)}"
        row[f"{regime}: reason"] = Reason(rejected[0].verdict.reason).name.lower() if rejected else None
        if not cheat.reasons & OBJECTIVE:
            rules = verifications[regime].decision
            suspect, convict = files_until(rules, [one.verdict.evidence for one in files])
            second, _ = files_until(rules, [one.crossed.evidence for one in files])
            row[f"{regime}: suspected/convicted/second"] = f"{_files(suspect)}/{_files(convict)}/{_files(second)}"
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
