import math

import msgspec
import pytest

from node.recipe.join import join
from protocol.budgets import draw_targets
from protocol.errors import ProtocolError
from protocol.identity import address_from_bytes
from protocol.rollout import ReportHeader, ReportRow, RolloutBatch, RolloutHeader, SampleRow, ValidatorReport
from protocol.run import EnvironmentSpec, RolloutSpec, RunSpec
from protocol.sections import EnvironmentPart, LengthBudget

NODE = address_from_bytes(b"\x05" * 20)
POLICY = b"\x09" * 32
ROOT = b"\x03" * 32
RUN = RunSpec(
    name="t",
    environment=EnvironmentSpec(name="mix", parts=(EnvironmentPart(name="sort"), EnvironmentPart(name="reverse"))),
    rollout=RolloutSpec(group_size=2, prompts_per_file=2, prompts_per_step=2),
    length_budget=LengthBudget(targets=(4, 8), alpha=0.05),
)
BATCH = RolloutBatch(
    RolloutHeader(1, NODE, POLICY.hex(), 6, capacity=1),
    tuple(
        SampleRow(group, sample, f"{('sort', 'reverse')[group]}/p{group}", [5, 6], [7] * (sample + 2), True, b"")
        for group in range(2)
        for sample in range(2)
    ),
)
REPORT = ValidatorReport(
    ReportHeader(ROOT.hex(), POLICY.hex()),
    tuple(ReportRow(row.group, row.sample, 0.5, [-0.1] * len(row.output)) for row in BATCH.rows),
)


def altered(place: int, **change: object) -> ValidatorReport:
    rows = list(REPORT.rows)
    rows[place] = msgspec.structs.replace(rows[place], **change)
    return ValidatorReport(REPORT.header, tuple(rows))


def test_groups_carry_label_target_and_what_the_learner_needs() -> None:
    groups = join(RUN, ROOT, 4, BATCH, REPORT)
    targets = draw_targets(RUN, POLICY, NODE, 6, 1)
    assert [group.label for group in groups] == ["sort", "reverse"]
    assert [group.key for group in groups] == [(ROOT, 0), (ROOT, 1)]
    assert [sample.target for group in groups for sample in group.samples] == [targets[0]] * 2 + [targets[1]] * 2
    row = groups[1].rows[1]
    assert (row.policy_step, row.output, row.reward, row.environment) == (4, [7, 7, 7], 0.5, "reverse")
    assert row.task_reward == pytest.approx(0.5 + 0.05 * abs(3 - targets[1]))
    assert groups[0].rows[0].group_key == groups[0].rows[1].group_key != row.group_key


def test_length_terms_and_log_probs_are_about_sampled_tokens() -> None:
    """A row in turns is worth what the same answer in one turn is, whatever the environment said in it."""
    first, *others = BATCH.rows
    turns = msgspec.structs.replace(first, output=[7, 8, 8, 8, 7], segments=[1, 3, 1])
    (plain, *_), (played, *_) = (
        join(RUN, ROOT, 4, RolloutBatch(BATCH.header, (row, *others)), REPORT) for row in (first, turns)
    )
    assert played.samples == plain.samples
    assert played.rows[0].segments == [1, 3, 1] and played.rows[0].task_reward == plain.rows[0].task_reward
    for segments in ([1, 3], [1, 3, 2], [5]):
        broken = msgspec.structs.replace(turns, segments=segments)
        with pytest.raises(ProtocolError, match="segments"):
            join(RUN, ROOT, 4, RolloutBatch(BATCH.header, (broken, *others)), REPORT)


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (ValidatorReport(ReportHeader("00" * 32, POLICY.hex()), REPORT.rows), "not about this file"),
        (ValidatorReport(ReportHeader(ROOT.hex(), "00" * 32), REPORT.rows), "not about this file"),
        (ValidatorReport(REPORT.header, REPORT.rows[:3]), "not whole"),
        (ValidatorReport(REPORT.header, (*REPORT.rows, REPORT.rows[0])), "twice"),
        (altered(3, group=7), "not the file's"),
        (altered(1, logprobs=[-0.1]), "1 log-probs for 3 tokens"),
        (altered(1, logprobs=[-0.1, math.nan, -0.1]), "no such number"),
        (altered(1, logprobs=[-0.1, -math.inf, -0.1]), "no such number"),
        (altered(1, logprobs=[-0.1, 0.5, -0.1]), "no such number"),
        (altered(2, reward=math.nan), "no such number"),
    ],
)
def test_a_report_that_cannot_be_trained_on_is_refused(report: ValidatorReport, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        join(RUN, ROOT, 4, BATCH, report)


def test_groups_that_nobody_recomputed_are_left_out() -> None:
    (group,) = join(RUN, ROOT, 4, BATCH, ValidatorReport(REPORT.header, REPORT.rows[2:]))
    assert group.key == (ROOT, 1) and len(group.rows) == 2


def test_an_empty_completion_is_refused() -> None:
    rows = (msgspec.structs.replace(BATCH.rows[0], output=[]), *BATCH.rows[1:])
    with pytest.raises(ProtocolError, match="empty"):
        join(RUN, ROOT, 4, RolloutBatch(BATCH.header, rows), REPORT)


def test_a_capacity_class_that_is_none_is_refused() -> None:
    header = msgspec.structs.replace(BATCH.header, capacity=2)
    with pytest.raises(ProtocolError, match="capacity class"):
        join(RUN, ROOT, 4, RolloutBatch(header, BATCH.rows), REPORT)
