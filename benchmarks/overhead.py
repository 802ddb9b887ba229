"""Where a swarm's processor time goes: by process and kind, per step *and* per second, beside a desk that learns alike.

    python -m benchmarks.overhead [--steps 30] [--desk 12] [--still 10] [--run FILE] [--quick] [--json]

The swarm is `intellect-node demo --no-cheat --steps S`: a trainer, two workers and a validator, each a real daemon.
Each process counts itself (`benchmarks/counted`): the loop's turns and what its tasks take, jobs for threads, fsyncs,
requests to other nodes, questions to the chain, readings of rollout files. Counted is from step 4 on. Then engines,
learner and evaluator are stopped (SIGSTOP) for a while: what daemons take meanwhile is theirs *per second*, and what is
left of the time before is theirs *per step*. A step of 0.54 s has both. The desk is `intellect-node train` with the
demo's run file and start model: all its processes together. Counts are nearly the same however loaded the machine is;
times are not, so versions are compared by turns. What each process has in memory for itself is told at steps 40, 120
and 200, where a run is so long: what grows from the second to the third is kept. --run takes the run.toml of an earlier
demo's directory: its start model need not be taught again.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.command import parser_of, tell
from benchmarks.counted.counters import counted_children, read
from benchmarks.watching import Demo

FIRST = 4
"""Steps until a swarm has found its pace."""
BEHIND = 4
"""And so many that are left when its processes are stopped: a learner that is done has ended."""
SETTLES = 2.0
MARKS = (40, 120, 200)
"""Steps at which the memory of all processes is told."""
LOOK_SECONDS = 0.1
USUAL = 0.54
"""Seconds of a demo's step where nothing else computes."""
COUNTS = ("thread jobs", "fsyncs", "fsyncs on the loop", "turns", "requests", "questions")
A_SECOND = ("questions of", "asked for", "jobs of, idle", "woken, idle", "us, idle")
JOINING = ("values:read_report", "ingest:Ingest._join", "stating:make.made", "values:_sorted")
"""The trainer's jobs over one file."""


@dataclass
class Look:
    """At one moment. counts: of each daemon; seconds: of the processor, of daemons and of what computes for them."""

    at: float
    step: int
    counts: dict[str, Counter[str]]
    daemons: dict[str, float]
    computing: dict[str, float]
    others: float

    @classmethod
    def at_daemons(cls, demo: Demo, folder: Path, pids: Mapping[str, int]) -> "Look":
        daemons, computing, others = dict.fromkeys(pids, 0.0), dict.fromkeys(pids, 0.0), 0.0
        for process, owner in _owned(demo.process.pid, pids):
            seconds = _seconds(process)
            if owner and process.pid == pids[owner]:
                daemons[owner] = seconds
            elif owner:
                computing[owner] += seconds
            else:
                others += seconds
        counts = {name: Counter(read(folder / str(pid))) for name, pid in pids.items()}
        return cls(time.monotonic(), newest(demo), counts, daemons, computing, others)

    def since(self, before: "Look") -> "Look":
        return Look(
            self.at - before.at,
            self.step - before.step,
            {name: count - before.counts[name] for name, count in self.counts.items()},
            {name: seconds - before.daemons[name] for name, seconds in self.daemons.items()},
            {name: seconds - before.computing[name] for name, seconds in self.computing.items()},
            self.others - before.others,
        )


def _owned(top: int, pids: Mapping[str, int]) -> Iterator[tuple[psutil.Process, str]]:
    """All processes of a demo, and whose they are: of a daemon's guardian, which forked what computes for it, too."""
    guardians = {psutil.Process(pid).ppid(): name for name, pid in pids.items()}
    for process in [psutil.Process(top), *psutil.Process(top).children(recursive=True)]:
        try:
            owner = next((guardians[one.pid] for one in process.parents() if one.pid in guardians), "")
        except psutil.NoSuchProcess:
            continue
        yield process, owner


def _seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system


def newest(demo: Demo) -> int:
    """The newest policy, by the trainer's spool: a question to a daemon would be counted."""
    steps = (demo.state_dir("trainer") / "spool" / "out").glob("step-*.json")
    return max((int(path.stem.removeprefix("step-")) for path in steps), default=-1)


def ages(demo: Demo, first: int, last: int) -> float:
    """Mean age of what steps learnt from, in steps."""
    rows = Counter[int]()
    for step in range(first + 1, last + 1):
        path = demo.state_dir("trainer") / "spool" / "out" / f"step-{step:06d}.json"
        rows.update({int(age): many for age, many in json.loads(path.read_bytes()).get("staleness", {}).items()})
    return sum(age * many for age, many in rows.items()) / max(rows.total(), 1)


