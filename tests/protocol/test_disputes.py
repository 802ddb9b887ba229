import math

import msgspec
import numpy as np
import pytest

from protocol.checks import Reason
from protocol.disputes import UNDECIDED, Conflict, Ruling, compare, group_means, resolve, values_complete
from protocol.identity import NodeKey
from protocol.lots import pack_groups
from protocol.messages import DIGEST, VerdictIssued
from protocol.rollout import Report, ReportHeader, ReportRow
from protocol.statements import Outcome, Verdict
from protocol.values import mean_logprobs, report_fault, reward_tag, reward_tags

GROUPS, SIZE, TOLERANCE = 4, 2, 0.05
WORKER, A, B, C = (NodeKey(bytes([n]) * 32).address for n in (1, 2, 3, 4))
REWARDS = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0]


def said(
    outcome: Outcome = Outcome.ACCEPT,
    reason: Reason = Reason.NONE,
    groups: tuple[int, ...] = (0, 1, 2, 3),
    means: float = -1.0,
    **change,
) -> VerdictIssued:
    verdict = Verdict(1, WORKER, bytes(32), 0, b"\x02" * 32, 12, outcome, reason)
    message = VerdictIssued(
        pool=1,
        verdict=verdict,
        signature=b"",
        checked=pack_groups(groups, GROUPS),
        rewards=reward_tags(REWARDS, SIZE, ()),
        logprobs=mean_logprobs({g: [np.full(3, means - g, dtype=np.float32)] for g in groups}),
    )
    return msgspec.structs.replace(message, **change)


ACCUSED = said(Outcome.SLASH, Reason.WRONG_DRAW, ())
SUSPICION = said(Outcome.REJECT, Reason.ACTIVATIONS, (1, 2), group=2)


def kind(first: VerdictIssued, second: VerdictIssued) -> Conflict | None:
    both = compare(first, second, GROUPS, TOLERANCE), compare(second, first, GROUPS, TOLERANCE)
    assert (both[0] and both[0].kind) == (both[1] and both[1].kind), "it matters who is asked first"
    return both[0].kind if both[0] else None


@pytest.mark.parametrize(
    ("other", "conflict"),
    [
        (said(), None),
        (said(means=-1.01), None),
        (said(groups=(1,)), None),
        (said(groups=()), None),
        (said(means=-1.2), Conflict.CONTRADICTION),
        (said(rewards=reward_tags(REWARDS[::-1], SIZE, ())), Conflict.CONTRADICTION),
        (said(rewards=reward_tags(REWARDS[::-1], SIZE, range(4))), None),
        (ACCUSED, Conflict.CONTRADICTION),
        (SUSPICION, Conflict.CONTRADICTION),
        (said(Outcome.REJECT, Reason.STALE, ()), None),
        (said(Outcome.REJECT, Reason.UNAVAILABLE, ()), None),
        (said(Outcome.REJECT, Reason.SUSPECTED), None),
        (said(Outcome.REJECT, Reason.SAMPLING, group=-1), Conflict.CONTRADICTION),
    ],
)
def test_what_conflicts_with_a_full_acceptance(other: VerdictIssued, conflict: Conflict | None) -> None:
    assert kind(said(), other) is conflict


def test_a_fault_in_a_group_that_the_other_did_not_draw_blames_nobody() -> None:
    assert kind(said(groups=(0, 1)), SUSPICION) is Conflict.UNSEEN
    assert kind(said(groups=(2,)), SUSPICION) is Conflict.CONTRADICTION


def test_verdicts_on_different_files_are_not_compared() -> None:
    other = said()
    other = msgspec.structs.replace(other, verdict=msgspec.structs.replace(ACCUSED.verdict, file_root=bytes(32)))
    assert kind(said(), other) is None


def test_an_objective_and_a_statistical_fault_contradict_each_other() -> None:
    assert kind(ACCUSED, SUSPICION) is Conflict.CONTRADICTION
    assert kind(ACCUSED, said(Outcome.SLASH, Reason.UNITS, ())) is None


FORGED = said(Outcome.SLASH, Reason.FORGED_TURN, (), group=2, rewards=b"")
UNABLE = said(rewards=reward_tags(REWARDS, SIZE, {2}))


def test_who_could_not_replay_a_turn_contradicts_nobody_who_could() -> None:
    assert kind(said(), FORGED) is Conflict.CONTRADICTION
    assert kind(UNABLE, FORGED) is Conflict.UNSEEN
    assert kind(said(rewards=reward_tags(REWARDS, SIZE, {1})), FORGED) is Conflict.CONTRADICTION, "another group"
    unable_to_accept = said(Outcome.REJECT, Reason.SAMPLING, group=0, rewards=UNABLE.rewards)
    assert kind(unable_to_accept, FORGED) is Conflict.UNSEEN
    assert kind(SUSPICION, FORGED) is Conflict.CONTRADICTION
    assert kind(ACCUSED, FORGED) is None and kind(FORGED, FORGED) is None


