"""What the environment said in a rollout, said again: of all groups of a file, those of the lot first.

A turn that the environment would not have said, one that is missing and one too many are objective faults, because
its replies follow from bytes that the worker signed; behind a server (class witnessed) they are hearsay. Whoever cannot
replay a group (out of time, or a part of the environment is missing here) says nothing about it.

Rollouts are replayed turn by turn, some groups together, so that an environment is asked about many at once; what is
found is what would be found one by one.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from node.environments.base import Environment, Problem, Reply, Segment, Transcript
from node.environments.errors import Undecided
from node.inference.tasks import DrawnTasks
from node.inference.turns import Bounds, Due, replies, sampled_tokens
from protocol.checks import Fault, Reason, check_states, check_turn
from protocol.rollout import RolloutBatch, SampleRow
from protocol.segments import pieces
from protocol.statements import VerdictOutcome

_LATE = Undecided("a turn cannot be replayed", "the time for it is over", "nothing to do here")


def transcript_of(row: SampleRow) -> Transcript:
    return [Segment(list(tokens), sampled) for tokens, sampled in pieces(row.output, row.segments)]


def replay_turns(
    environment: Environment,
    bounds: Bounds,
    batch: RolloutBatch,
    tasks: DrawnTasks,
    *,
    first: Collection[int],
    until: float,
) -> tuple[Fault | None, set[int]]:
    """(the first forged turn, groups that could not be replayed before the clock said `until`). The rows' form has
    passed protocol.checks. What a server said otherwise, and a session's other state, is told where nothing is forged:
    nobody's proven fault."""
    if bounds.turns == 1:
        return None, set()
    groups, size = range(len(tasks.problems)), tasks.run.rollout.group_size
    # Somebody's opinion follows from no bytes: what this machine would say proves nothing.
    if environment.determinism == "judged":
        return None, set(groups)
    unreplayed: set[int] = set()
    otherwise: Fault | None = None
    # If time runs out, what stays open is not what this validator drew, and nobody knows beforehand what that is.
    drawn, others = [group for group in groups if group in first], [group for group in groups if group not in first]
    for some in (*_together(drawn, size), *_together(others, size)):
        replays = [_replay_of(tasks, row) for group in some for row in batch.rows if row.group == group]
        _replay(environment, bounds, replays, until)
        for one in replays:
            one.compare_states(environment)
        for group in some:
            found = next((one.found for one in replays if one.row.group == group and one.found), None)
            if isinstance(found, Fault) and environment.is_witnessed(tasks.problems[group]):
                found = Fault(Reason.HEARD_OTHERWISE, found.detail, group)
            # A forged turn is proven: nothing else in the file changes that.
            if isinstance(found, Fault) and found.outcome is VerdictOutcome.SLASH:
                return found, unreplayed
            if isinstance(found, Fault):
                otherwise = otherwise or found
            elif found is not None:
                unreplayed.add(group)
    return otherwise, unreplayed


def _together(groups: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    count = max(1, 16 // size)  # rollouts of one pass, where a group has no more: between passes the clock is looked at
    for start in range(0, len(groups), count):
        yield groups[start : start + count]


@dataclass(slots=True)
class _Replay:
    """One rollout, at the answer `turn`. found: the first that is wrong with it, or cannot be told."""

    row: SampleRow
    problem: Problem
    transcript: Transcript
    limit: int
    turn: int = 0
    found: Fault | Undecided | None = None

    @property
    def rest(self) -> Transcript:
        """What it has behind that answer."""
        return self.transcript[2 * self.turn + 1 :]

    @property
    def is_cut_off(self) -> bool:
        """Whether that answer is the last and lacks its end: nobody is asked about it."""
        return not self.rest and not self.row.finished

    def due(self) -> Due:
        so_far = self.transcript[: 2 * self.turn + 1]
        return Due(self.problem, so_far, self.limit - sampled_tokens(so_far))

    def hear(self, reply: Reply) -> bool:
        """Compare with what the environment says there; whether there is more to replay."""
        said = self.rest[0].tokens if self.rest else None
        self.found = reply if isinstance(reply, Undecided) else check_turn(self.row, self.turn, said, reply)
        self.turn += 1
        return self.found is None and said is not None

    def compare_states(self, environment: Environment) -> None:
        """Of a session whose words are right."""
        if self.found is None and len(self.transcript) > 1:
            try:
                self.found = check_states(self.row, environment.states(self.problem, self.transcript))
            except Undecided as undecided:
                self.found = undecided


def _replay_of(tasks: DrawnTasks, row: SampleRow) -> _Replay:
    return _Replay(row, tasks.problems[row.group], transcript_of(row), tasks.limits[row.group])


def _replay(environment: Environment, bounds: Bounds, replays: Sequence[_Replay], until: float) -> None:
    """Turn by turn, each of all rollouts that have one: what an environment says rests on what it said before."""
    going = [one for one in replays if not one.is_cut_off]
    while going:
        due = [one.due() for one in going]
        late = time.monotonic() >= until
        said: list[Reply] = [_LATE] * len(due) if late else replies(environment, due, bounds)
        more = [one for one, reply in zip(going, said, strict=True) if one.hear(reply)]
        going = [one for one in more if not one.is_cut_off]
