"""Whether audits accuse honest steps, and see one group too many: a real training, each step audited several ways.

    python -m benchmarks.audits [--steps 150] [--leaders float32 bfloat16] [--quick] [--json]

A model learns arithmetic at a desk (examples/arithmetic.toml, a checkpoint at every step). Then every step is audited:

    same       in the leader's arithmetic: replay is bit for bit
    vectors    with the processor's plain vector units (ATEN_CPU_CAPABILITY=default), as on another machine
    packing    one answer a row, in other passes
    float32    where the leader computes in bfloat16

`accused`: what tests call broken in honest steps. `undecided`: steps of which no test but the manifest's holds.
`worst`: the group's coefficient that lay farthest from the others', in standard deviations (6 accuse). `control`: every
tenth step is audited against a batch that lacks one of its groups, as if the leader had learnt from one that its
manifest does not name: of so many, so many seen.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.command import parser_of
from node.audit import desk
from node.audit.findings import Says
from node.training.batch import Batch
from node.training.settings import TrainerSettings

ROOT = Path(__file__).resolve().parent.parent
PLAIN = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
WAYS: Mapping[str, tuple[dict[str, Any], dict[str, str]]] = {
    "same": ({}, {}),
    "vectors": ({}, PLAIN),
    "packing": ({"packing": False, "micro_batch_tokens": 64}, {}),
    "float32": ({"dtype": "float32"}, {}),
}
"""Name -> the auditor's settings, its environment."""
OF = {"float32": ("same", "vectors", "packing"), "bfloat16": ("same", "float32")}
"""How each leader's steps are audited."""
CONTROL_EVERY = 10


def main() -> None:
    parser = parser_of(__doc__, "three steps of one leader", "line")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--leaders", nargs="+", choices=list(OF), default=list(OF))
    parser.add_argument("--audit", nargs=2, metavar=("DIR", "WAY"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.audit:
        print(json.dumps(audited(Path(given.audit[0]), given.audit[1], given.steps)))
        return
    steps, leaders = (3, ["float32"]) if given.quick else (given.steps, given.leaders)
    with tempfile.TemporaryDirectory() as name:
        for row in rows(Path(name), steps, leaders):
            print(
                json.dumps(row) if given.json else "  ".join(f"{what} {value}" for what, value in row.items()),
                flush=True,
            )


def rows(place: Path, steps: int, leaders: Sequence[str]) -> Any:
    """One for each leader and way."""
    shutil.copy(ROOT / "examples" / "arithmetic.toml", place)
    _run(["-m", "examples.make_arithmetic", "--out", str(place / "arithmetic")])
    for leader in leaders:
        settings = {"checkpoint_every": 1, "keep_checkpoints": min(steps + 1, 1000), "dtype": leader}
        told = [part for name, value in settings.items() for part in ("--trainer", f"{name}={value}")]
        directory = place / leader
        run = ["--run", str(place / "arithmetic.toml"), "--dir", str(directory), "--steps", str(steps), "--no-report"]
        _run(["-m", "cli", "train", *run, *told])
        for way in OF[leader]:
            said = _run(
                ["-m", "benchmarks.audits", "--audit", str(directory), way, "--steps", str(steps)], WAYS[way][1]
            )
            yield {"leader": leader, "auditor": way, **json.loads(said.splitlines()[-1])}
        shutil.rmtree(directory)


def _run(words: Sequence[str], environment: Mapping[str, str] = {}) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr[-2000:]}{done.stdout[-2000:]}")
    return done.stdout


def audited(directory: Path, way: str, steps: int) -> dict[str, Any]:
    """Of the first so many steps of a training, in this process' arithmetic."""
    accused, undecided, controls, seen = list[str](), 0, 0, 0
    groups, telling, worst, figures, seconds = 0, 0, 0.0, dict[str, float](), 0.0
    classes = set[str]()
    real = desk._batch
    for step in range(steps):
        audit = desk.audit_at_desk(directory, step, _settings(directory, step, way))
        classes.add(audit.own)
        accused += [f"step {step}: {one.test}: {one.text}" for one in audit.broken]
        undecided += audit.says is Says.UNDECIDED
        seconds += sum(audit.seconds.values())
        for one in audit.findings:
            if one.test == "direction" and "deviation" in one.figures:
                groups, telling = groups + int(one.figures["groups"]), telling + int(one.figures["telling"])
                worst = max(worst, abs(one.figures["coefficient"]) / one.figures["deviation"])
            for name, value in one.figures.items():
                figures[f"{one.test}.{name}"] = max(figures.get(f"{one.test}.{name}", 0.0), abs(value))
        if step % CONTROL_EVERY == 0:
            desk._batch = partial(_lacking, real, step)
            lacking = desk.audit_at_desk(directory, step, _settings(directory, step, way))
            desk._batch = real
            controls += 1
            seen += any(one.test == "direction" for one in lacking.broken)
    return {
        "class": ", ".join(sorted(classes)),
        "steps": steps,
        "accused": len(accused),
        "undecided": undecided,
        "groups": groups,
        "telling": telling,
        "worst": round(worst, 2),
        "control": f"{seen} of {controls}",
        "seconds": round(seconds / max(steps, 1), 2),
        "largest": {name: float(f"{value:.2g}") for name, value in sorted(figures.items())},
        "what": accused[:5],
    }


def _settings(directory: Path, step: int, way: str) -> TrainerSettings | None:
    changes, _ = WAYS[way]
    if not changes:
        return None
    claims = desk._Claims(desk.Spool(directory / "spool"))
    return msgspec.structs.replace(desk.settings_for(claims.of(step).arithmetic), **changes)


def _lacking(real: Any, at: int, run: Any, spool: Any, directory: Path, claims: Any, step: int) -> Batch:
    """The batch of a step, at step `at` without one of the groups whose answers differ in their rewards."""
    batch = real(run, spool, directory, claims, step)
    if step != at:
        return batch
    rewards: dict[Any, set[float]] = {}
    for row in batch.rows:
        rewards.setdefault(row.group_key, set()).add(row.reward)
    out = next((key for key, found in rewards.items() if len(found) > 1), None)
    return Batch(batch.header, tuple(row for row in batch.rows if row.group_key != out))


if __name__ == "__main__":
    main()