def private_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def memory_of(demo: Demo, pids: Mapping[str, int]) -> dict[str, dict[str, float]]:
    """Private MB of each daemon, and of what computes for it, the largest first, as far as they live."""
    found: dict[str, dict[str, float]] = {name: {} for name in pids}
    for process, owner in _owned(demo.process.pid, pids):
        with suppress(OSError):
            if owner:
                kind = "daemon" if process.pid == pids[owner] else f"child {process.pid}"
                found[owner][kind] = round(private_mb(process.pid), 1)
    return {
        name: dict(sorted(row.items(), key=lambda one: (one[0] != "daemon", -one[1]))) for name, row in found.items()
    }


@contextmanager
def stopped(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Engines and learners; one that has ended meanwhile is none any more."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()


def swarm(steps: int, still: float, run: Path | None, place: Path) -> dict[str, Any]:
    flags = ["--steps", str(steps + BEHIND), *(["--run", str(run.resolve())] if run else [])]
    counts = place / "counts"
    with counted_children(counts), Demo(place / "demo", *flags) as demo:
        demo.until(lambda: newest(demo) >= 0)
        pids = demo.until(lambda: _pids(demo))
        demo.until(lambda: newest(demo) >= FIRST)
        first, memory = Look.at_daemons(demo, counts, pids), list[float]()
        marked: dict[int, dict[str, dict[str, float]]] = {}
        tell(f"step {first.step}: counted from here")
        while newest(demo) < steps:
            demo.check()
            time.sleep(max(LOOK_SECONDS, still / 20))
            memory.append(private_mb(pids["trainer"]))
            for mark in [one for one in MARKS if one <= newest(demo) and one not in marked]:
                marked[mark] = memory_of(demo, pids)
                tell(f"private MB at step {mark}: {marked[mark]}")
        last = Look.at_daemons(demo, counts, pids)
        tell(f"step {last.step}: stopped for {still:g} s")
        computing = [one for one, owner in _owned(demo.process.pid, pids) if owner and one.pid != pids[owner]]
        with stopped(computing):
            time.sleep(SETTLES)
            before = Look.at_daemons(demo, counts, pids)
            time.sleep(still)
            idle = Look.at_daemons(demo, counts, pids).since(before)
        took = last.since(first)
        found = told(took, idle)
        found["trainer"]["mean age"] = round(ages(demo, first.step, last.step), 2)
        half = memory[len(memory) // 2 :]
        each = (half[-1] - half[0]) / max(took.step / 2, 1) if half else 0.0
        found["trainer"] |= {"private MB": round(memory[-1], 1), "MB a step": round(each, 3)}
        found["private MB at step"] = marked
        found["modules"] = {name: count["modules"] for name, count in last.counts.items()}
        tell("the swarm is done with")
    return found


def _pids(demo: Demo) -> dict[str, int] | None:
    said = {name: demo.status(name) for name in demo.nodes}
    if len(said) < 4 or not all(status and status.node.role and status.node.pid for status in said.values()):
        return None
    return {name: status.node.pid for name, status in said.items() if status}


def told(took: Look, idle: Look) -> dict[str, Any]:
    """A step's and a second's, of a window with steps and one without."""
    steps, seconds, rest = took.step, took.at, idle.at

    def usual(busy: float, still: float) -> float:
        """A step of USUAL seconds, of what was counted in the window and while nothing computed."""
        each = still / rest
        return round((busy - each * seconds) / steps + each * USUAL, 1)

    all_of, still = sum(took.counts.values(), Counter[str]()), sum(idle.counts.values(), Counter[str]())
    rows = {
        name: {
            "ms a step": round(1000 * (took.daemons[name] - idle.daemons[name] * seconds / rest) / steps, 1),
            "ms a second": round(1000 * idle.daemons[name] / rest, 1),
            "computing, ms a step": round(1000 * took.computing[name] / steps, 1),
        }
        | {what: usual(took.counts[name][what], idle.counts[name][what]) for what in COUNTS[:-1]}
        | {"questions a second": round(took.counts[name]["questions"] / seconds, 2)}
        for name in took.daemons
    }
    files = took.counts["trainer"]["files read"]
    jobs = sum(
        many for name, many in took.counts["trainer"].items() if name.startswith("job ") and name.endswith(JOINING)
    )
    joined = max(sum(many for name, many in took.counts["trainer"].items() if name == JOINED), 1)
    return {
        "steps": steps,
        "seconds a step": round(seconds / steps, 2),
        "daemons": rows,
        "a step of 0.54 s": {what: usual(all_of[what], still[what]) for what in COUNTS[:-1]},
        "a second, idle": {what: round(still[what] / rest, 1) for what in COUNTS},
        "ms": {
            "a step": round(sum(row["ms a step"] for row in rows.values()), 1),
            "a second": round(sum(row["ms a second"] for row in rows.values()), 1),
            "of all else (chain, demo) a step": round(1000 * took.others / steps, 1),
        },
        "trainer": {"files": joined, "ms a file": round(jobs / 1000 / joined, 2), "readings": round(files / joined, 2)},
        "kinds": kinds(all_of, steps),
        "fsyncs of": by_kind(all_of, "fsync ", steps),
        "questions of": by_kind(all_of, "question ", seconds),
        "asked for": by_kind(all_of, "asked ", seconds),
        "jobs of": by_kind(all_of, "jobs ", steps),
        "jobs of, idle": by_kind(still, "jobs ", rest),
        "woken, idle": by_kind(still, "woke ", rest),
        "us, idle": by_kind(still, "task ", rest) | by_kind(still, "job ", rest),
    }


def by_kind(counts: Counter[str], kind: str, over: float) -> dict[str, float]:
    return {
        name.removeprefix(kind): round(many / over, 2)
        for name, many in counts.most_common()
        if name.startswith(kind) and many
    }


JOINED = "jobs node.services.training.ingest:Ingest._join"


def kinds(counts: Counter[str], steps: int) -> dict[str, float]:
    """ms a step on the loops by the tasks' modules, and in threads by the jobs' functions."""
    found = Counter[str]()
    for name, many in counts.items():
        kind, _, of = name.partition(" ")
        if kind in ("task", "job"):
            found[f"{'loop' if kind == 'task' else 'thread'} {of}"] += many
    found["loop trio itself"] = counts["loop us"] - sum(n for name, n in found.items() if name.startswith("loop "))
    return {name: round(many / 1000 / steps, 2) for name, many in found.most_common()}


def desk(steps: int, run: Path, place: Path) -> dict[str, float]:
    """The same run at a desk: processor milliseconds a step of all its processes."""
    command = [sys.executable, "-m", "cli", "train", "--run", str(run), "--dir", str(place), "--steps", str(steps)]
    with (place.parent / "desk.log").open("wb") as log:
        program = subprocess.Popen([*command, "--no-report"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        first: tuple[int, float, float] | None = None
        spent = Counter[int]()
        last = (0, 0.0, 0.0)
        while program.poll() is None:
            time.sleep(LOOK_SECONDS)
            for process in [psutil.Process(program.pid), *psutil.Process(program.pid).children(recursive=True)]:
                spent[process.pid] = max(spent[process.pid], int(1000 * _seconds(process)))
            made = len(list((place / "spool" / "out").glob("step-*.json"))) or len(
                list(place.glob("**/out/step-*.json"))
            )
            if made > FIRST and first is None:
                first = made, time.monotonic(), spent.total()
            if made > last[0]:
                last = made, time.monotonic(), spent.total()
    finally:
        if program.poll() is None:
            program.send_signal(signal.SIGINT)
            program.wait()
    if program.returncode or first is None or last[0] == first[0]:
        raise SystemExit(f"the desk ended with {program.returncode}: {(place.parent / 'desk.log').read_text()[-2000:]}")
    steps = last[0] - first[0]
    return {
        "ms a step": round((last[2] - first[2]) / steps, 1),
        "seconds a step": round((last[1] - first[1]) / steps, 2),
    }


def print_table(found: Mapping[str, Any]) -> None:
    print(f"{found['steps']} steps of {found['seconds a step']} s; mean age {found['trainer']['mean age']}")
    heads = list(next(iter(found["daemons"].values())))
    print(f"{'daemon':12}" + "".join(f"{head:>{len(head) + 3}}" for head in heads))
    for name, row in found["daemons"].items():
        print(f"{name:12}" + "".join(f"{row[head]:>{len(head) + 3}}" for head in heads))
    for part in ("ms", "a step of 0.54 s", "a second, idle", "trainer", "modules", "desk"):
        if part in found:
            print(f"{part}: " + ", ".join(f"{what} {number}" for what, number in found[part].items()))
    for step, rows in found["private MB at step"].items():
        print(f"private MB at step {step}:")
        for name, row in rows.items():
            print(f"  {name:12}" + ", ".join(f"{kind} {number}" for kind, number in row.items()))
    for part in ("kinds", "jobs of", "fsyncs of", *A_SECOND):
        print(f"{part} ({'a second' if part in A_SECOND else 'a step'}):")
        for what, number in list(found[part].items())[:24]:
            print(f"  {number:8}  {what}")


def main() -> None:
    parser = parser_of(__doc__, "eight steps, no desk", "line")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--desk", type=int, default=12, help="steps of the desk beside it, 0 for none")
    parser.add_argument("--still", type=float, default=10.0, help="seconds for which nothing computes")
    parser.add_argument("--run", type=Path, help="the run file of an earlier demo")
    given = parser.parse_args()
    steps, still = (8, 4.0) if given.quick else (given.steps, given.still)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(os.path.realpath(folder))
        found = swarm(steps, still, given.run, place)
        if given.desk and not given.quick:
            found["desk"] = desk(given.desk, given.run or place / "demo" / "run.toml", place / "desk")
    if given.json:
        print(json.dumps(found))
    else:
        print_table(found)


if __name__ == "__main__":
    main()
