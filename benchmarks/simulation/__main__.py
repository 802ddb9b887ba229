"""A swarm of a thousand nodes for an hour, in minutes: what it says, what it costs each node, what faults do to it.

    python -m benchmarks.simulation [--nodes 1000] [--hours 1] [--churn 0.1] [--partition 600] [--cheats 0.1]
        [--idle 0] [--ghosts 0] [--slow 0] [--files-per-step N] [--file-seconds S]
        [--group-seconds 0.05] [--validators 4] [--full 16] [--policy-seconds 10] [--no-work] [--quick]
        [--json] [--picture FILE.png] [--seed 7]

What is the product's own code, what a model, and what is shared between the simulated nodes stands in
`benchmarks/simulation/__init__.py`. --no-work: members only talk, for 10,000 of them.
"""

import argparse
import json
import logging
import os
import sys
import time
from pathlib import Path

from benchmarks.command import parser_of, silence_logs
from benchmarks.simulation import EPOCH
from benchmarks.simulation.swarm import Swarm


def draw(swarm: Swarm, path: Path) -> None:
    """A PNG of four curves over swarm time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7), sharex=True)
    batches = swarm.learning.batches if swarm.learning else []
    minutes = [batch.at / 60 for batch in batches]
    stages = ("commit", "verify", "fetch", "queue")
    parts = [[batch.stages.get(stage, 0.0) for batch in batches] for stage in stages]
    if batches:
        axes[0][0].stackplot(minutes, parts, labels=stages)
        axes[0][0].legend(loc="upper right", fontsize=8)
    axes[0][0].set_title("from policy to batch, s")
    axes[0][1].plot(minutes, [_mean_age(batch.staleness) for batch in batches], marker=".")
    axes[0][1].set_title("staleness of a batch, steps")
    axes[1][0].plot([at / 60 for at, _ in swarm.waiting], [many for _, many in swarm.waiting])
    axes[1][0].set_title("workers that hear nobody and wait")
    busy = swarm.ether.busy
    axes[1][1].plot([number * EPOCH / 60 for number in range(len(busy))], [100 * load for load in busy])
    axes[1][1].set_title("CPU of one node for messages, % of a core")
    for axis in axes.flat:
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        if swarm.cut:
            axis.axvspan(swarm.cut[0] / 60, swarm.cut[1] / 60, alpha=0.15, color="grey")
    for axis in axes[1]:
        axis.set_xlabel("minutes of swarm time")
    figure.suptitle(
        f"{swarm.scenario.nodes} nodes, churn {swarm.scenario.churn:.0%} an hour, "
        f"{swarm.scenario.cheats:.0%} cheats; grey: a third is cut off"
    )
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def _mean_age(staleness: dict[int, int]) -> float:
    return sum(age * count for age, count in staleness.items()) / max(sum(staleness.values()), 1)


def main() -> None:
    asked = vars(_parser().parse_args())
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of addresses are walked: the same order every time
        again = [sys.executable, "-m", "benchmarks.simulation", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606 - ourselves

    from benchmarks.simulation.report import described, table
    from benchmarks.simulation.scenario import Scenario
    from benchmarks.simulation.simulate import simulate

    silence_logs(logging.CRITICAL)
    as_json, picture, no_work, file_seconds = map(asked.pop, ("json", "picture", "no_work", "file_seconds"))
    if asked.pop("quick"):
        asked |= {"nodes": 60, "hours": 0.2, "partition": 120.0, "full": 12, "learner_seconds": 90.0}
    if file_seconds:
        asked["file_seconds"] = ((1.0, file_seconds),)
    scenario = Scenario(work=not no_work, **asked)
    began, spent = time.monotonic(), time.process_time()
    swarm = simulate(scenario)
    found = described(swarm)
    found["this computer"] = {
        "seconds": round(time.monotonic() - began),
        "CPU seconds": round(time.process_time() - spent),
        "nodes with everything of their own": len(swarm.seats),
    }
    print(f"{scenario.nodes} nodes for {scenario.hours:g} h of swarm time\n")
    print(table(found))
    if picture:
        draw(swarm, picture)
    if as_json:
        print(json.dumps({"nodes": scenario.nodes, "hours": scenario.hours, **found}))


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__, "60 nodes, 12 minutes", "line")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--hours", type=float, default=1.0, help="of swarm time")
    parser.add_argument("--churn", type=float, default=0.1, help="share that leaves and comes in an hour")
    parser.add_argument("--partition", type=float, default=600.0, help="seconds for which a third is cut off")
    parser.add_argument("--cheats", type=float, default=0.1, help="share of the workers")
    parser.add_argument("--idle", type=float, default=0.0, help="share of the workers that live and make nothing")
    parser.add_argument("--ghosts", type=int, default=0, help="members on chain that never speak")
    parser.add_argument("--slow", type=float, default=0.0, help="share of the nodes on a slow uplink")
    parser.add_argument("--files-per-step", type=int, help="default: one for each of nine in ten workers")
    parser.add_argument("--file-seconds", type=float, help="of every worker; default: three classes of machines")
    parser.add_argument("--group-seconds", type=float, default=0.05, help="of a validator's engine")
    parser.add_argument("--validators", type=int, default=4, help="of the nodes")
    parser.add_argument("--full", type=int, default=16, help="nodes that have everything of their own")
    parser.add_argument("--policy-seconds", type=float, help="a policy's way; default: the exchange is simulated")
    parser.add_argument("--learner-seconds", type=float, default=240.0, help="per step")
    parser.add_argument("--no-work", action="store_true", help="members only talk")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--picture", type=Path, help="where to draw it (PNG)")
    return parser


if __name__ == "__main__":
    main()
