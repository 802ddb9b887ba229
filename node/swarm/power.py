"""What /status says of the jury: the power that the swarm has against cheating, and whom it does not believe."""

from typing import Any

from node.swarm.jury import Jury
from node.swarm.membership import Membership
from protocol.audit import AuditSpec, detection_power, window_of


def describe_audit(jury: Jury, membership: Membership, audit: AuditSpec) -> dict[str, Any]:
    """power: chance that a cheat in `cheated_share` of a worker's groups was seen in `window`, for the worker that was
    checked least; pledged: the share of groups that the validators promise to recompute in the newest window."""
    lots, ballots = jury.lots, jury.ballots
    window = lots.last_full_window()
    powers = [row for row in lots.powers(window) if membership.is_member(row.node)]
    current = window_of(max(lots.newest_step, 0), audit)
    live = jury.validators()
    pledged = lots.pledged_share(current, set(ballots.electorate()))
    groups = round(sum(row.groups for row in powers) / len(powers)) if powers else 0
    return {
        "window": window,
        "trust": audit.trust,
        "cheated_share": audit.cheated_share,
        "power_wanted": audit.power,
        "power": round(min(row.power for row in powers), 4) if powers else None,
        "groups_per_worker": groups,
        "checked_share": _share(sum(row.checked for row in powers), sum(row.groups for row in powers)),
        "pledged_share": round(pledged, 4),
        "pledged_power": round(detection_power(pledged, groups, audit), 4),
        "validators": [
            {"address": one, "silent": ballots.is_silent(one), "believed": one not in ballots.quarantined}
            for one in live
        ],
        "quarantined": [
            {"address": one.validator, "why": one.why, "evidence": len(one.evidence)}
            for one in ballots.quarantined.values()
        ],
        "disputes": {
            "raised": ballots.disputes_raised,
            "resolved": ballots.disputes_resolved,
            "open": len(ballots.open_disputes()),
        },
        "trainer": describe_trust(jury),
        "lots": {"kept": lots.kept, "early": lots.early, "broken": lots.broken},
    }


def describe_trust(jury: Jury) -> dict[str, Any]:
    """Whether the trainer's word is taken here; if not, what it signed that cannot both be true."""
    fork = jury.policies.fork
    said = {"trusted": fork is None, "why": fork.what if fork else "", "evidence": len(fork.evidence) if fork else 0}
    return said | {"unstated": jury.policies.unstated}


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None
