"""Every recipe preset on the demo's task, at async level 2 and 8: final reward and its spread over seeds.

`python -m benchmarks.presets` takes about twenty minutes on one core; stop it at any time, the same command goes on.
All presets have the same learning rate, so this compares losses as they come, not each at its own best.
"""

from benchmarks.grid import Cell, Outcome, arguments, run_cells, show, spread
from protocol.recipe import PRESETS

LEVELS = (2, 8)


def main() -> None:
    chosen = arguments(__doc__, steps=50, seeds=2, out="presets")
    names = ("intellect2", "dppo") if chosen.quick else tuple(PRESETS)
    cells = [
        Cell(name, f"async {level}", seed, ("--recipe", name, "--async-level", str(level)))
        for seed in range(chosen.seeds)
        for name in names
        for level in LEVELS
    ]
    outcomes = run_cells(cells, chosen)
    rows = [[name, *(text for level in LEVELS for text in _texts(name, level, outcomes))] for name in names]
    columns = ["preset", *(f"{what}, async {level}" for level in LEVELS for what in ("reward", "best", "alarms"))]
    show(f"Presets: mean of the last ten evaluations after {chosen.steps} steps of the demo's task", columns, rows)


def _texts(name: str, level: int, outcomes: list[Outcome]) -> list[str]:
    mine = [one for one in outcomes if (one.row, one.column) == (name, f"async {level}")]
    good = [one for one in mine if not one.failed]
    alarms = sorted({alarm for one in good for alarm in one.alarms})
    failed = f"{len(mine) - len(good)} failed" if len(good) < len(mine) else ""
    return [
        spread([one.reward for one in good]),
        spread([one.best for one in good]),
        ", ".join([*alarms, *filter(None, [failed])]) or "-",
    ]


if __name__ == "__main__":
    main()
