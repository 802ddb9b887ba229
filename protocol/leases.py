"""Leases on the shards of one task: who may do which, until when, and whose result counts.

The first valid claim holds; of two within CLASH_SECONDS the lighter by rendezvous, so that whoever hears both in
another order comes to the same holder. A lease ends with its time, with its holder's death, or with a result. What
comes after somebody else took over counts for nothing and costs nothing but that. Pure: the clock (seconds, monotonic)
is an argument. Everybody keeps such a table from what was heard, so two honest ones may differ for a moment: what
follows is hearsay (`protocol.checks.HEARSAY`).
"""

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import islice

import msgspec

from protocol.identity import Address
from protocol.tasks import TaskId, TaskSpec, by_weight, rank, weight

# Longer than gossip takes to reach everybody, also over a slow uplink.
CLASH_SECONDS = 5.0
"""Two claims that are no further apart may have been made without knowing of each other."""
# Who could hold more would reserve a task's end, and let it wait for the slowest.
MOST_HELD = 2
"""Shards of one task that one node may hold at a time: the one at hand, and the next."""


WorkId = bytes


class ResultStanding(Enum):
    """What a result is worth when it is heard."""

    COVERED = "covered"
    UNCLAIMED = "unclaimed"
    """its node was never heard to claim this shard: the claim may still come"""
    LATE = "late"
    """somebody else took over, or was first"""


class TaskLease(msgspec.Struct, frozen=True):
    """since, until: seconds."""

    node: Address
    since: float
    until: float


class _Shard(msgspec.Struct):
    """held: who holds it now or held it last; holders: everybody who did; result: whose counts, and which; accepted:
    the pool found it good; free_since: when it could be claimed (again); orphaned: when its holder was found dead."""

    free_since: float
    held: TaskLease | None = None
    orphaned: float | None = None
    holders: list[Address] = []
    result: tuple[Address, WorkId] | None = None
    accepted: bool = False


