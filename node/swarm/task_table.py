"""The task table: every task that this node has heard of, and who holds which of its shards.

Only whom the pool obeys may offer (the board sees to that), so the book is short. Claims of nodes and results of the
register meet in the leases of each task (`protocol.leases`); what a result is worth when it is heard is decided here
and nowhere else. Pure; clock and liveness are arguments.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from node.bounded_dict import BoundedDict
from node.swarm.facts import WorkId
from protocol.checks import Fault, Reason
from protocol.errors import ProtocolError
from protocol.identity import Address
from protocol.leases import Leases, ResultStanding
from protocol.lots import unpack_groups
from protocol.messages import Signed, TaskClaimed, TaskOffered
from protocol.tasks import TaskId, TaskSpec, decode_task, task_id

log = structlog.get_logger()
MOST_TASKS = 64
"""Tasks that are remembered, open or not. One that is forgotten takes no more results."""


class Task(msgspec.Struct):
    """One task as this node knows it. owner: who was heard first to offer it; offers: the newest of each trainer, since
    after a take-over another one may ask for the very same; open: one of them that lives waits for results; opened:
    when it was heard of; gathered: shards whose results all have who wait."""

    id: TaskId
    spec: TaskSpec
    encoded: bytes
    owner: Address
    leases: Leases
    opened: float
    backlog: bool
    offers: dict[Address, TaskOffered] = {}
    open: bool = True
    gathered: frozenset[int] = frozenset()

    @property
    def policy_root(self) -> bytes:
        """32 bytes; empty where nothing is sampled."""
        return bytes.fromhex(self.spec.policy)

    @property
    def title(self) -> str:
        return f"{self.spec.kind} {self.id.hex()[:8]}"


class TaskTable:
    """One per node. is_silent: whether a member's silence is long enough that others may take its shards over; clock:
    monotonic seconds; in_office: whether one may offer tasks now."""

    def __init__(
        self,
        is_inactive: Callable[[Address], bool],
        clock: Callable[[], float],
        in_office: Callable[[Address], bool],
    ) -> None:
        self._in_office = in_office
        self._is_alive: Callable[[Address], bool] = lambda node: not is_inactive(node)
        self._clock = clock
        self._started = clock()
        self._tasks: dict[TaskId, Task] = {}
        self._early: dict[Address, BoundedDict[tuple[TaskId, int], None]] = {}
        self._listeners: list[Callable[[Task], None]] = []
        self.refused = 0

    # what is heard

    def offered(self, signed: Signed[TaskOffered]) -> Task | None:
        """Note an offer; the task if it is new. One that makes no sense is refused and counted."""
        message = signed.message
        id = task_id(message.spec)
        task = self._tasks.get(id)
        new = task is None
        if task is None:
            try:
                spec = decode_task(message.spec)
            except ProtocolError as error:
                self.refused += 1
                log.info("task.refused", owner=signed.author, why=error.why)
                return None
            task = self._open(id, spec, signed)
        # Gossip may bring an older offer after a newer one.
        before = task.offers.get(signed.author)
        if before is None or message.sequence > before.sequence:
            task.offers[signed.author] = message
            self._update(task, signed.author)
            self._tell(task)
        return task if new else None

    def look_again(self) -> None:
        """Somebody took office or left it: a task closes with the office of who offered it."""
        for task in self._tasks.values():
            before = task.open
            self._update(task)
            if task.open != before:
                self._tell(task)

    def claimed(self, signed: Signed[TaskClaimed]) -> bool:
        """Note a claim; whether its author holds the shard. One on an unknown task waits for the offer."""
        message, node = signed.message, signed.author
        task = self._tasks.get(message.task)
        if task is None:
            # Claims of one node on tasks that this node has not heard of yet.
            self._early.setdefault(node, BoundedDict(64))[message.task, message.shard] = None
            return False
        held = task.leases.claim(message.shard, node, self._clock(), self._is_alive)
        self._tell(task)
        return held

    def decided(self, task: Task, shard: int, work: WorkId, *, accepted: bool) -> None:
        """The pool has decided about a result."""
        before = len(task.leases.done)
        task.leases.decided(shard, work, accepted=accepted, now=self._clock())
        if len(task.leases.done) != before or not accepted:
            self._tell(task)

    def _tell(self, task: Task) -> None:
        for listener in self._listeners:
            listener(task)

    def follow(self, listener: Callable[[Task], None]) -> None:
        """Tell of every task when it is heard of and when something about it has changed; those known first."""
        self._listeners.append(listener)
        for task in list(self._tasks.values()):
            listener(task)

    # what is known

    def find(self, id: TaskId) -> Task | None:
        return self._tasks.get(id)

    def tasks(self) -> list[Task]:
        """Those that are remembered, oldest first."""
        return list(self._tasks.values())

    def fault(self, task: Task, work: WorkId) -> Fault | None:
        """What is wrong with a result by itself: whether a lease of its node covered it."""
        if task.backlog:
            return None
        standing = task.leases.standing(work)
        if standing is ResultStanding.COVERED:
            return None
        why = (
            "somebody else had taken the shard over" if standing is ResultStanding.LATE else "its node never claimed it"
        )
        return Fault(Reason.NOT_LEASED, why)

    # inside

    def _open(self, id: TaskId, spec: TaskSpec, signed: Signed[TaskOffered]) -> Task:
        now = self._clock()
        # A task that is heard of so soon after a start may have leases that were missed: nothing is held against
        # anybody.
        backlog = now - self._started < 20.0
        leases = Leases(id, spec, now)
        task = Task(id, spec, signed.message.spec, signed.author, leases, now, backlog)
        if len(self._tasks) >= MOST_TASKS:  # the oldest that is over goes first
            over = (known for known, one in self._tasks.items() if not one.open)
            del self._tasks[next(over, next(iter(self._tasks)))]
        self._tasks[id] = task
        for node, claims in list(self._early.items()):
            for of, shard in [one for one in claims if one[0] == id]:
                del claims[of, shard]
                leases.claim(shard, node, now, self._is_alive)
        return task

    def _update(self, task: Task, author: Address | None = None) -> None:
        """author: of the newest word."""
        waiting = {who: one for who, one in task.offers.items() if one.open and self._in_office(who)}
        # Nobody's word ends what another one waits for: a standby could close the leader's tasks, or call them done.
        # Of a leader that fell silent its successor's word closes one; it opens it again when it is back.
        task.open = author in waiting or any(map(self._is_alive, waiting))
        counted = (waiting or task.offers).values()
        first, *others = (frozenset(unpack_groups(one.done, task.spec.shards) or ()) for one in counted)
        task.gathered = first.intersection(*others)
        for shard in task.gathered:
            task.leases.finished(shard)


def describe_task(task: Task, now: float) -> dict[str, Any]:
    """A task for /status."""
    spec, leases = task.spec, task.leases
    holders = {shard: leases.holder(shard, now) for shard in leases.pending(now)}
    return {
        "id": task.id.hex(),
        "kind": spec.kind,
        "open": task.open,
        "step": spec.step,
        "problems": spec.problems,
        "samples": spec.samples,
        "shards": spec.shards,
        "done": len(leases.done),
        "held": {str(shard): holder for shard, holder in sorted(holders.items()) if holder},
        "taken_over": leases.taken_over,
        "seconds": round(now - task.opened, 1),
    }
