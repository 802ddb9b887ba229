"""What the trainer made of the works that the pool accepted, worker by worker: counted from its own manifests.

A work is due for a step if a quorum of validators signed that they held it accepted when they heard of the policy
before (`AcceptedList`): the trainer composes a batch one step ahead. What is due, fresher than something that was used,
and not used, was left out: manifest and lists show it to anybody. One such work is no fault, since a file may be lost
on its way to the trainer. So many of one worker, batch after batch, are (`dropped`). Pure.
"""

import math
from collections.abc import Callable, Container, Iterable, Mapping

import msgspec

from node.bounded_dict import BoundedDict
from node.status_schema import LeftOutPart, UsesPart, WorkerUsesPart
from node.swarm.membership import Membership
from node.swarm.policies import PolicyIndex
from node.swarm.register import RegisteredWork, WorkId
from protocol.identity import Address
from protocol.manifest import FED, ComposedBatch, UsedWork, batch_order, lot_of, work_order
from protocol.messages import AcceptedList
from protocol.replicas import share

KEPT = 8192
"""Accepted works that no manifest has named yet."""
MOST_WORKERS = 16384
"""As many as a table of members has, and so the latest of those that come and go."""


class _Passed(msgspec.Struct, gc=False):
    """Of one worker, since the last one of its works that was used: due works that stood before something that was used
    instead of them, and in which batches."""

    works: BoundedDict[WorkId, None]
    batches: BoundedDict[int, None]


class _Waiting(msgspec.Struct, frozen=True):
    node: Address
    step: int
    lot: int


class _Counted:
    """Accepted works until a manifest uses them up or they grow stale, and what became of each worker's."""

    def __init__(self) -> None:
        self._waiting: BoundedDict[WorkId, _Waiting] = BoundedDict(KEPT)
        self._done: BoundedDict[WorkId, bool] = BoundedDict(KEPT)
        """Whether it was left out."""
        self.workers: BoundedDict[Address, WorkerUsesPart] = BoundedDict(MOST_WORKERS)

    def accepted(self, work: RegisteredWork) -> bool:
        """The pool accepts a work, as this node sees it; whether that is news."""
        if not work.is_sampled or work.id in self._done or work.id in self._waiting:
            return False
        of = work.commitment
        self._waiting[work.id] = _Waiting(work.node, work.step, lot_of(of.pool, of.policy_root, of.node, of.index))
        self._of(work.node).accepted += 1
        return True

    def is_settled(self, id: WorkId) -> bool:
        """Whether a batch has named a work, or none will."""
        return id in self._done

    def _settle(self, id: WorkId, *, left_out: bool = False) -> None:
        self._waiting.pop(id, None)
        self._done[id] = left_out

    def _of(self, node: Address) -> WorkerUsesPart:
        return self.workers.setdefault(node, WorkerUsesPart())

    def _told(self) -> dict[str, WorkerUsesPart]:
        return {node: msgspec.structs.replace(uses) for node, uses in self.workers.items()}


def _use(uses: WorkerUsesPart, used: UsedWork) -> None:
    if any(used.used):
        uses.used += 1
    else:
        uses.flat += 1


