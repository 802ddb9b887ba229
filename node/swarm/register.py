"""The register of work: every commitment that this node has heard of, under everything that was signed in it.

Anybody can name any file root, any policy and any number of units in a commitment of its own. So a piece of work is
known by the hash of its whole commitment (`protocol.statements.work_id`), its slot by node, policy and index; nothing
overwrites an older entry, and one node's entries crowd out its own older ones, never those of others. Votes, disputes,
lots, intake, slashing and leaves all name work by its id and ask here.

What is committed to a policy that nobody announced is no work: it waits a while for its announcement, and is forgotten.
A commitment may name a task instead of a policy, and a shard instead of an index (`protocol.tasks`): age and gaps are
nothing to it, leases are (`node.swarm.taskbook`).
Ages and gaps are counted from what was heard *then*. A node that has just come (back) cannot know how old the files are
that it finds, nor which ones it missed: it holds neither against anybody. Pure: the clock is an argument.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

import msgspec

from node.recent import Recent
from node.swarm.policies import GRACE_SECONDS, KnownPolicy, PolicyClock
from node.swarm.taskbook import Task, TaskBook, WorkId
from protocol.checks import Fault, Slot, check_duplicate, check_gap, check_staleness, slot_of
from protocol.earnings import most_files
from protocol.identity import Address
from protocol.messages import RolloutCommitted, Signed
from protocol.rollout import MAX_FILE_BYTES
from protocol.run import RunSpec
from protocol.statements import WorkCommitment, work_id

BACKLOG_SECONDS = 20.0
"""After a start: what is heard in this time may be old news."""
EARLY = 16
"""Commitments of one node that may wait for their policy to be announced."""
EARLY_SECONDS = 60.0
POLICIES_BACK = 20
"""Policies beyond the staleness of a run for which a node's work is remembered, if it commits all that it may; of older
ones nobody's is work any more."""
KEPT_SECONDS = 900.0
"""For so long a work is remembered at least, however many policies come meanwhile: seals may stay closed for ten
minutes, disputes and leaves wait for a few."""
FORGOTTEN_AT_ONCE = 256
"""Works that are forgotten in one stretch of the event loop."""
READ = 8192


class Work(msgspec.Struct):
    """One commitment. signed: its first envelope; step: of its policy; at: when it was heard of; newest_step: of the
    policies that everybody knew then; backlog: found on arrival, so of unknown age; groups: of its file; task: whose
    shard it is the result of, None for rollouts to train on; round: that it is a contribution to, instead of rollouts,
    or -1; rival: its slot was taken before; delivered: this node has had the file."""

    id: WorkId
    signed: Signed[RolloutCommitted]
    step: int
    at: float
    newest_step: int
    backlog: bool
    groups: int
    task: Task | None = None
    round: int = -1
    rival: bool = False
    delivered: bool = False

    @property
    def commitment(self) -> WorkCommitment:
        return self.signed.message.commitment

    @property
    def node(self) -> Address:
        return self.commitment.node

    @property
    def contribution(self) -> bool:
        return self.round >= 0

    @property
    def is_recomputed(self) -> bool:
        """Whether nothing of its file was sampled: whoever computes it again has the same bytes."""
        return self.task is not None and not self.task.spec.samples_asked

    @property
    def is_sampled(self) -> bool:
        """Whether it has rollouts to train on."""
        return self.task is None and not self.contribution

    @property
    def most_bytes(self) -> int:
        """More than that of its file is not fetched."""
        most = self.task.spec.most_bytes if self.task is not None and self.is_recomputed else MAX_FILE_BYTES
        return min(self.signed.message.size, most)

    @property
    def place(self) -> tuple[int, bytes | None]:
        """(step, task) that it belongs to, as a fence has them (`node.state.pen`): of a contribution its round."""
        return (-1, self.task.id) if self.task is not None else (max(self.step, self.round), None)

    @property
    def title(self) -> str:
        """What the file is, in words."""
        number = self.commitment.index + 1
        if self.contribution:
            return f"a contribution to round {self.round}"
        return f"shard {number} of {self.task.title}" if self.task else f"file {number} for policy {self.step}"


class _Early(msgspec.Struct, frozen=True):
    """A commitment that waits for its policy. What was known when it came counts, not when the policy came."""

    signed: Signed[RolloutCommitted]
    at: float
    newest_step: int


class _Submissions(msgspec.Struct):
    """What one node has committed to, oldest first; heard: the indices of each policy."""

    works: OrderedDict[WorkId, Work]
    heard: Recent[bytes, set[int]]
    early: Recent[WorkId, _Early]


Listener = Callable[[Work], None]
Rivals = Callable[[Work, Work], None]


