"""What the trainer made of the works that the pool accepted, worker by worker: counted from its own manifests.

A work is due for a step if this node held it accepted before the policy before that step was heard of: the trainer
composes a batch one step ahead. What is due, fresher than something that was used, and not used, was left out. Pure.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from node.recent import Recent
from node.swarm.policies import PolicyClock
from node.swarm.register import Work, WorkId
from protocol.identity import Address
from protocol.manifest import ComposedBatch, UsedWork

KEPT = 8192
"""Accepted works that no manifest has named yet."""
MOST_WORKERS = 16384
"""As many as a table of members has, and so the latest of those that come and go."""


class Uses(msgspec.Struct):
    """Files of one worker. flat: used up without a group that was learnt from; surplus: due, and behind all that was
    used; stale: too old before they were used; left_out: due and fresher than something that was used."""

    accepted: int = 0
    used: int = 0
    flat: int = 0
    surplus: int = 0
    stale: int = 0
    left_out: int = 0


class _Waiting(msgspec.Struct, frozen=True):
    node: Address
    step: int
    at: float


class UseBook:
    """clock: monotonic seconds, the same as that of `policies`; is_member: of an author whom only a manifest names;
    keep_surplus: whether the run keeps what a batch has no room for."""

    def __init__(
        self,
        policies: PolicyClock,
        max_staleness: int,
        clock: Callable[[], float],
        is_member: Callable[[Address], bool],
        *,
        keep_surplus: bool,
    ) -> None:
        self._policies = policies
        self._max_staleness = max_staleness
        self._keep_surplus = keep_surplus
        self._clock = clock
        self._is_member = is_member
        self._waiting: Recent[WorkId, _Waiting] = Recent(KEPT)
        self._done: Recent[WorkId, None] = Recent(KEPT)
        self.workers: Recent[Address, Uses] = Recent(MOST_WORKERS)

    def accepted(self, work: Work) -> None:
        """The pool accepts a work, as this node sees it."""
        if work.task is None and work.id not in self._done and work.id not in self._waiting:
            self._waiting[work.id] = _Waiting(work.node, work.step, self._clock())
            self._of(work.node).accepted += 1

    def trained(self, pool: int, batch: ComposedBatch) -> None:
        """A manifest of the trainer's; each once, in the order of steps."""
        for used in batch.works:
            self._used(used.name(pool), used)
        oldest = min((one.policy_step for one in batch.works if any(one.used)), default=batch.step + 1)
        before = self._policies.of_step(batch.step - 1)
        known = self._policies.find(before.message.policy_root) if before is not None else None
        for id, one in list(self._waiting.items()):
            if batch.step - one.step > self._max_staleness:
                self._of(one.node).stale += 1
            elif known is None or one.at >= known.at:
                continue
            elif one.step > oldest:
                self._of(one.node).left_out += 1
            elif not self._keep_surplus:
                self._of(one.node).surplus += 1
            else:
                continue
            self._settle(id)

    def _used(self, id: WorkId, used: UsedWork) -> None:
        if id in self._done and id not in self._waiting:
            return
        if id not in self._waiting:
            if not self._is_member(used.author):
                return  # or a trainer could name strangers without end
            self._of(used.author).accepted += 1  # the trainer heard of its verdicts first
        uses = self._of(used.author)
        if any(used.used):
            uses.used += 1
        else:
            uses.flat += 1
        self._settle(id)

    def _settle(self, id: WorkId) -> None:
        self._waiting.pop(id, None)
        self._done[id] = None

    def _of(self, node: Address) -> Uses:
        return self.workers.setdefault(node, Uses())

    def status(self) -> dict[str, Any]:
        return {node: msgspec.structs.asdict(uses) for node, uses in self.workers.items()}