class BatchUsage(_Counted):
    """clock: monotonic seconds, the same as that of `policies`; members: who may be named in a manifest, and whose
    lists make a work due; is_usable: whether a trainer may use a work still; keep_surplus: whether the run keeps what a
    batch has no room for."""

    def __init__(
        self,
        policies: PolicyIndex,
        members: Membership,
        max_staleness: int,
        clock: Callable[[], float],
        is_usable: Callable[[WorkId], bool],
        *,
        keep_surplus: bool,
    ) -> None:
        super().__init__()
        self._policies = policies
        self._max_staleness = max_staleness
        self._keep_surplus = keep_surplus
        self._clock = clock
        self._members = members
        self._is_usable = is_usable
        self._unlisted: BoundedDict[WorkId, float] = BoundedDict(KEPT)
        """Works that no list of this node has named, and when they were accepted."""
        told = 16  # works that were left out, the newest, with whose lists show it
        self._lists: BoundedDict[int, tuple[WorkId, ...]] = BoundedDict(told)
        self._named: dict[Address, BoundedDict[WorkId, int]] = {}
        """By validator: the policy at which it named a work first."""
        self._left: BoundedDict[WorkId, LeftOutPart] = BoundedDict(told)
        self._passed: BoundedDict[Address, _Passed] = BoundedDict(MOST_WORKERS)
        self._fed: BoundedDict[Address, int] = BoundedDict(MOST_WORKERS, refresh=True)
        """The newest step whose batch named a work of a worker."""
        self._first: int | None = None
        """The first step of which a manifest was seen."""
        self.newest = -1
        """And the newest one."""
        self.longest = 0
        """The most works of one worker that were passed over in a row."""

    def accepted(self, work: RegisteredWork) -> bool:
        if fresh := super().accepted(work):
            self._unlisted[work.id] = self._clock()
        return fresh

    def accepted_list(self, step: int) -> tuple[WorkId, ...]:
        """What this node held accepted when it heard of a policy, and has not named in a list before; rising."""
        signed = self._policies.of_step(step)
        known = self._policies.find(signed.message.policy_root) if signed is not None else None
        before = self._policies.of_step(step - 1)
        since = self._policies.find(before.message.policy_root) if before is not None else None
        # One part in so many of the time between two policies, or half a minute: a work that was accepted so
        # shortly before a policy is named at the next one. The trainer composes a batch at the same moment, and must
        # have fetched it.
        margin = min((known.at - since.at) / 4, 30.0) if known is not None and since is not None else 0.0
        found = sorted(id for id, at in self._unlisted.items() if known is not None and at < known.at - margin)
        for id in found:
            del self._unlisted[id]
        self._lists[step] = tuple(found)
        return self._lists[step]

    def undone(self, step: int) -> None:
        """A policy is none any more: what was named at it is named at the next one. Who never followed it held the list
        back until it was forgotten; for all others the first word stands."""
        self._unlisted.update({id: -math.inf for id in self._lists.pop(step, ()) if id in self._waiting})

    def heard(self, validator: Address, said: AcceptedList) -> None:
        """A validator's list. Its first word on a work counts: what one says fills a table of its own."""
        # Works that one validator has named in its lists, the newest.
        named = self._named.setdefault(validator, BoundedDict(8192))
        for id in said.works:
            named.setdefault(id, said.step)

    def due(self, id: WorkId) -> tuple[int, tuple[Address, ...]] | None:
        """(the policy at which a quorum of validators had named a work, who); None while none has."""
        waiting = self._waiting.get(id)
        owner = waiting.node if waiting is not None else None
        named = ((who, one[id]) for who, one in self._named.items() if id in one and who != owner)
        by = sorted((step, who) for who, step in named if self._members.may_validate(who))
        quorum = self._members.quorum
        return (by[quorum - 1][0], tuple(who for _, who in by[:quorum])) if 0 < quorum <= len(by) else None

    def trained(self, pool: int, batch: ComposedBatch) -> None:
        """A manifest of the trainer's; each once, in the order of steps."""
        self.newest = batch.step
        for used in batch.works:
            self._used(used.name(pool), used)
        # It asks `_fed`, which must not know this batch before the works that were passed over are noted.
        starving = self._starving(batch.step)
        # Works are in order, so the first of each worker remains.
        ahead = {used.author: used.name(pool) for used in reversed(batch.works) if starving(used.author)}
        self._pass_over(pool, batch, set(ahead.values()), starving)
        for used in batch.works:
            self._fed[used.author] = batch.step
        # Not what came first because its worker is starving: older than all others, it would make those look left out.
        in_turn = (one for one in batch.works if any(one.used) and ahead.get(one.author) != one.name(pool))
        oldest = min((one.policy_step for one in in_turn), default=batch.step + 1)
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
                self._left[id] = LeftOutPart(id.hex(), one.node, one.step, batch.step, due[0], [*due[1]])
            elif not self._keep_surplus:
                self._of(one.node).surplus += 1
            else:
                continue
            self._settle(id, left_out=left_out)

    def _pass_over(
        self, pool: int, batch: ComposedBatch, ahead: Container[WorkId], starving: Callable[[Address], bool]
    ) -> None:
        """Note the due works that the trainer's own rule puts before the last one that it used (`batch_order`). Where a
        run keeps no surplus, those of a later policy only: it may have thrown others away. ahead: works that came first
        because their workers are starving."""
        used = [(one.name(pool), work_order(pool, one)) for one in batch.works if any(one.used)]
        if not used:
            return
        last = max(batch_order(id in ahead, order) for id, order in used)
        if not self._keep_surplus:
            last = (True, max(order for _, order in used)[0], -1, b"")
        named = {one.author for one in batch.works}
        kept_passed = 64  # of one worker
        for id, one in self._waiting.items():
            # Of a worker that has none in the batch any due work would do: its first one was not taken either.
            first = one.node not in named and starving(one.node)
            behind = batch_order(first, (-one.step, one.lot, id)) < last
            due = self.due(id) if behind and self._is_usable(id) else None
            if due is not None and due[0] < batch.step and batch.step - one.step <= self._max_staleness:
                passed = self._passed.setdefault(one.node, _Passed(BoundedDict(kept_passed), BoundedDict(kept_passed)))
                passed.works[id] = passed.batches[batch.step] = None
                self.longest = max(self.longest, len(passed.works))

    def _starving(self, step: int) -> Callable[[Address], bool]:
        """Of which workers the last batches before a step named nothing; of none for who has not seen them all, and
        where nobody comes first for that."""
        self._first = step if self._first is None else min(self._first, step)
        seen = self._keep_surplus and step - self._first >= FED
        return lambda who: seen and self._fed.get(who, -1) < step - FED

    def dropped(self) -> Mapping[Address, str]:
        """Workers that this trainer drops, and how, in words. One whose works come too late now and then is none of
        them: others of it are used in between."""
        return {
            node: f"{len(one.works)} of {node} in a row"
            for node, one in self._passed.items()
            # Due works of one worker that a trainer passes over, and in so many batches, with none of its works used in
            # between, until validators say that it drops that worker.
            if len(one.works) >= 4 and len(one.batches) >= 3
        }

    def begin_term(self) -> None:
        """Another one leads, which starts with a clean record."""
        self._passed.clear()

    def _used(self, id: WorkId, used: UsedWork) -> None:
        self._passed.pop(used.author, None)
        if id not in self._waiting and id not in self._done:
            if not self._members.is_member(used.author):
                return  # or a trainer could name strangers without end
            self._of(used.author).accepted += 1  # the trainer heard of its verdicts first
        # Counted already: several batches may use groups of one work.
        elif self._done.get(id) is False:
            return
        uses = self._of(used.author)
        if self._done.get(id):  # later than was due: judges take their time
            uses.left_out -= 1
            self._left.pop(id, None)
        _use(uses, used)
        self._settle(id)

    def status(self, unread: int = 0) -> UsesPart:
        """unread: manifests that could not be had."""
        passed: dict[str, int] = {node: len(one.works) for node, one in self._passed.items()}
        left = list(self._left.values())
        return UsesPart(self._told(), unread, list(self.dropped()), passed, self.longest, left)


