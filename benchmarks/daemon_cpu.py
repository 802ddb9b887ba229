"""CPU of a swarm's daemons, in milliseconds for each node and accepted file, by role: in training, and while pay comes.

    python -m benchmarks.daemon_cpu [--steps 20] [--validators 4] [--run FILE] [--quick] [--json]

The swarm is `intellect-node demo --no-cheat --validators N --steps S --json`: trainer, two workers, validators, a chain
whose blocks take a second, epochs of ten. Four times a second this program reads from /proc what each daemon has taken
of the processors, user and system; its engine, learner and evaluator are other processes, and count for nothing here.
The trainer alone is asked how far the swarm is, once a second, as the demo asks everybody. *training*: from the first
policy to the last; *pay*: from then until everybody was paid, or 45 s. In that time no file is made, so it is told per
second. *all*: from a daemon's start to its end, divided by all accepted files. Other programs on the machine change
processor time by a fifth, through caches and clocks: compare versions in turn, twice each. --run takes the run.toml of
an earlier demo's directory: its start model need not be taught again.
"""

import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil

from benchmarks.command import parser_of, tell
from benchmarks.watching import Demo

EVERY, ASK_EVERY = 0.25, 1.0
BEFORE, TRAINING, PAY, LEAVING = "before", "training", "pay", "leaving"


class Meter:
    """Processor seconds of a demo's daemons, phase by phase."""

    def __init__(self, demo: Demo) -> None:
        self._demo = demo
        self._processes: dict[str, psutil.Process] = {}
        self.roles: dict[str, str] = {}
        self.phase, self.steps = BEFORE, 0
        self.seconds: dict[str, float] = defaultdict(float)
        self._told: dict[str, float] = {}
        self.used: dict[tuple[str, str], float] = defaultdict(float)
        """(phase, node) -> processor seconds"""

    def measure(self) -> None:
        """Until the demo has ended."""
        asked, looked = 0.0, time.monotonic()
        while self._demo.process.poll() is None:
            time.sleep(EVERY)
            now = time.monotonic()
            self.seconds[self.phase] += now - looked
            looked = now
            for name, process in self._processes.items():
                self._read(name, process)
            if now - asked >= ASK_EVERY:
                asked = now
                self._ask()

    def _read(self, name: str, process: psutil.Process) -> None:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            return
        total = times.user + times.system
        self.used[self.phase, name] += total - self._told.get(name, 0.0)
        self._told[name] = total

    def _ask(self) -> None:
        for name in self._demo.nodes if self.phase == BEFORE else ["trainer"]:
            if name in self._processes and name != "trainer":
                continue
            status = self._demo.status(name)
            if self.phase == PAY and (status is None or status.node.state == "draining"):
                self._turn(LEAVING)
            if status is None or not status.node.role or self.phase == LEAVING:
                continue
            if name not in self._processes:
                self._processes[name] = psutil.Process(status.node.pid)
                self.roles[name] = status.node.role
                self._read(name, self._processes[name])
            if status.training is not None:
                self.steps = max(self.steps, status.training.step)
                self._turn(PAY if status.training.done else TRAINING if status.training.step >= 0 else BEFORE)

    def _turn(self, phase: str) -> None:
        if phase != self.phase:
            tell(f"{phase}, step {self.steps}")
        self.phase = phase

    def rows(self, files: int) -> list[dict[str, Any]]:
        """One for each role, and one for all nodes."""
        rows = []
        for role in [*sorted(set(self.roles.values())), "all"]:
            names = [name for name, its in self.roles.items() if role in (its, "all")]
            spent = {phase: sum(self.used[phase, one] for one in names) for phase in (BEFORE, TRAINING, PAY, LEAVING)}
            each = 1000 / len(names)
            rows.append(
                {
                    "role": role,
                    "nodes": len(names),
                    "files_ms": round(each * sum(spent.values()) / max(files, 1), 1),
                    "training_ms": round(each * spent[TRAINING] / max(files, 1), 1),
                    "training_ms_per_second": round(each * spent[TRAINING] / max(self.seconds[TRAINING], EVERY), 1),
                    "pay_ms_per_second": round(each * spent[PAY] / max(self.seconds[PAY], EVERY), 1),
                }
            )
        return rows


def main() -> None:
    parser = parser_of(__doc__, "one validator, four steps", "line")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--validators", type=int, default=4)
    parser.add_argument("--run", type=Path, help="the run file of an earlier demo")
    given = parser.parse_args()
    steps, validators = (4, 1) if given.quick else (given.steps, given.validators)
    flags = ["--steps", str(steps), "--validators", str(validators), "--json"]
    flags += ["--run", str(given.run.resolve())] if given.run else []
    with tempfile.TemporaryDirectory() as folder, Demo(Path(folder) / "demo", *flags) as demo:
        meter = Meter(demo)
        meter.measure()
        if demo.process.returncode:
            demo.check()
        files = json.loads(demo.told.splitlines()[-1])["verdicts"]["accepted"]
    seconds = {phase: round(taken) for phase, taken in meter.seconds.items()}
    found = {"steps": meter.steps, "files": files, "seconds": seconds, "rows": meter.rows(files)}
    if given.json:
        print(json.dumps(found))
        return
    print(f"{meter.steps} steps, {files} accepted files; seconds: {seconds}")
    print("role       nodes   ms a file: all  of training   ms a second: training   pay")
    for row in found["rows"]:
        cells = f"{row['nodes']:5} {row['files_ms']:16.1f} {row['training_ms']:12.1f}"
        print(f"{row['role']:10} {cells} {row['training_ms_per_second']:23.1f} {row['pay_ms_per_second']:5.1f}")


if __name__ == "__main__":
    main()
