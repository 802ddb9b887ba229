"""Write calibrated thresholds and tables into a run file, and leave everything else in it as its owner wrote it."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tomlkit
from tomlkit.items import Table

from node.calibration.calibrate import Looks, Measured
from node.errors import RunFileError
from node.state.files import write_whole
from protocol.decision import PROOF_BINS, PROOF_EDGES, TOKEN_BINS, TOKEN_EDGES, count
from protocol.run import VerificationSpec
from protocol.thresholds import Thresholds


def plot(measured: Measured, k: int, title: str, target: Path) -> None:
    """Write a PNG (or what `target`'s suffix says). Raises OSError."""
    import matplotlib

    # Before pyplot is imported, which would look for a screen.
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


_NOTE = "Measured by `intellect-node calibrate`: counts of proofs and tokens per bin (protocol/decision.py)."


def write_thresholds(source: Path, target: Path, verification: VerificationSpec) -> None:
    """`target` becomes `source` with the thresholds and the decision tables of `verification`. Raises RunFileError."""
    try:
        document = tomlkit.parse(source.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFileError(f"cannot read the run file {source}", str(error), "make it TOML in UTF-8") from error
    section = document.get("verification")
    if not isinstance(section, Table):
        section = tomlkit.table()
        document["verification"] = section
    for name in Thresholds.__struct_fields__:
        section[name] = getattr(verification, name)
    section["engines"] = list(verification.engines)
    section["pairs"] = _pairs(verification)
    section["decision"] = _decision(verification)
    try:
        write_whole(target, tomlkit.dumps(document).encode())
    except OSError as error:
        raise RunFileError(f"cannot write {target}", error.strerror or str(error), "choose another --out") from error


def _pairs(verification: VerificationSpec) -> Table:
    # A super table gets no header line of its own.
    table = tomlkit.table(is_super_table=True)
    for name, thresholds in verification.pairs.items():
        table[name] = msgspec.to_builtins(thresholds)
    return table


def _decision(verification: VerificationSpec) -> Table:
    plain: dict[str, Any] = msgspec.to_builtins(verification.decision)
    table = tomlkit.table()
    table.comment(_NOTE)
    for name, value in plain.items():
        if not isinstance(value, dict):
            table[name] = list(value) if isinstance(value, tuple) else value
            continue
        kinds = tomlkit.table(is_super_table=True)
        for kind, counts in value.items():
            kinds[kind] = {what: list(n) if isinstance(n, tuple | list) else n for what, n in counts.items()}
        table[name] = kinds
    return table
