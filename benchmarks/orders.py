"""Does what a pool's state comes to follow from what was said, whoever says what, in whatever order?

    python -m benchmarks.orders [--minutes 10] [--seed S] [--quick] [--json FILE]

Random plays on the product's `PoolState` (`tests/node/swarm/pool_plays.py`): words that arrive late, twice and in any
order; terms whose blocks are replaced, or told again after hours of them were taken back; liars with and without an
office. Each play that comes out otherwise than it must is named with its seed. The exit code is 1 where there is one.
"""

import logging
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

from benchmarks.command import parser_of, save, silence_logs, tell
from tests.node.swarm import pool_plays as plays

PLAYS: dict[str, Callable[[int], Any]] = {
    one.__name__: one
    for one in (plays.reordered, plays.phantom, plays.told_again, plays.without_right, plays.unrightful)
}
QUICK = 10


def main() -> None:
    parser = parser_of(__doc__, f"{QUICK} plays of each kind")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="of the first plays (drawn, and printed)")
    given = parser.parse_args()
    silence_logs(logging.CRITICAL)
    seed = secrets.randbelow(10**6) if given.seed is None else given.seed
    began, ran, wrong = time.monotonic(), Counter[str](), Counter[str]()
    for number in count(seed):
        if time.monotonic() - began > 60 * given.minutes or (given.quick and number >= seed + QUICK):
            break
        for name, play in PLAYS.items():
            ran[name] += 1
            if found := play(number):
                wrong[name] += 1
                print(f"{name} seed {number}: {found}"[:400], flush=True)
    tell(f"seed {seed}: {dict(ran)}, {time.process_time():.0f} CPU s; came out otherwise: {dict(wrong) or 'none'}")
    save(given.json, {"seed": seed, "plays": ran, "wrong": wrong})
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
