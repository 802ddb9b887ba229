"""A trainer on two machines: two network namespaces, a rank on each, one of them killed, and the run resumed exactly.

`python -m benchmarks.machines [--quick] [--json]`, as root (it makes namespaces). Machine 0 trains on batches that lie
in its spool; machine 1 is `intellect-node trainer rank` with an empty directory, which gets run, model and batches over
the process group. The run is trained once straight, once with kill -9 of a rank on machine 1, and (without --quick)
once with one on machine 0, and once with everything on machine 0 killed and started again half a minute later.
`--kills` names some of these. What was published must be the same, byte for byte.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import trio

from benchmarks.namespaces import Host, why_not, world
from node.run.file import describe_file
from node.training.batch import Batch, BatchHeader, BatchRow, encode_batch
from node.training.client import TrainerProcess
from node.training.settings import TrainerSettings
from node.training.spool import Spool
from node.training.warmstart import SORT_ALPHABET, create_model
from protocol.recipe import Recipe
from protocol.run import Asset, EnvironmentSpec, EvaluationSpec, RunSpec, encode_run

STEPS, KILLED_AFTER, CHECKPOINTS = 12, 6, 4
PORT = 29_500
DOWN_SECONDS = 30.0
"""For which machine 0 is gone."""
LIMIT_SECONDS = 900.0
KILLS = {"rank-1": "a rank on machine 1", "rank-0": "a rank on machine 0", "machine-0": "all of machine 0"}
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Course:
    """images: name -> bytes; wire_bytes: that machine 1 received; resumed_seconds: from a kill to the next new step."""

    images: dict[str, bytes]
    seconds: float
    wire_bytes: int
    resumed_seconds: float | None
    restarts: int


def batch(step: int) -> bytes:
    """Made-up rollouts that reward the token 5."""
    random = np.random.default_rng(step)
    rows: list[BatchRow] = []
    for number in range(64):
        output = [*random.integers(2, 12, size=int(random.integers(1, 12))).tolist(), 1]
        logprobs = (-2.5 + random.normal(size=len(output)) * 0.1).tolist()
        rows.append(BatchRow(number // 8, [3, 4, 12], output, logprobs, float(5 in output), step))
    return encode_batch(Batch(BatchHeader(step, (f"file {step}",)), tuple(rows)))


def make_run(directory: Path) -> bytes:
    """A run whose files lie in `directory`; its canonical bytes."""
    create_model(directory / "model", SORT_ALPHABET, seed=7)
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    infos = [(path.relative_to(directory).as_posix(), describe_file(path)) for path in files]
    return encode_run(
        RunSpec(
            name="two machines",
            environment=EnvironmentSpec(name="sort", args={"digits": 4}),
            recipe=Recipe(steps=STEPS, decay_steps=0, learning_rate=1e-3),
            evaluation=EvaluationSpec(problems=8, every=STEPS),
            assets=tuple(Asset(path=name, root=info.root.hex(), size=info.size) for name, info in infos),
        )
    )


@contextlib.contextmanager
def guest(host: Host, first: Host, directory: Path, processes: int) -> Iterator[subprocess.Popen[bytes]]:
    """`intellect-node trainer rank` in a namespace."""
    words = ["trainer", "rank", "--rdzv-endpoint", f"{first.address}:{PORT}", "--dir", str(directory), "--json"]
    command = [*host.prefix, sys.executable, "-m", "cli.main", *words, "--trainer", f"world_size={processes}"]
    with (directory.parent / f"{directory.name}.json").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stdin=subprocess.DEVNULL, env=environment())
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def ranks(root: int) -> list[psutil.Process]:
    """The processes that compute, below process `root`."""
    below = psutil.Process(root).children(recursive=True)
    return [one for one in below if "node.training.trainer" in one.cmdline() and "--spool" in one.cmdline()]


async def complete(spool: Spool, step: int) -> None:
    while not spool.is_complete(step):  # noqa: ASYNC110 - another process writes it
        await trio.sleep(0.02)


async def run_within(scope: trio.CancelScope, process: TrainerProcess) -> None:
    with scope:
        await process.run()


def kill_all(root: int) -> None:
    for one in [*psutil.Process(root).children(recursive=True), psutil.Process(root)]:
        one.kill()


async def follow(
    place: Path, encoded: bytes, assets: Path, hosts: list[Host], processes: int, killed: str | None
) -> Course:
    """One training. processes: on each machine; killed: one of KILLS; None: nothing."""
    spool = Spool(place / "machine-0")
    spool.prepare(encoded, assets)
    for step in range(KILLED_AFTER):
        spool.write_batch(step, batch(step))
    meeting = f"{hosts[0].address}:{PORT}"
    settings = TrainerSettings(
        world_size=processes, nodes=2, rendezvous=meeting, device="cpu", checkpoint_every=CHECKPOINTS
    )
    command = [*hosts[0].prefix, sys.executable, "-m", "node.training.launch"]
    process, powered = TrainerProcess(spool, command, settings), trio.CancelScope()
    started, resumed = time.monotonic(), None
    before = received(hosts[1])
    with guest(hosts[1], hosts[0], place / "machine-1", processes) as other:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_within, powered, process)
            await complete(spool, KILLED_AFTER)
            if killed == "machine-0":
                kill_all(process.pid or 0)
                powered.cancel()
                await trio.sleep(DOWN_SECONDS)
                process = TrainerProcess(spool, command, settings)
                nursery.start_soon(process.run)
            elif killed is not None:
                victim = ranks(other.pid if killed == "rank-1" else process.pid or 0)[-1]
                os.kill(victim.pid, signal.SIGKILL)
            when = time.monotonic()
            for step in range(KILLED_AFTER, STEPS):
                spool.write_batch(step, batch(step))
            await complete(spool, KILLED_AFTER + 1)
            resumed = round(time.monotonic() - when, 1) if killed is not None else None
        with trio.fail_after(60):
            while other.poll() is None:  # noqa: ASYNC110 - a process of subprocess's
                await trio.sleep(0.05)
        if other.returncode != 0:
            raise RuntimeError((place / "machine-1" / "logs" / "processes.log").read_text()[-2000:])
    images = {path.name: path.read_bytes() for path in sorted((spool.root / "out").glob("policy-*.safetensors"))}
    seconds = round(time.monotonic() - started, 1)
    return Course(images, seconds, received(hosts[1]) - before, resumed, process.restarts)


def received(host: Host) -> int:
    path = "/sys/class/net/wan/statistics/rx_bytes"
    return int(subprocess.run([*host.prefix, "cat", path], check=True, capture_output=True).stdout)


async def measure(wanted: list[str], processes: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, world(public=2, hidden=0) as (hosts, _):
        place = Path(name)
        encoded = make_run(place / "assets")
        with trio.fail_after(LIMIT_SECONDS):
            straight = await follow(place / "straight", encoded, place / "assets", hosts, processes, None)
            kills: list[dict[str, Any]] = []
            for kill in wanted:
                found = await follow(place / kill, encoded, place / "assets", hosts, processes, kill)
                same = found.images == straight.images
                kills.append(
                    {
                        "killed": KILLS[kill],
                        "identical": same,
                        "restarts": found.restarts,
                        "resumed_seconds": found.resumed_seconds,
                        "seconds": found.seconds,
                    }
                )
    return {
        "benchmark": "machines",
        "ranks": 2 * processes,
        "steps": STEPS,
        "policies": len(straight.images),
        "seconds_straight": straight.seconds,
        "received_bytes_per_step": straight.wire_bytes // STEPS,
        "kills": kills,
        "identical": all(kill["identical"] for kill in kills),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one kill, of a rank on machine 1")
    parser.add_argument("--kills", default=",".join(KILLS), help="some of these, with commas between them")
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    parser.add_argument("--processes", type=int, default=1, help="ranks on each machine")
    arguments = parser.parse_args()
    if reason := why_not():
        print(json.dumps({"benchmark": "machines", "skipped": reason}) if arguments.json else f"skipped: {reason}")
        return 0
    wanted = ["rank-1"] if arguments.quick else arguments.kills.split(",")
    if unknown := set(wanted) - set(KILLS):
        parser.error(f"--kills knows {', '.join(KILLS)}, not {', '.join(sorted(unknown))}")
    found = trio.run(measure, wanted, arguments.processes)
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:24} {value}")
    return 0 if found["identical"] else 1


if __name__ == "__main__":
    sys.exit(main())
