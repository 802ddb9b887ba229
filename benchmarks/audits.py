"""Whether audits accuse honest steps, and see a group too many or too few: a real training, audited step by step.

    python -m benchmarks.audits [--steps 150] [--leaders float32 bfloat16] [--ways same vectors] [--toy sort] [--seed 1]
                                [--dir DIR] [--direction-every 5] [--quick] [--json]

A model learns at a desk, with a checkpoint at every step: `arithmetic` with one layer of 64, whose answers have two or
three tokens and whose policy moves by tenths of a nat a step, or `sort`, which is the demo's run with the demo's model.
Then each step is audited several ways:

    same       in the leader's arithmetic: replay is bit for bit
    vectors    with the processor's plain vector units (ATEN_CPU_CAPABILITY=default), as on another machine
    packing    one answer a row, in other passes
    float32    where the leader computes in bfloat16, on a GPU where there is one; on a processor, in other passes, with
               the plain vector units

`accused`: what tests call broken in honest steps. `undecided`: steps of which no test but the manifest's holds.
`worst`: the group's coefficient that lay farthest from the others', in standard deviations (6 accuse). Every tenth step
has two controls, of so many so many seen. `hidden`: it is audited against a batch that lacks one of its groups, as if
the leader had learnt from one that its manifest does not name. `left_out`: against one with a group more, as if the
leader had left that one out.

With --dir everything stays there, and a second call goes on: the training from its newest step, the audits after the
last one. What an interrupted call has found it prints. Direction costs most: by --direction-every 5 only each fifth
step has that test.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from benchmarks.command import parser_of, tell
from node.audit import desk
from node.audit import step as audit_step
from node.audit.findings import Audit, AuditFinding, Says
from node.environments.registry import load_environment
from node.inference.tokenizer import LocalTokenizer
from node.training.batch import Batch, BatchRow
from node.training.settings import TrainerSettings
from node.training.warmstart import SORT_ALPHABET, create_model, warm_start
from protocol.run import EnvironmentSpec

ROOT = Path(__file__).resolve().parent.parent
PLAIN = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
WAYS: Mapping[str, tuple[dict[str, Any], dict[str, str]]] = {
    "same": ({}, {}),
    "vectors": ({}, PLAIN),
    "packing": ({"packing": False, "micro_batch_tokens": 64}, {}),
    "float32": ({"device": "cpu", "dtype": "float32", "packing": False, "micro_batch_tokens": 64}, PLAIN),
}
"""Name -> the auditor's settings, its environment."""
OF = {"float32": ("same", "vectors", "packing"), "bfloat16": ("same", "float32")}
"""How each leader's steps are audited."""
CONTROL_EVERY, TOLD_EVERY = 10, 10
MOST_STEPS = 1000
"""As many checkpoints as a trainer keeps."""
HIDDEN, LAYERS, WARM_STEPS = 64, 1, 400
DEMO = ROOT / "cli" / "demo" / "sort.toml"
RUN = """
name = "audits"
model = "model"
dataset = "train.jsonl"
[environment]
name = "dataset"
args = { held_back_share = 0.1 }
[rollout]
group_size = 8
prompts_per_step = 24
prompts_per_file = 24
max_prompt_tokens = 16
max_output_tokens = 3
[recipe]
name = "intellect2"
steps = 1000
learning_rate = 3e-4
decay_steps = 0
[evaluation]
problems = 8
every = 100
"""


def main() -> None:
    parser = parser_of(__doc__, "three steps of one leader", "line")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--leaders", nargs="+", choices=list(OF), default=list(OF))
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--toy", choices=list(TOYS), default="arithmetic")
    parser.add_argument("--seed", type=int, default=0, help="of the start model and of the training")
    parser.add_argument("--direction-every", type=int, default=1, metavar="N")
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--audit", nargs=2, metavar=("DIR", "WAY"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.audit:
        audit_steps(Path(given.audit[0]), given.audit[1], given.steps, given.direction_every)
        return
    if not 1 <= given.steps <= MOST_STEPS:
        parser.error(f"--steps is 1 to {MOST_STEPS}")
    steps, leaders = (3, ["float32"]) if given.quick else (given.steps, given.leaders)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as name:
        place = given.dir or Path(name)
        if not (place / "run.toml").exists():
            _make_run(place, given.toy, given.seed)
        for row in rows(place, steps, leaders, given.ways, given.direction_every):
            print(
                json.dumps(row) if given.json else "  ".join(f"{what} {value}" for what, value in row.items()),
                flush=True,
            )