def test_who_could_not_replay_a_turn_takes_no_side_and_is_never_wrong() -> None:
    found = resolve({A: UNABLE}, {A: UNABLE, B: FORGED, C: FORGED}, 3, GROUPS, TOLERANCE)
    assert found is not None and found.ruling is Ruling.REJECTED and not found.wrong
    liar = resolve({A: UNABLE, C: said()}, {A: UNABLE, B: FORGED, C: said()}, 3, GROUPS, TOLERANCE)
    assert liar is None, "two that differ, and one that cannot tell"


def test_the_majority_of_the_rechecks_decides_and_names_who_was_wrong() -> None:
    first = {A: ACCUSED, B: said()}
    ruling = resolve(first, {A: ACCUSED, B: said(), C: said()}, 3, GROUPS, TOLERANCE)
    assert ruling is not None
    assert ruling.ruling is Ruling.ACCEPTED
    assert set(ruling.wrong) == {A}
    assert ruling.wrong[A].objective


def test_who_corrects_itself_was_still_wrong_and_who_did_not_look_was_not() -> None:
    full = said(Outcome.REJECT, Reason.ACTIVATIONS, (0, 1, 2, 3), group=2)
    ruling = resolve({A: said(), B: said(groups=(0,)), C: full}, {A: full, B: full, C: full}, 3, GROUPS, TOLERANCE)
    assert ruling is not None
    assert ruling.ruling is Ruling.REJECTED
    assert set(ruling.wrong) == {A}
    assert not ruling.wrong[A].objective


def test_no_one_alone_decides_and_a_tie_stays_open_until_all_have_spoken() -> None:
    assert resolve({A: ACCUSED, B: said()}, {B: said()}, 3, GROUPS, TOLERANCE) is None
    tied = resolve({A: ACCUSED, B: said()}, {A: ACCUSED, B: said()}, 2, GROUPS, TOLERANCE)
    assert tied is None
    alone = resolve({A: ACCUSED, B: said()}, {B: said()}, 1, GROUPS, TOLERANCE)
    assert alone is None


def test_an_acceptance_must_say_what_it_recomputed() -> None:
    assert values_complete(said(), GROUPS, 768)
    assert values_complete(said(groups=()), GROUPS, 768)
    assert values_complete(ACCUSED, GROUPS, 768)
    for change in ({"rewards": b""}, {"logprobs": b""}, {"checked": b""}):
        assert not values_complete(said(**change), GROUPS, 768)
    nan = np.full(4, np.nan, dtype="<f4").tobytes()
    assert not values_complete(said(logprobs=nan), GROUPS, 768)


def test_tags_tell_rewards_apart_and_never_look_undecided() -> None:
    assert reward_tag([1.0, 0.0]) != reward_tag([0.0, 1.0])
    assert reward_tags(REWARDS, SIZE, {2})[2 * DIGEST : 3 * DIGEST] == UNDECIDED
    assert reward_tags([0.0] * 2000, 1, ()) == b""
    assert group_means(said(groups=(1, 3)), GROUPS) == {1: -2.0, 3: -4.0}


def report(*groups: int, reward: float | None = None, logprob: float = -1.0) -> Report:
    rows = tuple(
        ReportRow(g, s, REWARDS[SIZE * g + s] if reward is None else reward, [logprob - g] * 3)
        for g in groups
        for s in range(SIZE)
    )
    return Report(ReportHeader("", ""), rows)


def test_a_report_must_hold_what_its_verdict_says() -> None:
    verdict = said(groups=(0, 2))
    assert report_fault(report(0, 2), verdict, GROUPS, SIZE) is None
    assert report_fault(report(2), verdict, GROUPS, SIZE) is None  # group 0 was not scored in time
    assert "does not" in str(report_fault(report(0, 1), verdict, GROUPS, SIZE))
    assert "rewards" in str(report_fault(report(0, reward=0.5), verdict, GROUPS, SIZE))
    assert "log-probabilities" in str(report_fault(report(0, logprob=-2.0), verdict, GROUPS, SIZE))
    opinion = said(groups=(0, 2), rewards=reward_tags(REWARDS, SIZE, {2}))
    unknown = Report(report().header, (*report(0).rows, *report(2, reward=math.nan).rows))
    assert report_fault(unknown, opinion, GROUPS, SIZE) is None  # judges are to say it
    assert "rewards" in str(report_fault(unknown, verdict, GROUPS, SIZE))
    assert "rewards" in str(report_fault(report(0, 2), opinion, GROUPS, SIZE))
    broken = report(0, 2)
    assert "whole" in str(report_fault(Report(broken.header, broken.rows[:3]), verdict, GROUPS, SIZE))
    twice = tuple(msgspec.structs.replace(row, sample=0) for row in broken.rows)
    assert "whole" in str(report_fault(Report(broken.header, twice), verdict, GROUPS, SIZE))
