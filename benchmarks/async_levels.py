"""Does staleness cost reward? The demo's task at async level 0, 1, 2, 4 and 8, three seeds each.

`python -m benchmarks.async_levels` takes about fifteen minutes on one core; stop it at any time, the same command
goes on. Every batch is made by a policy exactly LEVEL steps old, so level 0 is synchronous training. The reward is
the mean of the last ten evaluations on held-back problems.
"""

from benchmarks.grid import Cell, arguments, run_cells, show, spread

LEVELS = (0, 1, 2, 4, 8)


def main() -> None:
    chosen = arguments(__doc__, steps=80, seeds=3, out="async-levels")
    levels = (0, 2) if chosen.quick else LEVELS
    cells = [
        Cell(f"async {level}", "", seed, ("--async-level", str(level)))
        for seed in range(chosen.seeds)
        for level in levels
    ]
    outcomes = [one for one in run_cells(cells, chosen) if not one.failed]
    rows = []
    for level in levels:
        mine = [one for one in outcomes if one.row == f"async {level}"]
        rows.append(
            [
                str(level),
                spread([one.staleness for one in mine], 2),
                spread([one.reward_first for one in mine]),
                spread([one.reward for one in mine]),
                spread([one.seconds for one in mine], 1),
                str(len(mine)),
            ]
        )
    columns = ["async level", "mean age", "reward, first ten", "reward, last ten", "seconds", "runs"]
    show(f"Async levels: {chosen.steps} steps of the demo's task", columns, rows)


if __name__ == "__main__":
    main()
