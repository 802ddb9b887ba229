"""Who contributed what, by this node's own count of the validators' verdicts since it started.

A total over restarts would count twice what the board repeats to a node that comes back.

Bounded: one small record per member, the newest decisions, and the works whose decision may still change.
"""

from collections import Counter, deque
from collections.abc import Callable

from msgspec.structs import replace

from node.bounded_dict import BoundedDict
from node.status_schema import ContributionPart, ContributionsPart, DecisionPart
from node.swarm.register import Register, RegisteredWork, WorkId
from node.swarm.vote_set import FileState, VoteSet
from protocol.checks import reason_name
from protocol.identity import Address

DECIDED = (FileState.ACCEPTED, FileState.REJECTED)


class Contributions:
    """wall: unix seconds."""

    def __init__(self, register: Register, vote_set: VoteSet, wall: Callable[[], float]) -> None:
        self._register = register
        self._vote_set = vote_set
        self._wall = wall
        self.since = wall()
        self.members: dict[str, ContributionPart] = {}
        self.reasons: Counter[str] = Counter()
        self.recent: deque[DecisionPart] = deque(maxlen=50)
        self._states: dict[Address, BoundedDict[WorkId, FileState]] = {}
        self._open: dict[Address, BoundedDict[WorkId, None]] = {}
        self._told = 0

    def look(self, id: WorkId) -> None:
        """Something was said of a work, or time has passed: count what is decided."""
        work = self._register.get(id)
        if work is None:
            return
        # Of each member: works whose decision is remembered, so that one that changes is not counted twice; works that
        # somebody has judged and nothing has decided yet.
        states = self._states.setdefault(work.node, BoundedDict(2048))
        before, state = states.get(id), self._vote_set.state(id)
        waiting = self._open.setdefault(work.node, BoundedDict(1024))
        if state in DECIDED:
            waiting.pop(id, None)
        elif before is None:
            waiting[id] = None
        if state == before or (before is None and state not in DECIDED):
            return
        states[id] = state
        # A dispute may turn a decision: what was counted before is taken back.
        if before in DECIDED:
            self._count(work, before, -1)
        if state in DECIDED:
            self._count(work, state, 1)
            self._tell(work, state)

    def look_again(self) -> None:
        """Ask about what was not decided when it was last spoken of."""
        for waiting in self._open.values():
            for id in list(waiting):
                if self._register.get(id) is None:
                    del waiting[id]
                self.look(id)

    def status(self) -> ContributionsPart:
        """For /status."""
        return ContributionsPart(
            since=round(self.since, 1),
            accepted=sum(one.accepted for one in self.members.values()),
            rejected=sum(one.rejected for one in self.members.values()),
            by_reason=dict(self.reasons),
            members=dict(self.members),
            recent=list(self.recent),
        )

    def _count(self, work: RegisteredWork, state: FileState | None, by: int) -> None:
        one, accepted = self.members.get(work.node, ContributionPart()), state is FileState.ACCEPTED
        units, refused = one.units + by * accepted * work.commitment.units, one.rejected + by * (not accepted)
        self.members[work.node] = replace(one, accepted=one.accepted + by * accepted, units=units, rejected=refused)

    def _tell(self, work: RegisteredWork, state: FileState) -> None:
        accepted = state is FileState.ACCEPTED
        reason, detail = ("", "") if accepted else self._why(work)
        if not accepted:
            self.reasons[reason] += 1
            self.members[work.node] = replace(self.members[work.node], reason=reason)
        index = work.commitment.index
        at = round(self._wall(), 1)
        self.recent.append(DecisionPart(self._told, at, work.node, work.step, index, accepted, reason, detail))
        self._told += 1

    def _why(self, work: RegisteredWork) -> tuple[str, str]:
        """The reason that most of those who rejected it gave, and one's words for it."""
        said = list(self._vote_set.rejecting(work.id).values())
        if not said:
            return "disputed", ""
        reason, _ = Counter(one.verdict.reason for one in said).most_common(1)[0]
        detail = next(one.detail for one in said if one.verdict.reason == reason)
        return reason_name(reason), detail
