"""Is a mathematical answer right? math-verify, in a child process that may be killed.

Answers come from models and strangers, and computer algebra on them can run for ever or eat all memory
(9^9^9^9), inside C code that no signal interrupts. So the comparison runs in a child with limits, and a
deadline here; what does not finish scores 0. Plain integers and equal strings need no child.
"""

import atexit
import re
from collections.abc import Sequence

from node.environments.errors import Undecided
from node.environments.scoring_pool import ScoringPool

MAX_ANSWER_CHARACTERS = 512
DEADLINE_SECONDS = 5.0
_CACHE_ENTRIES = 1 << 16
_INTEGER = re.compile(r"[+-]?\d{1,100}")
ALGEBRA = ScoringPool(DEADLINE_SECONDS, "math_verify")
atexit.register(ALGEBRA.close)


def final_answer(text: str) -> str | None:
    """The last \\boxed{...} after the reasoning, or else all the text after it; None if that is too long."""
    text = text.rpartition("</think>")[2]
    start = text.rfind("\\boxed{")
    if start >= 0:
        text = _braced(text[start + len("\\boxed{") :])
    text = text.strip()
    return text if 0 < len(text) <= MAX_ANSWER_CHARACTERS else None


def _braced(text: str) -> str:
    depth = 1
    for i, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[:i]
    return ""


Question = tuple[str, tuple[str, ...]]
"""An answer, and the ground truths of which it must equal one."""


class MathScorer:
    """`match(questions)`: blocking. gave_up: how many answers so far got no verdict in time; they count as wrong, which
    another machine may see differently."""

    def __init__(self, pool: ScoringPool | None = None) -> None:
        self._pool = pool or ALGEBRA
        self._cache: dict[Question, bool | None] = {}
        self.gave_up = 0

    def match(self, questions: Sequence[Question]) -> list[bool]:
        """Which answers are right. At most the pool's deadline each, plus a new child after each that takes longer."""
        if len(self._cache) > _CACHE_ENTRIES:
            self._cache.clear()
        verdicts = [_plainly(answer, truths) for answer, truths in questions]
        hard = dict.fromkeys(q for q, verdict in zip(questions, verdicts, strict=True) if verdict is None)
        asked = [question for question in hard if question not in self._cache]
        found = self._pool.call_all(_equals, asked) if asked else []
        known = (None if isinstance(one, Undecided) else one is True for one in found)
        self._cache.update(zip(asked, known, strict=True))
        self.gave_up += sum(self._cache[q] is None for q in hard)
        pairs = zip(questions, verdicts, strict=True)
        return [self._cache[q] is True if verdict is None else verdict for q, verdict in pairs]


def _plainly(answer: str, truths: Sequence[str]) -> bool | None:
    """The verdict where no algebra is needed, else None."""
    if any(_plainly_equal(answer, truth) for truth in truths):
        return True
    if _INTEGER.fullmatch(answer) and all(_INTEGER.fullmatch(truth) for truth in truths):
        return False
    return None


def _plainly_equal(answer: str, truth: str) -> bool:
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(truth):
        return int(answer) == int(truth)
    return answer == truth.strip()


def _equals(answer: str, truths: Sequence[str]) -> bool:
    """In the child. math-verify's own deadlines need signals and the main thread; the parent's does their work."""
    from math_verify import parse, verify

    given = parse(f"\\boxed{{{answer}}}", parsing_timeout=0)
    return any(verify(parse(f"\\boxed{{{truth}}}", parsing_timeout=0), given, timeout_seconds=0) for truth in truths)
