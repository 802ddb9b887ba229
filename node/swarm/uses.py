"""What the trainer made of the works that the pool accepted, worker by worker: counted from its own manifests.

A work is due for a step if a quorum of validators signed that they held it accepted when they heard of the policy
before (`DueSigned`): the trainer composes a batch one step ahead. What is due, fresher than something that was used,
and not used, was left out: manifest and cuts show it to anybody. Pure.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from node.recent import Recent
from node.swarm.policies import PolicyClock
from node.swarm.register import Work, WorkId
from protocol.identity import Address
from protocol.manifest import ComposedBatch, UsedWork
from protocol.messages import DueSigned

KEPT = 8192
"""Accepted works that no manifest has named yet."""
NAMED = 8192
"""Works that one validator has named in its cuts, the newest."""
TOLD = 16
"""Works that were left out, the newest, with whose cuts show it."""
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


class LeftOut(msgspec.Struct, frozen=True):
    """step: whose manifest used something older; due: the policy at which the last of a quorum had named it; by: who
    signed a cut with it until then."""

    work: str
    node: Address
    policy_step: int
    step: int
    due: int
    by: tuple[Address, ...]


class _Waiting(msgspec.Struct, frozen=True):
    node: Address
    step: int


class UseBook:
    """clock: monotonic seconds, the same as that of `policies`; is_member: of an author whom only a manifest names;
    quorum, is_validator: whose cuts make a work due; is_usable: whether a trainer may use a work still; keep_surplus:
    whether the run keeps what a batch has no room for."""

    def __init__(
        self,
        policies: PolicyClock,
        max_staleness: int,
        clock: Callable[[], float],
        is_member: Callable[[Address], bool],
        quorum: Callable[[], int],
        is_validator: Callable[[Address], bool],
        is_usable: Callable[[WorkId], bool],
        *,
        keep_surplus: bool,
    ) -> None:
        self._policies = policies
        self._max_staleness = max_staleness
        self._keep_surplus = keep_surplus
        self._clock = clock
        self._is_member = is_member
        self._quorum = quorum
        self._is_validator = is_validator
        self._is_usable = is_usable
        self._uncut: Recent[WorkId, float] = Recent(KEPT)
        """Works that no cut of this node has named, and when they were accepted."""
        self._named: dict[Address, Recent[WorkId, int]] = {}
        """By validator: the policy at which it named a work first."""
        self._left: Recent[WorkId, LeftOut] = Recent(TOLD)
        self._waiting: Recent[WorkId, _Waiting] = Recent(KEPT)
        self._done: Recent[WorkId, bool] = Recent(KEPT)
        """Whether it was left out."""
        self.workers: Recent[Address, Uses] = Recent(MOST_WORKERS)

    def accepted(self, work: Work) -> None:
        """The pool accepts a work, as this node sees it."""
        if work.task is None and work.id not in self._done and work.id not in self._waiting:
            self._waiting[work.id] = _Waiting(work.node, work.step)
            self._uncut[work.id] = self._clock()
            self._of(work.node).accepted += 1

    def cut(self, step: int) -> tuple[WorkId, ...]:
        """What this node held accepted when it heard of a policy, and has not named in a cut before; rising."""
        signed = self._policies.of_step(step)
        known = self._policies.find(signed.message.policy_root) if signed is not None else None
        found = sorted(id for id, at in self._uncut.items() if known is not None and at < known.at)
        for id in found:
            del self._uncut[id]
        return tuple(found)

    def heard(self, validator: Address, cut: DueSigned) -> None:
        """A validator's cut. Its first word on a work counts: what one says fills a table of its own."""
        named = self._named.setdefault(validator, Recent(NAMED))
        for id in cut.works:
            named.setdefault(id, cut.step)

    def due(self, id: WorkId) -> tuple[int, tuple[Address, ...]] | None:
        """(the policy at which a quorum of validators had named a work, who); None while none has."""
        by = sorted((one[id], who) for who, one in self._named.items() if id in one and self._is_validator(who))
        quorum = self._quorum()
        return (by[quorum - 1][0], tuple(who for _, who in by[:quorum])) if 0 < quorum <= len(by) else None

    def trained(self, pool: int, batch: ComposedBatch) -> None:
        """A manifest of the trainer's; each once, in the order of steps."""
        for used in batch.works:
            self._used(used.name(pool), used)
        oldest = min((one.policy_step for one in batch.works if any(one.used)), default=batch.step + 1)
        for id, one in list(self._waiting.items()):
            due, left_out = self.due(id), False
            if batch.step - one.step > self._max_staleness:
                self._of(one.node).stale += 1
            elif not self._is_usable(id):
                pass  # of a policy that was taken back, or one of two for one place: nobody may train on it
            elif due is None or due[0] >= batch.step:
                continue
            elif one.step > oldest:
                left_out = True
                self._of(one.node).left_out += 1
                self._left[id] = LeftOut(id.hex(), one.node, one.step, batch.step, *due)
            elif not self._keep_surplus:
                self._of(one.node).surplus += 1
            else:
                continue
            self._settle(id, left_out=left_out)

    def _used(self, id: WorkId, used: UsedWork) -> None:
        if id not in self._waiting and id not in self._done:
            if not self._is_member(used.author):
                return  # or a trainer could name strangers without end
            self._of(used.author).accepted += 1  # the trainer heard of its verdicts first
        elif self._done.get(id) is False:
            return
        uses = self._of(used.author)
        if self._done.get(id):  # later than was due: judges take their time
            uses.left_out -= 1
            self._left.pop(id, None)
        if any(used.used):
            uses.used += 1
        else:
            uses.flat += 1
        self._settle(id)

    def _settle(self, id: WorkId, *, left_out: bool = False) -> None:
        self._waiting.pop(id, None)
        self._done[id] = left_out

    def _of(self, node: Address) -> Uses:
        return self.workers.setdefault(node, Uses())

    def status(self) -> dict[str, Any]:
        """workers: by address; left_out: the newest works, with the validators whose cuts show it."""
        workers = {node: msgspec.structs.asdict(uses) for node, uses in self.workers.items()}
        return {"workers": workers, "left_out": [msgspec.structs.asdict(one) for one in self._left.values()]}
