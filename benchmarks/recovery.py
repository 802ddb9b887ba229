"""Seconds from the kill -9 of each process of a swarm until its work goes on, on a quiet machine and on a busy one.

    python -m benchmarks.recovery [--rounds 2] [--quick] [--json]

A demo's swarm trains on this machine: trainer, two workers, validator, chain. Per round each process is killed once,
without and with two busy loops beside the swarm, and what it does is awaited: the learner's and the trainer's next
step, a worker's next file (of its engine, its daemon, and the whole program, which the demo starts anew at most five
times), a validator's next verdict, the chain's next block. The time that such work takes anyway is measured beside it,
without a kill.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.command import parser_of
from benchmarks.watching import Demo

WARM_STEPS = 3
PROCESSES = ("learner", "engine", "worker", "validator", "trainer", "program", "chain")
SPIN = "while True: pass"


def child(demo: Demo, node: str, name: str) -> int | None:
    status = demo.status(node)
    return next((each.pid for each in status.processes if each.name == name), None) if status else None


def daemon(demo: Demo, node: str) -> int | None:
    status = demo.status(node)
    return status.node.pid if status else None


def chain_of(demo: Demo) -> int | None:
    family = psutil.Process(demo.process.pid).children(recursive=True)
    return next((each.pid for each in family if "anvil" in each.name()), None)


def guardian_of(daemon: int | None) -> int | None:
    """The program that was started, which a service manager (here the demo) starts anew."""
    return psutil.Process(daemon).ppid() if daemon else None


VICTIMS: dict[str, Callable[[Demo], int | None]] = {
    "learner": lambda demo: child(demo, "trainer", "learner"),
    "engine": lambda demo: child(demo, "worker-1", "engine"),
    "worker": lambda demo: daemon(demo, "worker-1"),
    "validator": lambda demo: daemon(demo, "validator"),
    "trainer": lambda demo: daemon(demo, "trainer"),
    "program": lambda demo: guardian_of(daemon(demo, "worker-1")),
    "chain": chain_of,
}
WITNESSES = {"validator": "validator", "chain": "worker-2", "learner": "trainer", "trainer": "trainer"}


def progress(demo: Demo, name: str) -> tuple[int, ...] | None:
    """What changes as soon as the work of a process goes on."""
    status = demo.status(WITNESSES.get(name, "worker-1"))
    if status is None:
        return None
    if name == "validator":
        return (status.node.pid, status.verdicts.accepted) if status.verdicts else None
    if name == "chain":
        return None if status.network.block is None else (status.network.block,)
    if name in ("learner", "trainer"):
        return (status.training.step,) if status.training else None
    return (status.node.pid, status.work.files_committed) if status.work else None


def seconds_until_it_goes_on(demo: Demo, name: str, *, kill: bool) -> float:
    """From the kill, or from now, to the next sign of this process's work."""
    victim = demo.until(lambda: VICTIMS[name](demo))
    before = demo.until(lambda: progress(demo, name))
    started = time.monotonic()
    if kill:
        os.kill(victim, signal.SIGKILL)

    def went_on() -> bool:
        now = progress(demo, name)
        if now is None:
            return False
        if len(now) == 2 and now[0] != before[0]:  # another daemon, whose counters may begin anew
            return now[1] > 0
        return now[-1] > before[-1]

    demo.until(went_on)
    return time.monotonic() - started


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measured(demo: Demo, names: tuple[str, ...], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Per process: seconds without a kill, and after one."""
    found: dict[str, dict[str, list[float]]] = {name: {"undisturbed": [], "killed": []} for name in names}
    for number in range(rounds):
        for name in names:
            for kind, kill in (("undisturbed", False), ("killed", True)):
                took = seconds_until_it_goes_on(demo, name, kill=kill)
                found[name][kind].append(round(took, 2))
                print(f"round {number + 1}: {name} {kind}: {took:.1f} s", file=sys.stderr)
    return found


def main() -> None:
    parser = parser_of(__doc__, "One round, learner and engine only, no busy loops.", "line")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=PROCESSES, action="append", help="Repeatable; default: all of them.")
    arguments = parser.parse_args()
    names = tuple(arguments.only or (("learner", "engine") if arguments.quick else PROCESSES))
    rounds = 1 if arguments.quick else arguments.rounds
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, Demo(Path(folder) / "demo", "--steps", "2000") as demo:
        demo.until(lambda: (progress(demo, "trainer") or (0,))[0] >= WARM_STEPS)
        result["quiet"] = measured(demo, names, rounds)
        if not arguments.quick:
            with busy_loops(2):
                result["two busy loops"] = measured(demo, names, rounds)
    if arguments.json:
        print(json.dumps(result))
        return
    for setting, table in result.items():
        print(f"\n{setting}\n  killed      undisturbed  killed: median (least - most), seconds")
        for name, times in table.items():
            plain, killed = statistics.median(times["undisturbed"]), times["killed"]
            print(
                f"  {name:10}  {plain:11.1f}  {statistics.median(killed):.1f} ({min(killed):.1f} - {max(killed):.1f})"
            )


if __name__ == "__main__":
    main()
