"""What a liar moves that it may not move: cells of the adversarial matrix, one after the other.

    python -m benchmarks.adversary [--minutes 30] [--seed S] [--cells PATTERN] [--quick] [--json FILE]

A cell is one liar in a pool of eight whole nodes: who says which message how, how often, when and to whom
(`tests/attacks/matrix/cells.py`). Its run is compared with the same run without the liar's words. Each finding is a
line that begins with the cell's name; `--cells NAME` runs that one again alone. A pattern is a shell's, of names:
`'standby/PolicyAnnounced/*'`. Cells are taken by turns, a message after the other, in an order that the seed draws; it
is printed. The exit code is 1 where there was a finding. --list prints the names, and runs none.
"""

import logging
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator

from benchmarks.command import parser_of, save, silence_logs, tell
from tests.attacks.matrix.cells import Cell, Finding, cells, examine

QUICK_CELLS = 2
TELLS_EVERY = 250


def by_turns(all_of_them: list[Cell], seed: int) -> Iterator[Cell]:
    """In an order of the seed, a message's cell after another message's."""
    draw, piles = random.Random(seed), defaultdict[str, list[Cell]](list)  # noqa: S311 - an order
    for one in all_of_them:
        piles[one.kind].append(one)
    for pile in piles.values():
        draw.shuffle(pile)
    while piles:
        for kind in list(piles):
            yield piles[kind].pop()
            if not piles[kind]:
                del piles[kind]


def main() -> int:
    parser = parser_of(__doc__, f"{QUICK_CELLS} cells")
    parser.add_argument("--minutes", type=float, default=30.0, help="no cell begins after that")
    parser.add_argument("--seed", type=int, default=None, help="of the order; a new one each time without it")
    parser.add_argument("--cells", default="*", metavar="PATTERN", help="names of cells")
    parser.add_argument("--list", action="store_true", help="print the names")
    given = parser.parse_args()
    silence_logs(logging.CRITICAL)  # what nodes say of a liar is no finding
    chosen = cells(given.cells)
    if given.list:
        print("\n".join(map(str, chosen)))
        return 0
    if not chosen:
        parser.error(f"no cell is called {given.cells}; --list prints all names")
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    tell(f"{len(chosen)} of {len(cells())} cells, seed {seed}")
    began, spent, ran = time.monotonic(), time.process_time(), 0
    findings: list[Finding] = []
    for cell in by_turns(chosen, seed):
        if time.monotonic() - began > 60 * given.minutes or (given.quick and ran >= QUICK_CELLS):
            break
        ran += 1
        if not ran % TELLS_EVERY:
            tell(f"{ran} cells, {len({one.cell for one in findings})} of them moved something")
        for found in examine(cell):
            findings.append(found)
            print(found, flush=True)
    each = (time.process_time() - spent) / max(ran, 1)
    told = Counter(one.probe for one in findings)
    tell(f"{ran} of {len(chosen)} cells ran, {each:.2f} CPU s each, seed {seed}")
    tell(f"{len({one.cell for one in findings})} cells moved something: {dict(told.most_common())}")
    rows = [{"cell": one.cell, "probe": one.probe, "more": one.more, "fewer": one.fewer} for one in findings]
    save(given.json, {"seed": seed, "cells": ran, "cpu_seconds_each": round(each, 2), "findings": rows})
    return 1 if findings and not given.quick else 0


if __name__ == "__main__":
    sys.exit(main())
