"""How close the exchange's scheduling comes to the best that any scheme could do, for swarms that fit no machine.

    python -m benchmarks.simulation.exchange [--quick] [--json FILE] [--jobs 2]

The decisions are made by the daemon's own code (`node.blobs.scheduling`); links, latencies and clocks are simulated: an
uploader shares its link among its slots, a downloader takes what arrives one after another. Peers 0.2 Gbit/s up and
1 down; the bound is the fluid limit max(b / u_s, b / d_min, N b / (u_s + sum u_i)) of Kumar and Ross.
"""

import argparse
import json
import multiprocessing
import sys
import time
from pathlib import Path

from benchmarks.simulation.fetching import GBIT, LATENCY, NEIGHBOURS, PIECES, Swarm


def measure(case: tuple[int, float, float]) -> dict[str, float]:
    count, size, origin = case
    started = time.perf_counter()
    swarm = Swarm(count, size, origin * GBIT, seed=7).run()
    times = sorted(peer.finished for peer in swarm.nodes[1:])
    extra = sum(peer.received for peer in swarm.nodes[1:]) / (count * swarm.size) - 1
    return {
        "peers": count,
        "gigabytes": size / 1e9,
        "origin_gbit": origin,
        "bound_seconds": swarm.bound(),
        "median_seconds": times[len(times) // 2],
        "last_seconds": times[-1],
        "over_bound": times[-1] / swarm.bound(),
        "star_seconds": count * size / (origin * GBIT),
        "duplicate_share": extra,
        "cpu_seconds": time.perf_counter() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 peers only")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    counts = (100,) if options.quick else (100, 1000)
    cases = [(count, size, origin) for count in counts for size in (0.5e9, 62e9) for origin in (1.0, 10.0)]
    print(f"{PIECES} pieces, {NEIGHBOURS} neighbours on average, peers 0.2 Gbit/s up and 1 down, one-way {LATENCY:g} s")
    print("peers     GB  origin Gbit/s   bound s  median s    last s  last/bound  star s  twice  (took s)")
    rows = []
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for row in pool.imap(measure, cases):
            rows.append(row)
            print(
                f"{row['peers']:5.0f} {row['gigabytes']:6.1f} {row['origin_gbit']:14.0f} {row['bound_seconds']:9.1f}"
                f" {row['median_seconds']:9.1f} {row['last_seconds']:9.1f} {row['over_bound']:11.3f}"
                f" {row['star_seconds']:7.0f} {row['duplicate_share']:6.2%} {row['cpu_seconds']:9.0f}"
            )
            sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
