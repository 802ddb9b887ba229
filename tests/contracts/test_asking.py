"""Questions asked at once: what becomes of them, and of their threads."""

import hashlib
import threading

import pytest

from contracts.asking import TASKS, at_once


def test_answers_come_in_the_order_of_the_questions_and_the_first_error_is_raised() -> None:
    assert at_once(*(lambda at=at: at for at in range(8))) == list(range(8))
    with pytest.raises(ZeroDivisionError):
        at_once(lambda: 1, lambda: 1 // 0, lambda: {}["x"])


@pytest.mark.skipif(not TASKS.exists(), reason="where threads are not files nothing is forked either")
def test_in_the_main_thread_nothing_is_left_that_a_fork_could_catch_with_a_lock_held() -> None:
    def work() -> int:
        hashlib.sha256(b"as OpenSSL keeps something for each thread").digest()
        return threading.get_native_id()

    for _ in range(64):
        assert not [thread for thread in at_once(*[work] * 8) if (TASKS / str(thread)).exists()]
