"""Disputes between validators: what contradicts what, and who was wrong once everybody has looked again.

Verdicts on one file can differ honestly: two lots draw different groups, and what a validator had *heard*
(deliveries, ages, gaps) is its own. They contradict each other only where both looked at the same thing: the checks
that everybody makes of every file, or a group that both recomputed. A contradiction is re-checked by all, in
full; more than half of the office decides. Pure functions over signed messages, so that everybody comes to one result.
"""

import math
import struct
from collections import Counter
from collections.abc import Collection, Mapping
from enum import Enum, IntEnum

import msgspec

from protocol.checks import HEARSAY, OBJECTIVE, Reason, reason_name
from protocol.identity import Address
from protocol.lots import unpack_groups
from protocol.messages import DIGEST, NO_PROMPTS, Judgement
from protocol.statements import VerdictOutcome, work_id

UNDECIDED = bytes(DIGEST)
"""Stands for the rewards of a group that could not be scored in time, or whose turns could not be replayed."""


WHAT_WAS_ASKED = frozenset({Reason.WRONG_DRAW, Reason.WRONG_PROMPT, Reason.FORGED_TURN, Reason.OTHER_MACHINE})
"""Faults that follow from the problem and its prompt, as each validator computes them."""


class Conflict(IntEnum):
    """How two verdicts on one file differ. Both kinds are re-checked by all; only the second means a fault."""

    UNSEEN = 1
    """one saw a fault in a group that the other did not look at"""
    CONTRADICTION = 2
    """both looked at the same thing and say different things of it"""


class VerdictConflict(msgspec.Struct, frozen=True):
    """A conflict. what: one line for people; objective: about something that does not depend on arithmetic."""

    kind: Conflict
    what: str
    objective: bool = False


def compare(first: Judgement, second: Judgement, groups: int, tolerance: float) -> VerdictConflict | None:
    """How two verdicts on the same commitment conflict, None if they can both be right; about two they always can.

    groups: of the file; tolerance: nats per token between the means of one group.
    """
    if work_id(first.verdict) != work_id(second.verdict):
        return None
    # What one had not heard yet is no lie about what the other had.
    if hearsay(first) or hearsay(second):
        return None
    if asked_apart([first, second]):
        return None
    outcomes = (first.verdict.outcome, second.verdict.outcome)
    if outcomes == (VerdictOutcome.ACCEPT, VerdictOutcome.ACCEPT):
        return _compare_values(first, second, groups, tolerance)
    if VerdictOutcome.ACCEPT in outcomes:
        accepting, accusing = (first, second) if first.verdict.outcome == VerdictOutcome.ACCEPT else (second, first)
        return _accusation(accepting, accusing, groups)
    if first.verdict.reason != second.verdict.reason and _objective(first) != _objective(second):
        accusing, other = (first, second) if _objective(first) else (second, first)
        if _could_not_replay(other, accusing, groups):
            return VerdictConflict(Conflict.UNSEEN, _NOT_REPLAYED)
        return VerdictConflict(Conflict.CONTRADICTION, "one saw an objective fault where the other saw none", True)
    return None


def hearsay(message: Judgement) -> bool:
    """Whether a verdict rests on what its author had heard by then, which nobody else can repeat."""
    return message.verdict.outcome != VerdictOutcome.ACCEPT and message.verdict.reason in HEARSAY


# Where two validators computed different prompts of one file, a template or an environment is not the same everywhere.
# Then neither lies, nor does the worker: no dispute, no stake, no rejection, and nobody is believed less. The file is
# accepted only if a quorum was to see what it answers: a liar with prompts of its own is one voice less, and vetoes
# nothing.


def _asked(message: Judgement) -> bytes:
    """The prompts that a verdict rests on; NO_PROMPTS where it would be the same with any."""
    rests = message.verdict.outcome == VerdictOutcome.ACCEPT or message.verdict.reason in WHAT_WAS_ASKED
    return message.prompts if rests else NO_PROMPTS


def asked_apart(said: Collection[Judgement]) -> bool:
    """Whether two of the verdicts on one file rest on different prompts."""
    return len({_asked(one) for one in said} - {NO_PROMPTS}) > 1


def asked_alike(said: Mapping[Address, Judgement], quorum: int) -> dict[Address, Judgement]:
    """Those of the verdicts on one file that count. Where prompts differ: what rests on none, and what accepts, if a
    quorum accepts for the same prompts, and more than rest on any others."""
    if not asked_apart(said.values()):
        return dict(said)
    (most, votes), (_, next_votes), *_ = Counter(
        asked for one in said.values() if (asked := _asked(one)) != NO_PROMPTS
    ).most_common(2)
    alike = most if votes >= max(quorum, next_votes + 1) else NO_PROMPTS
    return {
        author: one
        for author, one in said.items()
        if _asked(one) == NO_PROMPTS or (_asked(one) == alike and one.verdict.outcome == VerdictOutcome.ACCEPT)
    }


def _objective(message: Judgement) -> bool:
    return message.verdict.reason in OBJECTIVE


_NOT_REPLAYED = "one accuses a group of a forged turn that the other could not replay in time"


def _could_not_replay(other: Judgement, accusing: Judgement, groups: int) -> bool:
    """Whether the accused fault is in what the environment said, and the other verdict leaves that group undecided."""
    if accusing.verdict.reason != Reason.FORGED_TURN or not 0 <= accusing.group < groups or _objective(other):
        return False
    # A forged turn names its group, and only a verdict that leaves this very group open may have missed it.
    rewards = _rewards(other, groups)
    return not rewards or rewards[accusing.group] == UNDECIDED


