"""The one thread that touches the engine. Jobs in other threads hand it work and wait; it shares the engine fairly.

Sampling of one policy at one temperature shares a decoder, whoever wants it. Another policy comes in when nothing is in
flight: a policy that others wait for takes no further requests after `HOLD` seconds, and what is in flight ends first.
Policies that an engine holds beside each other (`engine.Apart`) share a decoder as one does, of whatever runs they are.
Knows nothing of runs, files and pipes.
"""

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from node.inference.engine import Completion, Decoder, Engine, FinishedSequence, GenerationRequest, Prefill
from node.inference.errors import EngineError
from node.inference.watchdog import LOADING

# Whose turn it is on an engine: kinds of work, each with a weight, and none waits for ever. Pure.
# Start-time fair queueing: what a kind of work has used, divided by its weight, is its clock; whose clock is behind
# is next. Nobody saves up: what comes back from idleness starts at the clock of what is at work (Goyal, Vin and Cheng
# 1996).
Share = Literal["rollout", "verdict", "task", "answer"]
WEIGHTS: Mapping[Share, float] = {"rollout": 6.0, "verdict": 4.0, "task": 2.0, "answer": 0.5}
"""Shares of an engine's time where all want it; of rollouts and tasks alone, tasks get a quarter. Answers to whoever
asks this machine have what is left over: beside rollouts a thirteenth."""


class FairClock:
    """The clocks of all kinds of work. used: seconds that each has had."""

    def __init__(self) -> None:
        self._clocks: dict[Share, float] = dict.fromkeys(WEIGHTS, 0.0)
        self._now = 0.0
        self._active: frozenset[Share] = frozenset()
        self.used: dict[Share, float] = dict.fromkeys(WEIGHTS, 0.0)

    def charge(self, share: Share, seconds: float) -> None:
        self.used[share] += seconds
        self._clocks[share] += seconds / WEIGHTS[share]

    def order(self, wanting: Collection[Share]) -> list[Share]:
        """Those that want the engine now, the next one first."""
        for share in frozenset(wanting) - self._active:
            self._clocks[share] = max(self._clocks[share], self._now)
        self._active = frozenset(wanting)
        ordered = sorted(wanting, key=lambda share: (self._clocks[share], -WEIGHTS[share]))
        if ordered:
            self._now = max(self._now, self._clocks[ordered[0]])
        return ordered


def emptiest(holding: Mapping[Share, int], wanting: Iterable[Share]) -> Share:
    """Who gets the next place of several that are in use at a time. holding: places that each has now."""
    return min(wanting, key=lambda share: ((holding.get(share, 0) + 1) / WEIGHTS[share], -WEIGHTS[share]))


HOLD = 5.0
"""Seconds that a policy keeps the engine at least, while others wait for it: changing policies has a price."""


class Cancelled(EngineError):
    """A job that was given up by whoever wanted it."""

    def __init__(self) -> None:
        super().__init__("the request was cancelled", "whoever asked no longer waits", "ask again")


@dataclass(eq=False)
class RequestContext:
    """On whose behalf work is done. number: of the request; progress: hears (answers done, answers wanted); said: hears
    each token of an answer that is followed, and its place."""

    number: int
    share: Share
    progress: Callable[[int, int], None] = lambda done, wanted: None
    said: Callable[[int, int], None] = lambda place, token: None
    cancelled: bool = False


@dataclass(frozen=True)
class EnginePolicy:
    """A policy in an engine; beside: it is held there beside others; put: puts it there, if it is not there."""

    engine: Engine
    policy: bytes
    put: Callable[[], None] = field(compare=False)
    beside: bool = False

    def request(self, one: GenerationRequest) -> GenerationRequest:
        return replace(one, adapter=self.policy) if self.beside else one

    def sequences(self, given: Sequence[FinishedSequence]) -> Sequence[FinishedSequence]:
        return [replace(one, adapter=self.policy) for one in given] if self.beside else given

    def bears(self, other: "EnginePolicy") -> bool:
        """Whether the other may be computed with while this one is: neither changes the weights under it."""
        return self.engine is not other.engine or self.policy == other.policy or (self.beside and other.beside)


