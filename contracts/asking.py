"""Questions that do not wait for each other: one request where whoever sends them can do that, else all at once.

A question is a function that changes nothing, and that may run twice: first as far as it goes without an answer, to
hear what it asks, then with the answer. What it asks after that it asks by itself.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any

Send = Callable[[Sequence[Any]], Sequence[Any] | None]
"""What several questions are answered with, None for one that is to be asked by itself; None where they cannot be one
request."""


class AskedTogether(BaseException):
    """Within a question: it is asked together with others. No handler of errors may take it for one."""


class _Round:
    """Questions that are asked together. wanted: by who sends them; answers: None until they are sent."""

    def __init__(self) -> None:
        self.wanted: dict[Send, list[Hashable]] = {}
        self.answers: dict[tuple[Send, Hashable], list[Any]] | None = None

    @property
    def is_one(self) -> bool:
        return sum(map(len, self.wanted.values())) == 1

    def send(self) -> bool:
        """Whether any were sent."""
        told = {send: send(asked) for send, asked in self.wanted.items() if len(asked) > 1}
        self.answers = {}
        for send, answers in told.items():
            for asked, answer in zip(self.wanted[send], answers or (), strict=False):
                self.answers.setdefault((send, asked), []).append(answer)
        return bool(self.answers)

    @contextmanager
    def here(self) -> Iterator[None]:
        token = _ROUND.set(self)
        try:
            yield
        finally:
            _ROUND.reset(token)


_ROUND: ContextVar[_Round | None] = ContextVar("_ROUND", default=None)


def came_along(send: Send, asked: Hashable) -> Any:
    """For who sends a question: the answer that came with those to others; None where it is to be sent by itself.
    Raises AskedTogether while it is heard what is asked. send: a function that is equal each time."""
    if (now := _ROUND.get()) is None:
        return None
    if now.answers is None:
        now.wanted.setdefault(send, []).append(asked)
        raise AskedTogether
    waiting = now.answers.get((send, asked))
    return waiting.pop(0) if waiting else None


def at_once(*questions: Callable[[], Any]) -> list[Any]:
    """The answers, in the order of the questions. Raises what the first of those raises that fail. The context's
    variables are the caller's."""
    if _ROUND.get() is not None:  # what these ask goes with what is asked beside them
        return _heard(questions)
    now = _Round()
    with now.here():
        try:
            return _heard(questions)
        except AskedTogether:
            pass
        if now.send() or now.is_one:
            return [question() for question in questions]
    with ThreadPoolExecutor(len(questions)) as pool:
        return [asked.result() for asked in [pool.submit(copy_context().run, question) for question in questions]]


def _heard(questions: Sequence[Callable[[], Any]]) -> list[Any]:
    """The answers, if nobody need be asked for them. Raises AskedTogether once each question has said what it asks."""
    answers, late = list[Any](), False
    for question in questions:
        try:
            answers.append(question())
        except AskedTogether:
            late = True
    if late:
        raise AskedTogether
    return answers