class Leases:
    """One task's. opened: when it was heard of."""

    def __init__(self, task: TaskId, spec: TaskSpec, opened: float) -> None:
        self.task = task
        self.spec = spec
        self._opened = opened
        self._shards: dict[int, _Shard] = {}
        self._claimed: dict[Address, set[int]] = {}
        self._orders: dict[Address, list[int]] = {}
        self._strikes: dict[Address, tuple[float, float]] = {}
        self._unclaimed: dict[Address, dict[int, WorkId]] = {}
        self._standing: dict[WorkId, ResultStanding] = {}
        self.done: set[int] = set()
        """Shards whose result was accepted."""
        self.taken_over = 0

    # claims

    def claim(self, shard: int, node: Address, now: float, alive: Callable[[Address], bool]) -> bool:
        """Hear a claim; whether its author holds the shard from now on (or still). alive: of the holder before."""
        if not 0 <= shard < self.spec.shards:
            return False
        state = self._shards.setdefault(shard, _Shard(self._opened, holders=[]))
        if state.result is not None or not self._may_claim(shard, node, now):
            return False
        held = state.held
        if held is not None and now < held.until:
            if held.node == node:
                return True  # claiming twice changes nothing: not the holder, not the time
            clash = now - held.since <= CLASH_SECONDS
            lighter = weight(self.task, shard, node) < weight(self.task, shard, held.node)
            if alive(held.node) and not (clash and lighter):
                return False
            if not clash:
                self.taken_over += 1
                # Of a strike, what the lease of a dead holder counts: most die by no fault, and their shards are soon
                # with others. A stall that makes all workers look dead for a moment must not bar them all, or the task
                # would end with them.
                self._strike(held.node, 0.25, now)
        elif held is not None:
            self.taken_over += held.node != node  # or its own lease ran out, and it begins anew
            self._strike(held.node, 1.0, now)
        self._give(state, shard, node, now)
        return True

    def _may_claim(self, shard: int, node: Address, now: float) -> bool:
        if self.is_barred(node, now):
            return False
        siblings = [self._shards[one] for one in self.spec.siblings(shard) if one in self._shards and one != shard]
        if any(_is_of(state, node, now) for state in siblings):
            return False
        return len(self.held(node, now)) < MOST_HELD or self.holds(shard, node, now)

    def _give(self, state: _Shard, shard: int, node: Address, now: float) -> None:
        state.held, state.orphaned = TaskLease(node, now, now + self.spec.lease_seconds), None
        self._claimed.setdefault(node, set()).add(shard)
        if node not in state.holders:
            # Nodes that are remembered of one shard to have held it: their late results are told apart from strangers'.
            state.holders = [*state.holders, node][-8:]
        early = self._unclaimed.get(node, {}).pop(shard, None)
        if early is not None:  # its result was faster than its claim
            self._count(state, shard, node, early)

    def _strike(self, node: Address, weight: float, now: float) -> None:
        self._strikes[node] = (self._struck(node, now) + weight, now)

    def _struck(self, node: Address, now: float) -> float:
        """The strikes of a node that are not forgiven."""
        strikes, at = self._strikes.get(node, (0.0, now))
        # Lease times without a strike after which there are none any more: else a bad hour of all nodes would end a
        # task.
        return strikes if now - at < 10.0 * self.spec.lease_seconds else 0.0

    # results

    def commit(self, shard: int, node: Address, work: WorkId) -> ResultStanding:
        """Hear of a result. One that comes after its lease, before anybody else claimed, counts: to refuse right
        answers would waste the work and protect nobody."""
        if work in self._standing and self._standing[work] is not ResultStanding.UNCLAIMED:
            return self._standing[work]
        state = self._shards.get(shard)
        if state is None or node not in state.holders:
            early = self._unclaimed.setdefault(node, {})
            # Claims and results travel by different ways, so a result may come first; a bound, since anybody can say
            # one. Results of one node that may be heard before their claims.
            if len(early) < 16:
                early[shard] = work
            self._standing[work] = ResultStanding.UNCLAIMED
        elif state.result is not None or state.held is None or state.held.node != node:
            self._standing[work] = ResultStanding.LATE
        else:
            self._count(state, shard, node, work)
        return self._standing[work]

    def _count(self, state: _Shard, shard: int, node: Address, work: WorkId) -> None:
        state.result = (node, work)
        self._standing[work] = ResultStanding.COVERED

    def standing(self, work: WorkId) -> ResultStanding:
        """Of a result that was heard of."""
        return self._standing.get(work, ResultStanding.UNCLAIMED)

    def decided(self, shard: int, work: WorkId, *, accepted: bool, now: float) -> None:
        """The pool has decided about a result. A refused one's shard is free again; its node has a strike."""
        state = self._shards.setdefault(shard, _Shard(self._opened, holders=[]))
        if state.accepted:
            return
        if accepted:
            node = state.result[0] if state.result and state.result[1] == work else None
            state.accepted, state.result = True, state.result or (Address(""), work)
            self.done.add(shard)
            if node is not None:
                self._strikes.pop(node, None)
        elif state.result is not None and state.result[1] == work:
            self._strike(state.result[0], 1.0, now)
            state.result, state.held, state.free_since = None, None, now

    def finished(self, shard: int) -> None:
        """The task's owner has this shard's result: what others may have missed."""
        if 0 <= shard < self.spec.shards:
            state = self._shards.setdefault(shard, _Shard(self._opened, holders=[]))
            state.accepted, state.result = True, state.result or (Address(""), b"")
            self.done.add(shard)

    # what is free

    def holder(self, shard: int, now: float) -> Address | None:
        """Who holds a shard at this moment."""
        held = self._shards[shard].held if shard in self._shards else None
        return held.node if held is not None and now < held.until else None

    def holds(self, shard: int, node: Address, now: float) -> bool:
        return shard in self._shards and self._holds(self._shards[shard], node, now)

    def pending(self, now: float) -> list[int]:
        """The shards that somebody holds and of which no result is here."""
        nodes = list(self._claimed)
        return [shard for node in nodes for shard in self.held(node, now)]

    def held(self, node: Address, now: float) -> list[int]:
        """The shards that a node holds and has no result of."""
        mine = [shard for shard in self._claimed.get(node, ()) if self.holds(shard, node, now)]
        if node in self._claimed:
            self._claimed[node] = set(mine)
        return sorted(mine)

    def free_since(self, shard: int, now: float, alive: Callable[[Address], bool]) -> float | None:
        """Since when a shard could be claimed; None while it cannot."""
        state = self._shards.get(shard)
        if state is None:
            return self._opened
        if state.result is not None:
            return None
        if state.held is None:
            return state.free_since
        if now >= state.held.until:
            return state.held.until
        if alive(state.held.node):
            state.orphaned = None
        elif state.orphaned is None:
            state.orphaned = now
        return state.orphaned

    def choose(
        self, own: Address, others: Sequence[Address], now: float, alive: Callable[[Address], bool]
    ) -> int | None:
        """The free shard that `own` should claim now, None if there is none or others come first. others: live members
        that meet what the task requires."""
        if self.is_barred(own, now) or len(self.held(own, now)) >= MOST_HELD:
            return None
        # Free shards among which a node looks for one to claim: those that suit it best.
        for shard, since in islice(self._free(own, now, alive), 8):
            # That each node which should rather do a free shard has to claim it, before the next one may.
            if now >= since + 3.0 * rank(self.task, shard, own, others):
                return shard
        return None

    def _free(self, own: Address, now: float, alive: Callable[[Address], bool]) -> Iterable[tuple[int, float]]:
        """What `own` could claim and since when: what others have left undone, then what suits it best."""
        if own not in self._orders:
            self._orders[own] = by_weight(self.task, self.spec.shards, own)
        for shard in sorted(self._orders[own], key=lambda shard: shard not in self._shards):
            if shard in self.done:
                continue
            since = self.free_since(shard, now, alive)
            if since is not None and self._may_claim(shard, own, now):
                yield shard, since

    def is_barred(self, node: Address, now: float) -> bool:
        """Whether its claims are not heard at this time."""
        # Leases of one node that ran out, or results of it that were refused, since its last accepted one; then its
        # claims in this task are heard no more for a while.
        return self._struck(node, now) >= 3.0

    @staticmethod
    def _holds(state: _Shard, node: Address, now: float) -> bool:
        return state.result is None and state.held is not None and state.held.node == node and now < state.held.until


def _is_of(state: _Shard, node: Address, now: float) -> bool:
    """Whether a shard is a node's: it holds it, or its result stands."""
    if state.result is not None:
        return state.result[0] == node
    return state.held is not None and state.held.node == node and now < state.held.until
