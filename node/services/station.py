"""What a node's services are given: the run that they work for, and the doors to everybody else."""

from collections import deque

import msgspec
import trio

from node.blobs.interface import Blobs
from node.clock import Clock, Seconds
from node.member import Member
from node.progress import ProgressRecord
from node.run.assets import Run
from node.state.journal import Journal
from node.swarm.board import Board
from node.swarm.jury import Jury
from node.swarm.membership import Membership
from node.weights.keeper import PolicyShelf
from protocol.identity import NodeKey
from protocol.statements import Domain

KEPT_POLICIES_EXTRA = 3


class Station(msgspec.Struct):
    """A node's place in the swarm: who it is, what it holds, whom it can talk to.

    progress: where services say how far they are and what happened; price: wei for a unit of work, 0 if
    unknown; clock: what time it is.
    """

    key: NodeKey
    domain: Domain
    pool: int
    run: Run
    board: Board
    blobs: Blobs
    journal: Journal
    membership: Membership
    shelf: PolicyShelf
    quorum: int
    jury: Jury
    progress: ProgressRecord = msgspec.field(default_factory=ProgressRecord)
    price: int = 0
    clock: Clock = Clock()


def take_station(
    member: Member,
    run: Run,
    quorum: int,
    journal: Journal,
    progress: ProgressRecord | None = None,
    price: int = 0,
    clock: Clock | None = None,
) -> Station:
    """A member's place in a run. quorum: validators that must agree; clock: this machine's, unless another is given."""
    clock = clock or Clock()
    keep = run.spec.recipe.max_staleness + KEPT_POLICIES_EXTRA
    shelf = PolicyShelf(keep, member.stock.store)
    jury = Jury(member.board, member.membership, run.spec, member.pool, quorum, journal, clock.monotonic)
    own = (member.key, member.domain, member.pool)
    shared = (member.board, member.blobs, journal, member.membership)
    return Station(*own, run, *shared, shelf, quorum, jury, progress or ProgressRecord(), price, clock)


class Rate:
    """Tokens per second over the last `window` seconds of the clock."""

    def __init__(self, window: float = 15.0, clock: Seconds = trio.current_time) -> None:
        self._window = window
        self._clock = clock
        self._events: deque[tuple[float, int]] = deque()

    def add(self, tokens: int) -> None:
        self._events.append((self._clock(), tokens))

    @property
    def per_second(self) -> float:
        horizon = self._clock() - self._window
        while self._events and self._events[0][0] < horizon:
            self._events.popleft()
        if not self._events:
            return 0.0
        span = max(self._clock() - self._events[0][0], 1.0)
        return sum(tokens for _, tokens in self._events) / span
