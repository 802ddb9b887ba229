"""Whether who leads still does: what a validator hears of it, what it makes of files, and whether anybody has that.

Each validator goes by what it lived through itself; a term ends where a quorum of them says so. So none of it may come
of this machine's own trouble, and what others say may only keep a validator from speaking (ADR 125).
"""

from itertools import pairwise

from node.services.context import Context
from node.swarm.facts import WorkTouched
from node.swarm.register import WorkId
from node.swarm.terms import Term
from node.swarm.vote_set import FileState
from node.weights.fetch_history import FetchHistory
from protocol.liveness import MISSED_UNHEALTHY, heartbeat_interval


class LeaderWatch:
    """history: of this validator's fetching; None for who fetches nothing, and says nothing of it."""

    def __init__(self, context: Context, history: FetchHistory | None) -> None:
        self._context, self._history = context, history
        self._unused: tuple[int, set[WorkId]] = (-1, set())
        """The newest policy, and files that were accepted since it was heard of; as many as matter."""

    async def run(self) -> None:
        """Count what is accepted, until cancelled."""
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
        return "announces policies that nobody can have" if self._is_empty(term) else ""

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
        held, heard = context.policy_cache.newest, {context.key.address, *context.state.validators()}
        if len(heard) < context.quorum or context.state.reached(term.holder) > (held.step if held else -1):
            return False
        patience = max(context.run.spec.chair.stall_seconds, history.fair_seconds)
        return context.clock.monotonic() - max(history.in_vain_since, term.at) > patience
