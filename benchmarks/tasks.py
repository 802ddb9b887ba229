"""A data set filtered by a swarm (pass@8 of every row) while a node that holds a lease is killed with -9.

    python -m benchmarks.tasks [--rows 10000] [--quick] [--json FILE]

A demo's swarm on this machine (trainer, two workers, a validator, chain) and a third worker beside it, which nobody
starts again. The rows are the numbers of four digits, the model the demo's own, which learns to sort them meanwhile:
rollouts come first on every engine. Once a tenth of the shards is done the third worker is killed, guardian and all,
while it holds a shard. Told are the rows that are lost or there twice in the result, the time of it all, and the time
from the kill to the moment when somebody else holds that shard. --quick: 640 rows.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil

from cli.api import get_status, socket_of
from cli.demo.runs import OWN_RUN
from cli.errors import CommandError
from node.environments.dataset import read_rows
from node.tasks.findings import read_task
from node.tasks.records import TaskFolder

PATIENCE = 600.0
POLL = 0.1
WARM_STEPS = 3
SAMPLES = 8
SHARD_SIZE = 32
LEASE = 120.0
VICTIM = "victim"


class Swarm:
    """A running demo, and a worker of our own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.demo = directory / "demo"
        self._log = (directory / "swarm.log").open("w")
        run = str(write_run(directory))
        words = ("demo", "--dir", str(self.demo), "--run", run, "--no-view", "--no-cheat", "--steps", "5000")
        self._children = [self._start(*words)]

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "cli", *words]
        return subprocess.Popen(command, stdout=self._log, stderr=self._log, start_new_session=True)

    def join(self) -> subprocess.Popen[bytes]:
        """The third worker: the program that was started is its guardian."""
        profile = next((self.demo / "home").glob("networks/*.toml"))
        pool = (self.demo / "pool").read_text().strip()
        place = str(self.directory / VICTIM)
        words = ("join", "--role", "worker", "--network", str(profile), "--pool", pool, "--state-dir", place)
        self._children.append(self._start(*words))
        return self._children[-1]

    def status(self, name: str) -> dict[str, Any]:
        place = self.directory / VICTIM if name == VICTIM else self.demo / "nodes" / name
        try:
            return msgspec.to_builtins(get_status(socket_of(place), timeout=5.0))
        except CommandError:
            return {}

    def wait(self, done: Callable[[], Any], patience: float = PATIENCE) -> Any:
        """What `done` says, once it says something."""
        limit = time.monotonic() + patience
        while time.monotonic() < limit:
            if self._children[0].poll() is not None:
                raise SystemExit(f"the demo ended: {(self.directory / 'swarm.log').read_text()[-2000:]}")
            if value := done():
                return value
            time.sleep(POLL)
        raise SystemExit(f"nothing came within {patience:g} s: {(self.directory / 'swarm.log').read_text()[-2000:]}")

    def end(self) -> None:
        for child in reversed(self._children):
            if child.poll() is None:
                child.terminate()
        for child in self._children:
            child.wait(60)
        self._log.close()


def write_run(directory: Path) -> Path:
    """The demo's own run, without a goal at which it would end, and its start model."""
    model = directory / "model"
    subprocess.run([sys.executable, "-m", "node.training.warmstart", "--out", str(model)], check=True)
    lines = OWN_RUN.read_text().splitlines()
    path = directory / "run.toml"
    path.write_text("\n".join(line for line in lines if not line.startswith("target_reward")) + "\n")
    return path


def write_rows(path: Path, count: int) -> None:
    """Numbers of four digits, and their digits in order."""
    with path.open("w") as file:
        for place in range(count):
            text = f"{place * 7919 % 10_000:04}"
            info = json.dumps({"ground_truth": "".join(sorted(text))})
            row = {"problem_id": f"row-{text}", "prompt": f"{text}=", "task_type": "verifiable_math"}
            file.write(json.dumps({**row, "verification_info": info}) + "\n")


