"""One policy's way to everybody, by the exchange's own decisions, for swarms that fit no machine.

    python -m benchmarks.simulation.exchange [--peers 10,100,1000,10000] [--megabytes 120]
                                             [--hoarders 0.1 --hoard 1.9]
                                             [--quick] [--json] [--jobs 1]
    python -m benchmarks.simulation.exchange --bounds [--quick]      # 0.5 and 62 GB beside what any scheme could do

What is the product's and what is simulated stands in `fetching.py`. The origin has 1 Gbit/s, peers 0.2 up and 1
down; the bound is the fluid limit max(b / u_s, b / d_min, N b / (u_s + sum u_i)) of Kumar and Ross. stale: seconds
for which a peer is without the new policy, the mean; source copies: bytes that the origin sends, by the blob's size;
twice: bytes that came to a peer although they were there. --hoarders: that share claims to have everything from the
beginning, and delivers each request after --hoard seconds; the table is of the others.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from benchmarks.command import parser_of
from benchmarks.simulation.fetching import GBIT, LATENCY, Swarm, described

COARSE = 512
"""Pieces of each blob in the table of bounds."""
TOLD_EVERY = 5.0


class Case(msgspec.Struct, frozen=True):
    """origin: Gbit/s; pieces: None for the product's; hoarders: their share; hoard: seconds."""

    peers: int
    size: float
    origin: float = 1.0
    pieces: int | None = None
    hoarders: float = 0.0
    hoard: float = 1.9


def measure(case: Case) -> dict[str, float]:
    began = time.process_time()
    swarm = Swarm(
        case.peers, case.size, case.origin * GBIT, 7, case.pieces, hoarders=case.hoarders, hoard=case.hoard
    ).run(Teller())
    row = described(swarm) | {"origin_gbit": case.origin, "CPU_s": round(time.process_time() - began, 1)}
    return row | {"star_s": round(case.peers * case.size / (case.origin * GBIT), 1)}


class Teller:
    """Says on stderr how far it is, every few seconds of waiting."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def __call__(self, swarm: Swarm) -> None:
        if time.monotonic() - self._told < TOLD_EVERY:
            return
        self._told = time.monotonic()
        done = sum(peer.download.done for peer in swarm.honest if peer.download) / len(swarm.honest) / swarm.size
        print(f"{len(swarm.honest)} peers: {swarm.clock.now:.1f} s, {done:.0%} of the bytes", file=sys.stderr)


COLUMNS = (
    "peers bound_s p50_s p99_s last_s last_over_bound stale_s source_copies"
    " node_MB_in node_MB_out_mean node_MB_out_most twice_percent CPU_s"
).split()
BOUND_COLUMNS = (
    "peers MB origin_gbit bound_s p50_s last_s last_over_bound star_s source_copies twice_percent CPU_s".split()
)


def main() -> None:
    given = _parser().parse_args()
    if given.bounds:
        counts = (100,) if given.quick else (100, 1000)
        cases = [Case(n, size, gbit, COARSE) for n in counts for size in (0.5e9, 62e9) for gbit in (1.0, 10.0)]
    else:
        counts = (10, 100) if given.quick else given.peers
        size = 1e6 * given.megabytes
        cases = [Case(n, size, hoarders=given.hoarders, hoard=given.hoard) for n in counts]
    columns = BOUND_COLUMNS if given.bounds else COLUMNS
    print(f"peers 0.2 Gbit/s up and 1 down, one-way {LATENCY:g} s")
    print("  ".join(name.replace("_", " ") for name in columns))
    rows: list[dict[str, Any]] = []
    for row in _measured(cases, given.jobs):
        rows.append(row)
        print("  ".join(f"{row[name]:>{len(name)}g}" for name in columns), flush=True)
    if given.json:
        print(json.dumps({"rows": rows}))


def _measured(cases: list[Case], jobs: int) -> Iterable[dict[str, float]]:
    if jobs == 1:
        yield from map(measure, cases)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(measure, cases)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__, "10 and 100 peers only; of --bounds: 100", "line")
    parser.add_argument("--peers", type=_counts, default=(10, 100, 1000, 10_000), help="with commas between them")
    parser.add_argument("--megabytes", type=float, default=120.0, help="of the blob: a policy's patch")
    parser.add_argument("--hoarders", type=float, default=0.0, help="share of the peers that claim and delay")
    parser.add_argument("--hoard", type=float, default=1.9, help="seconds that they keep a request")
    parser.add_argument("--bounds", action="store_true", help="the table of 0.5 and 62 GB")
    parser.add_argument("--jobs", type=int, default=1)
    return parser


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(one) for one in text.split(","))
    if not counts or min(counts) < 2:
        raise argparse.ArgumentTypeError("at least two peers")
    return counts


if __name__ == "__main__":
    main()