class Register:
    """One per node. clock: monotonic seconds."""

    def __init__(self, run: RunSpec, policies: PolicyClock, clock: Callable[[], float], tasks: TaskBook) -> None:
        self._run = run
        self._policies = policies
        self._tasks = tasks
        self._clock = clock
        # What a node hears right after its start may be old: it judges nobody by that (`backlog`).
        self._opened = clock()
        self._most = most_files(run)
        self._policies_back = run.recipe.max_staleness + POLICIES_BACK
        self._kept_seconds = max(KEPT_SECONDS, 4 * run.audit.verdict_seconds)
        self._works: dict[WorkId, Work] = {}
        self._slots: dict[Slot, list[Work]] = {}
        self._nodes: dict[Address, _Submissions] = {}
        self._of_step: dict[int, dict[WorkId, Work]] = {}
        """Of policies, each in the order in which they were heard."""
        self._read: Recent[bytes, Slot] = Recent(READ)
        self._listeners: list[Listener] = []
        self._on_rivals: list[Rivals] = []
        self._on_forgotten: list[Callable[[WorkId], object]] = []
        self.ignored = 0

    # what is heard

    def commit(self, signed: Signed[RolloutCommitted]) -> Work | None:
        """Note a commitment; the work if it is new and may count, None for all else."""
        # The age that counts is noted when it is heard, before any queue of ours could make it older.
        return self._note(_Early(signed, self._clock(), self._policies.settled_step))

    def look_again(self) -> None:
        """At what came before its policy, or its task."""
        for node in self._nodes.values():
            for early in list(node.early.values()):
                root = early.signed.message.commitment.policy_root
                if self._policies.find(root) or self._tasks.find(root):
                    self._note(early)

    def follow(self, listener: Listener) -> None:
        """Tell of every work, those already known first."""
        self._listeners.append(listener)
        for work in list(self._works.values()):
            if not work.rival:
                listener(work)

    def follow_rivals(self, listener: Rivals) -> None:
        """Tell of every two commitments of one node for one slot: (the first, another)."""
        self._on_rivals.append(listener)
        for works in list(self._slots.values()):
            for other in works[1:]:
                listener(works[0], other)

    def follow_forgotten(self, listener: Callable[[WorkId], object]) -> None:
        """Tell of work that is known no more, so that what hangs on it can go with it."""
        self._on_forgotten.append(listener)

    # what is known

    def get(self, id: WorkId) -> Work | None:
        return self._works.get(id)

    def of(self, node: Address) -> list[Work]:
        """What a node committed to, as far back as is remembered, oldest first."""
        return list(self._nodes[node].works.values()) if node in self._nodes else []

    def age(self, work: Work) -> int:
        """Policies that came after that of a work."""
        return self._policies.newest_step - work.step

    def announcement(self, work: Work) -> bytes | None:
        """The envelope in which the trainer announced the work's policy, as long as it is kept."""
        signed = self._policies.announcement(work.commitment.policy_root)
        return signed.raw if signed else None

    def is_contested(self, work: Work) -> bool:
        """Whether its node signed something else for the same slot."""
        return len(self._slots.get(slot_of(work.commitment), ())) > 1

    # what may be held against a worker

    def fault(self, work: Work) -> Fault | None:
        """What is wrong with a commitment by itself: its age when it was heard; of a task's, its lease then."""
        if work.backlog:
            return None
        if work.task is not None:
            return self._tasks.fault(work.task, work.id)
        return check_staleness(work.step, max(work.newest_step, work.step), self._run)

    def gap(self, work: Work) -> Fault | None:
        """An index that was left out before this one, if we would have heard of it. Shards are anybody's: none is. A
        round that is left out is its peer's loss."""
        if work.task is not None or work.contribution:
            return None
        known = self._policies.find(work.commitment.policy_root)
        # A node that has just come hears files in any order: then a gap may be its own.
        if known is None or known.at - self._opened < BACKLOG_SECONDS:
            return None
        node = self._nodes.get(work.node)
        heard = node.heard.get(work.commitment.policy_root) if node is not None else None
        return check_gap(work.commitment.index, heard or set())

    def was_delivered(self, work: Work) -> None:
        """This node has its file: from here on silence about it may count against a validator."""
        work.delivered = True

    def was_read(self, work: Work) -> None:
        """The header of its file was read: it is this slot's."""
        self._read[work.commitment.file_root] = slot_of(work.commitment)

    def copied(self, work: Work) -> Fault | None:
        """Whether its file was read before as another slot's."""
        return check_duplicate(work.commitment, self._read.get(work.commitment.file_root))

    # inside

    def _note(self, early: _Early) -> Work | None:
        commitment = early.signed.message.commitment
        id = work_id(commitment)
        if id in self._works:
            return None
        node = self._submissions(commitment.node)
        node.early.pop(id, None)
        # A commitment names one hash, which may be a policy's or a task's: whoever knows it decides what the work is.
        known, task = self._policies.find(commitment.policy_root), self._tasks.find(commitment.policy_root)
        if known is None and task is None:
            self._set_aside(node, id, early)
            return None
        # Of a policy that a newer term took back files count for a while: who made them could not know.
        late = known is not None and known.orphaned_at is not None and early.at > known.orphaned_at + GRACE_SECONDS
        # An index beyond what the run allows is no work: otherwise one node could fill the register with slots.
        most, round_ = self._most if task is None else task.spec.shards, -1
        if known is not None and known.outer and task is None and self._run.diloco is not None:
            round_ = known.step + commitment.index
            most = commitment.index + (self._run.diloco.begins_at(round_) == known.step)
        if late:  # the block of that term may be replaced
            self._set_aside(node, id, early)
            return None
        if commitment.index >= most or (known is not None and self._may_be_said_again(known, early)):
            self.ignored += 1
            return None
        slot = self._slots.setdefault(slot_of(commitment), [])
        if len(slot) > 1:
            return None  # two are evidence enough
        work = self._made(id, early, known.step if known else -1, task, round_, rival=bool(slot))
        # Of a forked slot both stay, since together they are the evidence.
        slot.append(work)
        self._works[id] = node.works[id] = work
        if task is None:
            self._of_step.setdefault(work.step, {})[id] = work
        if task is None:
            # Rivals count as heard, too: a forked slot must not look like a gap.
            node.heard.setdefault(commitment.policy_root, set()).add(commitment.index)
        elif not work.rival:
            task.leases.commit(commitment.index, commitment.node, id)
        self._forget_beyond(node)
        self._tell(work, slot)
        return None if work.rival else work

    def _may_be_said_again(self, known: KnownPolicy, early: _Early) -> bool:
        """Whether a commitment is so old that this node cannot tell it from one that was judged: by itself, which has
        forgotten it, or by others before it came. Anybody can say such a one again, and it would be refused as old."""
        age = early.newest_step - known.step
        came_later = known.at - self._opened < BACKLOG_SECONDS
        return age >= self._policies_back or (came_later and age > self._run.recipe.max_staleness)

    def _made(self, id: WorkId, early: _Early, step: int, task: Task | None, round_: int, *, rival: bool) -> Work:
        backlog = early.at - self._opened < BACKLOG_SECONDS
        index, groups = early.signed.message.commitment.index, 1 if round_ >= 0 else self._run.groups_per_file
        if task is not None:
            groups = len(task.spec.numbers(index))
        heard = (id, early.signed, step, early.at, early.newest_step, backlog)
        return Work(*heard, groups, task, round_, rival=rival)

    def _set_aside(self, node: _Submissions, id: WorkId, early: _Early) -> None:
        """What may become work waits, a few of each node's, for a while; the rest was never said."""
        self.ignored += 1
        for old, one in list(node.early.items()):
            if self._clock() - one.at > EARLY_SECONDS:
                del node.early[old]
        node.early[id] = early

    def _tell(self, work: Work, slot: list[Work]) -> None:
        if work.rival:
            for on_rivals in self._on_rivals:
                on_rivals(slot[0], work)
            return
        for listener in self._listeners:
            listener(work)

    def _submissions(self, node: Address) -> _Submissions:
        known = self._nodes.get(node)
        if known is None:
            known = self._nodes[node] = _Submissions(OrderedDict(), Recent(self._policies_back), Recent(EARLY))
        return known

    def _forget_beyond(self, node: _Submissions) -> None:
        most = self._most * self._policies_back
        # Of each node as many as it may make for all policies that still count: what goes is too old to be judged.
        while len(node.works) > most:
            self._drop(next(iter(node.works.values())))

    def forget_old(self) -> None:
        """Works of policies that are beyond every horizon, a few at a time. A decided one is closed by then, and one
        that nobody decided trains nothing any more."""
        oldest, now, left = self._policies.newest_step - self._policies_back, self._clock(), FORGOTTEN_AT_ONCE
        for step in [step for step in self._of_step if step < oldest]:
            old = [one for one in islice(self._of_step[step].values(), left) if now - one.at > self._kept_seconds]
            for work in old:
                self._drop(work)
            left -= len(old)

    def _drop(self, work: Work) -> None:
        node = self._nodes[work.node]
        del self._works[work.id], node.works[work.id]
        of_step = self._of_step.get(work.step, {})
        of_step.pop(work.id, None)
        if not of_step:
            self._of_step.pop(work.step, None)
        slot = slot_of(work.commitment)
        self._slots[slot].remove(work)
        if not self._slots[slot]:
            del self._slots[slot]
        for forget in self._on_forgotten:
            forget(work.id)
