"""The engine child: `python -m node.inference.process [--dtype bfloat16 ...]`, driven by the daemon over pipes.

Stdout carries frames (wire.py) and nothing else; logs go to stderr as JSON lines. The main thread owns the engine
(owner.py), requests have threads of their own (Jobs), and one thread reads: it answers pings whatever the others do.
When stdin ends the process ends at once, so that no engine outlives its daemon, however that died.
"""

# ruff: noqa: E402 - the environment must be set before torch loads

import functools
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import BinaryIO

# Before torch is imported, which reads them once. One thread each: several nodes share a machine.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from node.inference.engines import EngineFactory, make_engine
from node.inference.errors import reason_to_end
from node.inference.options import EngineOptions, options_from
from node.inference.room import adapter_columns, room_for
from node.inference.scheduler import Cancelled, EngineScheduler, RequestContext, Share, emptiest
from node.inference.server import EngineServer, SessionType, log
from node.inference.session import EngineSession
from node.inference.settings import EngineSettings, devices
from node.inference.wire import (
    MOST_REQUESTS,
    AnswerRequest,
    Cancel,
    ChildEnding,
    EngineWireError,
    Inspect,
    Ping,
    Pong,
    Produce,
    Reply,
    Request,
    RequestFailed,
    RequestProgress,
    SaidToken,
    Teach,
    encode,
    kept_policies,
    requests,
)
from protocol.run import RunSpec
from protocol.sections import TEACHER

_GONE = 0
"""Exit status: the daemon is."""


class Conversation:
    """What the daemon asks, and the replies. ended: hears, with an exit status, that nothing more can come or go; it is
    called from any thread, and perhaps more than once."""

    def __init__(
        self,
        source: BinaryIO,
        sink: BinaryIO,
        server: EngineServer,
        owner: EngineScheduler,
        ended: Callable[[int], None],
    ) -> None:
        self._source = source
        self._sink = sink
        self._server = server
        self._owner = owner
        self._ended = ended
        # Replies come from many threads, and two frames that mix end the conversation.
        self._writing = threading.Lock()
        self._jobs = EngineJobs(lambda request, ticket: server.answer(request, ticket, owner), self._say)

    def _say(self, reply: Reply) -> None:
        try:
            frame = encode(reply)
        except (
            EngineWireError,
            UnicodeEncodeError,
        ) as error:  # half a character in a stranger's text, or too much of it
            what, remedy = "the engine's answer cannot be sent", "see the log of the engine"
            frame = encode(RequestFailed(id=reply.id, what=what, why=str(error)[:300], remedy=remedy))
        try:
            with self._writing:
                self._sink.write(frame)
                self._sink.flush()
        except (OSError, ValueError):  # it is closed
            self._ended(_GONE)

    def read(self) -> None:
        """Feed the jobs until the stream ends or cannot be followed any more."""
        unreadable = 3  # exit status
        try:
            for request in requests(self._source):
                self._hear(request)
        except (EngineWireError, OSError) as error:
            log("engine.input_broken", error=str(error))
            self._ended(unreadable)
        else:
            self._ended(_GONE)

    def _hear(self, request: Request | EngineWireError) -> None:
        if isinstance(request, EngineWireError):
            self._say(RequestFailed(what=request.what, why=request.why, remedy="report this: the daemon sent it"))
        elif isinstance(request, Ping):
            owner = self._owner
            used = {str(share): seconds for share, seconds in owner.clock.used.items()}
            self._say(Pong(id=request.id, beats=owner.beats, busy=owner.busy, used=used))
        elif isinstance(request, Cancel):
            self._jobs.cancel(request.which)
            self._owner.wake()
        else:
            self._jobs.submit(request, self._progress_of(request.id))

    def _progress_of(self, number: int) -> Callable[[int, int], None]:
        """Tells the daemon how far a request is, now and then."""
        last = time.monotonic()

        def tell(done: int, of: int) -> None:
            nonlocal last
            if time.monotonic() - last >= 1.0:  # seconds between two words on a request's progress
                last = time.monotonic()
                self._say(RequestProgress(id=number, done=done, of=of))

        return tell

    def end_if_fatal(self, error: Exception, during: Collection[RequestContext]) -> None:
        """Never returns from what the process cannot go on after. during: what the engine was at."""
        reason = reason_to_end(error)
        unusable = 4  # exit status
        if reason is not None:
            log("engine.ends", what=reason.what, why=reason.why)
            numbers = tuple({ticket.number for ticket in during})
            self._say(ChildEnding(what=reason.what, why=reason.why, remedy=reason.remedy, during=numbers))
            os._exit(unusable)


def settings_for(options: EngineOptions, run: RunSpec) -> EngineSettings:
    """How an engine for a run computes here."""
    settings = options.granted(run.verification.admitted, devices())
    if run.distill and run.distill.tasks:  # its teacher is put beside it
        settings = replace(settings, leave=settings.leave + room_for(run.weight_bytes(TEACHER), settings.dtype))
    if run.recipe.lora:  # kept apart, each policy that is kept has its adapter on the device
        settings = replace(settings, columns=adapter_columns(kept_policies(run) + 1, run.recipe.lora.rank))
    return settings