def _accusation(accepting: Judgement, accusing: Judgement, groups: int) -> VerdictConflict:
    reason = reason_name(accusing.verdict.reason)
    looked = unpack_groups(accepting.checked, groups) or ()
    if _could_not_replay(accepting, accusing, groups):
        return VerdictConflict(Conflict.UNSEEN, _NOT_REPLAYED)
    if _objective(accusing):
        what = f"one accepted what the other accuses of {reason}, which all can see"
        return VerdictConflict(Conflict.CONTRADICTION, what, True)
    # An accepting verdict that recomputed everything has looked at the accused group, whichever that is.
    if accusing.group in looked or len(looked) == groups:
        return VerdictConflict(
            Conflict.CONTRADICTION, f"both recomputed group {accusing.group}; one accuses it of {reason}"
        )
    return VerdictConflict(Conflict.UNSEEN, f"one accuses a group of {reason} that the other did not draw")


def _compare_values(first: Judgement, second: Judgement, groups: int, tolerance: float) -> VerdictConflict | None:
    rewards = [_rewards(one, groups) for one in (first, second)]
    for group, (a, b) in enumerate(zip(*rewards, strict=True)) if all(rewards) else ():
        # A busy machine's timeout is no opinion about a reward.
        if a != b and UNDECIDED not in (a, b):
            return VerdictConflict(Conflict.CONTRADICTION, f"they computed different rewards for group {group}", True)
    ours, theirs = group_means(first, groups), group_means(second, groups)
    for group in sorted(ours.keys() & theirs.keys()):
        gap = abs(ours[group] - theirs[group])
        # Not `gap > tolerance`: a mean of NaN must count as a difference.
        if not gap <= tolerance:
            return VerdictConflict(
                Conflict.CONTRADICTION, f"their log-probabilities of group {group} differ by {gap:.3g}"
            )
    return None


def _rewards(message: Judgement, groups: int) -> list[bytes]:
    if len(message.rewards) != DIGEST * groups:
        return []
    return [message.rewards[DIGEST * g : DIGEST * (g + 1)] for g in range(groups)]


def group_means(message: Judgement, groups: int) -> dict[int, float]:
    """group -> mean log-probability of its tokens, as the verdict says; empty if it carries none."""
    looked = unpack_groups(message.checked, groups)
    if not looked or len(message.logprobs) != 4 * len(looked):
        return {}
    values = struct.unpack(f"<{len(looked)}f", message.logprobs)
    return dict(zip(looked, values, strict=True))


def values_complete(message: Judgement, groups: int, most: int) -> bool:
    """Whether an accepting verdict carries the values that make it comparable: for files of up to `most` groups."""
    if message.verdict.outcome != VerdictOutcome.ACCEPT or groups > most:
        return True
    looked = unpack_groups(message.checked, groups)
    if looked is None or len(message.rewards) != DIGEST * groups or len(message.logprobs) != 4 * len(looked):
        return False
    # The logarithm of a probability is never above 0: a positive mean is made up.
    return all(math.isfinite(mean) and mean <= 0.0 for mean in group_means(message, groups).values())


class DisputeRuling(Enum):
    """What the re-checks say of a disputed file."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"


class Resolution(msgspec.Struct, frozen=True):
    """wrong: validator -> what its verdict got wrong; winner: one re-check of the side that won."""

    ruling: DisputeRuling
    wrong: dict[Address, VerdictConflict]
    winner: Judgement


def resolve(
    verdicts: Mapping[Address, Judgement],
    rechecks: Mapping[Address, Judgement],
    active_validators: int,
    groups: int,
    tolerance: float,
) -> Resolution | None:
    """The result of a dispute; None while no side has won, which time does not change.

    verdicts: the first ones; rechecks: those made for the dispute; active_validators: believed validators in office,
    whether they spoke or not. A side wins with more than half of them, and of at least two: nobody is found wrong by
    one other alone.
    """
    sides = _sides(rechecks, groups, tolerance)
    nobody: dict[Address, Judgement] = {}
    largest = max(sides, key=len, default=nobody)
    # Of all active validators, not of those who spoke: silence must not help whoever is quickest.
    if 2 * len(largest) <= active_validators or len(largest) < 2:
        return None
    winner = next(iter(largest.values()))
    accepted = winner.verdict.outcome == VerdictOutcome.ACCEPT
    wrong = {
        author: finding
        for author, message in [*rechecks.items(), *verdicts.items()]
        if (finding := compare(message, winner, groups, tolerance)) and finding.kind is Conflict.CONTRADICTION
    }
    return Resolution(DisputeRuling.ACCEPTED if accepted else DisputeRuling.REJECTED, wrong, winner)


def _sides(rechecks: Mapping[Address, Judgement], groups: int, tolerance: float) -> list[dict[Address, Judgement]]:
    """Re-checks that agree with each other, side by side; hearsay takes no side, nor does who could not replay a turn
    that another calls forged."""
    sides: list[dict[Address, Judgement]] = []
    # In order of addresses, so that everybody forms the same sides from the same words.
    for author, message in sorted(rechecks.items()):
        if hearsay(message) or any(_could_not_replay(message, other, groups) for other in rechecks.values()):
            continue
        for side in sides:
            # With all of a side: agreement within a tolerance is not transitive.
            together = not asked_apart([message, *side.values()])
            if together and all(compare(message, other, groups, tolerance) is None for other in side.values()):
                side[author] = message
                break
        else:
            sides.append({author: message})
    return sides
