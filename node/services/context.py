"""What a node's services are given: who they are, the run that they work for, and the doors to everybody else.

Knows no service. A service reads `facts` and `state`, says its words by `board`, and is given in its constructor what
another service provides.
"""

import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import time as unix_time
from typing import Any

import msgspec
import structlog
import trio

from node.blobs.interface import Blobs
from node.changes import seen
from node.clock import Clock, Seconds
from node.member import Participant
from node.progress import ProgressRecord
from node.run.assets import Run
from node.state.files import as_named
from node.state.journal import Journal
from node.swarm.board import Board
from node.swarm.facts import Facts
from node.swarm.jury import Jury
from node.swarm.membership import Membership
from node.swarm.pool_state import PoolState
from node.weights.policy_cache import PolicyCache
from protocol.errors import IntellectError, OwnFailure
from protocol.identity import Address, NodeKey
from protocol.manifest import MAX_MANIFEST_BYTES, BatchManifest, decode_manifest
from protocol.messages import PolicyAnnounced
from protocol.statements import Domain

log = structlog.get_logger()
SHOWN_EVERY = (2.0, 3600.0)
"""Seconds between two times that roots of one epoch are said: a quarter of the window, within these."""


class PoolTime:
    """Which epoch of its pool it is, by the chain's clock: this machine's, corrected by the newest block that was
    looked at. started_at: of the pool, unix seconds; window: of its earnings, seconds."""

    def __init__(
        self, started_at: int = 0, epoch_seconds: int = 2**40, window: int = 2**40, wall: Seconds = unix_time
    ) -> None:
        self._started_at = started_at
        self.epoch_seconds = epoch_seconds
        self._window = window
        self._wall = wall
        self._ahead = 0.0

    def saw(self, timestamp: int) -> None:
        """The newest block's time. A chain without work makes no block, so it may be ahead, never behind."""
        # Only forward: a chain that stands still must not stop the pool's clock.
        self._ahead = max(0.0, timestamp - self._wall())

    def now(self) -> float:
        """Unix seconds."""
        return self._wall() + self._ahead

    def epoch(self) -> int:
        return int(max(0.0, self.now() - self._started_at)) // self.epoch_seconds

    @property
    def shown_every(self) -> float:
        """Seconds between two times that a validator says its roots of one epoch, and signs another one."""
        shortest, longest = SHOWN_EVERY
        return min(max(self._window / 4, shortest), longest)

    @property
    def certified_after(self) -> float:
        """Seconds that a leaf waits for validators who have not spoken: it must be signed, heard and tabled within
        the window."""
        return self._window / 4

    def may_certify(self, epoch: int, found_at: float | None = None) -> bool:
        """Whether work of this epoch that was found good then (None: now) may be certified: found no later than half of
        the window after its end, so that others have the time to find otherwise, and its node to show that; and no
        earlier than the epoch before, since clocks differ."""
        end = self._started_at + (epoch + 1) * self.epoch_seconds
        return epoch <= self.epoch() + 1 and (self.now() if found_at is None else found_at) <= end + self._window / 2