class ReplicaUsage(_Counted):
    """The same of a run with several trainers, replica by replica: what each made of its shares (protocol.replicas). A
    work that a round deals to a replica was left out by it if this node held it accepted when the round began, and the
    replica learnt from something older; another replica may have it in the next round. Nobody signs what was due, so
    this accuses nobody."""

    def __init__(self, replicas: int, max_staleness: int) -> None:
        super().__init__()
        self._replicas, self._max_staleness = replicas, max_staleness
        self._due: tuple[bytes, frozenset[WorkId]] = b"", frozenset()
        self.replicas: dict[int, BoundedDict[Address, WorkerUsesPart]] = {}

    def begun(self, outer: bytes) -> None:
        """A round begins at the state root `outer`: it deals what waits."""
        self._due = outer, frozenset(self._waiting)

    def trained(self, round_: int, outer: bytes, batches: Iterable[ComposedBatch]) -> None:
        """A round is over; batches: of the contributions in its list."""
        oldest = dict[int, int]()
        for batch in batches:
            for work in batch.works:
                id = work.name(batch.pool)
                replica_id = share(outer, id, self._replicas)
                if any(work.used):
                    oldest[replica_id] = min(oldest.get(replica_id, work.policy_step), work.policy_step)
                self._used(id, work, replica_id)
        due = self._due[1] if self._due[0] == outer else frozenset[WorkId]()
        for id, one in list(self._waiting.items()):
            replica_id = share(outer, id, self._replicas)
            if id in due and one.step > oldest.get(replica_id, one.step):
                self._of(one.node).left_out += 1
                self._at(replica_id, one.node).left_out += 1
            if round_ + 1 - one.step > self._max_staleness:
                self._of(one.node).stale += 1
                self._settle(id)

    def _used(self, id: WorkId, work: UsedWork, replica_id: int) -> None:
        if id in self._done:
            return  # a part of its groups, before
        if id not in self._waiting:
            self._of(work.author).accepted += 1  # the quorum that let it into the list heard of its verdicts first
        for uses in (self._of(work.author), self._at(replica_id, work.author)):
            _use(uses, work)
        self._settle(id)

    def _at(self, replica_id: int, node: Address) -> WorkerUsesPart:
        return self.replicas.setdefault(replica_id, BoundedDict(1024)).setdefault(node, WorkerUsesPart())

    def status(self, unread: int = 0) -> UsesPart:
        """unread: manifests that could not be had."""
        told = ("used", "flat", "left_out")
        replicas: dict[str, dict[str, dict[str, int]]] = {
            str(replica_id): {node: {name: getattr(uses, name) for name in told} for node, uses in of.items()}
            for replica_id, of in sorted(self.replicas.items())
        }
        return UsesPart(self._told(), unread, replicas=replicas)
