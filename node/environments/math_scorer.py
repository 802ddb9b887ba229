"""Is a mathematical answer right? `mathematics`, in a child process that may be killed.

Answers come from models and strangers, and computer algebra on them can run for ever or eat all memory
(9^9^9^9), inside C code that no signal interrupts. So the comparison runs in a child with limits, and a
deadline here. What does not finish is undecided, as in `scoring_pool`: it is counted, so that its group has no reward
on this machine, and no clock decides one. Plain integers and equal strings need no child.
"""

import atexit
import re
from collections.abc import Iterator, Sequence

from node.environments.errors import Undecided
from node.environments.numbers import near, number
from node.environments.scoring_pool import ScoringPool

MAX_ANSWER_CHARACTERS = 512
_BOX = re.compile(r"\\(?:boxed|fbox)(?:[ \t]*(\{)|[ \t]+(?=[-+.0-9\\]))")
_WORD = re.compile(r"[^\s{}$]+")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_BLANK = re.compile(r"(?:\s|\\[ ,;:!]|~|\.|\\[lc]?dots|\\(?:text|mathrm)\{\s*\}|\u2026|_)*")
"""An empty box is spoken of, not answered with."""
ALL = "\x1e"
"""Between the last box of an answer and all of them."""
ALGEBRA = ScoringPool(5.0, "node.environments.mathematics.comparison")
atexit.register(ALGEBRA.close)


def final_answer(text: str) -> str | None:
    """The last \\boxed{...} after the reasoning, or else all the text after it; None if that is too long. Where an
    answer has several boxes, all of them follow behind ALL: a truth of several values may be said so."""
    # Without the tag, rpartition leaves the whole text in its last part.
    text = text.rpartition("</think>")[2]
    found = boxes(text)
    if _is_cut_off(text):
        return None
    if found:
        together = ", ".join(found)
        text = found[-1] if len(found) == 1 or len(together) > MAX_ANSWER_CHARACTERS else f"{found[-1]}{ALL}{together}"
    elif _BOX.search(text):
        return None  # one that is empty
    else:
        text = text.strip()
    return text if 0 < len(text.partition(ALL)[0]) <= MAX_ANSWER_CHARACTERS else None


def _is_cut_off(text: str) -> bool:
    """Whether the last box does not close. What it was to say is not known; an earlier one does not stand for it."""
    last = None
    for box in _BOX.finditer(text):
        last = box if box[1] else None
    return last is not None and _braced(text, last.end()) is None


def boxes(text: str) -> list[str]:
    """What stands in each box, each once, in order of where it was said last."""
    found: dict[str, None] = {}
    for _, inner in placed_boxes(text):
        found.pop(inner, None)
        found[inner] = None
    return list(found)


def placed_boxes(text: str) -> Iterator[tuple[int, str]]:
    """(where, what stands in it) of each \\boxed{...}, \\fbox{...} or \\boxed without braces. One that is empty or does
    not close says nothing."""
    end = 0
    for box in _BOX.finditer(text):
        if box.start() < end:
            continue  # it stands in the one before
        inner = _braced(text, box.end()) if box[1] else _WORD.match(text, box.end())[0]  # type: ignore[index]
        if inner is None:
            break  # nothing closes behind it, either
        end = box.end() + len(inner)
        if not _BLANK.fullmatch(inner):
            yield box.start(), inner.strip()


def _braced(text: str, start: int) -> str | None:
    """What stands in front of the brace that closes; None if none does. Each character once: marks alone are found."""
    depth = 1
    for mark in _BRACES.finditer(text, start):
        depth += 1 if mark[0] == "{" else -1 if mark[0] == "}" else 0
        if depth == 0:
            return text[start : mark.start()]
    return None


Question = tuple[str, tuple[str, ...]]
"""An answer, and the ground truths of which it must equal one."""


class MathScorer:
    """`match(questions)`: blocking. gave_up: how many answers so far got no verdict in time. Their place holds False,
    which nobody may take for a verdict: whoever asks looks whether this grew (`node.inference.inspect`)."""

    def __init__(self, pool: ScoringPool | None = None) -> None:
        self._pool = pool or ALGEBRA
        self._cache: dict[Question, bool] = {}
        self.gave_up = 0

    def match(self, questions: Sequence[Question]) -> list[bool]:
        """Which answers are right. At most the pool's deadline each, plus a new child after each that takes longer."""
        if len(self._cache) > 1 << 16:
            self._cache.clear()
        verdicts = [_plainly(answer, truths) for answer, truths in questions]
        hard = dict.fromkeys(q for q, verdict in zip(questions, verdicts, strict=True) if verdict is None)
        asked = [question for question in hard if question not in self._cache]
        found = self._pool.call_all(_is_right, [(q[0].split(ALL), q[1]) for q in asked]) if asked else []
        # What this machine could not tell is asked again: it may have been busy.
        known = {q: one is True for q, one in zip(asked, found, strict=True) if not isinstance(one, Undecided)}
        self._cache.update(known)
        self.gave_up += sum(q not in self._cache for q in hard)
        pairs = zip(questions, verdicts, strict=True)
        return [self._cache.get(q, False) if verdict is None else verdict for q, verdict in pairs]


def _plainly(answer: str, truths: Sequence[str]) -> bool | None:
    """The verdict where nothing needs to be read, else None."""
    if any(answer == truth.strip() for truth in truths):
        return True
    given, wanted = number(answer), [number(truth.strip()) for truth in truths]
    if given is None or any(one is None for one in wanted):
        return None
    return any(near(given, one) for one in wanted if one is not None)


def _is_right(answers: Sequence[str], truths: Sequence[str]) -> bool:
    """In the child, which alone has sympy."""
    from node.environments.mathematics.comparison import right

    return right(answers, truths)
