"""A demo's swarm for hours: what grows in each daemon, and whether it answers as fast at the end as at the beginning.

    python -m benchmarks.soak [--minutes 120] [--workers 2] [--dir DIR] [--quick] [--json]

Runs `intellect-node demo` with more steps than it can do in that time, looks at every daemon each half minute,
and stops it. Memory is the proportional share (PSS) of a daemon and its children; files are open descriptors of the
daemon; journal and disk are bytes in its state directory; status is the time of one answer of its control socket. Each
row says the mean of the first and of the last quarter of the time after warming up, and the growth in an hour.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil

from benchmarks.command import parser_of
from benchmarks.watching import Demo

FIGURES = ("mib", "files", "threads", "journal_kib", "disk_mib", "status_ms")
WARM = 0.2
"""Share of the time that is not counted: imports, the first policy, the first epoch."""
STEPS = 1_000_000


class Sample(msgspec.Struct, frozen=True):
    """One look at one daemon. at: seconds since the start; step: the newest policy that it holds."""

    at: float
    node: str
    step: int
    figures: tuple[float, ...]


def look(demo: Demo, node: str, at: float) -> Sample | None:
    """None where it does not answer."""
    began, state = time.monotonic(), demo.state_dir(node)
    told = demo.status(node, timeout=20.0)
    if told is None:
        return None
    milliseconds = 1000 * (time.monotonic() - began)
    try:
        process = psutil.Process(told.node.pid)
        family = [process, *process.children(recursive=True)]
        mib = sum(one.memory_full_info().pss for one in family) / 2**20
        files, threads = process.num_fds(), process.num_threads()
    except psutil.NoSuchProcess:
        return None
    step = told.run.step if told.run and told.run.step is not None else -1
    journal = sum(path.stat().st_size for path in state.glob("journal.sqlite*"))
    figures = (mib, files, threads, journal / 1024, _disk(state) / 2**20, milliseconds)
    return Sample(round(at, 1), node, step, tuple(round(one, 2) for one in figures))


def _disk(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue  # a policy that was evicted meanwhile
    return total


def watch(demo: Demo, seconds: float, every: float) -> list[Sample]:
    began, samples = time.monotonic(), list[Sample]()
    while (at := time.monotonic() - began) < seconds:
        demo.check()
        for node in demo.nodes:
            sample = look(demo, node, at)
            if sample is not None:
                samples.append(sample)
                print(json.dumps(msgspec.to_builtins(sample)), file=sys.stderr, flush=True)
        time.sleep(max(0.0, min(every, seconds - at)))
    return samples


def summarise(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """A row for each daemon and figure: first and last quarter, and the slope of the line through all of them."""
    last = max((one.at for one in samples), default=0.0)
    rows = []
    for node in sorted({one.node for one in samples}):
        own = [one for one in samples if one.node == node and one.at >= WARM * last]
        if len(own) < 4:
            continue
        at, quarter = np.array([one.at for one in own]) / 3600, max(1, len(own) // 4)
        for number, figure in enumerate(FIGURES):
            values = np.array([one.figures[number] for one in own])
            first, end = float(values[:quarter].mean()), float(values[-quarter:].mean())
            slope = float(np.polyfit(at, values, 1)[0])
            row = {"node": node, "figure": figure, "first": round(first, 1), "last": round(end, 1)}
            rows.append(row | {"per_hour": round(slope, 1)})
    return rows


def soak(directory: Path, minutes: float, every: float, workers: int) -> dict[str, Any]:
    with Demo(directory, "--no-page", "--steps", str(STEPS), "--workers", str(workers)) as demo:
        samples = watch(demo, 60 * minutes, every)
    steps = max((one.step for one in samples), default=-1)
    return {"minutes": minutes, "steps": steps, "load": round(os.getloadavg()[1], 1), "rows": summarise(samples)}


def main() -> None:
    parser = parser_of(__doc__, "two minutes, a look every five seconds", "line")
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--dir", type=Path, help="keep the demo here; default: a directory that goes again")
    given = parser.parse_args()
    minutes, every = (2.0, 5.0) if given.quick else (given.minutes, 30.0)
    with tempfile.TemporaryDirectory() as folder:
        found = soak(given.dir or Path(folder) / "demo", minutes, every, given.workers)
    if given.json:
        print(json.dumps(found))
        return
    print(f"{found['steps']} steps in {minutes:g} minutes, load {found['load']}")
    for row in found["rows"]:
        print("{node:12} {figure:12} {first:10.1f} {last:10.1f}   {per_hour:+10.1f} an hour".format(**row))


if __name__ == "__main__":
    main()
