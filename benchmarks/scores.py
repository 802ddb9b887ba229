"""Is a right answer paid and a wrong one not? The bank: truths, right answers and wrong ones, from public reports.

    python -m benchmarks.scores [--quick] [--all] [--json FILE]

Each row of scores.jsonl is a situation that somebody reported of a judge of answers, named as its source, in words of
our own. Printed by kind: rows, right answers that are paid, wrong ones that are, rows that are refused. Exits with 1
where a wrong answer is paid, less than 98 % of the right ones are, or a row that nobody could be paid for is taken.
--quick leaves the programs out; --all names every answer whose score is not what the bank says.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.command import parser_of, save
from node.environments.programs import ProgramRunner, opener_for
from node.environments.task_types.base import Truth
from node.environments.task_types.shapes.base import Published
from node.environments.task_types.shapes.table import read_published
from node.environments.task_types.table import TASK_TYPES
from node.sandbox import SandboxLimits

BANK = Path(__file__).with_name("scores.jsonl")
RIGHT_SHARE = 0.98
"""Of right answers that must be paid. Of wrong ones none may be."""


@dataclass
class Kind:
    """Counts of one kind of rows. wrong_paid, unpaid: (source, truth, answer)."""

    rows: int = 0
    right: int = 0
    wrong: int = 0
    unpaid: list[tuple[str, str, str]] = field(default_factory=list)
    wrong_paid: list[tuple[str, str, str]] = field(default_factory=list)
    refused: int = 0
    taken: list[tuple[str, str]] = field(default_factory=list)
    undecided: int = 0


def bank(path: Path = BANK) -> list[dict[str, Any]]:
    """kind, source, and `row` or `task` with `truth` or `info`; right, wrong: answers; or `refused`: a row."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def judged(rows: Sequence[dict[str, Any]], runner: ProgramRunner) -> dict[str, Kind]:
    """What the scorers say of a bank, by kind."""
    kinds: dict[str, Kind] = {}
    asked: dict[str, list[tuple[dict[str, Any], bool, str, Truth]]] = {}
    for one in rows:
        kind = kinds.setdefault(one["kind"], Kind())
        kind.rows += 1
        if "refused" in one:
            _refuse(one, kind)
            continue
        task, truth = _truth(one)
        asked.setdefault(task, []).extend((one, right, text, truth) for right, text in _answers(one))
    for task, questions in asked.items():
        scorer = TASK_TYPES[task].open(runner)
        scores = scorer.score([(text, truth) for _, _, text, truth in questions])
        scorer.close()
        for (one, right, text, truth), score in zip(questions, scores, strict=True):
            _count(kinds[one["kind"]], one, (right, text, truth), score)
        kinds[questions[0][0]["kind"]].undecided += scorer.gave_up
    return kinds


def _truth(one: dict[str, Any]) -> tuple[str, Truth]:
    if "row" in one:
        published: Published = read_published(one["row"])
        return published.task, TASK_TYPES[published.task].truth(published.info, one["row"])
    if "truth" in one:
        row = {"task_type": "verifiable_math", "prompt": "q", "verification_info": {"ground_truth": one["truth"]}}
        return one["task"], TASK_TYPES[one["task"]].truth(read_published(row).info, row)
    row = {"task_type": one["task"], "prompt": "q", "verification_info": one["info"]}
    return one["task"], TASK_TYPES[one["task"]].truth(read_published(row).info, row)


def _answers(one: dict[str, Any]) -> Iterator[tuple[bool, str]]:
    """(whether it is right, the answer): one in mathematics stands in a box unless its row says that it is raw."""
    boxed = one.get("task") == "verifiable_math" and not one.get("raw")
    for right, answers in ((True, one["right"]), (False, one["wrong"])):
        for answer in answers:
            yield right, f"So it is \\boxed{{{answer}}}." if boxed else answer


def _count(kind: Kind, one: dict[str, Any], asked: tuple[bool, str, Truth], score: float) -> None:
    right, text, truth = asked
    kind.right += right
    kind.wrong += not right
    if right and score < 1:
        kind.unpaid.append((one["source"], " | ".join(truth)[:200], text))
    elif not right and score > 0:
        kind.wrong_paid.append((one["source"], " | ".join(truth)[:200], text))


def _refuse(one: dict[str, Any], kind: Kind) -> None:
    try:
        published = read_published(one["refused"])
        TASK_TYPES[published.task].truth(published.info, one["refused"])
    except ValueError:
        kind.refused += 1
    else:
        kind.taken.append((one["source"], json.dumps(one["refused"])[:200]))


def main() -> None:
    parser = parser_of(__doc__, "without programs")
    parser.add_argument("--all", action="store_true", help="name each answer whose score is not what the bank says")
    arguments = parser.parse_args()
    rows = bank()
    if arguments.quick:
        rows = [one for one in rows if one.get("task") != "prime_rl_code"]
    runner = ProgramRunner(opener_for(None), SandboxLimits())
    kinds = judged(rows, runner)
    runner.close()
    print(f"{'kind':36} {'rows':>5} {'right paid':>12} {'wrong paid':>12} {'refused':>8} {'undecided':>9}")
    for name, kind in kinds.items():
        paid = f"{kind.right - len(kind.unpaid)} of {kind.right}"
        print(
            f"{name:36} {kind.rows:5} {paid:>12} {f'{len(kind.wrong_paid)} of {kind.wrong}':>12} {kind.refused:8} "
            f"{kind.undecided:9}"
        )
        if arguments.all:
            for what, found in (("not paid", kind.unpaid), ("PAID", kind.wrong_paid), ("TAKEN", kind.taken)):
                for case in found:
                    print(f"    {what}: {' | '.join(map(repr, case))}")
    right, unpaid = sum(kind.right for kind in kinds.values()), sum(len(kind.unpaid) for kind in kinds.values())
    wrong = sum(len(kind.wrong_paid) for kind in kinds.values())
    taken = sum(len(kind.taken) for kind in kinds.values())
    print(
        f"{len(rows)} rows: {right - unpaid} of {right} right answers are paid, {wrong} wrong ones; {taken} rows taken"
    )
    save(arguments.json, [{"kind": name, **vars(kind)} for name, kind in kinds.items()])
    if wrong or taken or right - unpaid < RIGHT_SHARE * right:
        sys.exit("the bank's bar is missed: no wrong answer paid, 98 % of right ones, no row that nobody can solve")


if __name__ == "__main__":
    main()
