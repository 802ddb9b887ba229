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

import msgspec
import psutil

from benchmarks.command import parser_of
from cli.api import get_status, socket_of
from cli.errors import CommandError

PATIENCE = 300.0
POLL = 0.05
WARM_STEPS = 3
PROCESSES = ("learner", "engine", "worker", "validator", "trainer", "program", "chain")
SPIN = "while True: pass"


class Swarm:
    """A running demo."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._log = (directory / "demo.log").open("w")
        command = [sys.executable, "-m", "cli", "demo", "--dir", str(directory / "demo"), "--no-view", "--no-cheat"]
        self.process = subprocess.Popen([*command, "--steps", "2000"], stdout=self._log, stderr=self._log)

    def status(self, name: str) -> dict[str, Any] | None:
        try:
            return msgspec.to_builtins(get_status(socket_of(self.directory / "demo" / "nodes" / name), timeout=2.0))
        except CommandError:
            return None

    def wait(self, done: Callable[[], Any]) -> Any:
        """What `done` says, once it says something."""
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit:
            if self.process.poll() is not None:
                raise SystemExit(f"the demo ended: {(self.directory / 'demo.log').read_text()[-2000:]}")
            if value := done():
                return value
            time.sleep(POLL)
        raise SystemExit("the swarm did not go on")

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        self._log.close()


def part(status: dict[str, Any] | None, *names: str) -> Any:
    """A field of a status, None where any part is missing."""
    value: Any = status
    for name in names:
        value = value.get(name) if value else None
    return value


def child(status: dict[str, Any] | None, name: str) -> int | None:
    return next((each["pid"] for each in part(status, "processes") or () if each["name"] == name), None)


def chain_of(swarm: Swarm) -> int | None:
    family = psutil.Process(swarm.process.pid).children(recursive=True)
    return next((each.pid for each in family if "anvil" in each.name()), None)


def guardian_of(daemon: int | None) -> int | None:
    """The program that was started, which a service manager (here the demo) starts anew."""
    return psutil.Process(daemon).ppid() if daemon else None


VICTIMS: dict[str, Callable[[Swarm], int | None]] = {
    "learner": lambda swarm: child(swarm.status("trainer"), "learner"),
    "engine": lambda swarm: child(swarm.status("worker-1"), "engine"),
    "worker": lambda swarm: part(swarm.status("worker-1"), "node", "pid"),
    "validator": lambda swarm: part(swarm.status("validator"), "node", "pid"),
    "trainer": lambda swarm: part(swarm.status("trainer"), "node", "pid"),
    "program": lambda swarm: guardian_of(part(swarm.status("worker-1"), "node", "pid")),
    "chain": chain_of,
}


def progress(swarm: Swarm, name: str) -> tuple[Any, ...] | None:
    """What changes as soon as the work of a process goes on."""
    if name in ("engine", "worker", "program"):
        status = swarm.status("worker-1")
        committed = part(status, "work", "files_committed")
        return None if committed is None else (part(status, "node", "pid"), committed)
    if name == "validator":
        status = swarm.status("validator")
        counted = part(status, "verdicts", "accepted")
        return None if counted is None else (part(status, "node", "pid"), counted)
    if name == "chain":
        block = part(swarm.status("worker-2"), "network", "block")
        return None if block is None else (block,)
    step = part(swarm.status("trainer"), "training", "step")
    return None if step is None else (step,)


def seconds_until_it_goes_on(swarm: Swarm, name: str, *, kill: bool) -> float:
    """From the kill, or from now, to the next sign of this process's work."""
    victim = swarm.wait(lambda: VICTIMS[name](swarm))
    before = swarm.wait(lambda: progress(swarm, name))
    started = time.monotonic()
    if kill:
        os.kill(victim, signal.SIGKILL)

    def went_on() -> bool:
        now = progress(swarm, name)
        if now is None:
            return False
        if len(now) == 2 and now[0] != before[0]:  # another daemon, whose counters may begin anew
            return now[1] > 0
        return now[-1] > before[-1]

    swarm.wait(went_on)
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


def measured(swarm: Swarm, names: tuple[str, ...], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Per process: seconds without a kill, and after one."""
    found: dict[str, dict[str, list[float]]] = {name: {"undisturbed": [], "killed": []} for name in names}
    for number in range(rounds):
        for name in names:
            for kind, kill in (("undisturbed", False), ("killed", True)):
                took = seconds_until_it_goes_on(swarm, name, kill=kill)
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
    with tempfile.TemporaryDirectory() as folder:
        swarm = Swarm(Path(folder))
        try:
            swarm.wait(lambda: (part(swarm.status("trainer"), "training", "step") or 0) >= WARM_STEPS)
            result["quiet"] = measured(swarm, names, rounds)
            if not arguments.quick:
                with busy_loops(2):
                    result["two busy loops"] = measured(swarm, names, rounds)
        finally:
            swarm.end()
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