@dataclass(eq=False)
class QueuedWork:
    """What a job waits for. policy: None for what changes it itself; since: when it was taken in."""

    ticket: RequestContext
    policy: EnginePolicy | None
    since: float = 0.0
    ended: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: Exception | None = None

    def end(self, result: object = None, error: Exception | None = None) -> None:
        self.result, self.error = result, error
        self.ended.set()


@dataclass(eq=False)
class OnceWork(QueuedWork):
    """One thing to do as a whole."""

    do: Callable[[], object] = lambda: None
    what: str = ""


@dataclass(eq=False)
class DrawWork(QueuedWork):
    """Requests to complete. asked: how many of them the decoder has had."""

    temperature: float = 1.0
    requests: Sequence[GenerationRequest] = ()
    asked: int = 0
    done: dict[int, Completion] = field(default_factory=dict)

    @property
    def pending(self) -> bool:
        return self.asked < len(self.requests)


@dataclass(eq=False)
class _Lane:
    """A decoder and what it is for. flying: what its numbers stand for, a request of a draw each."""

    decoder: Decoder
    policy: EnginePolicy
    temperature: float
    since: float
    flying: dict[int, tuple[DrawWork, int]] = field(default_factory=dict)

    def places(self) -> Counter[Share]:
        """How many places each kind of work has."""
        return Counter(draw.ticket.share for draw, _ in self.flying.values())

    def forget(self, work: QueuedWork) -> None:
        for number in [number for number, (draw, _) in self.flying.items() if draw is work]:
            del self.flying[number]
            self.decoder.cancel(number)

    def takes(self, work: QueuedWork) -> bool:
        if not isinstance(work, DrawWork) or work.policy is None or work.temperature != self.temperature:
            return False
        return work.policy.engine is self.policy.engine and work.policy.bears(self.policy)

    def bears(self, work: QueuedWork) -> bool:
        """Whether something else can be done while requests are in flight here."""
        return work.policy is not None and work.policy.bears(self.policy)


class _Queue:
    """What jobs wait for, of each kind in the order in which it came."""

    def __init__(self) -> None:
        self._works: dict[Share, deque[QueuedWork]] = {}

    def __len__(self) -> int:
        """Kinds of work."""
        return len(self._works)

    def kinds(self) -> list[Share]:
        return list(self._works)

    def cancelled(self) -> list[QueuedWork]:
        return [work for works in self._works.values() for work in works if work.ticket.cancelled]

    def add(self, work: QueuedWork) -> None:
        self._works.setdefault(work.ticket.share, deque()).append(work)

    def remove(self, work: QueuedWork) -> None:
        works = self._works[work.ticket.share]
        works.remove(work)
        if not works:
            del self._works[work.ticket.share]

    def head(self, share: Share) -> QueuedWork | None:
        """The next thing of a kind that has not begun; None: all of it is in flight."""
        return next((work for work in self._works[share] if not isinstance(work, DrawWork) or work.pending), None)

    def wanting(self, lane: _Lane) -> dict[Share, DrawWork]:
        """Of each kind of work the oldest draw with requests that this decoder could take."""
        found: dict[Share, DrawWork] = {}
        for share, works in self._works.items():
            for work in works:
                if isinstance(work, DrawWork) and work.pending and lane.takes(work):
                    found[share] = work
                    break
        return found