def rows(
    place: Path, steps: int, leaders: Sequence[str], ways: Sequence[str], direction_every: int
) -> Iterator[dict[str, Any]]:
    """One for each leader and way; after an interruption of what there is until then."""
    for leader in leaders:
        _train(place, leader, steps)
        for way in (way for way in OF[leader] if way in ways):
            told = ["--steps", str(steps), "--direction-every", str(direction_every)]
            stopped = False
            try:
                _run(["-m", "benchmarks.audits", "--audit", str(place / leader), way, *told], WAYS[way][1])
            except KeyboardInterrupt:
                stopped = True
            yield {"leader": leader, "auditor": way, **summary(_records(place / leader, way), steps)}
            if stopped:
                return


def _make_run(place: Path, toy: str, seed: int) -> None:
    """A model that answers some of its task, and the run file."""
    import torch

    torch.set_num_threads(1)
    place.mkdir(parents=True, exist_ok=True)
    text = TOYS[toy](place, seed)
    (place / "run.toml").write_text(text.replace("[recipe]", f"[recipe]\nseed = {seed}"))


def _arithmetic(place: Path, seed: int) -> str:
    from examples.make_arithmetic import ALPHABET
    from examples.make_arithmetic import rows as problems

    (place / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems()))
    spec = EnvironmentSpec(name="dataset", args={"path": "train.jsonl"})
    chosen = {"target": 0.2, "max_steps": WARM_STEPS, "check_every": 20, "max_output_tokens": 3}
    _teach(place, create_model(place / "model", ALPHABET, seed, HIDDEN, LAYERS), spec, seed, **chosen)
    return RUN


def _sort(place: Path, seed: int) -> str:
    spec = EnvironmentSpec(name="sort", args={"digits": 4})
    _teach(place, create_model(place / "model", SORT_ALPHABET, seed), spec, seed, target=0.25)
    return DEMO.read_text()


def _teach(place: Path, model: Any, spec: EnvironmentSpec, seed: int, **how: Any) -> None:
    environment = load_environment(spec, place, LocalTokenizer(place / "model"))
    accuracy = warm_start(place / "model", model, environment, seed=seed, **how)
    environment.close()
    tell(f"a model that answers {accuracy:.2f}")


TOYS: Mapping[str, Callable[[Path, int], str]] = {"arithmetic": _arithmetic, "sort": _sort}
"""Each makes a model there and returns its run file."""


def _train(place: Path, leader: str, steps: int) -> None:
    """Up to a step, or on to it."""
    directory = place / leader
    there = desk.Spool(directory / "spool").newest_step() if directory.exists() else None
    if there is not None and there >= steps:
        return
    tell(f"{leader}: {steps} steps of training, {there or 0} are there")
    settings = {"checkpoint_every": 1, "keep_checkpoints": MOST_STEPS, "dtype": leader}
    told = [part for name, value in settings.items() for part in ("--trainer", f"{name}={value}")]
    run = ["--resume"] if there is not None else ["--run", str(place / "run.toml"), "--no-report", *told]
    _run(["-m", "cli", "train", "--dir", str(directory), "--steps", str(steps), *run])


