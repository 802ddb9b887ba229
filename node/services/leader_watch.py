"""Whether who leads still does: what a validator hears of it, what it makes of files, and whether anybody has that.

Each validator goes by what it lived through itself; a term ends where a quorum of them says so. So none of it may come
of this machine's own trouble, and what others say may only keep a validator from speaking (ADR 125).
"""

from itertools import pairwise

from node.audit.looks import LookHistory
from node.changes import side_by_side
from node.services.context import Context
from node.swarm.facts import WorkTouched
from node.swarm.policies import MAX_AHEAD
from node.swarm.register import WorkId
from node.swarm.terms import Term
from node.swarm.vote_set import FileState
from node.weights.fetch_history import FetchHistory
from protocol.checks import Reason
from protocol.identity import Address
from protocol.liveness import MISSED_UNHEALTHY, heartbeat_interval
from protocol.messages import StepVerdict


class LeaderWatch:
    """history, looks: of this validator's fetching, and of its looks at steps; None for who does neither, and says
    nothing of it."""

    def __init__(self, context: Context, history: FetchHistory | None, looks: LookHistory | None = None) -> None:
        self._context, self._history, self._looks = context, history, looks
        self._looked: dict[Address, tuple[int, float]] = {}
        """The last term of which each validator judged a step by looking at it, and when it said so."""
        self._unused: tuple[int, set[WorkId]] = (-1, set())
        """The newest policy, and files that were accepted since it was heard of; as many as matter."""

    async def run(self) -> None:
        """Count what is accepted, and note who could look at a step, until cancelled."""
        await side_by_side(self._hear_verdicts, self._count)

    async def _hear_verdicts(self) -> None:
        async for one in self._context.facts.subscribe(StepVerdict):
            if one.message.reason != Reason.LEFT_OUT:  # that is told from what everybody hears
                self._looked[one.author] = one.message.statement.term, self._context.clock.monotonic()

    async def _count(self) -> None:
        state = self._context.state
        async for touched in self._context.facts.subscribe(WorkTouched):
            id = touched.work
            work, newest = state.register.get(id), state.policies.newest_step
            if self._unused[0] != newest:
                self._unused = newest, set()
            counted = id in self._unused[1] or len(self._unused[1]) >= self._enough
            if counted or work is None or work.task is not None:
                continue
            if state.vote_set.state(id) is FileState.ACCEPTED:
                self._unused[1].add(id)

    def gone(self, term: Term) -> str:
        """What its holder does instead of leading, in words; empty where it leads, or had no time yet."""
        if term.ended:
            return ""
        if self._is_inactive(term):
            return "is not heard"
        if self._is_stalled(term):
            return "makes no policy of what is accepted"
        if self._is_empty(term):
            return "announces policies that nobody can have"
        if self._is_withheld(term):
            return "hands nothing over of what its policies were made of"
        return "withholds what some of its policies were made of" if self._withholds_some(term) else ""

    def sound(self, term: Term) -> int:
        """The newest policy of which nothing says that its making is withheld."""
        newest = max(self._context.state.policies.newest_step, 0)
        looks = self._looks
        sound = looks.sound(term.number) if looks is not None else None
        if looks is not None and sound is None:
            sound = looks.sound_of_some(term.number)
        return newest if sound is None else min(newest, max(sound, 0))

    def _is_inactive(self, term: Term) -> bool:
        """Only who was heard before falls silent: until then its lease runs. A new holder is given its time."""
        now, members = self._context.clock.monotonic(), self._context.membership.table
        member = members.get(term.holder)
        seen = member.seen_at if member is not None else None
        patience = max(
            self._context.run.spec.chair.silence_seconds,
            # In a large pool everybody speaks seldom. The dead keep their leases for days, and do not count.
            MISSED_UNHEALTHY * heartbeat_interval(1 + len(members.live(now))),
        )
        return seen is not None and now - max(seen, term.at) > patience

    def _is_stalled(self, term: Term) -> bool:
        """It speaks, and makes no policy of what is accepted. How long a step takes its last ones say."""
        policies, spec = self._context.state.policies, self._context.run.spec
        newest, accepted = self._unused
        # Files that were counted for an older policy say nothing of a leader that made one since.
        if newest != policies.newest_step or len(accepted) < self._enough:
            return False
        stall_steps = 10  # times the longest of the last steps, which it is given at least
        if not (heard := policies.heard_at(stall_steps)) or newest >= spec.recipe.steps:
            return False
        longest = max((after - before for before, after in pairwise(heard)), default=0.0)
        patience = max(spec.chair.stall_seconds, stall_steps * longest)
        return self._context.clock.monotonic() - max(heard[-1], term.at) > patience

    @property
    def _enough(self) -> int:
        # Batches' worth of accepted files since the newest policy, before a leader that makes none is said to stand
        # still: of one batch's files too many may be without a signal.
        return 8 * self._context.run.spec.rollout.files_per_step

    def _is_empty(self, term: Term) -> bool:
        """Its policies are words: none came here since, whomever this node asked, and which of them is the newest does
        not matter. Who hears no quorum, or hears one that holds what is not here, has bad lines itself."""
        context, history = self._context, self._history
        if history is None or history.in_vain_since is None:
            return False
        held = context.policy_cache.newest
        if not hears_a_quorum(context) or context.state.reached(term.holder) > (held.step if held else -1):
            return False
        patience = max(context.run.spec.chair.stall_seconds, history.fair_seconds)
        return context.clock.monotonic() - max(history.in_vain_since, term.at) > patience

    def _is_withheld(self, term: Term) -> bool:
        """Its policies can be had, and nobody can see what they were made of: of none of the last drawn steps this
        node was given anything. More validators than may lie say otherwise where they could look."""
        context, looks = self._context, self._looks
        since = looks.in_vain_since(term.number) if looks is not None else None
        sound = looks.sound(term.number) if looks is not None else None
        if looks is None or since is None or sound is None or not hears_a_quorum(context):
            return False
        # Where no clock goes on any more nothing more is drawn.
        if not looks.are_enough and context.state.newest - sound < MAX_AHEAD:
            return False
        believed = [one for one in context.membership.validators if one not in context.state.disputes.quarantined]
        said = [self._looked.get(one, (-1, 0.0)) for one in believed if one != context.key.address]
        if sum(number == term.number and at >= since for number, at in said) > len(believed) - context.quorum:
            return False
        return context.clock.monotonic() - max(since, term.at) > context.run.spec.chair.stall_seconds

    def _withholds_some(self, term: Term) -> bool:
        """It hands over, and too often not: others look at other steps, so that their looks say nothing of these."""
        looks = self._looks
        return looks is not None and looks.sound_of_some(term.number) is not None and hears_a_quorum(self._context)


def hears_a_quorum(context: Context) -> bool:
    """Of validators, this node among them: who hears fewer may be cut off itself."""
    return len({context.key.address, *context.state.validators()}) >= context.quorum
