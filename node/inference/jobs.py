"""The requests that an engine's process is at work on, each in a thread of its own; the rest wait their turn.

Threads go to the kind of work that has fewest for its weight, and a kind that has none waits for no thread, so none
starves. The engine itself is shared elsewhere (node.inference.owner): threads read, score, prove and write.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable

from node.inference.fair import Share, emptiest
from node.inference.owner import Cancelled, Ticket
from node.inference.wire import MOST_REQUESTS, Evaluate, Failed, Inspect, Produce, Reply, Request

JOBS = 4
"""Threads at work, and one more for each kind of work that would have none."""
MOST_WAITING = 2 * MOST_REQUESTS
"""Requests that were cancelled by the daemon may still be here when it asks for others."""


def share_of(request: Request) -> Share | None:
    """What kind of work a request is; None for what is done at once, without waiting for a thread."""
    if isinstance(request, Produce):
        return "rollout" if request.task is None else "task"
    if isinstance(request, Inspect):
        return "verdict"
    return "evaluation" if isinstance(request, Evaluate) else None


class Jobs:
    """answer: the reply to a request, never raises; say: sends a reply, from any thread."""

    def __init__(
        self, answer: Callable[[Request, Ticket], Reply], say: Callable[[Reply], None], limit: int = JOBS
    ) -> None:
        self._answer = answer
        self._say = say
        self._limit = limit
        self._lock = threading.Lock()
        self._waiting: dict[Share, deque[tuple[Request, Ticket]]] = {}
        self._running: Counter[Share] = Counter()
        self._tickets: dict[int, Ticket] = {}

    def submit(self, request: Request, progress: Callable[[int, int], None]) -> None:
        """Begin with a request, now or later. progress: hears how far it is."""
        share = share_of(request)
        ticket = Ticket(request.id, share or "rollout", progress)
        with self._lock:
            if len(self._tickets) >= MOST_WAITING:
                busy = Failed(id=request.id, what="the engine is busy", why=f"{MOST_WAITING} requests", remedy="wait")
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

    def _start(self, request: Request, ticket: Ticket, share: Share | None) -> None:
        threading.Thread(target=self._work, args=(request, ticket, share), daemon=True).start()

    def _work(self, request: Request, ticket: Ticket, share: Share | None) -> None:
        reply = self._answer(request, ticket)
        with self._lock:
            del self._tickets[request.id]
            if share is not None:
                self._running[share] -= 1
            self._say(reply)
            self._begin()


def cancelled(number: int) -> Failed:
    """The reply to a request that was given up."""
    error = Cancelled()
    return Failed(id=number, what=error.what, why=error.why, remedy=error.remedy)
