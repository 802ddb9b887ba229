import math

import msgspec
import numpy as np
import pytest

from protocol.checks import Reason
from protocol.disputes import (
    UNDECIDED,
    Conflict,
    DisputeRuling,
    asked_alike,
    asked_apart,
    compare,
    group_means,
    resolve,
    values_complete,
)
from protocol.identity import NodeKey
from protocol.lots import pack_groups
from protocol.messages import DIGEST, NO_PROMPTS, VerdictIssued
from protocol.rollout import ReportHeader, ReportRow, ValidatorReport
from protocol.statements import Verdict, VerdictOutcome
from protocol.values import mean_logprobs, prompts_hash, report_fault, reward_tag, reward_tags

GROUPS, SIZE, TOLERANCE = 4, 2, 0.05
WORKER, A, B, C = (NodeKey(bytes([n]) * 32).address for n in (1, 2, 3, 4))
REWARDS = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0]


def said(
    outcome: VerdictOutcome = VerdictOutcome.ACCEPT,
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


ACCUSED = said(VerdictOutcome.SLASH, Reason.WRONG_DRAW, ())
SUSPICION = said(VerdictOutcome.REJECT, Reason.ACTIVATIONS, (1, 2), group=2)


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
        (said(VerdictOutcome.REJECT, Reason.STALE, ()), None),
        (said(VerdictOutcome.REJECT, Reason.UNAVAILABLE, ()), None),
        (said(VerdictOutcome.REJECT, Reason.SUSPECTED), None),
        (said(VerdictOutcome.REJECT, Reason.SAMPLING, group=-1), Conflict.CONTRADICTION),
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
    assert kind(ACCUSED, said(VerdictOutcome.SLASH, Reason.UNITS, ())) is None


FORGED = said(VerdictOutcome.SLASH, Reason.FORGED_TURN, (), group=2, rewards=b"")
UNABLE = said(rewards=reward_tags(REWARDS, SIZE, {2}))


def test_who_could_not_replay_a_turn_contradicts_nobody_who_could() -> None:
    assert kind(said(), FORGED) is Conflict.CONTRADICTION
    assert kind(UNABLE, FORGED) is Conflict.UNSEEN
    assert kind(said(rewards=reward_tags(REWARDS, SIZE, {1})), FORGED) is Conflict.CONTRADICTION, "another group"
    unable_to_accept = said(VerdictOutcome.REJECT, Reason.SAMPLING, group=0, rewards=UNABLE.rewards)
    assert kind(unable_to_accept, FORGED) is Conflict.UNSEEN
    assert kind(SUSPICION, FORGED) is Conflict.CONTRADICTION
    assert kind(ACCUSED, FORGED) is None and kind(FORGED, FORGED) is None


def test_who_could_not_replay_a_turn_takes_no_side_and_is_never_wrong() -> None:
    found = resolve({A: UNABLE}, {A: UNABLE, B: FORGED, C: FORGED}, 3, GROUPS, TOLERANCE)
    assert found is not None and found.ruling is DisputeRuling.REJECTED and not found.wrong
    liar = resolve({A: UNABLE, C: said()}, {A: UNABLE, B: FORGED, C: said()}, 3, GROUPS, TOLERANCE)
    assert liar is None, "two that differ, and one that cannot tell"


def test_the_majority_of_the_rechecks_decides_and_names_who_was_wrong() -> None:
    first = {A: ACCUSED, B: said()}
    ruling = resolve(first, {A: ACCUSED, B: said(), C: said()}, 3, GROUPS, TOLERANCE)
    assert ruling is not None
    assert ruling.ruling is DisputeRuling.ACCEPTED
    assert set(ruling.wrong) == {A}
    assert ruling.wrong[A].objective


def test_who_corrects_itself_was_still_wrong_and_who_did_not_look_was_not() -> None:
    full = said(VerdictOutcome.REJECT, Reason.ACTIVATIONS, (0, 1, 2, 3), group=2)
    ruling = resolve({A: said(), B: said(groups=(0,)), C: full}, {A: full, B: full, C: full}, 3, GROUPS, TOLERANCE)
    assert ruling is not None
    assert ruling.ruling is DisputeRuling.REJECTED
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


def report(*groups: int, reward: float | None = None, logprob: float = -1.0) -> ValidatorReport:
    rows = tuple(
        ReportRow(g, s, REWARDS[SIZE * g + s] if reward is None else reward, [logprob - g] * 3)
        for g in groups
        for s in range(SIZE)
    )
    return ValidatorReport(ReportHeader("", ""), rows)


def test_a_report_must_hold_what_its_verdict_says() -> None:
    verdict = said(groups=(0, 2))
    assert report_fault(report(0, 2), verdict, GROUPS, SIZE) is None
    assert report_fault(report(2), verdict, GROUPS, SIZE) is None  # group 0 was not scored in time
    assert "does not" in str(report_fault(report(0, 1), verdict, GROUPS, SIZE))
    assert "rewards" in str(report_fault(report(0, reward=0.5), verdict, GROUPS, SIZE))
    assert "log-probabilities" in str(report_fault(report(0, logprob=-2.0), verdict, GROUPS, SIZE))
    opinion = said(groups=(0, 2), rewards=reward_tags(REWARDS, SIZE, {2}))
    unknown = ValidatorReport(report().header, (*report(0).rows, *report(2, reward=math.nan).rows))
    assert report_fault(unknown, opinion, GROUPS, SIZE) is None  # judges are to say it
    assert "rewards" in str(report_fault(unknown, verdict, GROUPS, SIZE))
    assert "rewards" in str(report_fault(report(0, 2), opinion, GROUPS, SIZE))
    broken = report(0, 2)
    assert "whole" in str(report_fault(ValidatorReport(broken.header, broken.rows[:3]), verdict, GROUPS, SIZE))
    twice = tuple(msgspec.structs.replace(row, sample=0) for row in broken.rows)
    assert "whole" in str(report_fault(ValidatorReport(broken.header, twice), verdict, GROUPS, SIZE))


# Prompts that two validators compute differently

ONE, TWO = prompts_hash([[1, 2], [3]]), prompts_hash([[1], [2, 3]])
OF_ONE, OF_TWO, OF_NONE = said(prompts=ONE), said(prompts=TWO), said()
WRONG = {prompts: said(VerdictOutcome.SLASH, Reason.WRONG_PROMPT, (), prompts=prompts) for prompts in (ONE, TWO)}
UNITS = {prompts: said(VerdictOutcome.SLASH, Reason.UNITS, (), prompts=prompts) for prompts in (ONE, TWO)}


def test_a_hash_of_prompts_tells_where_each_ends() -> None:
    hashes = {prompts_hash(one) for one in ([[1, 2], [3]], [[1], [2, 3]], [[1, 2, 3]], [[], [1, 2, 3]], [[3], [1, 2]])}
    assert len(hashes) == 5 and {len(one) for one in hashes} == {len(NO_PROMPTS)}
    assert prompts_hash([[1, 2], [3]]).hex()[:16] == "9b83f0e7f9386585"


def test_words_about_different_prompts_contradict_nobody() -> None:
    others = said(prompts=TWO, rewards=reward_tags(REWARDS[::-1], SIZE, ()))
    assert kind(OF_ONE, WRONG[TWO]) is None and kind(OF_ONE, others) is None
    # The controls: of the same prompts, of none, and of a fault that is one with any prompts.
    assert kind(OF_ONE, WRONG[ONE]) is Conflict.CONTRADICTION
    assert kind(OF_NONE, WRONG[TWO]) is Conflict.CONTRADICTION
    assert kind(OF_ONE, UNITS[TWO]) is Conflict.CONTRADICTION


@pytest.mark.parametrize(
    ("votes", "quorum", "counting"),
    [
        ([OF_ONE, OF_ONE], 2, [0, 1]),
        ([OF_ONE, WRONG[TWO]], 2, []),
        ([OF_ONE, WRONG[TWO]], 1, []),  # a tie
        ([OF_ONE, OF_ONE, WRONG[TWO]], 2, [0, 1]),
        ([OF_ONE, OF_ONE, WRONG[TWO]], 3, []),
        ([WRONG[ONE], WRONG[TWO], UNITS[TWO]], 2, [2]),
        ([WRONG[ONE], WRONG[ONE], OF_TWO], 2, []),
        ([WRONG[ONE], OF_TWO, OF_TWO], 2, [1, 2]),
        ([OF_ONE, WRONG[TWO], OF_NONE], 2, [2]),
        ([OF_NONE, ACCUSED], 2, [0, 1]),
    ],
)
def test_those_count_together_who_were_to_see_the_same(
    votes: list[VerdictIssued], quorum: int, counting: list[int]
) -> None:
    names = [NodeKey(bytes([n + 1]) * 32).address for n in range(len(votes))]
    found = asked_alike(dict(zip(names, votes, strict=True)), quorum)
    assert list(found) == [names[n] for n in counting]
    assert asked_apart(votes) == (len(counting) < len(votes))


def test_a_second_look_at_other_prompts_takes_no_side() -> None:
    rechecks = {A: WRONG[ONE], B: WRONG[TWO], C: OF_TWO}
    result = resolve({}, rechecks, 3, GROUPS, TOLERANCE)
    assert result is None
