"""What a liar moves that it may not move: cells of the adversarial matrix, one after the other.

    python -m benchmarks.adversary [--minutes 30] [--processes N] [--resume FILE] [--seed S] [--cells PATTERN] [--quick]
        [--json FILE]

A cell is one liar in a pool of eight whole nodes: who says which message how, how often, when and to whom
(`tests/attacks/matrix/cells.py`). Its run is compared with the same run without the liar's words. Each finding is a
line that begins with the cell's name; `--cells NAME` runs that one again alone. A pattern is a shell's, of names:
`'standby/PolicyAnnounced/*'`.

The seed draws the order and is printed. Pools with rounds, pairs of liars and each lie of each author once come by
turns; then the other times and audiences. With --resume each cell that ran is a line of a file, and the next run of
the same file goes on: nightly runs come to all of them. A cell that was stopped because a busy machine took its time
is no finding: run it again alone. The exit code is 1 where there was a finding. --list prints the names, and runs none.
"""

import logging
import os
import random
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

import msgspec

from benchmarks.command import parser_of, save, silence_logs, tell
from tests.attacks.matrix.cells import Cell, Finding, cells
from tests.attacks.matrix.warmed import Warmed, prepare

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


def examined(waiting: list[Cell], processes: int, until: float) -> Iterator[Ran]:
    """As they come. until: by the monotonic clock, from which on no cell begins."""
    prepare()  # once for all
    heard, children, own = list[Connection](), list[int](), os.getpid()
    for number in range(processes):
        reader, writer = Pipe(duplex=False)
        if not (child := os.fork()):
            status = 1
            try:
                _examine(waiting[number::processes], writer, lambda: time.monotonic() > until or os.getppid() != own)
                status = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(status)
        writer.close()
        heard.append(reader)
        children.append(child)
    while heard:
        for one in wait(heard):
            assert isinstance(one, Connection)
            try:
                yield msgspec.json.decode(one.recv_bytes(), type=Ran)
            except EOFError:
                heard.remove(one)
    if any([os.waitpid(child, 0)[1] for child in children]):
        raise RuntimeError("a process of cells ended before its time")


def _examine(some: list[Cell], writer: Connection, is_over: Callable[[], bool]) -> None:
    with Warmed() as world:
        for cell in some:
            if is_over():
                return
            cpu, findings = world.examine(cell)
            writer.send_bytes(msgspec.json.encode(Ran(str(cell), round(cpu, 2), tuple(findings))))


def main() -> int:
    parser = parser_of(__doc__, f"{QUICK_CELLS} cells")
    parser.add_argument("--minutes", type=float, default=30.0, help="no cell begins after that")
    parser.add_argument(
        "--processes", type=int, default=1, metavar="N", help="cells that run at once; each takes a core"
    )
    parser.add_argument("--resume", type=Path, metavar="FILE", help="write each cell there, and leave out those in it")
    parser.add_argument("--seed", type=int, default=None, help="of the order; a new one each time without it")
    parser.add_argument("--cells", default="*", metavar="PATTERN", help="names of cells")
    parser.add_argument("--list", action="store_true", help="print the names")
    given = parser.parse_args()
    silence_logs(logging.CRITICAL)  # what nodes say of a liar is no finding
    if given.processes < 1:
        parser.error(f"--processes {given.processes} is less than one")
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
    before, until = len(results.ran), time.monotonic() + 60 * given.minutes
    for ran in examined(waiting[:QUICK_CELLS] if given.quick else waiting, given.processes, until):
        results.add(ran)
        for found in ran.findings:
            print(found, flush=True)
        if not (len(results.ran) - before) % TELLS_EVERY:
            moved = sum(bool(one.findings) for one in results.ran)
            tell(f"{len(results.ran) - before} cells, {moved} of all moved something")
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
