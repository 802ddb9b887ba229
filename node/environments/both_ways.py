"""Whether a data set's scorers pay what they should, before anybody trains on it: for `run validate`. Blocking.

A published solution, and the truth itself as an answer, must be paid. Answers that say nothing must not be: a number
that stands in the truth without being it, an empty program. A few rows are looked at, spread over the file.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from node.environments.base import Problem
from node.environments.dataset import DatasetEnvironment
from node.environments.mathematics.reading import read

_MATHEMATICS = ("verifiable_math", "marked_math")
_PROGRAMS = ("prime_rl_code", "verifiable_code")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_NOTHING = "```python\npass\n```"


@dataclass(slots=True)
class BothWays:
    """looked_at: rows; unpaid: rows whose right answer would not be paid; overpaid: rows whose wrong answer would be,
    as (row, the answer); words: rows whose truth equals the same words only."""

    looked_at: int = 0
    unpaid: list[str] = field(default_factory=list)
    overpaid: list[tuple[str, str]] = field(default_factory=list)
    words: int = 0


def look_both_ways(environment: DatasetEnvironment) -> BothWays:
    found = BothWays()
    for problem in _spread(environment):
        gold = environment.rows.golds.get(problem.problem_id, "")
        right, wrong = list(_right(problem, gold)), list(_wrong(problem))
        if not right and not wrong:
            continue
        found.looked_at += 1
        scores = environment.score_texts(problem, [*right, *wrong])
        if right and min(scores[: len(right)]) < 1:
            found.unpaid.append(problem.problem_id)
        paid = [answer for answer, score in zip(wrong, scores[len(right) :], strict=True) if score > 0]
        found.overpaid += [(problem.problem_id, answer) for answer in paid[:1]]
        if problem.task in _MATHEMATICS:
            found.words += all(read(truth).kind == "words" for truth in problem.answer)
    return found


def _spread(environment: DatasetEnvironment) -> Iterator[Problem]:
    """Training problems at equal distances: what is wrong with a file is often wrong with a part of it."""
    programs = 0
    looked_at = 48
    step = max(1, environment.size // looked_at)
    for number in range(0, min(environment.size, step * looked_at), step):
        problem = environment.problem(number)
        programs += problem.task in _PROGRAMS
        # Rows: a program runs for seconds, and each test of a row runs it again.
        if problem.task not in _PROGRAMS or programs <= 8:
            yield problem


def _right(problem: Problem, gold: str) -> Iterator[str]:
    if problem.task in _MATHEMATICS:
        yield f"\\boxed{{{problem.answer[0]}}}"
        if "\\boxed" in gold or "####" in gold:
            yield gold
    elif problem.task in _PROGRAMS and "```" in gold:
        yield gold


def _wrong(problem: Problem) -> Sequence[str]:
    if problem.task in _PROGRAMS:
        return [_NOTHING]
    if problem.task not in _MATHEMATICS:
        return []
    truths = problem.answer
    if any(read(truth).kind in ("choice", "percent", "quantity", "number") for truth in truths):
        return ["\\boxed{}", "none"]
    numbers = [found for truth in truths for found in _NUMBER.findall(truth)]
    # A number in a truth that is more than this number: 10 in the set of 1 to 10.
    apart = [one for one in dict.fromkeys((*numbers[:1], *numbers[-1:])) if len(numbers) > 1 and one not in truths]
    return ["\\boxed{}", *(f"\\boxed{{{one}}}" for one in apart)]
