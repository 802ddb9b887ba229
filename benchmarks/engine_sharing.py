"""How several kinds of work share one engine, and what a killed or hanging engine costs.

On a tiny model of random weights, with the real child behind the real client:

- `share`: rollouts, verdicts, evaluations and tasks, all of which always want the engine, on one policy and with the
  tasks on another: the part of the engine's time that each gets, beside what its weight asks for;
- `kill`, `stop`: seconds from SIGKILL or SIGSTOP of the child to the next finished request, with a request in flight.

    python -m benchmarks.engine_sharing [--quick] [--json]
"""

import argparse
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import trio

from node.inference.client import EngineProcess
from node.inference.fair import WEIGHTS
from node.inference.link import PING_EVERY
from node.inference.wire import (
    Evaluate,
    Inspect,
    Inspected,
    LoadPolicy,
    Produce,
    Produced,
    Reply,
    Request,
    ShardOrder,
)
from node.processes.forkserver import ForkServer
from node.processes.launch import ENGINE, launch
from node.training.warmstart import SORT_ALPHABET, create_model
from protocol.policy import decode_image, describe_tensors, policy_root
from protocol.run import EnvironmentSpec, EvaluationSpec, RolloutSpec, RunSpec, VerificationSpec, encode_run
from protocol.statements import Outcome
from protocol.tasks import TaskSpec, encode_task

NODE = "0x" + "11" * 20
DEADLINE = 600.0


def tiny_run() -> RunSpec:
    """Files of 32 answers of at most 32 tokens."""
    rollout = RolloutSpec(
        group_size=8, prompts_per_step=4, prompts_per_file=4, max_prompt_tokens=8, max_output_tokens=32
    )
    return RunSpec(
        name="sharing",
        environment=EnvironmentSpec(name="sort", args={"digits": 4, "held_back": 64}),
        rollout=rollout,
        evaluation=EvaluationSpec(problems=32),
        verification=VerificationSpec(toploc_k=32),
    )


class Bench:
    """The engine's child with one image under two roots, and everything that may be asked of it."""

    def __init__(self, directory: Path, hidden: int, layers: int) -> None:
        self.directory = directory
        self.run = tiny_run()
        create_model(directory / "assets" / "model", SORT_ALPHABET, seed=7, hidden=hidden, layers=layers)
        self.image = directory / "assets" / "model" / "model.safetensors"
        tensors = describe_tensors(decode_image(self.image.read_bytes()))
        self.roots = [policy_root(step, tensors) for step in (0, 1)]
        self.children = ForkServer(launch(ENGINE))
        self.engine = EngineProcess(
            [sys.executable, "-m", "node.inference.process"],
            encode_run(self.run),
            directory / "assets",
            starter=self.children,
        )
        self.numbers = itertools.count()
        self.file: Produced | None = None

    async def ask(self, request: Request, policy: int = 0) -> Reply:
        load = LoadPolicy(policy_root=self.roots[policy], step=policy, path=str(self.image))
        return await self.engine.ask(request, timeout=DEADLINE, policy=load)

    async def rollout(self, task: ShardOrder | None = None, policy: int = 0) -> Produced:
        index = next(self.numbers)
        order = Produce(
            policy_root=self.roots[policy],
            node=NODE,
            pool=1,
            index=index if task is None else index % 64,
            out_path=str(self.directory / f"{index % 64 if index else 'first'}.arrow"),
            task=task,
        )
        made = await self.ask(order, policy)
        return cast(Produced, made)

    async def task(self, policy: int) -> None:
        spec = TaskSpec(
            kind="generate", last=256, policy=self.roots[policy].hex(), step=policy, samples=8, shard_size=4
        )
        await self.rollout(ShardOrder(encode_task(spec), "", self.roots[policy]), policy)

    async def verdict(self) -> None:
        file = cast(Produced, self.file)
        order = Inspect(
            policy_root=self.roots[0],
            node=NODE,
            pool=1,
            index=0,
            units=file.units,
            path=file.path,
            report_path="",
        )
        seen = cast(Inspected, await self.ask(order))
        if seen.outcome != Outcome.ACCEPT:
            raise SystemExit(f"the engine refuses its own file: {seen.detail}")

    async def evaluation(self) -> None:
        order = Evaluate(policy_root=self.roots[0], step=0, out_path=str(self.directory / "figures"))
        await self.ask(order)


