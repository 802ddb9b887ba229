"""Curves of several seeds and two tasks: this desk, a swarm and TRL's GRPO trainer, with equal budgets, in one run.

    python -m benchmarks.curves [--seeds 0,1,2] [--steps 80] [--tasks sort,arithmetic] [--sides desk,swarm,trl]
                                [--resume FILE] [--trl FOLDER] [--quick] [--json FILE]

A seed makes the start model (of `arithmetic` the rows, too) and draws the training, so the spread is over both. Equal
on all sides: start model, problems and answers a step, steps, learning rate and its decay, AdamW's numbers, clipping,
temperature, longest answer, scorer. The image of each step, in bfloat16, answers the held-back problems that our
evaluator draws for this seed and step; the last figure is the mean of the last ten steps' rewards.

CPU seconds are of all processes of a side; ours evaluate in them, TRL's have its evaluations taken out. TRL is
installed into --trl (once) and computes with this environment's torch and transformers, as we do. With --resume a
killed run goes on.
"""

import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.command import parser_of, save, tell
from node.looked import looked

ROOT = Path(__file__).resolve().parents[1]
TRL = ("trl==1.16.0", "datasets==5.2.0", "dill==0.4.1", "multiprocess==0.70.19", "xxhash==4.1.0", "pandas==3.1.1")
Side = Literal["desk", "swarm", "trl"]
Task = Literal["sort", "arithmetic"]


class Curve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """rewards: of steps 0 to the last. cpu, wall: seconds."""

    task: Task
    side: Side
    seed: int
    rewards: tuple[float, ...]
    cpu: float
    wall: float

    @property
    def first(self) -> float:
        return statistics.mean(self.rewards[:10])

    @property
    def last(self) -> float:
        return statistics.mean(self.rewards[-10:])


class Start:
    """What all sides of a task and seed begin with: a run file whose model and rows lie beside it."""

    def __init__(self, task: Task, seed: int, steps: int, folder: Path) -> None:
        self.task, self.seed, self.steps, self.folder = task, seed, steps, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.model = folder / "model"
        if task == "sort":
            self.run = ROOT / "cli/demo/sort.toml"
            _call("node.training.warmstart", "--out", str(self.model), "--seed", str(seed))
        else:
            self.run = ROOT / "examples/arithmetic.toml"
            _call("examples.make_arithmetic", "--out", str(folder), "--seed", str(seed))

    @property
    def settings(self) -> list[str]:
        """Of the run file, for all sides."""
        told = {
            "model": self.model,
            "recipe.steps": self.steps,
            "recipe.decay_steps": self.steps,
            "recipe.seed": self.seed,
        }
        if self.task == "arithmetic":
            told["dataset"] = self.folder / "train.jsonl"
        # No goal ends a run before its last step.
        return [f"{name}={value}" for name, value in told.items()] + ["recipe.target_reward=1.0", "evaluation.every=1"]


def _call(module: str, *words: str, extra: Path | None = None) -> None:
    """extra: a folder of packages beside this environment's. Raises SystemExit with its last words."""
    paths = [str(ROOT), *([str(extra)] if extra else []), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stdout[-2000:] + done.stderr[-4000:])
        raise SystemExit(f"{module} ended with {done.returncode}")


def rewards_of(metrics: Path) -> tuple[float, ...]:
    """Held-back rewards by step. Raises SystemExit where one is missing: a curve with holes proves nothing."""
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    found = {one["step"]: one["eval_reward"] for one in lines if one.get("eval_reward") is not None}
    if sorted(found) != list(range(len(found))):
        raise SystemExit(f"{metrics} has no evaluation of some steps: {sorted(found)}")
    return tuple(found[step] for step in range(len(found)))


def desk(start: Start, folder: Path) -> tuple[float, ...]:
    sets = [word for one in start.settings for word in ("--set", one)]
    _call("cli", "train", "--run", str(start.run), *sets, "--dir", str(folder), "--no-report")
    return rewards_of(folder / "metrics.jsonl")


def swarm(start: Start, folder: Path) -> tuple[float, ...]:
    """Two workers and a validator, all honest. The demo makes its own start model of the seed, as `Start` does."""
    own = start.task == "sort"
    keep = [one for one in start.settings if not (own and one.startswith(("model=", "recipe.target")))]
    sets = [word for one in keep for word in ("--set", one)]
    run = [] if own else ["--run", str(start.run)]
    # The options win over a run file's: without --steps the demo's own run would end at its goal.
    plain = [
        "--steps",
        str(start.steps),
        "--seed",
        str(start.seed),
        "--no-cheat",
        "--no-kill",
        "--no-page",
        "--no-view",
    ]
    _call("cli", "demo", *run, *sets, *plain, "--dir", str(folder))
    return rewards_of(folder / "report" / "metrics.jsonl")


