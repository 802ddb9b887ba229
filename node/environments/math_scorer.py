"""Is a mathematical answer right? math-verify, in a child process that may be killed.

Answers come from models and strangers, and computer algebra on them can run for ever or eat all memory
(9^9^9^9), inside C code that no signal interrupts. So the comparison runs in a child with limits, and a
deadline here; what does not finish scores 0. Plain integers and equal strings need no child.
"""

import atexit
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from unicodedata import normalize

from node.environments.errors import Undecided
from node.environments.scoring_pool import ScoringPool

MAX_ANSWER_CHARACTERS = 512
DEADLINE_SECONDS = 5.0
_CACHE_ENTRIES = 1 << 16
# Bounded in digits and exponent: a Fraction of 1e999999999 would compute all its digits.
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,100}(?:\.[0-9]{0,100})?|\.[0-9]{1,100})(?:[eE][+-]?[0-9]{1,3})?")
_SCIENTIFIC = re.compile(r"([+-]?[0-9.]{1,100})[eE]([+-]?[0-9]{1,3})")
_ABSOLUTE, _RELATIVE = Fraction(1, 2_000_000), Fraction(1, 1_000_000)
"""How far two written numbers may lie apart. math-verify rounds to six places: to it, 0.0000002 and 0 are equal."""
_BOX = re.compile(r"\\(?:boxed|fbox)(?:[ \t]*(\{)|[ \t]+(?=[-+.0-9\\]))")
_WORD = re.compile(r"[^\s{}$]+")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_BLANK = re.compile(r"(?:\s|\\[ ,;:!]|~|\.|\\[lc]?dots|\\(?:text|mathrm)\{\s*\}|\u2026|_)*")
"""An empty box is spoken of, not answered with."""
ALL = "\x1e"
"""Between the last box of an answer and all of them."""
_SIGNS = str.maketrans(
    {"\u00b0": "^{\\circ}", "\u221e": "\\infty ", "\u00b1": "\\pm ", "\u222a": "\\cup ", "\u2229": "\\cap "}
    | {"\u2208": "\\in ", "\u2260": "\\neq ", "\u00b7": "\\cdot ", "\u2212": "-", "\u03c0": "\\pi "}
    | {"\u2205": "\\emptyset ", "\u00bd": "\\frac{1}{2}", "\u00bc": "\\frac{1}{4}", "\u00be": "\\frac{3}{4}"}
    | {"\u2153": "\\frac{1}{3}", "\u2154": "\\frac{2}{3}"}
)
_RAISED = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b]+")
_ROOT = re.compile("\u221a *(?:\\(([^()]{1,100})\\)|([0-9]{1,30}|[a-zA-Z]))")
ALGEBRA = ScoringPool(DEADLINE_SECONDS, "math_verify")
atexit.register(ALGEBRA.close)


def final_answer(text: str) -> str | None:
    """The last \\boxed{...} after the reasoning, or else all the text after it; None if that is too long. Where an
    answer has several boxes, all of them follow behind ALL: a truth of several values may be said so."""
    # Without the tag, rpartition leaves the whole text in its last part.
    text = text.rpartition("</think>")[2]
    found = boxes(text)
    if found:
        together = ", ".join(found)
        text = found[-1] if len(found) == 1 or len(together) > MAX_ANSWER_CHARACTERS else f"{found[-1]}{ALL}{together}"
    elif _BOX.search(text):
        return None  # one that is empty, or cut off
    else:
        text = text.strip()
    return text if 0 < len(text.partition(ALL)[0]) <= MAX_ANSWER_CHARACTERS else None


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
    """`match(questions)`: blocking. gave_up: how many answers so far got no verdict in time; they count as wrong, which
    another machine may see differently."""

    def __init__(self, pool: ScoringPool | None = None) -> None:
        self._pool = pool or ALGEBRA
        self._cache: dict[Question, bool] = {}
        self.gave_up = 0

    def match(self, questions: Sequence[Question]) -> list[bool]:
        """Which answers are right. At most the pool's deadline each, plus a new child after each that takes longer."""
        if len(self._cache) > _CACHE_ENTRIES:
            self._cache.clear()
        verdicts = [_plainly(answer, truths) for answer, truths in questions]
        hard = dict.fromkeys(q for q, verdict in zip(questions, verdicts, strict=True) if verdict is None)
        asked = [question for question in hard if question not in self._cache]
        found = self._pool.call_all(_equals, asked) if asked else []
        # What this machine could not tell is asked again: it may have been busy.
        known = {q: one is True for q, one in zip(asked, found, strict=True) if not isinstance(one, Undecided)}
        self._cache.update(known)
        self.gave_up += sum(q not in self._cache for q in hard)
        pairs = zip(questions, verdicts, strict=True)
        return [self._cache.get(q, False) if verdict is None else verdict for q, verdict in pairs]


def _plainly(answer: str, truths: Sequence[str]) -> bool | None:
    """The verdict where no algebra is needed, else None."""
    if ALL in answer:
        return None
    if any(_plainly_equal(answer, truth) for truth in truths):
        return True
    # Where one side is an expression, 1/2 beside 0.5, they may still be equal: algebra decides.
    if _NUMBER.fullmatch(answer) and all(_NUMBER.fullmatch(truth) for truth in truths):
        return False
    return None


def _plainly_equal(answer: str, truth: str) -> bool:
    if not _NUMBER.fullmatch(answer) or not _NUMBER.fullmatch(truth):
        return answer == truth.strip()
    one, other = Fraction(answer), Fraction(truth)
    return abs(one - other) <= min(_ABSOLUTE, _RELATIVE * max(abs(one), abs(other)))


def readable(text: str) -> str:
    """As LaTeX has it: signs of Unicode, raised digits, roots, 1e-5."""
    text = text.strip().translate(_SIGNS)
    # NFKC makes U+2212 of a raised minus, so the sign is replaced behind it once more.
    text = _RAISED.sub(lambda found: f"^{{{normalize('NFKC', found[0])}}}", text).replace("\u2212", "-")
    text = _ROOT.sub(lambda found: f"\\sqrt{{{found[1] or found[2]}}}", text)
    number = _SCIENTIFIC.fullmatch(text)
    return f"{number[1]} \\times 10^{{{int(number[2])}}}" if number else text


def _equals(answer: str, truths: Sequence[str]) -> bool:
    """In the child. math-verify's own deadlines need signals and the main thread; the parent's does their work."""
    from math_verify import parse, verify

    given = [parse(f"\\boxed{{{readable(one)}}}", parsing_timeout=0) for one in answer.split(ALL)]
    wanted = [parse(f"\\boxed{{{readable(truth)}}}", parsing_timeout=0) for truth in truths]
    return any(verify(one, other, timeout_seconds=0) for one in wanted for other in given)