def _run(words: Sequence[str], environment: Mapping[str, str] = {}) -> None:
    """What it says on standard error stands there, too, where that is progress."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: exit code {done.returncode}")


# one leader's steps, audited one way, in a process of their own


def audit_steps(directory: Path, way: str, steps: int, direction_every: int) -> None:
    """Of the first so many steps of a training, in this process' arithmetic: those that were not looked at yet. One
    line of a file each."""
    begin = max((record["step"] for record in _records(directory, way)), default=-1) + 1
    real, check = desk._batch, audit_step.check_direction
    with _records_path(directory, way).open("a") as file:
        for step in range(begin, steps):
            began = time.process_time()
            if step % direction_every:
                audit_step.check_direction = _not_asked
            audit = desk.audit_at_desk(directory, step, _settings(directory, step, way))
            audit_step.check_direction = check
            record = _record(audit) | {"seconds": time.process_time() - began}
            if step % CONTROL_EVERY == 0:
                for name, change in CONTROLS.items():
                    with _changed(real, change, step):
                        control = desk.audit_at_desk(directory, step, _settings(directory, step, way))
                    record[name] = any(one.test == "direction" for one in control.broken)
            file.write(json.dumps(record) + "\n")
            file.flush()
            if step % TOLD_EVERY == 0:
                tell(f"{directory.name} audited by {way}: step {step} of {steps}")


def _not_asked(*_: Any, **__: Any) -> AuditFinding:
    return AuditFinding("direction", Says.UNDECIDED, "not asked")


def _settings(directory: Path, step: int, way: str) -> TrainerSettings | None:
    changes, _ = WAYS[way]
    if not changes:
        return None
    claims = desk._Claims(desk.Spool(directory / "spool"))
    return msgspec.structs.replace(desk.settings_for(claims.of(step).arithmetic), **changes)


def _record(audit: Audit) -> dict[str, Any]:
    return {
        "step": audit.step,
        "class": audit.own,
        "says": audit.says,
        "held": [one.test for one in audit.findings if one.says is Says.HOLDS],
        "broken": [f"step {audit.step}: {one.test}: {one.text}" for one in audit.broken],
        "figures": {f"{one.test}.{name}": value for one in audit.findings for name, value in one.figures.items()},
    }


def _records_path(directory: Path, way: str) -> Path:
    return directory / f"audits-{way}.jsonl"


def _records(directory: Path, way: str) -> list[dict[str, Any]]:
    path = _records_path(directory, way)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def summary(records: Sequence[dict[str, Any]], steps: int) -> dict[str, Any]:
    """A row of what was found."""
    records = [record for record in records if record["step"] < steps]
    figures = [record["figures"] for record in records]
    largest: dict[str, float] = {}
    for one in figures:
        for name, value in one.items():
            largest[name] = max(largest.get(name, 0.0), abs(value))
    asked = [one for one in figures if "direction.deviation" in one]
    accused = [text for record in records for text in record["broken"]]
    return {
        "class": ", ".join(sorted({record["class"] for record in records})),
        "steps": len(records),
        "accused": len(accused),
        "undecided": sum(record["says"] == Says.UNDECIDED for record in records),
        "held": dict(Counter(test for record in records for test in record["held"])),
        "groups": int(sum(one["direction.groups"] for one in asked)),
        "telling": int(sum(one["direction.telling"] for one in asked)),
        "worst": round(
            max((abs(one["direction.coefficient"]) / one["direction.deviation"] for one in asked), default=0), 2
        ),
        **{
            name: f"{sum(record[name] for record in records if name in record)} of "
            f"{sum(name in record for record in records)}"
            for name in CONTROLS
        },
        "seconds": round(sum(record["seconds"] for record in records) / max(len(records), 1), 2),
        "largest": {name: float(f"{value:.2g}") for name, value in sorted(largest.items())},
        "what": accused[:5],
    }


# controls: batches that are not what the leader learnt from

Control = Callable[[Batch, Callable[[int], Batch]], Batch]
"""(a step's batch, that of any step) -> what the audit takes it to be."""


@contextmanager
def _changed(real: Callable[..., Batch], change: Control, at: int) -> Iterator[None]:
    """Audits take the batch of step `at` to be another one."""

    def make(run: Any, spool: Any, directory: Path, claims: Any, step: int) -> Batch:
        batch = real(run, spool, directory, claims, step)
        return change(batch, partial(real, run, spool, directory, claims)) if step == at else batch

    with patch.object(desk, "_batch", make):
        yield


def _lacking(batch: Batch, _: Callable[[int], Batch]) -> Batch:
    """Without one of the groups whose answers differ in their rewards."""
    out = next((key for key, rows in _groups(batch).items() if len({row.reward for row in rows}) > 1), None)
    return Batch(batch.header, tuple(row for row in batch.rows if row.group_key != out))


def _with_another(batch: Batch, of: Callable[[int], Batch]) -> Batch:
    """With a group, of such, of the step before; at the first one of that after."""
    step = batch.header.step
    other = _groups(of(step - 1 if step else 1))
    more = next((rows for rows in other.values() if len({row.reward for row in rows}) > 1), [])
    free = max((row.group_key for row in batch.rows), default=0) + 1
    added = (msgspec.structs.replace(row, group_key=free, policy_step=min(row.policy_step, step)) for row in more)
    return Batch(batch.header, (*batch.rows, *added))


def _groups(batch: Batch) -> dict[Any, list[BatchRow]]:
    found: dict[Any, list[BatchRow]] = {}
    for row in batch.rows:
        found.setdefault(row.group_key, []).append(row)
    return found


CONTROLS: Mapping[str, Control] = {"hidden": _lacking, "left_out": _with_another}


if __name__ == "__main__":
    main()
