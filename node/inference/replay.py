"""What the environment said in a rollout, said again: of all groups of a file, those of the lot first.

A turn that the environment would not have said, one that is missing and one too many are objective faults, because
its replies follow from bytes that the worker signed. Whoever cannot replay a group (out of time, or a part of the
environment is missing here) says nothing about it.
"""

import time
from collections.abc import Collection, Iterator

from node.environments.base import Segment, Transcript
from node.environments.errors import Undecided
from node.inference.session import Session
from node.inference.tasks import Tasks, sampled_tokens
from node.inference.turns import reply
from protocol.checks import Fault, check_turn
from protocol.rollout import RolloutBatch, SampleRow
from protocol.segments import pieces


def transcript_of(row: SampleRow) -> Transcript:
    return [Segment(list(tokens), sampled) for tokens, sampled in pieces(row.output, row.segments)]


def replay_turns(
    session: Session, batch: RolloutBatch, tasks: Tasks, *, first: Collection[int], until: float
) -> tuple[Fault | None, set[int]]:
    """(the first forged turn, groups that could not be replayed before the clock said `until`). The rows' form has
    passed protocol.checks."""
    if session.bounds.turns == 1:
        return None, set()
    groups = sorted(range(len(tasks.problems)), key=lambda group: group not in first)
    if session.environment.determinism == "judged":
        return None, set(groups)
    unreplayed: set[int] = set()
    for group in groups:
        try:
            fault = _replay_group(session, batch, tasks, group, until)
        except Undecided:
            unreplayed.add(group)
        else:
            if fault:
                return fault, unreplayed
    return None, unreplayed


def _replay_group(session: Session, batch: RolloutBatch, tasks: Tasks, group: int, until: float) -> Fault | None:
    rows = (row for row in batch.rows if row.group == group)
    faults = (fault for row in rows for fault in _replay(session, tasks, row, until))
    return next(faults, None)


def _replay(session: Session, tasks: Tasks, row: SampleRow, until: float) -> Iterator[Fault]:
    """The faults of one rollout, turn by turn."""
    problem, limit = tasks.problems[row.group], tasks.limits[row.group]
    transcript = transcript_of(row)
    for turn in range(len(transcript) // 2 + 1):
        if time.monotonic() >= until:
            raise Undecided("a turn cannot be replayed", "the time for it is over", "nothing to do here")
        so_far, rest = transcript[: 2 * turn + 1], transcript[2 * turn + 1 :]
        said = rest[0].tokens if rest else None
        open_end = not rest and not row.finished
        room = limit - sampled_tokens(so_far)
        replayed = None if open_end else reply(session.environment, problem, so_far, session.bounds, room)
        fault = check_turn(row, turn, said, replayed)
        if fault:
            yield fault
