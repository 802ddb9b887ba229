"""Is a mathematical answer right? math-verify, in a child process that may be killed.

Answers come from models and strangers, and computer algebra on them can run for ever or eat all memory
(9^9^9^9), inside C code that no signal interrupts. So the comparison runs in a child with limits, and a
deadline here; what does not finish scores 0. Plain integers and equal strings need no child.
"""

import json
import re
import sys
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, islice

from node.environments.errors import EnvironmentFault
from node.environments.lines import LineChild
from node.sandbox.runtime import child_environment

MAX_ANSWER_CHARACTERS = 512
DEADLINE_SECONDS = 5.0
START_SECONDS = 60.0
_MEMORY_BYTES = 4 * 1024**3
_CACHE_ENTRIES = 1 << 16
_WINDOW = 256
_PIPE_BYTES = 32 * 1024
_INTEGER = re.compile(r"[+-]?\d{1,100}")


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
    """`match(questions)`: blocking; one child, started when first needed. For one thread.

    gave_up: how many answers so far got no verdict in time; they count as wrong, which another machine may see
    differently.
    """

    def __init__(self, deadline: float = DEADLINE_SECONDS) -> None:
        self._deadline = deadline
        self._child: LineChild | None = None
        self._cache: dict[Question, bool] = {}
        self._undecided: set[Question] = set()
        self.gave_up = 0

    def match(self, questions: Sequence[Question]) -> list[bool]:
        """Which answers are right. At most `deadline` seconds each, plus a new child after each that fails."""
        if len(self._cache) > _CACHE_ENTRIES:
            self._cache.clear()
            self._undecided.clear()
        verdicts = [_plainly(answer, truths) for answer, truths in questions]
        hard = dict.fromkeys(q for q, verdict in zip(questions, verdicts, strict=True) if verdict is None)
        pending = deque(question for question in hard if question not in self._cache)
        while pending:
            self._ask_some(pending)
        self.gave_up += sum(q in self._undecided for q in hard)
        return [self._cache[q] if verdict is None else verdict for q, verdict in zip(questions, verdicts, strict=True)]

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def _ask_some(self, pending: deque[Question]) -> None:
        """Put as many questions as fit a pipe, take the answers off `pending`; the first without answer is wrong.

        Many at a time: on a busy machine every exchange of turns between processes costs milliseconds.
        """
        child = self._running()
        asked = list(islice(pending, _WINDOW))
        sizes = accumulate(len(json.dumps(question)) + 1 for question in asked)
        asked = [question for question, size in zip(asked, sizes, strict=True) if size <= _PIPE_BYTES] or asked[:1]
        child.send(*asked)
        for question in asked:
            reply = child.receive(self._deadline)
            pending.popleft()
            self._cache[question] = reply is True
            if reply is None:
                self._undecided.add(question)
                self.close()
                return

    def _running(self) -> LineChild:
        if self._child is not None and self._child.alive:
            return self._child
        self.close()
        self._child = LineChild([sys.executable, "-P", "-m", "node.environments.math_child"], child_environment())
        if self._child.receive(START_SECONDS) != ["ready"]:
            self.close()
            raise EnvironmentFault(
                "mathematical answers cannot be scored",
                "the scoring process did not start",
                "install intellect-node with its math extra (math-verify) and try again",
            )
        return self._child


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


def limit_memory() -> None:
    """For the child: bounded memory, no core files."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
