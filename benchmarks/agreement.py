"""Do validators agree on one list in every round, whoever lies, is late or crashes?

    python -m benchmarks.agreement [--runs 1000] [--seed S] [--validators 3,4,5,6,7] [--quick] [--json FILE]

Plays rounds on the product's `Agreement` (`tests/protocol/agreement_model.py` says what is modelled): 3 to 7
validators, five kinds of liars, a tenth of the words ten seconds late, with and without a validator that crashes and
comes back. Of a bench a third lies, less one; of three one, where it says the same to all, which is all that three can
bear. The last rows are controls: what three do not bear, and a quorum of more than half. A cell's rounds have the seeds
S, S + 1, ... A round that fails prints its seed. The exit code is 1 where a rule failed.
"""

import secrets
import sys
from collections.abc import Iterator

from benchmarks.command import parser_of, save
from tests.protocol.agreement_model import KINDS, Cell, Rules, rates


def cells(benches: list[int]) -> Iterator[tuple[Cell, Rules, bool]]:
    """What is played, by which rules, and whether nothing may fail."""
    for validators in benches:
        for kind in (None, *KINDS):
            if validators == 3 and kind not in (None, "rusher"):
                continue
            for crash in (False, True):
                yield Cell(validators, kind, liars=1 if validators == 3 and kind else None, crash=crash), Rules(), True
    if 3 in benches:
        yield Cell(3, "two-faced", liars=1), Rules(), False
    if 7 in benches:
        yield Cell(7, "two-faced"), Rules(quorum=lambda n: n // 2 + 1), False


def main() -> None:
    parser = parser_of(__doc__, "ten rounds a cell")
    parser.add_argument("--runs", type=int, default=1000, help="rounds of each cell")
    parser.add_argument("--seed", type=int, default=None, help="of the first round (drawn, and printed)")
    parser.add_argument("--validators", default="3,4,5,6,7", help="separated by commas")
    a = parser.parse_args()
    seed = secrets.randbelow(10**6) if a.seed is None else a.seed
    runs = 10 if a.quick else a.runs
    print(f"seed {seed}, {runs} rounds a cell; seconds from the end of the round: median, 99th of 100, longest")
    rows, failed = [], False
    for cell, rules, safe in cells([int(n) for n in a.validators.split(",")]):
        found = rates(cell, range(seed, seed + runs), rules)
        rows.append({"validators": cell.validators, "kind": cell.kind, "crash": cell.crash, "safe": safe} | found)
        failed |= bool(safe and found["faults"])
        who = f"{cell.lying} {cell.kind}" if cell.kind else "nobody lies"
        what = ", ".join(f"{many} {fault}" for fault, many in found["faults"].items()) or "all decided one list"
        told = f"{cell.validators} validators, {who}{', one crashes' * cell.crash}{'' if safe else ' (control)'}"
        print(f"{told:52} {what:24} {found['seconds']}  ballots {found['ballots']}, words {found['kept']}", flush=True)
        for fault, seeds in found["seeds"].items() if safe else ():
            print(f"    {fault}: seeds {seeds}")
    save(a.json, {"seed": seed, "runs": runs, "cells": rows})
    sys.exit(failed)


if __name__ == "__main__":
    main()
