"""Questions asked at once: what becomes of them."""

from collections.abc import Sequence
from threading import get_ident
from typing import Any

import pytest

from contracts.asking import AskedTogether, at_once, came_along


class Sender:
    """Answers a number with its double. answers: what it says of several; None: it takes one at a time."""

    def __init__(self, takes_several: bool = True, unanswered: Sequence[int] = ()) -> None:
        self.sent: list[tuple[int, ...]] = []
        self._several, self._unanswered = takes_several, unanswered
        self.threads = set[int]()

    def together(self, asked: Sequence[int]) -> list[Any] | None:
        if not self._several:
            return None
        self.sent.append(tuple(asked))
        return [None if one in self._unanswered else 2 * one for one in asked]

    def ask(self, number: int) -> int:
        if (told := came_along(self.together, number)) is not None:
            return told
        self.threads.add(get_ident())
        self.sent.append((number,))
        return 2 * number


def test_answers_come_in_the_order_of_the_questions_and_the_first_error_is_raised() -> None:
    assert at_once(*(lambda at=at: at for at in range(8))) == list(range(8))
    with pytest.raises(ZeroDivisionError):
        at_once(lambda: 1, lambda: 1 // 0, lambda: {}["x"])


def test_what_is_asked_at_once_is_one_request_also_where_one_of_them_asks_several() -> None:
    sender = Sender()
    several = (
        lambda: sender.ask(1),
        lambda: at_once(lambda: sender.ask(2), lambda: sender.ask(3)),
        lambda: sender.ask(1),
    )
    assert at_once(*several) == [2, [4, 6], 2]
    assert sender.sent == [(1, 2, 3, 1)]


def test_what_follows_from_an_answer_is_asked_by_itself_and_so_is_what_got_none() -> None:
    sender = Sender(unanswered=[5])
    assert at_once(lambda: sender.ask(sender.ask(1)), lambda: sender.ask(5)) == [4, 10]
    assert sender.sent == [(1, 5), (2,), (5,)]


def test_a_sender_that_takes_one_at_a_time_is_asked_in_threads() -> None:
    sender = Sender(takes_several=False)
    assert at_once(lambda: sender.ask(1), lambda: sender.ask(2)) == [2, 4]
    assert sorted(sender.sent) == [(1,), (2,)] and get_ident() not in sender.threads


def test_one_question_is_asked_by_itself_in_the_callers_thread() -> None:
    sender = Sender()
    assert at_once(lambda: sender.ask(1)) == [2] and at_once(lambda: sender.ask(1), lambda: 7) == [2, 7]
    assert sender.sent == [(1,), (1,)]


def test_an_error_of_a_question_ends_nothing_but_the_round() -> None:
    sender = Sender()
    with pytest.raises(ZeroDivisionError):
        at_once(lambda: 1 // (sender.ask(1) - 2), lambda: sender.ask(2))
    assert sender.ask(3) == 6, "what is asked afterwards waits for nobody"
    assert not issubclass(AskedTogether, Exception), "no handler of errors takes it for one"
