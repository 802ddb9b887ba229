"""The pool's jury, as a service: every member counts verdicts, watches lots and hears disputes by itself."""

from functools import partial
from typing import Any

from node.changes import every, side_by_side
from node.services.base import Service
from node.services.context import Context
from node.swarm.contributions import Contributions
from node.swarm.facts import WorkTouched
from node.swarm.membership import Membership
from node.swarm.pool_state import PoolState
from node.swarm.task_table import describe_task
from protocol.audit import AuditSpec, detection_power


class VoteCounter(Service):
    name = "jury"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._contributions = Contributions(context.state.register, context.state.vote_set, context.clock.wall)

    async def run(self) -> None:
        look = partial(self._context.handle, lambda told: self._contributions.look(told.work), WorkTouched)
        # Some states change without a message: a silent validator is gone without after a while.
        look_again = partial(every, 5.0, self._contributions.look_again, at_once=False)
        await side_by_side(look, look_again, self._context.jury.run)

    def status(self) -> dict[str, Any]:
        context = self._context
        tasks = [describe_task(task, context.clock.monotonic()) for task in context.state.tasks.tasks()]
        return {
            "validator_audits": describe_audits(context.state, context.membership, context.run.spec.audit),
            "leader": describe_leader(context.state),
            "contributions": self._contributions.status(),
            "tasks": {"known": tasks},
        }


def describe_audits(state: PoolState, membership: Membership, audit: AuditSpec) -> dict[str, Any]:
    """power: chance that a cheat in `cheated_share` of a worker's groups was seen in `window`, for the worker that was
    checked least; pledged: the share of groups that the validators promise to recompute in the newest window."""
    lots, vote_set = state.lots, state.vote_set
    window = lots.last_full_window()
    powers = [row for row in lots.powers(window) if membership.is_member(row.node)]
    live, quarantined = state.validators(), vote_set.disputes.quarantined
    pledged = lots.pledged_share(lots.current_window, set(vote_set.active_validators()))
    committed = sum(row.groups for row in powers)
    groups = round(committed / len(powers)) if powers else 0
    return {
        "window": window,
        "trust": audit.trust,
        "cheated_share": audit.cheated_share,
        "power_wanted": audit.power,
        "power": round(min(row.power for row in powers), 4) if powers else None,
        "groups_per_worker": groups,
        "checked_share": round(sum(row.checked for row in powers) / committed, 4) if committed else None,
        "pledged_share": round(pledged, 4),
        "pledged_power": round(detection_power(pledged, groups, audit), 4),
        "validators": [
            {"address": one, "inactive": vote_set.is_inactive(one), "believed": one not in quarantined} for one in live
        ],
        "quarantined": [
            {"address": one.validator, "why": one.why, "evidence": len(one.evidence)} for one in quarantined.values()
        ],
        "disputes": {
            "raised": vote_set.disputes.raised,
            "resolved": vote_set.disputes.resolved,
            "open": len(vote_set.disputes.open()),
            "prompts_differ": state.works.prompts_differ,
        },
        "lots": {"kept": lots.kept, "early": lots.early, "broken": lots.broken},
    }


def describe_leader(state: PoolState) -> dict[str, Any]:
    """Whether the trainer's word is taken here; if not, what it signed that cannot both be true."""
    equivocation = state.policies.equivocation
    said = {
        "trusted": equivocation is None,
        "why": equivocation.what if equivocation else "",
        "evidence": len(equivocation.evidence) if equivocation else 0,
    }
    return said | {"refused": dict(state.refused), "step_verdicts": state.steps.status()}
