"""The engine's owner, with an engine of counters: a step takes a second, a prefill as many as it has sequences."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from node.inference.engine import Completion, FinishedSequence, GenerationRequest, Prefill
from node.inference.errors import EngineError
from node.inference.scheduler import Cancelled, EnginePolicy, EngineScheduler, RequestContext

SLOTS = 8
PATIENCE = 20.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class CountingDecoder:
    """A request of n numbers ends after n steps."""

    def __init__(self, engine: "CountingEngine") -> None:
        self._engine = engine
        self._left: dict[int, int] = {}
        self._submitted = 0

    def submit(self, request: GenerationRequest) -> int:
        if not request.prompt:
            raise EngineError("no prompt", "none", "give one")
        self._submitted += 1
        self._left[self._submitted] = len(request.uniforms)
        return self._submitted

    def cancel(self, number: int) -> None:
        self._left.pop(number, None)

    def step(self) -> list[tuple[int, Completion]]:
        if self._engine.broken:
            raise self._engine.broken
        self._engine.clock.now += 1
        self._engine.story.append((self._engine.policy, len(self._left)))
        self._left = {number: left - 1 for number, left in self._left.items()}
        ended = [number for number, left in self._left.items() if not left]
        for number in ended:
            del self._left[number]
        return [(number, Completion([number], True, np.zeros((1, 1), np.uint16))) for number in ended]

    def __len__(self) -> int:
        return len(self._left)

    @property
    def room(self) -> int:
        return SLOTS - len(self._left)


class CountingEngine:
    def __init__(self) -> None:
        self.clock = Clock()
        self.policy = b""
        self.story: list[tuple[bytes, int]] = []
        self.broken: BaseException | None = None
        self.decoders: list[CountingDecoder] = []

    def decoder(self, temperature: float) -> CountingDecoder:
        self.decoders.append(CountingDecoder(self))
        return self.decoders[-1]

    def prefill(self, sequences: Sequence[FinishedSequence], temperature: float) -> list[Prefill]:
        self.clock.now += len(sequences)
        self.story.append((self.policy, -len(sequences)))
        return [self.policy for _ in sequences]  # type: ignore[misc]

    def at(self, policy: bytes) -> EnginePolicy:
        return EnginePolicy(self, policy, lambda: self._put(policy))  # type: ignore[arg-type]

    def _put(self, policy: bytes) -> None:
        assert not any(len(decoder) for decoder in self.decoders) or policy == self.policy
        if policy == b"broken":
            raise EngineError("the policy is not loaded", "no", "load it")
        self.policy = policy


class Office:
    """An owner in this thread, jobs in others."""

    def __init__(self) -> None:
        self.engine = CountingEngine()
        self.fatal: list[Sequence[int]] = []
        self.owner = EngineScheduler(
            fatal=lambda error, tickets: self.fatal.append([one.number for one in tickets]),
            hold=5.0,
            clock=self.engine.clock,
        )
        self.jobs: list[threading.Thread] = []
        self.results: dict[int, Any] = {}

    def _job(self, number: int, do: Callable[[], Any]) -> None:
        def work() -> None:
            try:
                self.results[number] = do()
            except EngineError as error:
                self.results[number] = error
            self.owner.wake()

        before = self.owner._inbox.qsize()
        self.jobs.append(threading.Thread(target=work, daemon=True))
        self.jobs[-1].start()
        while self.owner._inbox.qsize() == before and number not in self.results:
            pass

    def draw(self, ticket: RequestContext, policy: bytes, count: int, tokens: int = 4, spread: int = 1) -> None:
        requests = [GenerationRequest([1], np.zeros(tokens + i % spread)) for i in range(count)]
        where = self.engine.at(policy)
        self._job(ticket.number, lambda: self.owner.draw(ticket, where, requests, 1.0))

    def look(self, ticket: RequestContext, policy: bytes, count: int) -> None:
        where = self.engine.at(policy)
        sequences = [FinishedSequence([1], [1])] * count
        self._job(ticket.number, lambda: self.owner.look(ticket, where, sequences, 1.0))

    def work(self, until: Callable[[], bool] | None = None) -> None:
        """Until all jobs have what they want."""
        over = until or (lambda: len(self.results) == len(self.jobs))
        while not over():
            self.owner.turn()


@pytest.fixture
def office() -> Iterator[Office]:
    office = Office()
    yield office
    for job in office.jobs:
        job.join(PATIENCE)


def test_jobs_on_one_policy_share_a_decoder_by_weight(office: Office) -> None:
    office.draw(RequestContext(1, "rollout"), b"a", 600)
    office.draw(RequestContext(2, "task"), b"a", 600)
    office.work(until=lambda: office.engine.clock.now >= 200)
    used = office.owner.clock.used
    assert used["task"] / (used["task"] + used["rollout"]) == pytest.approx(0.25, abs=0.01)
    assert {flying for _, flying in office.engine.story} == {SLOTS} and len(office.engine.decoders) == 1
    office.work()
    assert [len(office.results[number]) for number in (1, 2)] == [600, 600]


def test_jobs_on_two_policies_alternate_by_weight_and_drain_in_between(office: Office) -> None:
    office.draw(RequestContext(1, "rollout"), b"a", 2000, spread=5)
    office.draw(RequestContext(2, "task"), b"b", 2000, spread=5)
    office.work(until=lambda: office.engine.clock.now >= 800)
    used = office.owner.clock.used
    assert used["task"] / (used["task"] + used["rollout"]) == pytest.approx(0.25, abs=0.03)
    policies = [policy for policy, _ in office.engine.story]
    stays = [i for i, pair in enumerate(zip(policies, policies[1:], strict=False)) if pair[0] != pair[1]]
    assert min(b - a for a, b in zip(stays, stays[1:], strict=False)) >= 5
    assert max(b - a for a, b in zip(stays, stays[1:], strict=False)) <= 40
    office.work()


def test_a_verdict_on_the_policy_in_use_goes_in_between_and_on_another_waits_its_turn(office: Office) -> None:
    office.draw(RequestContext(1, "rollout"), b"a", 400)
    office.work(until=lambda: office.engine.clock.now >= 10)
    office.look(RequestContext(2, "verdict"), b"a", 3)
    office.work(until=lambda: (b"a", -3) in office.engine.story)
    assert office.engine.clock.now <= 20
    office.look(RequestContext(3, "verdict"), b"b", 3)
    office.work(until=lambda: (b"b", -3) in office.engine.story)
    assert office.engine.clock.now <= 40
    office.work()
    assert len(office.results[1]) == 400 and office.results[3] == [b"b"] * 3


def test_a_second_policy_of_the_same_kind_of_work_follows_the_first_without_a_pause(office: Office) -> None:
    office.draw(RequestContext(1, "rollout"), b"a", 1, tokens=3)
    office.draw(RequestContext(2, "rollout"), b"b", 1, tokens=3)
    office.work()
    assert office.engine.clock.now == 6


def test_what_is_cancelled_makes_room_at_once(office: Office) -> None:
    long = RequestContext(1, "rollout")
    office.draw(long, b"a", 8, tokens=10_000)
    office.draw(RequestContext(2, "task"), b"b", 1)
    office.work(until=lambda: office.engine.clock.now >= 3)
    long.cancelled = True
    office.work()
    assert isinstance(office.results[1], Cancelled) and len(office.results[2]) == 1
    assert office.engine.clock.now < 10


def test_what_fails_fails_alone_and_a_broken_decoder_fails_what_it_held(office: Office) -> None:
    office.draw(RequestContext(1, "rollout"), b"broken", 2)
    bad = office.engine.at(b"a")
    office._job(
        2, lambda: office.owner.draw(RequestContext(2, "rollout"), bad, [GenerationRequest([], np.zeros(2))], 1.0)
    )
    office.draw(RequestContext(3, "rollout"), b"a", 2)
    office.work()
    assert isinstance(office.results[1], EngineError) and isinstance(office.results[2], EngineError)
    assert len(office.results[3]) == 2
    for number, policy in ((4, b"a"), (5, b"a"), (6, b"b")):
        office.draw(RequestContext(number, "task"), policy, 2)
    office.owner.turn()
    office.engine.broken = EngineError("the engine failed", "no reason", "none")
    office.owner.turn()
    assert sorted(office.fatal[-1]) == [4, 5]
    office.engine.broken = None
    office.work()
    assert len(office.results[6]) == 2


@pytest.mark.parametrize("stubborn", [False, True], ids=["gives back", "fails at that, too"])
def test_a_decoder_that_failed_draws_for_nobody_any_more(
    office: Office, stubborn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):  # the third waits: all places are taken
        office.draw(RequestContext(number, "task"), b"a", 4)
    office.owner.turn()
    (first,) = office.engine.decoders
    if stubborn:
        monkeypatch.setattr(first, "cancel", lambda number: first.step())
    office.engine.broken = EngineError("the engine failed", "no reason", "none")
    office.owner.turn()
    assert sorted(office.fatal[-1]) == [1, 2]
    assert stubborn or not len(first), "decoders may share what is in flight"
    office.engine.broken = None
    for name in ("step", "submit"):
        monkeypatch.setattr(first, name, lambda *_: pytest.fail("the decoder that failed goes on"))
    office.work()
    assert len(office.results[3]) == 4 and len(office.engine.decoders) == 2


def test_a_request_that_breaks_the_decoder_before_it_is_in_flight_fails_and_no_other_decoder_is_tried_with_it(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountingDecoder, "submit", lambda self, request: 1 // 0)
    requests = [GenerationRequest([1], np.zeros(2))]
    told: list[Exception] = []

    def draws() -> None:
        try:
            office.owner.draw(RequestContext(1, "task"), office.engine.at(b"a"), requests, 1.0)
        except ZeroDivisionError as error:
            told.append(error)

    office._job(1, draws)
    office.owner.turn()
    office.jobs[0].join(PATIENCE)
    assert told and office.fatal == [[1]] and len(office.engine.decoders) == 1


def test_who_waits_hears_of_progress(office: Office) -> None:
    heard: list[tuple[int, int]] = []
    office.draw(RequestContext(1, "rollout", lambda done, of: heard.append((done, of))), b"a", 20)
    office.work()
    assert heard == [(done, 20) for done in range(1, 21)]


def test_beats_grow_with_each_turn_and_idleness_is_no_business(office: Office) -> None:
    before = office.owner.beats
    office.draw(RequestContext(1, "rollout"), b"a", 1, tokens=7)
    office.work()
    assert office.owner.beats >= before + 7 and office.owner.busy == ""
