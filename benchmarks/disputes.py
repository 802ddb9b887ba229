"""Disputes among validators of which some lie, are away or come late, played at random over the product's counting.

    python -m benchmarks.disputes [--runs 10] [--seed 0] [--quick] [--json FILE]

Prints, for each number of validators, how many plays there were, and in how many something went wrong: somebody honest
is disbelieved, a bad work is accepted, a good or an old one is unmade, whoever denied what most saw is believed. Each
such play is named, so that it can be played again.
"""

import time
from collections import Counter

from benchmarks.command import parser_of, save, silence_logs
from tests.node.swarm.disputes import cells, play


def main() -> None:
    parser = parser_of(__doc__, "one play of every tenth cell")
    parser.add_argument("--runs", type=int, default=10, help="plays of each cell")
    parser.add_argument("--seed", type=int, default=0, help="of the first play")
    options = parser.parse_args()
    silence_logs()
    began, plays, wrong = time.monotonic(), Counter[int](), Counter[int]()
    for number, sides in list(enumerate(cells()))[:: 10 if options.quick else 1]:
        for run in range(1 if options.quick else options.runs):
            seed = options.seed + 1000 * number + run
            found = play(sides, seed)
            plays[sides.office] += 1
            wrong[sides.office] += bool(found)
            for text in found[:3]:
                print(f"{sides} seed {seed}: {text}")
    for office in sorted(plays):
        print(f"{office} validators: {plays[office]} plays, in {wrong[office]} of them something went wrong")
    print(f"seed {options.seed}, {time.monotonic() - began:.0f} s")
    save(options.json, {"seed": options.seed, "plays": plays, "wrong": wrong})


if __name__ == "__main__":
    main()
