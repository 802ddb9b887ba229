"""When does honesty pay? Check probability, stake, gain and the point where they balance.

A cheat gains g per window and loses the penalty S (stake taken and pay voided) with probability q that it is
seen: cheating pays on average g(1-q) - S q, so honesty pays if S >= g(1-q)/q. All amounts in token wei or any
one unit; pure arithmetic.
"""

import math

import msgspec

from protocol.audit import AuditSpec, cheated_groups, detection_power
from protocol.earnings import policy_units
from protocol.run import RunSpec


class EconomicTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The prices and sizes of one run. All amounts in wei.

    reward_per_unit: pay per output token; slash: what an objective fault costs; units_per_window: output tokens
    that one worker is paid for in an audit window; groups_per_window: groups in them;
    saving: share of a group's cost that cheating in it saves (1: tokens out of nothing).
    """

    reward_per_unit: int
    slash: int
    units_per_window: int
    groups_per_window: int
    saving: float = 1.0


class Balance(msgspec.Struct, frozen=True):
    """What a cheat in `cheated_share` of the groups may expect per window. Amounts in wei.

    detection: probability of being seen in one window; pay: of the whole window; gain: the pay of the falsified
    groups times what falsifying saves; break_even: the least penalty that makes honesty pay; expected: mean
    result of cheating; windows_to_detection: mean number of windows until seen.
    """

    share: float
    detection: float
    pay: int
    gain: int
    break_even: int
    penalty: int
    expected: int
    windows_to_detection: float

    @property
    def honest_pays(self) -> bool:
        return self.expected <= 0


def break_even(gain: float, detection: float) -> float:
    """The least penalty S with S q >= g (1 - q); infinite if nothing is ever seen."""
    if not 0 <= detection <= 1:
        raise ValueError(f"{detection} is no probability")
    return math.inf if detection == 0 else gain * (1 - detection) / detection


def balance(terms: EconomicTerms, checked_share: float, audit: AuditSpec) -> Balance:
    """The cheat that the run's lots are sized against, if `checked_share` of the groups is recomputed.

    The penalty is the slash and the window's whole pay; where only pay is at stake (statistical faults) set slash 0.
    """
    groups = terms.groups_per_window
    detection = detection_power(checked_share, groups, audit)
    pay = terms.units_per_window * terms.reward_per_unit
    # The cheat that lots are sized against: one that falsifies more is seen sooner.
    falsified = cheated_groups(groups, audit) / max(groups, 1)
    gain = round(pay * falsified * terms.saving)
    least = break_even(gain, detection)
    penalty = terms.slash + pay
    return Balance(
        share=checked_share,
        detection=detection,
        pay=pay,
        gain=gain,
        break_even=math.ceil(least) if math.isfinite(least) else -1,
        penalty=penalty,
        expected=round(gain * (1 - detection) - penalty * detection),
        windows_to_detection=1 / detection if detection > 0 else math.inf,
    )


class Posts(msgspec.Struct, frozen=True):
    """What judging and training earn per audit window, beside all workers together. Units.

    units: of all workers; judging: of each validator; training: of the trainer; pool: what a worker's unit costs
    the pool in all, in units.
    """

    units: int
    judging: int
    training: int
    pool: float


def posts(run: RunSpec, units: int, checked_share: float, validators: int) -> Posts:
    """units: output tokens of all workers in a window, of which every validator recomputes `checked_share`."""
    judging = round(run.pay.judging * units * min(checked_share, run.pay.judged_share))
    training = run.audit.window * policy_units(run)
    return Posts(units, judging, training, (units + validators * judging + training) / max(units, 1))


def daily_gas(tables: int) -> int:
    """What a day costs a member that renews its lease and claims its pay once a week, and carries so many tables of
    earnings to the chain: one a delay is enough for the whole pool."""
    # Gas of renewing a membership, of a claim, and of a table of earnings that two of three signed (benchmarks.gas).
    return -(-(51_000 + 86_000) // 7) + tables * 130_000
