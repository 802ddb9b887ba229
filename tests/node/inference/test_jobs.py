"""Which requests of an engine's process are worked on, and which wait."""

import threading
import time
from collections.abc import Iterator

import pytest

from node.inference.process import EngineJobs
from node.inference.scheduler import RequestContext
from node.inference.wire import Inspect, LoadPolicy, Produce, Reply, Request, RequestFailed, ShardOrder, Taught

PATIENCE = 20.0
TASK = ShardOrder(b"", "", b"")


class Office:
    """Jobs that last until they are told to end."""

    def __init__(self) -> None:
        self.jobs = EngineJobs(self._answer, self._say, limit=2)
        self.said: list[Reply] = []
        self.begun: list[int] = []
        self.may_end: dict[int, threading.Event] = {}

    def ask(self, request: Request) -> None:
        self.may_end[request.id] = threading.Event()
        self.jobs.submit(request, lambda done, of: None)

    def let(self, number: int) -> None:
        """A job ends; returns when its reply was said."""
        self.may_end[number].set()
        self.until(lambda: any(reply.id == number for reply in self.said))

    def until(self, condition) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def has_begun(self, *numbers: int) -> None:
        self.until(lambda: sorted(self.begun) == sorted(numbers))

    def _answer(self, request: Request, ticket: RequestContext) -> Reply:
        self.begun.append(request.id)
        self.may_end[request.id].wait(PATIENCE)
        return Taught(id=request.id, path="", tokens=0, seconds=0.0)

    def _say(self, reply: Reply) -> None:
        self.said.append(reply)


@pytest.fixture
def office() -> Iterator[Office]:
    office = Office()
    yield office
    for event in office.may_end.values():
        event.set()


def rollout(number: int, task: ShardOrder | None = None) -> Produce:
    return Produce(id=number, policy_root=b"", node="", pool=0, index=0, out_path="", task=task)


def verdict(number: int) -> Inspect:
    return Inspect(id=number, policy_root=b"", node="", pool=0, index=0, units=0, path="", report_path="")


def test_a_kind_of_work_without_a_thread_waits_for_none(office: Office) -> None:
    for number in (1, 2, 3):
        office.ask(rollout(number))
    office.has_begun(1, 2)
    office.ask(rollout(4, TASK))
    office.ask(verdict(5))
    office.ask(verdict(6))
    office.ask(LoadPolicy(id=7, policy_root=b"", step=0, path=""))
    office.has_begun(1, 2, 4, 5, 7)


def test_free_threads_go_to_who_has_fewest_for_its_weight(office: Office) -> None:
    for number in (1, 2, 3, 4):
        office.ask(rollout(number))
    office.ask(verdict(5))
    office.ask(verdict(6))
    office.has_begun(1, 2, 5)
    office.let(1)
    assert 3 not in office.begun and 6 not in office.begun  # three are too many already
    office.let(2)
    office.has_begun(1, 2, 3, 5)
    office.let(5)
    office.has_begun(1, 2, 3, 5, 6)


def test_a_request_that_is_cancelled_while_it_waits_is_answered_at_once(office: Office) -> None:
    for number in (1, 2, 3, 4):
        office.ask(rollout(number))
    office.has_begun(1, 2)
    office.jobs.cancel(3)
    assert [reply.id for reply in office.said] == [3] and isinstance(office.said[0], RequestFailed)
    office.let(1)
    office.has_begun(1, 2, 4)


def test_a_child_takes_only_so_many(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.inference.process.MOST_WAITING", 3)
    for number in (1, 2, 3, 4):
        office.ask(rollout(number))
    assert [reply.id for reply in office.said] == [4] and isinstance(office.said[0], RequestFailed)
