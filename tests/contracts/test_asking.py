"""Questions asked at once: what becomes of them."""

import pytest

from contracts.asking import at_once


def test_answers_come_in_the_order_of_the_questions_and_the_first_error_is_raised() -> None:
    assert at_once(*(lambda at=at: at for at in range(8))) == list(range(8))
    with pytest.raises(ZeroDivisionError):
        at_once(lambda: 1, lambda: 1 // 0, lambda: {}["x"])
