"""`verifiable_math`: the answer's last box, or all of it, equals one of the ground truths.

`marked_math`: the answer stands in a box, in <answer> tags, or behind the last `####` or `Answer:`. GSM8K, verl and
DAPO ask for the marks; as `verifiable_math` sees them, a right answer behind some reasoning would score 0.
"""

import re
from collections.abc import Callable, Sequence

from node.environments.errors import Undecided
from node.environments.math_scorer import MathScorer, final_answer, placed_boxes
from node.environments.mathematics.reading import unit_of
from node.environments.task_types.base import Question, Row, Truth, read

MAX_TRUTHS = 8
MAX_TRUTH = 1024
# Repeats of blanks and letters are bounded: the time must grow in proportion to the answer.
_MARKS = re.compile(r"####|answer(?: is)?[ \t]{0,8}:|<answer>", re.IGNORECASE)
_NUMBER = re.compile(
    r"(?:[$\u20ac\u00a3]|\\\$)? ?([+-]?(?:(?:\d{1,3}(?:,\d{3})+|\d{1,512})(?:\.\d{1,60})?|\.\d{1,60})(?:/\d{1,60})?)"
    r"(?: ?(?:\\?%|per ?cent\b))?"
)
_FORMULA = re.compile(r"\$([^$\n]{1,512})\$|\\\(([^\n]{1,512}?)\\\)|\\\[([^\n]{1,512}?)\\\]")
_LETTER = re.compile(r"\(([A-J])\)|([A-J])(?=[.,;:)])|([B-H])(?= [a-z]{2})")
_ANOTHER = re.compile(
    r"[\s*$)]{0,4}(?:,|/|;|&|-|\u2013|or|and|to|through|vs)[\s*$(]{0,4}(?:or |and )?"
    r"(?:[$\u20ac\u00a3+-]|\\\$)?(?:\d|\(?[A-J]\b)"
)
"""A second number or letter right behind the first: two answers, or a list."""
_FUNCTIONS = r"(?:(?:arc)?(?:sin|cos|tan)h?|log|ln|exp|mod|pi|sqrt|choose|theta|alpha|beta|cup|cap|div)\b"
_PROSE = re.compile(
    r"[*$)]{0,4}(?:[.,;:!]?(?:\s+[*(]{0,3}(?:a |an |the )?|\s*[-\u2013\u2014]{2}\s*)"
    rf"(?!{_FUNCTIONS})[^\W\d_]{{2}}"
    rf"|[*$)]{{0,4}}\s+[-\u2013\u2014]\s+(?!{_FUNCTIONS})[^\W\d_]{{3}}|\s+\((?=[^()]{{0,80}}(?:[a-z]{{3}}|=))"
    r"|\s*[.,;:(\u2014](?!\d)|!+\s+\S|\s*$)"
)
"""What is said of a number: words, not more of its mathematics."""
_FIRST_WORDS = re.compile(r"[\s*$)]{0,4}((?:(?:/ ?)?[a-zA-Z]{1,20}(?: ?\^ ?\{?[23]\}?)?[\s./]{0,2}){1,4})")
_FRACTION = re.compile(r"\b(?:hal[fv]e?s?|thirds?|quarters?|fifths?|tenths?|hundred|thousand|million|billion|dozen)\b")


def read_truth(info: Row, row: Row) -> Truth:
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
    """The answer with what stands behind its last mark in a box, where there is a mark and no box behind it."""
    text = answer.rpartition("</think>")[2]
    place = max((found.end() for found in _MARKS.finditer(text)), default=-1)
    if place < 0 or max((start for start, _ in placed_boxes(text)), default=-1) > place:
        return text
    said = text[place:].strip().partition("</answer>")[0].strip()
    return f"\\boxed{{{counted(said.partition(chr(10))[0].strip())}}}"


def counted(said: str) -> str:
    """What of a line behind a mark is the answer. A number, a formula or a choice counts, whatever is said of it on the
    same line, unless that is a second one: 42 and so on, but not 42 or 43. Words of size stay: 3 million is not 3."""
    said = said.strip("* \t").rstrip(".").strip("* \t")
    for kind in (_FORMULA, _NUMBER, _LETTER):
        found = kind.match(said)
        rest = said[found.end() :] if found else ""
        if found is None or _ANOTHER.match(rest) or not _PROSE.match(rest):
            continue
        if kind is _FORMULA:
            return said if "$" in rest or "\\(" in rest else next(one for one in found.groups() if one)
        if kind is _LETTER:
            return next(one for one in found.groups() if one)
        unit, after = _unit(rest)
        # 5 hours 30 minutes, 5 and a half: more of the same answer.
        if _ANOTHER.match(after) or re.match(r"\s*\d", after) or (unit == "and" and _FRACTION.search(after[:40])):
            return said
        return found[0].strip() if unit in ("", "and") else f"{found[0].strip()} {unit}"
    return said.strip("$").strip().removesuffix("\\)").removeprefix("\\(").strip()


def _unit(rest: str) -> tuple[str, str]:
    """(the words behind a number that say what it is worth: measures, millions; "and" for one that may go on, what
    follows). Others say what is counted."""
    words = _FIRST_WORDS.match(rest)
    kept: list[str] = []
    for word in (words[1] if words else "").split():
        unit = unit_of(word)
        if not unit or not all("^" in one or one[0] in "*?" for one in unit):
            break
        kept.append(word)
    if not kept or unit_of(kept[0])[0] == "?" and not _FRACTION.fullmatch(kept[0]):
        return ("and" if kept[:1] == ["and"] else "", rest)
    return " ".join(kept), rest[words.start(1) + len(" ".join(kept)) :] if words else rest


def marked_answer(answer: str) -> str | None:
    return final_answer(marked(answer))
