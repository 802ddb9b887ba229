"""`env check` on twelve packages that are not what they say, and on twelve that are.

    python -m benchmarks.env_check [--rows 24] [--seeds 1] [--quick] [--json FILE]

Each is checked in the sandbox that runs use, under both settings of its compiler, and where the kernel can confine
a native Python under two hash seeds. Exit code 1 unless all of the first are found and none of the others is
refused. --quick: the sandbox alone, four packages of each.
"""

import argparse
import json
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from node.environments.package.check import check_package
from node.environments.package.ways import all_ways
from tests.node.environments.package.honesty import DISHONEST, HONEST


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    told: list[dict[str, Any]] = []
    print("| package | rows | seconds | findings | first | instructions: median, most |\n|---|---|---|---|---|---|")
    for honest, packages in ((False, DISHONEST), (True, HONEST)):
        for name in islice(packages, 4 if options.quick else None):
            for seed in range(options.seeds):
                told.append(
                    checked(name, packages[name], options.rows, str(seed), quick=options.quick) | {"honest": honest}
                )
                print(line(told[-1]), flush=True)
    found = sum(bool(one["findings"]) for one in told if not one["honest"])
    refused = sum(bool(one["findings"]) for one in told if one["honest"])
    dishonest = sum(not one["honest"] for one in told)
    print(f"found: {found} of {dishonest} dishonest; refused: {refused} of {len(told) - dishonest} honest")
    if options.json:
        options.json.write_text(json.dumps(told, indent=2) + "\n")
    return int(found < dishonest or refused > 0)


def checked(name: str, code: bytes, rows: int, seed: str, *, quick: bool) -> dict[str, Any]:
    started = time.perf_counter()
    report = check_package({"environment.py": code}, all_ways()[: 1 if quick else None], rows, seed=seed.encode())
    first = report.findings[0].what if report.findings else "".join(one.what for one in report.warnings[:1])
    return {
        "package": name,
        "rows": report.rows,
        "swept": report.swept,
        "seconds": round(time.perf_counter() - started, 1),
        "findings": len(report.findings),
        "first": first,
        "fuel": [report.fuel.median, report.fuel.most],
        "undecided": report.undecided,
    }


def line(one: dict[str, Any]) -> str:
    fuel = ", ".join(f"{value:.3g}" for value in one["fuel"])
    return f"| {one['package']} | {one['rows']} | {one['seconds']} | {one['findings']} | {one['first'][:90]} | {fuel} |"


if __name__ == "__main__":
    raise SystemExit(main())
