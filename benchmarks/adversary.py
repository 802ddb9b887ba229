"""What a liar moves that it may not move: cells of the adversarial matrix, one after the other.

    python -m benchmarks.adversary [--minutes 30] [--resume FILE] [--seed S] [--cells PATTERN] [--quick] [--json FILE]

A cell is one liar in a pool of eight whole nodes: who says which message how, how often, when and to whom
(`tests/attacks/matrix/cells.py`). Its run is compared with the same run without the liar's words. Each finding is a
line that begins with the cell's name; `--cells NAME` runs that one again alone. A pattern is a shell's, of names:
`'standby/PolicyAnnounced/*'`.

The seed draws the order and is printed. Pools with rounds, pairs of liars and each lie of each author once come by
turns; then the other times and audiences. With --resume each cell that ran is a line of a file, and the next run of
the same file goes on: nightly runs come to all of them. The exit code is 1 where there was a finding. --list prints the
names, and runs none.
"""

import logging
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

import msgspec

from benchmarks.command import parser_of, save, silence_logs, tell
from tests.attacks.matrix.cells import Cell, Finding, cells
from tests.attacks.matrix.warmed import Warmed

QUICK_CELLS = 2
TELLS_EVERY = 100


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line of a file of results."""

    seed: int


class Ran(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Each other one. cpu: seconds."""

    cell: str
    cpu: float
    findings: tuple[Finding, ...] = ()


class Results:
    """What ran, in a file or for this run only. seed: of the order; a file's own stands."""

    def __init__(self, path: Path | None, seed: int) -> None:
        self._path = path
        self.seed, self.ran = seed, list[Ran]()
        if path is None or not path.exists():
            self._add(Order(seed))
            return
        whole, _, torn = path.read_text(encoding="utf-8").rpartition("\n")
        if torn:  # the last run was killed while it wrote
            path.write_text(f"{whole}\n", encoding="utf-8")
        first, *rest = whole.splitlines()
        self.seed = msgspec.json.decode(first, type=Order).seed
        self.ran = [msgspec.json.decode(line, type=Ran) for line in rest]

    def add(self, ran: Ran) -> None:
        self.ran.append(ran)
        self._add(ran)

    def _add(self, line: Order | Ran) -> None:
        if self._path is not None:
            with self._path.open("ab") as out:
                out.write(msgspec.json.encode(line) + b"\n")


def in_order(all_of_them: list[Cell], seed: int) -> Iterator[Cell]:
    """As the seed draws it."""
    known, parts = set[tuple[str, str, str]](), defaultdict[str, list[Cell]](list)
    for one in random.Random(seed).sample(all_of_them, len(all_of_them)):
        lie = one.author, one.kind, one.deviation
        rare = "rounds" if one.history == "rounds" else "pairs" if "+" in one.author else "once"
        parts["rest" if rare == "once" and lie in known else rare].append(one)
        known.add(lie)
    yield from _by_turns(_by_messages(parts[name]) for name in ("rounds", "pairs", "once"))
    yield from _by_messages(parts["rest"])


def _by_messages(some: list[Cell]) -> Iterator[Cell]:
    piles = defaultdict[str, list[Cell]](list)
    for one in some:
        piles[one.kind].append(one)
    return _by_turns(piles.values())


def _by_turns(piles: Iterable[Iterable[Cell]]) -> Iterator[Cell]:
    return (one for row in zip_longest(*piles) for one in row if one is not None)


def main() -> int:
    parser = parser_of(__doc__, f"{QUICK_CELLS} cells")
    parser.add_argument("--minutes", type=float, default=30.0, help="no cell begins after that")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="write each cell there, and leave out those in it")
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
    try:
        results = Results(given.resume, seed)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        parser.error(f"{given.resume} is no file of results: {error}; name another one")
    done = {one.cell for one in results.ran}
    waiting = [one for one in in_order(chosen, results.seed) if str(one) not in done]
    tell(f"{len(waiting)} of {len(cells())} cells, seed {results.seed}; {len(done)} ran before")
    began, before = time.monotonic(), len(results.ran)
    with Warmed() as world:
        for cell in waiting:
            ran = len(results.ran) - before
            if time.monotonic() - began > 60 * given.minutes or (given.quick and ran >= QUICK_CELLS):
                break
            cpu, findings = world.examine(cell)
            results.add(Ran(str(cell), round(cpu, 2), tuple(findings)))
            for found in findings:
                print(found, flush=True)
            if not (ran + 1) % TELLS_EVERY:
                tell(f"{ran + 1} cells, {sum(bool(one.findings) for one in results.ran)} of all moved something")
    new = results.ran[before:]
    each = sum(one.cpu for one in new) / max(len(new), 1)
    findings = [found for one in results.ran for found in one.findings]
    told = Counter(one.probe for one in findings)
    tell(f"{len(new)} cells ran, {each:.2f} CPU s each, seed {results.seed}; {len(results.ran)} in all")
    tell(f"{len({one.cell for one in findings})} cells moved something: {dict(told.most_common())}")
    rows = [msgspec.to_builtins(one) for one in findings]
    figures = {"seed": results.seed, "cells": len(results.ran), "cpu_seconds_each": round(each, 2), "findings": rows}
    save(given.json, figures)
    return 1 if findings and not given.quick else 0


if __name__ == "__main__":
    sys.exit(main())
