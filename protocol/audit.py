"""How much of a worker's output is recomputed, and what power that gives against cheating.

A *window* is a number of consecutive policies. Every group of a file is drawn independently with the file's
rate, so a worker that cheats in m groups of a window escapes with probability (1 - rate)^m, whichever groups
it chose. Which groups are drawn is `lots.py`.
"""

import math
from collections.abc import Iterable

import msgspec

MAX_ANSWER_CHARACTERS = 1 << 20
"""An answer of more scores the floor, unread: scorers take time in proportion to it, so this bounds what one answer may
cost a validator. A constant and not a clock, because all must come to one reward. About 250,000 tokens of text."""
# Whole numbers, since both sides compare a hash with it, and must not differ in a last bit.
RATE_ONE = 1 << 16
"""Rates travel as integers: this many is 'every group'."""


class AuditSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a run demands of its validators, and when its trainer believes them.

    window: policies per audit window; cheated_share, power: lots are sized so that a worker that cheats in this
    share of its groups is seen within one window with this probability; probation: groups of a worker that must
    have been recomputed without a fault before its files are not looked at whole any more;
    trust: 'verified' (a file trains once its quorum has accepted it) or 'optimistic' (once the first validator
    has; what the quorum rejects later is invalidated);
    verdict_seconds: how long a silent validator is waited for; delivery_seconds: how long a worker may take to hand
    over a committed file; scoring_seconds: how long the scoring of one file may hold an engine;
    logprob_tolerance: nats per token by which two validators' means over a group may differ;
    hearsay_costs: what a gap in the indices or an old policy costs, 'pay' (default) or 'stake': then every living
    validator must have seen it, since such facts rest on what was heard;
    judges: rewards that validators leave open are asked of judges, whom the pool pays. Only for runs with a judged
    environment: elsewhere a validator that leaves open what it could score would spend the pool's money;
    witnessed: whether environments behind servers are taken, whose words count as far as a quorum hears the same:
    'no' (default), 'alone' (and no other environment beside them), or 'mixed' with others.
    """

    window: int = 8
    cheated_share: float = 0.1
    power: float = 0.95
    probation: int = 58
    trust: str = "verified"
    verdict_seconds: float = 60.0
    delivery_seconds: float = 60.0
    scoring_seconds: float = 60.0
    logprob_tolerance: float = 0.05
    hearsay_costs: str = "pay"
    judges: bool = False
    witnessed: str = "no"

    @property
    def hearsay_slashes(self) -> bool:
        return self.hearsay_costs == "stake"

    @property
    def optimistic(self) -> bool:
        return self.trust == "optimistic"

    @property
    def opening_seconds(self) -> float:
        """The longest time from a validator's seal to the verdict behind it."""
        return 3.0 if self.optimistic else max(self.verdict_seconds / 2, 3.0)

    def rules(self) -> list[tuple[str, bool, str]]:
        """(field, whether it makes sense, what would)."""
        return [
            ("audit.window", 1 <= self.window <= 10_000, "must be 1 to 10000"),
            ("audit.cheated_share", 0 < self.cheated_share <= 1, "must lie above 0 and be at most 1"),
            ("audit.power", 0 < self.power < 1, "must lie between 0 and 1"),
            ("audit.probation", 0 <= self.probation <= 1_000_000, "must be 0 to 1000000"),
            ("audit.trust", self.trust in ("verified", "optimistic"), "must be 'verified' or 'optimistic'"),
            ("audit.hearsay_costs", self.hearsay_costs in ("pay", "stake"), "must be 'pay' or 'stake'"),
            ("audit.witnessed", self.witnessed in ("no", "alone", "mixed"), "must be 'no', 'alone' or 'mixed'"),
            (
                "audit.trust",
                self.witnessed == "no" or not self.optimistic,
                "must be 'verified' where environments are witnessed: one validator alone is no quorum",
            ),
            ("audit.verdict_seconds", 1 <= self.verdict_seconds <= 86_400, "must be 1 to 86400"),
            ("audit.delivery_seconds", 1 <= self.delivery_seconds <= 86_400, "must be 1 to 86400"),
            ("audit.scoring_seconds", 1 <= self.scoring_seconds <= 3_600, "must be 1 to 3600"),
            ("audit.logprob_tolerance", 0 < self.logprob_tolerance <= 10, "must lie above 0 and be at most 10"),
        ]


