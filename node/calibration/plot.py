"""The picture of a calibration: how far honest engines are apart, and where the cheats lie."""

from pathlib import Path

import numpy as np

from node.calibration.calibrate import Looks, Measured
from protocol.decision import PROOF_BINS, PROOF_EDGES, TOKEN_BINS, TOKEN_EDGES, count


def plot(measured: Measured, k: int, title: str, target: Path) -> None:
    """Write a PNG (or what `target`'s suffix says). Raises OSError."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(13, 8), sharex="col")
    for row, (kind, looks) in enumerate((("honest", measured.honest), ("cheating", measured.cheating))):
        _panel(axes[row][0], looks, k, "proofs", PROOF_BINS)
        _panel(axes[row][1], looks, k, "tokens", TOKEN_BINS)
        axes[row][0].set_ylabel(f"{kind}: share")
    for axis, edges, label in (
        (axes[1][0], PROOF_EDGES, "activation proofs: mean distance in mantissa steps, up to"),
        (axes[1][1], TOKEN_EDGES, "sampling: distance of the drawn number from its token's interval, up to"),
    ):
        axis.set_xticks(range(len(edges) + 1), [*(f"{edge:g}" for edge in edges), "more"], rotation=60, fontsize=7)
        axis.set_xlabel(label)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(target, dpi=110)
    pyplot.close(figure)


def _panel(axis, looks: Looks, k: int, what: str, bins: int) -> None:  # noqa: ANN001 - matplotlib's Axes
    for name, samples in looks.items():
        values = np.array(getattr(count(samples, k), what), dtype=float)
        axis.plot(range(bins), values / max(values.sum(), 1), marker=".", linewidth=1, label=name)
    axis.set_yscale("symlog", linthresh=1e-3)
    axis.legend(fontsize=6)
