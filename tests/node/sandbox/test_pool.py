"""Several sandboxes answer as one: every call by itself, in its place."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from node.sandbox import CallOutcome, CallStatus, SandboxError, Undecided
from node.sandbox.opening import SandboxPool

UNDECIDED = Undecided("no outcome", "busy", "wait")


class Box:
    """Doubles a number; cannot tell of 7. meet: so many calls are under way at one time, or it hangs."""

    def __init__(self, meet: threading.Barrier | None = None) -> None:
        self.calls, self.closed, self._meet = 0, 0, meet

    def call_all(self, function: str, calls: Sequence[Sequence[Any]]) -> list[CallOutcome | Undecided]:
        return [self._one(*call) for call in calls]

    def _one(self, number: int) -> CallOutcome | Undecided:
        self.calls += 1
        if self._meet is not None and number < 2:
            self._meet.wait(20)
        return UNDECIDED if number == 7 else CallOutcome(CallStatus.OK, 2 * number)

    def close(self) -> None:
        self.closed += 1


def test_many_calls_are_shared_out_and_each_answer_stands_in_its_place() -> None:
    boxes: list[Any] = []
    meet = threading.Barrier(2)

    def another() -> Any:
        boxes.append(Box(meet))
        return boxes[-1]

    pool = SandboxPool(another, most=2)
    assert [one.value for one in pool.call_all("double", [[n] for n in range(2, 6)])] == [4, 6, 8, 10]
    assert len(boxes) == 1  # so few are not worth a second one
    found = pool.call_all("double", [[n] for n in range(40)])
    assert [one if isinstance(one, Undecided) else one.value for one in found] == [
        UNDECIDED if n == 7 else 2 * n for n in range(40)
    ]
    assert len(boxes) == 2 and sum(box.calls for box in boxes) == 44
    pool.close()
    assert all(box.closed for box in boxes)


def test_where_no_second_one_can_be_had_the_first_does_all() -> None:
    first = Box()
    boxes = [first]

    def another() -> Any:
        if not boxes:
            raise SandboxError("no process", "no memory", "free some")
        return boxes.pop()

    pool = SandboxPool(another, most=4)
    assert len(pool.call_all("double", [[n] for n in range(40)])) == 40 and first.calls == 40
    with pytest.raises(SandboxError):
        SandboxPool(another)