class EngineScheduler:
    """fatal: hears of every error of an engine, with those on whose behalf it was at work, and need not return; hold:
    see HOLD; clock: seconds."""

    def __init__(
        self,
        *,
        fatal: Callable[[Exception, Sequence[RequestContext]], None] = lambda error, tickets: None,
        hold: float = HOLD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fatal = fatal
        self._hold = hold
        self._now = clock
        self._inbox: queue.SimpleQueue[QueuedWork | None] = queue.SimpleQueue()
        self._works = _Queue()
        self._lane: _Lane | None = None
        self._closing = self._ends = False
        self.clock = FairClock()
        self.beats = 0
        self.busy = ""

    # from the threads of jobs

    def draw(
        self, ticket: RequestContext, policy: EnginePolicy, requests: Sequence[GenerationRequest], temperature: float
    ) -> list[Completion]:
        """One completion per request. Raises EngineError, Cancelled."""
        done = self._wait(DrawWork(ticket, policy, temperature=temperature, requests=requests)) if requests else {}
        return [done[place] for place in range(len(requests))]

    def look(
        self, ticket: RequestContext, policy: EnginePolicy, sequences: Sequence[FinishedSequence], temperature: float
    ) -> list[Prefill]:
        """What the engine recomputes of finished sequences. Raises EngineError, Cancelled."""
        do = lambda: policy.engine.prefill(policy.sequences(sequences), temperature)
        return self._wait(OnceWork(ticket, policy, do=do, what="prefilling"))

    def alone(self, ticket: RequestContext, do: Callable[[], Any]) -> Any:
        """What `do` returns, done by the owner while nothing is in flight. It may take as long as a load."""
        return self._wait(OnceWork(ticket, None, do=do, what=LOADING))

    def wake(self) -> None:
        """Look again: a ticket was cancelled."""
        self._inbox.put(None)

    def end(self) -> None:
        """Serve no longer, once what is being done is done."""
        self._ends = True
        self.wake()

    def _wait(self, work: QueuedWork) -> Any:
        if work.ticket.cancelled:
            raise Cancelled
        self._inbox.put(work)
        work.ended.wait()
        if work.error is not None:
            raise work.error
        return work.result

    # in the owner's thread

    def serve(self) -> None:
        """Until it is told to end."""
        while not self._ends:
            self.turn()

    def turn(self) -> None:
        """Take in what came, and do one thing. Waits if there is nothing to do."""
        # What was cancelled goes before anything is chosen: the engine computes nothing that nobody waits for.
        self._take_in()
        self._forget_cancelled()
        if self._works:
            self._do_next()
        self._close_if_done()
        self.beats += 1
        self.busy = ""

    def _do_next(self) -> None:
        """What is first by the clocks and can be done beside what is in flight; else what is in flight."""
        # The kind that has had least of the engine for its weight comes first (`FairClock`).
        for share in self.clock.order(self._works.kinds()):
            work = self._works.head(share)
            if work is None or self._fits(work):
                return self._do(share, work)
            # Once it has waited for HOLD seconds the decoder takes nothing new: a busy one would never run empty.
            self._closing |= self._waited_enough(work)
            if self._closing:
                break
        return self._step()

    def _take_in(self) -> None:
        idle = not self._works
        # Blocks only where there is nothing to do; otherwise it takes what is there and goes on sampling.
        while idle or not self._inbox.empty():
            work = self._inbox.get()
            idle = False
            if work is not None:
                work.since = self._now()
                self._works.add(work)

    def _forget_cancelled(self) -> None:
        for work in self._works.cancelled():
            self._end(work, error=Cancelled())

    def _fits(self, work: QueuedWork) -> bool:
        if self._lane is None or self._lane.takes(work):
            return True
        # A draw that this decoder does not take needs one of its own, and there is one at a time.
        return self._lane.bears(work) and not isinstance(work, DrawWork)

    def _waited_enough(self, work: QueuedWork) -> bool:
        assert self._lane is not None  # else it would fit
        return self._now() - max(work.since, self._lane.since) >= self._hold

    def _do(self, share: Share, work: QueuedWork | None) -> None:
        if isinstance(work, OnceWork):
            self._do_once(share, work)
            return
        if work is not None and self._lane is None:
            self._open(share, work)
        self._step()

    def _do_once(self, share: Share, work: OnceWork) -> None:
        began = self._now()
        try:
            if work.policy is not None:
                self._load(work.policy)
            self.busy = work.what
            result = work.do()
        # Whatever it is, the job that waits has to hear it: this thread must go on for all others.
        except Exception as error:
            self._failed([work], error)
        else:
            self._end(work, result)
        self.clock.charge(share, self._now() - began)

    def _open(self, share: Share, work: QueuedWork) -> None:
        """A decoder for a draw and those like it."""
        assert isinstance(work, DrawWork) and work.policy is not None  # nothing else gets here
        began = self._now()
        try:
            self._load(work.policy)
            decoder = work.policy.engine.decoder(work.temperature)
        except Exception as error:
            self._failed([work], error)
        else:
            self._lane = _Lane(decoder, work.policy, work.temperature, self._now())
        self.clock.charge(share, self._now() - began)

    def _load(self, policy: EnginePolicy) -> None:
        self.busy = LOADING
        policy.put()

    def _step(self) -> None:
        """One token for everything in flight."""
        lane = self._lane
        if lane is None:
            return
        began = self._now()
        self.busy = "sampling"
        try:
            if not self._closing:
                self._fill(lane)
            # Before the step: whoever ends in it has used its place, too.
            places = lane.places()
            finished = lane.decoder.step()
        except Exception as error:
            held = list(dict.fromkeys(draw for draw, _ in lane.flying.values()))
            # Where nothing was in flight those fail that it was to begin with: a new one would fail at them, too.
            self._failed(held or [*self._works.wanting(lane).values()], error, lost=lane)
        else:
            seconds = self._now() - began
            for share, count in places.items():
                self.clock.charge(share, seconds * count / places.total())
            self._hand_out(lane, finished)

    def _fill(self, lane: _Lane) -> None:
        """Give the decoder's free places away, by weight."""
        places = lane.places()
        for _ in range(lane.decoder.room):
            wanting = self._works.wanting(lane)
            if not wanting:
                return
            share = emptiest(places, wanting)
            places[share] += 1
            self._submit(lane, wanting[share])

    def _submit(self, lane: _Lane, draw: DrawWork) -> None:
        """The next request of a draw; one that cannot be served ends it."""
        assert draw.policy is not None  # of a draw
        try:
            if draw.policy.beside:  # others came since the decoder was made, and it may have had to go
                self._load(draw.policy)
        except Exception as error:
            return self._failed([draw], error)
        self.busy = "sampling"
        try:
            number = lane.decoder.submit(draw.policy.request(draw.requests[draw.asked]))
        # Only what the request is to blame for. Anything else is the decoder's fault and fails all in flight (`_step`).
        except EngineError as error:
            self._end(draw, error=error)
        else:
            lane.flying[number] = draw, draw.asked
            draw.asked += 1

    def _hand_out(self, lane: _Lane, finished: Sequence[tuple[int, Completion]]) -> None:
        for number, completion in finished:
            draw, place = lane.flying.pop(number)
            draw.done[place] = completion
            draw.ticket.progress(len(draw.done), len(draw.requests))
            if len(draw.done) == len(draw.requests):
                self._end(draw, draw.done)

    def _close_if_done(self) -> None:
        """A decoder goes once it is empty and nobody wants more of it, or others had to wait for long."""
        lane = self._lane
        if lane is not None and not lane.flying and (self._closing or not self._works.wanting(lane)):
            self._lane, self._closing = None, False

    def _failed(self, works: Sequence[QueuedWork], error: Exception, lost: _Lane | None = None) -> None:
        """lost: the decoder with which they were at work, where that is what failed. Neither it nor anything that it
        held is used any more: who else wants to draw gets a new one."""
        # Told before the callers are: the process may end itself here, and its owner must know at which requests.
        self._fatal(error, [work.ticket for work in works])
        if lost is not None:
            self._lane, self._closing = None, False
            for number in lost.flying:
                # Decoders of one engine may share what is in flight. One that failed may fail at this, too.
                with suppress(Exception):
                    lost.decoder.cancel(number)
        for work in works:
            self._end(work, error=error)

    def _end(self, work: QueuedWork, result: object = None, error: Exception | None = None) -> None:
        if self._lane is not None:
            self._lane.forget(work)
        self._works.remove(work)
        work.end(result, error)


@dataclass(frozen=True)
class EngineHandle:
    """The owner's services on behalf of one ticket."""

    owner: EngineScheduler
    ticket: RequestContext

    def draw(self, policy: EnginePolicy, requests: Sequence[GenerationRequest], temperature: float) -> list[Completion]:
        return self.owner.draw(self.ticket, policy, requests, temperature)

    def look(self, policy: EnginePolicy, sequences: Sequence[FinishedSequence], temperature: float) -> list[Prefill]:
        return self.owner.look(self.ticket, policy, sequences, temperature)