def task_of(swarm: Swarm) -> dict[str, Any]:
    own = (swarm.status("trainer").get("tasks") or {}).get("own") or [{}]
    return own[-1]


def kill_holder(swarm: Swarm, guardian: subprocess.Popen[bytes], address: str) -> dict[str, float]:
    """Kill the third worker with a shard in its hands; what became of that shard."""

    def held() -> tuple[str, ...]:
        task = task_of(swarm)
        mine = [shard for shard, holder in (task.get("held") or {}).items() if holder == address]
        return tuple(mine) if task.get("gathered", 0) >= task.get("shards", 1) / 10 else ()

    shard = swarm.wait(held)[0]
    family = psutil.Process(guardian.pid).children(recursive=True)
    os.kill(guardian.pid, signal.SIGKILL)
    killed = time.monotonic()
    psutil.wait_procs(family, timeout=10)

    def elsewhere() -> bool:
        return (task_of(swarm).get("held") or {}).get(shard, address) != address

    swarm.wait(elsewhere)
    return {"shard": int(shard), "taken_over_after": time.monotonic() - killed}


def measure(directory: Path, rows: int) -> dict[str, Any]:
    data, kept = directory / "rows.jsonl", directory / "kept.jsonl"
    write_rows(data, rows)
    swarm = Swarm(directory)
    try:
        swarm.wait(lambda: ((swarm.status("trainer").get("training") or {}).get("step") or 0) >= WARM_STEPS)
        guardian = swarm.join()
        address = swarm.wait(lambda: (swarm.status(VICTIM).get("work") or {}).get("files_committed") and _own(swarm))
        step = swarm.status("trainer")["training"]["step"]
        began = time.monotonic()
        asked = _ask(swarm, data, kept, directory)
        found = kill_holder(swarm, guardian, address)
        told = json.loads(asked.communicate(timeout=3600)[0].splitlines()[-1])
        seconds = time.monotonic() - began
        steps = swarm.status("trainer")["training"]["step"] - step
        folder = TaskFolder(next((swarm.demo / "nodes" / "trainer" / "tasks").iterdir()))
        return {**found, **_counted(folder, data), **told["result"], "seconds": seconds, "steps_meanwhile": steps}
    finally:
        swarm.end()


def _own(swarm: Swarm) -> str:
    return str(swarm.status(VICTIM)["node"]["address"])


def _ask(swarm: Swarm, data: Path, kept: Path, directory: Path) -> subprocess.Popen[bytes]:
    place = str(swarm.demo / "nodes" / "trainer")
    sizes = ["--samples", str(SAMPLES), "--shard-size", str(SHARD_SIZE), "--lease", str(LEASE)]
    words = ["task", "filter", str(data), "--out", str(kept), "--state-dir", place, *sizes, "--json"]
    log = (directory / "filter.log").open("w")
    return subprocess.Popen([sys.executable, "-m", "cli", *words], stdout=subprocess.PIPE, stderr=log)


def _counted(folder: TaskFolder, data: Path) -> dict[str, Any]:
    """Rows that are missing or too many in what was gathered, and who did how many shards."""
    wanted = {str(row["problem_id"]) for _, row in read_rows(data)}
    answers: Counter[tuple[str, int]] = Counter()
    by_node: Counter[str] = Counter()
    for record, found in read_task(folder):
        by_node[record.node] += 1
        answers.update((answer.problem_id, answer.sample) for answer in found)
    rows = {name for name, _ in answers}
    short = sum(answers[name, sample] == 0 for name in wanted for sample in range(SAMPLES))
    return {
        "rows_lost": len(wanted - rows),
        "answers_lost": short,
        "answers_doubled": sum(count - 1 for count in answers.values()),
        "shards_by_node": dict(by_node),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="640 rows")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="intellect-tasks-") as folder:
        figures = measure(Path(folder), 640 if options.quick else options.rows)
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):24} {value:.1f}" if isinstance(value, float) else f"{name:24} {value}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if figures["rows_lost"] or figures["answers_lost"] or figures["answers_doubled"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
