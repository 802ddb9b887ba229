"""`verifiable_math`: the answer's last box, or all of it, equals one of the ground truths.

`marked_math`: the answer stands in a box, in <answer> tags, or behind the last `####` or `Answer:`. GSM8K, verl and
DAPO ask for the marks; as `verifiable_math` sees them, a right answer behind some reasoning would score 0.
"""

import re
from collections.abc import Callable, Sequence

from node.environments.errors import Undecided
from node.environments.math_scorer import MathScorer, final_answer, placed_boxes
from node.environments.task_types.base import Question, Row, Truth, read

MAX_TRUTHS = 8
MAX_TRUTH = 1024
# Repeats of blanks and letters are bounded: the time must grow in proportion to the answer.
_MARKS = re.compile(r"####|answer(?: is)?[ \t]{0,8}:|<answer>", re.IGNORECASE)
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
# These words change what the number is worth: 3 million is not 3.
_SCALES = r"(?!(?:and|or|hundred|thousand|million|billion|trillion|dozen|hal[fv]|third|quarter|fifth|tenth|times)\w*\b)"
_WITH_UNIT = re.compile(
    rf"([$\u20ac\u00a3]?[ ]?[+-]?\d[\d,]{{0,40}}(?:\.\d{{1,40}})?)(?: {_SCALES}[a-zA-Z]{{2,20}}){{1,4}}"
)


def read_truth(info: Row, row: Row) -> Truth:  # noqa: ARG001 - all of it stands in the info
    truth = info.get("ground_truth")
    truths = truth if isinstance(truth, list) else [truth]
    if not 0 < len(truths) <= MAX_TRUTHS or not all(isinstance(t, str) and 0 < len(t) <= MAX_TRUTH for t in truths):
        raise ValueError("verification_info needs ground_truth: a string, or a list of up to 8, none too long")
    return tuple(map(str, truths))


class MathematicalScorer:
    """Computer algebra in children that may be killed. find: what of an answer counts."""

    def __init__(self, find: Callable[[str], str | None] = final_answer) -> None:
        self._find = find
        self._scorer = MathScorer()
        self._unread = 0

    @property
    def gave_up(self) -> int:
        return self._scorer.gave_up + self._unread

    def score(self, questions: Sequence[Question]) -> list[float]:
        answers = dict(enumerate(read(self._find, questions)))
        self._unread += sum(isinstance(answer, Undecided) for answer in answers.values())
        asked = {place: answer for place, answer in answers.items() if isinstance(answer, str)}
        found = self._scorer.match([(answer, questions[place][1]) for place, answer in asked.items()])
        right = dict(zip(asked, found, strict=True))
        return [float(right.get(place, False)) for place in answers]

    def close(self) -> None:
        """The pool's children wait for others."""


def marked(answer: str) -> str:
    """The answer with what stands behind its last mark in a box, where there is a mark and no box behind it. Of a
    number with its unit, 72 clips, the number counts, as GSM8K's and verl's judges have it."""
    text = answer.rpartition("</think>")[2]
    place = max((found.end() for found in _MARKS.finditer(text)), default=-1)
    if place < 0 or max((start for start, _ in placed_boxes(text)), default=-1) > place:
        return text
    said = text[place:].strip().partition("</answer>")[0].strip()
    said = said.partition("\n")[0].strip().strip("*$").rstrip(".").strip()
    said = said.removeprefix("\\(").removesuffix("\\)").strip()
    if unit := _WITH_UNIT.fullmatch(said):
        said = unit[1].lstrip("$\u20ac\u00a3 ")
    # Only groups of three digits are one number: 1,2 may be a pair.
    return f"\\boxed{{{said.replace(',', '') if _GROUPED.fullmatch(said) else said}}}"


def marked_answer(answer: str) -> str | None:
    return final_answer(marked(answer))