def window_of(step: int, spec: AuditSpec) -> int:
    """The audit window to which the files of policy `step` belong."""
    return step // spec.window


def last_step_of(window: int, spec: AuditSpec) -> int:
    """The last policy of a window."""
    return (window + 1) * spec.window - 1


def cheated_groups(groups: int, spec: AuditSpec) -> int:
    """How many of a window's groups the cheat that must be seen has falsified: at least one."""
    # A product such as 0.07 * 100 may lie a hair beside the whole number that it is.
    return max(1, math.floor(groups * spec.cheated_share + 1e-9))


def detection_power(share: float, groups: int, spec: AuditSpec) -> float:
    """Probability that this cheat is seen if each of a worker's `groups` of a window is recomputed with `share`."""
    if groups <= 0:
        return 0.0
    return 1.0 - (1.0 - min(max(share, 0.0), 1.0)) ** cheated_groups(groups, spec)


def needed_share(groups: int, spec: AuditSpec) -> float:
    """The share of `groups` that must be recomputed for the run's power; 29 of 290 for 10 % and 0.95.

    The smallest q with 1 - (1 - q)^m >= power, m = cheated_groups; 1 where a single group is at stake.
    """
    exact = 1.0 - (1.0 - spec.power) ** (1.0 / cheated_groups(max(groups, 1), spec))
    return min(1.0, exact)


def joint_share(shares: Iterable[float]) -> float:
    """The chance that at least one of several independent validators recomputes a group."""
    missed = 1.0
    for share in shares:
        missed *= 1.0 - min(max(share, 0.0), 1.0)
    return 1.0 - missed


def share_of_files(validators: int, quorum: int) -> float:
    """The share of all files that one of `validators` looks at: so that one more than the quorum are expected to look
    at each. Who is not enough is filled up (node/services/judging)."""
    # One more than needed: with just enough, one slow validator would hold up every file.
    return min(1.0, (quorum + 1) / max(1, validators))


def as_rate(share: float) -> int:
    """A share as a rate, rounded up so that power is never rounded away."""
    # Up, never to the nearest: what is pledged must reach the power that the run asks for.
    return min(RATE_ONE, max(0, math.ceil(share * RATE_ONE)))


def as_share(rate: int) -> float:
    return rate / RATE_ONE


class AuditLoad(msgspec.Struct, frozen=True):
    """What a validator measured. arriving: groups per second that workers commit; capacity: groups per second that
    its engine recomputes; backlog: seconds of work that wait."""

    arriving: float
    capacity: float
    backlog: float = 0.0

    @property
    def is_calm(self) -> bool:
        return self.backlog <= CALM_SECONDS

    @property
    def is_behind(self) -> bool:
        return self.backlog > BEHIND_SECONDS


BUSY_SHARE = 0.8
"""Of its capacity that a validator plans with: the rest is for re-checks and for bad minutes."""
UNMEASURED_SHARE = 1 / 16
"""What a validator promises that has measured nothing yet. One that can do more looks at everything all the same; one
that cannot would keep its promise for a window in which no policy is learnt (docs/figures/scale.md)."""
CALM_SECONDS, BEHIND_SECONDS = 5.0, 30.0
"""Backlog below which a validator recomputes everything, and beyond which nothing that it has not pledged."""


def pledged_share(load: AuditLoad | None, groups: int, spec: AuditSpec) -> float:
    """The share that a validator promises for the next window: what the power needs, or what it can do if less.

    groups: of one worker in one window.
    """
    needed = needed_share(groups, spec)
    if load is None or load.arriving <= 0:
        return min(needed, UNMEASURED_SHARE)
    return min(needed, BUSY_SHARE * load.capacity / load.arriving)


def share_of_file(pledged: float, load: AuditLoad | None, verified: int, suspect: bool, spec: AuditSpec) -> float:
    """The share of one file's groups to draw, at least what was pledged.

    verified: groups of this worker that were recomputed without a fault since it came or was refused. While there is
    nothing better to do everybody is recomputed entirely; then whoever is suspected or on probation; and nobody by a
    validator that is behind, since however many newcomers come, what it pledged is what it can do.
    """
    if load is None or load.is_calm:
        return 1.0
    # A newcomer has no record yet that a cheat would lose.
    whole = suspect or verified < spec.probation
    return 1.0 if whole and not load.is_behind else pledged