async def share(bench: Bench, seconds: float, task_policy: int) -> dict[str, Any]:
    """All four kinds of work, two askers each, who always want the engine."""
    finished: Counter[str] = Counter()
    asked: dict[str, Callable[[], Awaitable[object]]] = {
        "rollout": bench.rollout,
        "verdict": bench.verdict,
        "evaluation": bench.evaluation,
        "task": partial(bench.task, task_policy),
    }

    async def keep_asking(kind: str) -> None:
        while True:
            await asked[kind]()
            finished[kind] += 1

    before = await settled(bench)
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for kind in asked:
                nursery.start_soon(keep_asking, kind)
                nursery.start_soon(keep_asking, kind)
    after = await settled(bench)
    used = {kind: after[kind] - before.get(kind, 0.0) for kind in asked}
    total, weights = sum(used.values()), sum(WEIGHTS.values())
    return {
        "policies": 1 + task_policy,
        "seconds": seconds,
        "engine_seconds": round(total, 2),
        "share": {kind: round(value / total, 3) for kind, value in used.items()},
        "wanted": {kind: round(weight / weights, 3) for kind, weight in WEIGHTS.items()},
        "finished": dict(finished),
    }


async def settled(bench: Bench) -> dict[str, float]:
    """What the child says it has used, once that is up to date."""
    await trio.sleep(2.5 * PING_EVERY)
    return dict(bench.engine.used)


async def interrupted(bench: Bench, number: signal.Signals, trials: int) -> dict[str, Any]:
    """Seconds from a signal to the child until the request in flight is finished, and how long one takes otherwise."""
    plain, hurt = [], []
    for _ in range(trials):
        began = time.monotonic()
        await bench.rollout()
        plain.append(time.monotonic() - began)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.rollout)
            await trio.sleep(0.3 * plain[-1])
            os.kill(cast(int, bench.engine.pid), number)
            began = time.monotonic()
        hurt.append(time.monotonic() - began)
    return {
        "signal": number.name,
        "trials": trials,
        "seconds_median": round(statistics.median(hurt), 2),
        "seconds_worst": round(max(hurt), 2),
        "undisturbed_median": round(statistics.median(plain), 2),
        "restarts": bench.engine.restarts,
    }


async def measure(directory: Path, quick: bool) -> dict[str, Any]:
    bench = Bench(directory, *((64, 2) if quick else (128, 3)))
    async with trio.open_nursery() as nursery:
        await nursery.start(bench.children.run)
        await nursery.start(bench.engine.run)
        bench.file = await bench.rollout()
        found = {
            "load": round(os.getloadavg()[0], 1),
            "sharing": [await share(bench, 10.0 if quick else 60.0, policy) for policy in (0, 1)],
            "interrupted": [
                await interrupted(bench, number, 2 if quick else 8) for number in (signal.SIGKILL, signal.SIGSTOP)
            ],
        }
        nursery.cancel_scope.cancel()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller model, seconds instead of minutes")
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="engine-sharing-") as directory:
        found = trio.run(measure, Path(directory), arguments.quick)
    for one in found["sharing"]:
        shares = ", ".join(f"{kind} {one['share'][kind]:.0%} ({wanted:.0%})" for kind, wanted in one["wanted"].items())
        print(f"{one['policies']} policies: {shares}")
    for one in found["interrupted"]:
        seconds = f"{one['seconds_median']} s, worst {one['seconds_worst']} s"
        print(f"{one['signal']}: {seconds} ({one['undisturbed_median']} s undisturbed)")
    if arguments.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
