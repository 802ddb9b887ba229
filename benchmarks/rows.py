"""Rows of published forms: how many of each are taken and refused, and what right and wrong answers to them are paid.

    python -m benchmarks.rows [--json FILE] [--quick]

Golden rows of every form (`tests/node/environments/task_types/shapes/golden.jsonl`) are read as `dataset` reads
them. Their right answers must get 1; their wrong ones, no answer and garbage the floor of 0, in the sandbox that
runs use. Exit code 1 where one does not. --quick: without the forms whose answers are programs.
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from node.environments.package.check import WORTHLESS
from node.environments.programs import ProgramRunner
from node.environments.runtime import opener_for
from node.environments.task_types.shapes.table import read_published
from node.environments.task_types.table import TASK_TYPES
from node.sandbox import Limits

GOLDEN = Path(__file__).parents[1] / "tests/node/environments/task_types/shapes/golden.jsonl"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    rows = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    runner = ProgramRunner(opener_for(), Limits())
    forms: dict[str, Counter[str]] = {}
    try:
        for one in rows:
            name, counts = measured(one, runner, quick=options.quick)
            forms.setdefault(name, Counter()).update(counts)
    finally:
        runner.close()
    print("| form | rows taken | refused | right answers paid 1 | wrong ones paid 0 |\n|---|---|---|---|---|")
    for name, found in sorted(forms.items()):
        right, wrong = f"{found['paid']} of {found['right']}", f"{found['unpaid']} of {found['wrong']}"
        print(f"| {name} | {found['taken']} | {found['refused']} | {right} | {wrong} |")
    if options.json:
        options.json.write_text(json.dumps(forms, indent=2) + "\n")
    bad = [name for name, found in forms.items() if found["paid"] < found["right"] or found["unpaid"] < found["wrong"]]
    print("wrong: " + ", ".join(bad) if bad else "every right answer 1, every wrong one 0")
    return int(bool(bad))


def measured(one: dict[str, Any], runner: ProgramRunner, *, quick: bool) -> tuple[str, dict[str, int]]:
    """(form, counts) of one golden row."""
    row = one["row"]
    try:
        published = read_published(row)
        task = TASK_TYPES[published.task]
        truth = task.truth(published.info, row)
    except ValueError as error:
        return f"refused: {str(error)[:70]}", {"refused": 1}
    counts = {"taken": 1}
    if (quick and task.programs) or not one.get("right"):
        return published.shape, counts
    scorer = task.open(runner)
    garbage = [""] if task.name == "ifeval" else WORTHLESS.values()  # garbage may well have no comma in it
    wrong = [*one["wrong"], *garbage]
    scores = scorer.score([(answer, truth) for answer in (*one["right"], *wrong)])
    scorer.close()
    right = scores[: len(one["right"])]
    counts |= {"right": len(right), "paid": right.count(1.0), "wrong": len(wrong)}
    return published.shape, counts | {"unpaid": scores[len(right) :].count(0.0)}


if __name__ == "__main__":
    raise SystemExit(main())