class Context(msgspec.Struct):
    """A node's place in the swarm: who it is, what it holds, whom it can talk to.

    progress: where services say how far they are and what happened; price: wei for a unit of work, 0 if
    unknown; clock: what time it is; time: which epoch of the pool.
    """

    key: NodeKey
    domain: Domain
    pool: int
    run: Run
    board: Board
    blobs: Blobs
    journal: Journal
    membership: Membership
    policy_cache: PolicyCache
    jury: Jury
    progress: ProgressRecord = msgspec.field(default_factory=ProgressRecord)
    price: int = 0
    clock: Clock = Clock()
    time: PoolTime = msgspec.field(default_factory=PoolTime)

    @property
    def quorum(self) -> int:
        """Validators that must agree, by the bench that is in office now."""
        return self.membership.quorum

    @property
    def facts(self) -> Facts:
        """What is so in the pool, as it comes to be."""
        return self.jury.facts

    @property
    def state(self) -> PoolState:
        """What is so in the pool now: read here, changed by words, the chain and time only."""
        return self.jury.state

    async def until(self, so: Callable[[], bool], *kinds: type[Any], seconds: float = math.inf) -> bool:
        """Whether it comes to be so in so many seconds; looked at again with each news of these kinds."""
        with trio.move_on_after(seconds), self.facts.subscribe(*kinds) as told:
            while not so():
                await told.receive()
        return so()

    async def handle(self, do: Callable[[Any], object], *kinds: type[Any]) -> None:
        """Call it with each news of these kinds, what stands first, until cancelled."""
        async for news in self.facts.subscribe(*kinds):
            do(news)

    async def on_news(self, do: Callable[[], Awaitable[object]], *kinds: type[Any], within: float = math.inf) -> None:
        """Do it now, again after news of these kinds, and so many seconds after it was done at the latest."""
        with self.facts.subscribe(*kinds) as told:
            while True:
                await do()
                with trio.move_on_after(within):
                    await told.receive()
                with suppress(trio.WouldBlock):
                    while True:
                        told.receive_nowait()  # one look serves all of them


def make_context(
    member: Participant,
    run: Run,
    journal: Journal,
    progress: ProgressRecord | None = None,
    price: int = 0,
    clock: Clock | None = None,
    time: PoolTime | None = None,
) -> Context:
    """A member's place in a run. clock: this machine's, unless another is given; time: of the pool; without it,
    everything counts in its epoch 0."""
    clock = clock or Clock()
    # Rollouts of the stalest policy that still counts must be judged, a few steps later.
    keep = run.spec.recipe.max_staleness + 3  # beyond those that work may still be of
    policy_cache = PolicyCache(keep, member.blob_service.store)
    jury = Jury(member.board, member.membership, run.spec, member.pool, journal, clock.monotonic)
    own = (member.key, member.domain, member.pool)
    shared = (member.board, member.blobs, journal, member.membership)
    return Context(
        *own, run, *shared, policy_cache, jury, progress or ProgressRecord(), price, clock, time or PoolTime()
    )


async def manifest_of(context: Context, author: Address, message: PolicyAnnounced, timeout: float) -> BatchManifest:
    """Of the step that led to an announced policy. Raises IntellectError where it cannot be had, or is none."""
    if told := message.told_batch:
        manifest = decode_manifest(told)  # as small as a message
    else:
        sources = [author, *context.membership.addresses()]
        with context.blobs.holding([message.batch_root]):
            path = await context.blobs.fetch(message.batch_root, sources, max_size=MAX_MANIFEST_BYTES, timeout=timeout)
            read = lambda: decode_manifest(as_named(path.read_bytes(), message.batch_root, "a batch manifest"))
            manifest = await trio.to_thread.run_sync(read)
    manifest.check(context.run.root, context.pool, message.step - 1, context.run.spec.recipe.max_staleness)
    return manifest


async def owed(
    context: Context, root: bytes, sources: Callable[[], Sequence[Address]], most: int, seconds: float, event: str
) -> Path | None:
    """A file that is to be handed over, asked for again and again; None if nobody does in time. sources: who may have
    it then, first whose it is; most: bytes; event: the log's word for a try in vain. Raises OwnFailure where that time
    is over and this machine could not take it."""
    path: Path | None = None
    own: OwnFailure | None = None

    async def is_here() -> bool:
        nonlocal path, own
        try:
            node, *others = sources()
            others = [one for one in others if one != context.key.address]
            path = await context.blobs.fetch(root, [node, *others], max_size=most, timeout=30.0)
        except IntellectError as error:
            own = error if isinstance(error, OwnFailure) else None
            log.info(event, node=node, why=error.why)
        return path is not None

    with trio.move_on_after(seconds):
        await seen(is_here, 1.0)
    if path is None and own is not None:
        raise own
    return path


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
        # At least a second: two events in a row would make a rate of thousands.
        span = max(self._clock() - self._events[0][0], 1.0)
        return sum(tokens for _, tokens in self._events) / span