def main(session_type: SessionType = EngineSession, factory: EngineFactory | None = None) -> None:
    """Serve until stdin ends. factory: if none is given, the engine that command line, machine and run want."""
    options = EngineOptions() if factory else options_from(sys.argv[1:])
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not break the frames
    # Only now is there a conversation to tell of an end, and only in its requests anything can fail.
    owner = EngineScheduler(fatal=lambda error, during: conversation.end_if_fatal(error, during))
    server = EngineServer(
        lambda run: factory or functools.partial(make_engine, settings=settings_for(options, run)), session_type
    )
    # A conversation ends in any thread, where sys.exit would end that thread alone.
    conversation = Conversation(source, sink, server, owner, ended=os._exit)
    threading.Thread(target=conversation.read, daemon=True).start()
    owner.serve()


MOST_WAITING = 2 * MOST_REQUESTS
"""Requests that were cancelled by the daemon may still be here when it asks for others."""


def share_of(request: Request) -> Share | None:
    """What kind of work a request is; None for what is done at once, without waiting for a thread."""
    if isinstance(request, Produce):
        return "rollout" if request.task is None else "task"
    if isinstance(request, Teach):
        return "verdict" if request.checking else "task"
    if isinstance(request, AnswerRequest):
        return "answer"
    return "verdict" if isinstance(request, Inspect) else None


class EngineJobs:
    """The requests that an engine's process is at work on, each in a thread of its own; the rest wait their turn.

    Threads go to the kind of work that has fewest for its weight, and a kind that has none waits for no thread, so none
    starves. The engine itself is shared elsewhere (`node.inference.scheduler`): threads read, score, prove and write.

    answer: the reply to a request, never raises; say: sends a reply, from any thread; limit: of threads at work, beside
    one more for each kind of work that would have none."""

    def __init__(
        self,
        answer: Callable[[Request, RequestContext], Reply],
        say: Callable[[Reply], None],
        limit: int = 4,
    ) -> None:
        self._answer = answer
        self._say = say
        self._limit = limit
        self._lock = threading.Lock()
        self._waiting: dict[Share, deque[tuple[Request, RequestContext]]] = {}
        self._running: Counter[Share] = Counter()
        self._tickets: dict[int, RequestContext] = {}

    def submit(self, request: Request, progress: Callable[[int, int], None]) -> None:
        """Begin with a request, now or later. progress: hears how far it is."""
        share = share_of(request)
        said = lambda place, token: self._say(SaidToken(id=request.id, place=place, token=token))
        ticket = RequestContext(request.id, share or "rollout", progress, said)
        with self._lock:
            if len(self._tickets) >= MOST_WAITING:
                busy = RequestFailed(
                    id=request.id, what="the engine is busy", why=f"{MOST_WAITING} requests", remedy="wait"
                )
                return self._say(busy)
            self._tickets[request.id] = ticket
            if share is None:
                return self._start(request, ticket, None)
            self._waiting.setdefault(share, deque()).append((request, ticket))
            return self._begin()

    def cancel(self, number: int) -> None:
        """Give a request up, if it is not answered yet."""
        with self._lock:
            ticket = self._tickets.get(number)
            if ticket is not None:
                ticket.cancelled = True
            for share, waiting in list(self._waiting.items()):
                # Only those that wait are answered here; one at work ends by itself, and its job answers.
                for item in [item for item in waiting if item[1].cancelled]:
                    waiting.remove(item)
                    del self._tickets[item[0].id]
                    self._say(cancelled(item[0].id))
                if not waiting:
                    del self._waiting[share]

    def _begin(self) -> None:
        """Give threads away. The lock is held."""
        while share := self._next_share():
            request, ticket = self._waiting[share].popleft()
            if not self._waiting[share]:
                del self._waiting[share]
            self._running[share] += 1
            self._start(request, ticket, share)

    def _next_share(self) -> Share | None:
        idle: list[Share] = [share for share in self._waiting if not self._running[share]]
        if idle:
            return emptiest(self._running, idle)
        return emptiest(self._running, self._waiting) if self._waiting and self._running.total() < self._limit else None

    def _start(self, request: Request, ticket: RequestContext, share: Share | None) -> None:
        threading.Thread(target=self._work, args=(request, ticket, share), daemon=True).start()

    def _work(self, request: Request, ticket: RequestContext, share: Share | None) -> None:
        reply = self._answer(request, ticket)
        with self._lock:
            del self._tickets[request.id]
            if share is not None:
                self._running[share] -= 1
            self._say(reply)
            self._begin()


def cancelled(number: int) -> RequestFailed:
    """The reply to a request that was given up."""
    error = Cancelled()
    return RequestFailed(id=number, what=error.what, why=error.why, remedy=error.remedy)


if __name__ == "__main__":
    main()
