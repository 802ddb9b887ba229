"""The register of work: every commitment that this node has heard of, under everything that was signed in it.

Anybody can name any file root, any policy and any number of units in a commitment of its own. So a piece of work is
known by the hash of its whole commitment (`protocol.statements.work_id`), its slot by node, policy and index; nothing
overwrites an older entry, and one node's entries crowd out its own older ones, never those of others. Votes, disputes,
lots, ingest, slashing and leaves all name work by its id and ask here.

What is committed to a policy that nobody announced is no work: it waits a while for its announcement, and is forgotten.
A commitment may name a task instead of a policy, and a shard instead of an index (`protocol.tasks`): age and gaps are
nothing to it, leases are (`node.swarm.task_table`).
What hangs on a policy is closed CLOSED_AFTER policies later, all of it at once: it is forgotten here and in every book
that asked to be told, and no word about it counts any more (ADR 112). So the register is as large as the pool, however
long it runs. Results of tasks go with their task.
Ages and gaps are counted from what was heard *then*. A node that has just come (back) cannot know how old the files are
that it finds, nor which ones it missed: it holds neither against anybody. Pure: the clock is an argument.
"""

from collections.abc import Callable

import msgspec

from node.bounded_dict import BoundedDict
from node.swarm.policies import GRACE_SECONDS, KnownPolicy, PolicyIndex
from node.swarm.task_table import Task, TaskTable, WorkId
from protocol.checks import Fault, Slot, check_duplicate, check_gap, check_staleness, slot_of
from protocol.earnings import most_files
from protocol.identity import Address
from protocol.messages import RolloutCommitted, Signed
from protocol.rollout import MAX_FILE_BYTES
from protocol.run import RunSpec
from protocol.statements import WorkCommitment, work_id

BACKLOG_SECONDS = 20.0
"""After a start: what is heard in this time may be old news."""
CLOSED_AFTER = 16
"""Policies after its own with which a work is closed; twice the staleness of a run where that is more."""


class RegisteredWork(msgspec.Struct):
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


Listener = Callable[[RegisteredWork], None]
Rivals = Callable[[RegisteredWork, RegisteredWork], None]