def trl(start: Start, folder: Path, installed: Path) -> tuple[tuple[float, ...], float]:
    """The rewards, and the CPU seconds of the evaluations among its own."""
    folder.mkdir(parents=True)
    out = folder / "curve.json"
    job = {"run": str(start.run), "sets": start.settings, "out": str(out), "folder": str(folder)}
    _call("benchmarks.curves_trl", json.dumps(job), extra=installed)
    found = json.loads(out.read_text(encoding="utf-8"))
    return tuple(found["rewards"]), found["evaluating"]


def install(folder: Path) -> Path:
    """TRL and what it needs beside this environment. Raises CalledProcessError."""
    if not (folder / "ready").exists():
        tell(f"installing {TRL[0]} into {folder} (once)")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *TRL]
        subprocess.run(command, check=True)
        (folder / "ready").touch()
    return folder


def adopt() -> None:
    """Orphans below become this process's children (Linux): else what a killed daemon's engine took is nobody's."""
    set_child_subreaper = 36  # linux/prctl.h
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def spent() -> float:
    """CPU seconds of all processes below, once they have ended."""

    def ended() -> bool:
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return True
        return False

    looked(ended, 0.1, 30.0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def play(side: Side, start: Start, scratch: Path, rival: Path) -> Curve:
    folder = scratch / f"{start.task}-{start.seed}-{side}"
    cpu, began, evaluating = spent(), time.monotonic(), 0.0
    if side == "trl":
        rewards, evaluating = trl(start, folder, rival)
    else:
        rewards = desk(start, folder) if side == "desk" else swarm(start, folder)
    if len(rewards) != start.steps + 1:
        raise SystemExit(f"{folder} ended after step {len(rewards) - 1} of {start.steps}")
    wall = time.monotonic() - began
    return Curve(start.task, side, start.seed, rewards, spent() - cpu - evaluating, wall)


def report(curves: Sequence[Curve]) -> None:
    cells = defaultdict[tuple[Task, Side], list[Curve]](list)
    for one in curves:
        cells[one.task, one.side].append(one)
    print(f"{'task':12}{'side':8}{'seeds':>6}{'first ten':>18}{'last ten':>18}{'CPU s a step':>16}")
    for (task, side), some in sorted(cells.items()):
        steps = len(some[0].rewards) - 1
        columns = (_spread([one.first for one in some]), _spread([one.last for one in some]))
        cpu = _spread([one.cpu / steps for one in some], 2)
        print(f"{task:12}{side:8}{len(some):6}{columns[0]:>18}{columns[1]:>18}{cpu:>16}")


def _spread(values: Sequence[float], places: int = 3) -> str:
    """Mean and standard deviation over seeds."""
    around = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{places}f} +- {around:.{places}f}"


def main() -> None:
    parser = parser_of(__doc__, "one seed of `sort`, 4 steps, at a desk and in a swarm")
    parser.add_argument("--seeds", default="0,1,2", metavar="LIST")
    parser.add_argument("--steps", type=int, default=80, metavar="N")
    parser.add_argument("--tasks", default="sort,arithmetic", metavar="LIST")
    parser.add_argument("--sides", default="desk,swarm,trl", metavar="LIST")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="a line for each curve; those in it are not played")
    parser.add_argument("--trl", type=Path, default=ROOT / "build" / "trl", metavar="FOLDER")
    given = parser.parse_args()
    if given.quick:
        given.seeds, given.steps, given.tasks, given.sides = "0", 4, "sort", "desk,swarm"
    lists = (given.seeds.split(","), given.tasks.split(","), given.sides.split(","))
    wanted = msgspec.convert(list(product(*lists)), list[tuple[int, Task, Side]], strict=False)
    played = list[Curve]()
    if given.resume and given.resume.exists():
        played = [msgspec.json.decode(line, type=Curve) for line in given.resume.read_bytes().splitlines()]
    done = {(one.task, one.side, one.seed) for one in played if len(one.rewards) == given.steps + 1}
    starts: dict[tuple[Task, int], Start] = {}
    adopt()
    with tempfile.TemporaryDirectory(prefix="curves-") as name:
        for seed, task, side in wanted:
            if (task, side, seed) in done:
                continue
            rival = install(given.trl) if side == "trl" else given.trl
            at = task, seed
            if at not in starts:
                starts[at] = Start(*at, given.steps, Path(name) / f"{task}-{seed}")
            curve = play(side, starts[at], Path(name), rival)
            gained = f"{curve.first:.3f} -> {curve.last:.3f}"
            tell(f"{curve.task} {curve.side} seed {curve.seed}: {gained}, {curve.cpu:.0f} CPU s")
            played.append(curve)
            if given.resume:
                with given.resume.open("ab") as out:
                    out.write(msgspec.json.encode(curve) + b"\n")
    report([one for one in played if len(one.rewards) == given.steps + 1])
    save(given.json, [msgspec.to_builtins(one) for one in played])


if __name__ == "__main__":
    main()
