"""Is a mathematical answer right? math-verify, in a child process that may be killed.

Answers come from models and strangers, and computer algebra on them can run for ever or eat all memory
(9^9^9^9), inside C code that no signal interrupts. So the comparison runs in a child with limits, and a
deadline here; what does not finish scores 0. Plain integers and equal strings need no child.
"""

import json
import os
import re
import selectors
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO

from node.environments.errors import EnvironmentFault

MAX_ANSWER_CHARACTERS = 512
DEADLINE_SECONDS = 5.0
START_SECONDS = 60.0
_MEMORY_BYTES = 4 * 1024**3
_CACHE_ENTRIES = 1 << 16
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


class MathScorer:
    """`matches(answer, truths)`: blocking, thread-safe, one child at a time, started when first needed."""

    def __init__(self, deadline: float = DEADLINE_SECONDS) -> None:
        self._deadline = deadline
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._cache: dict[tuple[str, tuple[str, ...]], bool] = {}

    def matches(self, answer: str, truths: Sequence[str]) -> bool:
        """Whether `answer` equals any of `truths`. At most `deadline` seconds, plus the child's start."""
        if any(_plainly_equal(answer, truth) for truth in truths):
            return True
        if _INTEGER.fullmatch(answer) and all(_INTEGER.fullmatch(truth) for truth in truths):
            return False
        key = (answer, tuple(truths))
        with self._lock:
            if key not in self._cache:
                if len(self._cache) >= _CACHE_ENTRIES:
                    self._cache.clear()
                self._cache[key] = self._ask(answer, truths)
            return self._cache[key]

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()

    def _ask(self, answer: str, truths: Sequence[str]) -> bool:
        child = self._running()
        try:
            child.stdin.write(json.dumps([answer, list(truths)]).encode() + b"\n")  # type: ignore[union-attr]
            child.stdin.flush()  # type: ignore[union-attr]
            reply = self._line(child, self._deadline)
        except OSError:
            reply = None
        if reply is None:
            self.close()
        return reply == b"1"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        self.close()
        child = subprocess.Popen(  # noqa: S603 - our own module, no shell
            [sys.executable, "-m", "node.environments.math_child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._child = child
        if self._line(child, START_SECONDS) != b"ready":
            self.close()
            raise EnvironmentFault(
                "mathematical answers cannot be scored",
                "the scoring process did not start",
                "install intellect-node with its math extra (math-verify) and try again",
            )
        return child

    @staticmethod
    def _line(child: subprocess.Popen[bytes], seconds: float) -> bytes | None:
        """One line of output, None after `seconds` or at the end. Replies are shorter than a pipe's buffer."""
        stdout: IO[bytes] = child.stdout  # type: ignore[assignment]
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                return None
        return os.read(stdout.fileno(), 64).strip() or None


def _plainly_equal(answer: str, truth: str) -> bool:
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(truth):
        return int(answer) == int(truth)
    return answer == truth.strip()


def limit_memory() -> None:
    """For the child: bounded memory, no core files."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
