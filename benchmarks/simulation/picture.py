"""The simulation as a picture: from policy to batch, staleness, who waits, load."""

from pathlib import Path

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
