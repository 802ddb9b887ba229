"""The planned rule of looking beside those of grail and BOINC: who looks at how much, and what a cheat gains.

    python -m benchmarks.simulation.field [--workers 10 100 1000 10000] [--groups 8] [--days 14] [--seed 7] [--quick]
        [--json]

`today` is what this product promises now (`protocol.audit`): a power for each worker and eight policies, by each of
four lookers a file, whether or not another one looks at the same group.

Garbage, which each of them refuses wherever it looks, and which saves all that a group is paid, in three shares of a
member's groups; so only the rates are compared. `gain` is as in `pool.py`, whose rows stand beside.

- grail (constants.py and validation/sampling.py at 54d6342): a quarter of the miners a window, 35 at most, 4 groups of
  each. Whoever is seen is neither looked at nor paid for 14 windows.
- BOINC (sched_send.cpp): a host is trusted from ten valid results in a row, N, on; then one result in N is computed by
  another one, too. One that differs is not paid, and sets N to nothing. This cheat waits until it is trusted.
"""

import json
from typing import Any

import numpy as np

from benchmarks.command import parser_of
from benchmarks.simulation.pool import DAY, LOOK_SECONDS, POLICY_SECONDS, SHARES
from benchmarks.simulation.rule import Rule
from protocol.audit import AuditSpec, needed_share

MINERS, MOST_MINERS, LEAST_MINERS, OF_EACH, OUT = 0.25, 35, 2, 4, 14
TRUSTED = 10
LOOKERS = 4
"""One more than a quorum of three."""


def grail_looks(workers: int, groups: int) -> float:
    """Share of all groups."""
    return min(MOST_MINERS, max(LEAST_MINERS, MINERS * workers)) / workers * min(OF_EACH, groups) / groups


def grail_gain(workers: int, groups: int, share: float) -> float:
    """Seen with chance a in a window it is paid for 1/a - 1 of them, makes 1/a, and is out for OUT."""
    sampled = min(MOST_MINERS, max(LEAST_MINERS, MINERS * workers)) / workers
    seen = min(1.0, sampled * (1 - (1 - share) ** min(OF_EACH, groups)))
    return (1 / seen - 1 + share / seen) / (1 / seen + OUT) - 1


def boinc(jobs: int, share: float, random: np.random.Generator) -> tuple[float, float]:
    """(share of the results that somebody else computes, too; gain)."""
    valid, replicated, paid, saved = 0, 0, 0, 0
    for look, cheat in random.random((jobs, 2)).tolist():
        looked = valid < TRUSTED or look < 1 / valid
        cheats = valid >= TRUSTED and cheat < share
        replicated += looked
        saved += cheats
        paid += not (looked and cheats)
        valid = 0 if looked and cheats else valid + looked
    return replicated / jobs, (paid + saved) / jobs - 1


def compared(workers: int, groups: int, days: int, seed: int) -> dict[str, Any]:
    random, everything = np.random.default_rng(seed), workers * groups * LOOK_SECONDS / POLICY_SECONDS
    plays = {share: boinc(days * DAY * groups, share, random) for share in (0.0, *SHARES)}
    looks = {
        "ours": Rule().floor(workers * groups) * (1 + Rule().again),
        "today": LOOKERS * needed_share(groups * AuditSpec().window, AuditSpec()),
        "grail": grail_looks(workers, groups),
        "BOINC": plays[0.0][0],
        "all": 1.0,
    }
    rows: dict[str, Any] = {name: {"looked at": share, "H100": share * everything} for name, share in looks.items()}
    for share in SHARES:
        rows["grail"][f"gain in {share:.0%}"] = grail_gain(workers, groups, share)
        rows["BOINC"][f"gain in {share:.0%}"] = plays[share][1]
    return rows


def main() -> None:
    parser = parser_of(__doc__, "one size, one day", "line")
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 100, 1_000, 10_000])
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    sizes, days = (asked.workers[:1], 1) if asked.quick else (asked.workers, asked.days)
    found = {str(many): compared(many, asked.groups, days, asked.seed) for many in sizes}
    if asked.json:
        print(json.dumps({"seed": asked.seed, **found}))
        return
    print(f"seed {asked.seed}")
    for many, rows in found.items():
        print(f"{many} workers")
        for name, row in rows.items():
            print(f"  {name:6} " + "  ".join(f"{what} {value:.3g}" for what, value in row.items()))


if __name__ == "__main__":
    main()