class Register:
    """One per node. clock: monotonic seconds."""

    def __init__(self, run: RunSpec, policies: PolicyIndex, clock: Callable[[], float], tasks: TaskTable) -> None:
        self._run = run
        self._policies = policies
        self._tasks = tasks
        self._clock = clock
        # What a node hears right after its start may be old: it judges nobody by that (`backlog`).
        self._opened = clock()
        self._most = most_files(run)
        self._closed_after = max(CLOSED_AFTER, 2 * run.recipe.max_staleness)
        # For so long after it was heard of a policy is not closed, nor for four times as long as a silent validator is
        # waited for: small pools make a policy in seconds, and disputes, leaves and seals wait for minutes.
        self._closed_seconds = max(300.0, 4 * run.audit.verdict_seconds)
        self._works: dict[WorkId, RegisteredWork] = {}
        self._slots: dict[Slot, list[RegisteredWork]] = {}
        self._nodes: dict[Address, dict[WorkId, RegisteredWork]] = {}
        """What each has committed to, oldest first."""
        self._results: dict[Address, dict[WorkId, RegisteredWork]] = {}
        """Of these the results of tasks."""
        self._early: dict[Address, BoundedDict[WorkId, _Early]] = {}
        self._of: dict[bytes, dict[WorkId, RegisteredWork]] = {}
        """By the policy or the task that was committed to, in the order in which they were heard."""
        self._read: dict[bytes, Slot] = {}
        """By the root of a file whose header was read."""
        self._listeners: list[Listener] = []
        self._on_rivals: list[Rivals] = []
        self._on_closed: list[Callable[[RegisteredWork], object]] = []
        self.ignored = 0

    # what is heard

    def commit(self, signed: Signed[RolloutCommitted]) -> RegisteredWork | None:
        """Note a commitment; the work if it is new and may count, None for all else."""
        # The age that counts is noted when it is heard, before any queue of ours could make it older.
        return self._note(_Early(signed, self._clock(), self._policies.settled_step))

    def look_again(self) -> None:
        """At what came before its policy, or its task."""
        for waiting in list(self._early.values()):
            for early in list(waiting.values()):
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

    def follow_closed(self, listener: Callable[[RegisteredWork], object]) -> None:
        """Tell of work that is closed and known no more, so that what hangs on it can go with it."""
        self._on_closed.append(listener)

    # what is known

    def get(self, id: WorkId) -> RegisteredWork | None:
        return self._works.get(id)

    def of(self, node: Address) -> list[RegisteredWork]:
        """What a node committed to, as far back as is remembered, oldest first."""
        return list(self._nodes.get(node, {}).values())

    def is_closed(self, root: bytes) -> bool:
        """Whether what hangs on a policy is over: nothing of it is work, judged or disputed any more. Steps that a term
        takes back are none, so it may be open again."""
        known = self._policies.find(root)
        if known is None or self._policies.newest_step - known.step < self._closed_after:
            return False
        return self._clock() - known.at >= self._closed_seconds

    def announcement(self, work: RegisteredWork) -> bytes | None:
        """The envelope in which the trainer announced the work's policy, as long as it is kept."""
        signed = self._policies.announcement(work.commitment.policy_root)
        return signed.raw if signed else None

    def is_contested(self, work: RegisteredWork) -> bool:
        """Whether its node signed something else for the same slot."""
        return len(self._slots.get(slot_of(work.commitment), ())) > 1

    # what may be held against a worker

    def fault(self, work: RegisteredWork) -> Fault | None:
        """What is wrong with a commitment by itself: its age when it was heard; of a task's, its lease then."""
        if work.backlog:
            return None
        if work.task is not None:
            return self._tasks.fault(work.task, work.id)
        return check_staleness(work.step, max(work.newest_step, work.step), self._run)

    def gap(self, work: RegisteredWork) -> Fault | None:
        """An index that was left out before this one, if we would have heard of it. Shards are anybody's: none is. A
        round that is left out is its peer's loss."""
        if work.task is not None or work.contribution:
            return None
        known = self._policies.find(work.commitment.policy_root)
        # A node that has just come hears files in any order: then a gap may be its own.
        if known is None or known.at - self._opened < BACKLOG_SECONDS:
            return None
        # Rivals count as heard, too: a forked slot must not look like a gap.
        node, root, index = slot_of(work.commitment)
        return check_gap(index, {one for one in range(index) if (node, root, one) in self._slots})

    def was_delivered(self, work: RegisteredWork) -> None:
        """This node has its file: from here on silence about it may count against a validator."""
        work.delivered = True

    def was_read(self, work: RegisteredWork) -> None:
        """The header of its file was read: it is this slot's."""
        self._read[work.commitment.file_root] = slot_of(work.commitment)

    def copied(self, work: RegisteredWork) -> Fault | None:
        """Whether its file was read before as another slot's."""
        return check_duplicate(work.commitment, self._read.get(work.commitment.file_root))

    # inside

    def _note(self, early: _Early) -> RegisteredWork | None:
        commitment = early.signed.message.commitment
        id = work_id(commitment)
        if id in self._works:
            return None
        if waiting := self._early.get(commitment.node):
            waiting.pop(id, None)
        # A commitment names one hash, which may be a policy's or a task's: whoever knows it decides what the work is.
        known, task = self._policies.find(commitment.policy_root), self._tasks.find(commitment.policy_root)
        # Of a policy that a newer term took back files count for a while: who made them could not know. The block of
        # that term may be replaced.
        late = known is not None and known.orphaned_at is not None and early.at > known.orphaned_at + GRACE_SECONDS
        if late or (known is None and task is None):
            # What may become work waits, a few of each node's, for a while; the rest was never said.
            self.ignored += 1
            # Commitments of one node that may wait for their policy to be announced.
            self._early.setdefault(commitment.node, BoundedDict(16))[id] = early
            return None
        # An index beyond what the run allows is no work: otherwise one node could fill the register with slots.
        most, round_ = self._most if task is None else task.spec.shards, -1
        if known is not None and known.outer and task is None and self._run.diloco is not None:
            round_ = known.step + commitment.index
            most = commitment.index + (self._run.diloco.begins_at(round_) == known.step)
        over = self.is_closed(commitment.policy_root) or (known is not None and self._may_be_said_again(known, early))
        if commitment.index >= most or over:
            self.ignored += 1
            return None
        slot = self._slots.setdefault(slot_of(commitment), [])
        if len(slot) > 1:
            return None  # two are evidence enough
        step, groups = known.step if known else -1, 1 if round_ >= 0 else self._run.groups_per_file
        if task is not None:
            groups = len(task.spec.numbers(commitment.index))
        backlog = early.at - self._opened < BACKLOG_SECONDS
        heard = (id, early.signed, step, early.at, early.newest_step, backlog)
        work = RegisteredWork(*heard, groups, task, round_, rival=bool(slot))
        # Of a forked slot both stay, since together they are the evidence.
        slot.append(work)
        self._works[id] = self._of.setdefault(commitment.policy_root, {})[id] = work
        self._nodes.setdefault(commitment.node, {})[id] = work
        if task is not None:
            if not work.rival:
                task.leases.commit(commitment.index, commitment.node, id)
            # Results of tasks of one node that are known, the newest: no policy closes them, and any node may commit to
            # any shard.
            results = self._results.setdefault(commitment.node, {})
            results[id] = work
            if len(results) > 1024:
                self._close(next(iter(results.values())))
        if work.rival:
            for on_rivals in self._on_rivals:
                on_rivals(slot[0], work)
            return None
        for listener in self._listeners:
            listener(work)
        return work

    def _may_be_said_again(self, known: KnownPolicy, early: _Early) -> bool:
        """Whether a commitment is so old that others may have judged it before this node came. Anybody can say such a
        one again, and it would be refused as old."""
        came_later = known.at - self._opened < BACKLOG_SECONDS
        return came_later and early.newest_step - known.step > self._run.recipe.max_staleness

    def close(self, *, early_seconds: float = 60.0) -> None:
        """What is over leaves, a few at a time, and so do nodes of which nothing is left: told once a second."""
        left = 256  # works that are forgotten in one stretch of the event loop
        for root in [one for one in self._of if self._is_over(one)]:
            works = list(self._of[root].values())[:left]
            for work in works:
                self._close(work)
            left -= len(works)
        now = self._clock()
        for node, waiting in list(self._early.items()):
            for id in [id for id, one in waiting.items() if now - one.at > early_seconds]:
                del waiting[id]
            if not waiting:
                del self._early[node]

    def _is_over(self, root: bytes) -> bool:
        known = self._policies.find(root) or self._tasks.find(root)
        return known is None or self.is_closed(root)

    def _close(self, work: RegisteredWork) -> None:
        root, slot = work.commitment.policy_root, slot_of(work.commitment)
        del self._works[work.id], self._nodes[work.node][work.id], self._of[root][work.id]
        self._slots[slot].remove(work)
        if not self._nodes[work.node]:
            del self._nodes[work.node]
        if work.task is not None:
            del self._results[work.node][work.id]
            if not self._results[work.node]:
                del self._results[work.node]
        if not self._of[root]:
            del self._of[root]
        if not self._slots[slot]:
            del self._slots[slot]
        if self._read.get(work.commitment.file_root) == slot:
            del self._read[work.commitment.file_root]
        for closed in self._on_closed:
            closed(work)
