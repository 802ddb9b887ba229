import msgspec
import pytest

from protocol.budgets import (
    draw_targets,
    highest_capacity,
    limits,
    output_limit,
    shaped,
    target_in_evaluation,
    task_reward,
    told,
)
from protocol.identity import address_from_bytes
from protocol.run import EnvironmentSpec, RolloutSpec, RunError, RunSpec, decode_run, encode_run
from protocol.sections import Alarms, EnvironmentPart, Filters, LengthBudget, Requirement, Requirements

NODE = address_from_bytes(b"\x07" * 20)
ROOT = b"\x01" * 32
BUDGET = LengthBudget(targets=(10, 20, 40), alpha=0.01)
RUN = RunSpec(
    name="lengths",
    environment=EnvironmentSpec(name="sort"),
    rollout=RolloutSpec(prompts_per_file=64, prompts_per_step=64, max_output_tokens=50),
    length_budget=BUDGET,
)


def test_a_class_bounds_the_targets_and_reaches_all_of_its_own() -> None:
    assert highest_capacity(RUN) == 2
    for capacity, allowed in ((0, {10}), (1, {10, 20}), (2, {10, 20, 40})):
        assert set(draw_targets(RUN, ROOT, NODE, 0, capacity)) == allowed


def test_targets_follow_from_the_draw() -> None:
    drawn = draw_targets(RUN, ROOT, NODE, 3, 2)
    assert drawn == draw_targets(RUN, ROOT, NODE, 3, 2) and len(drawn) == 64
    others = [(b"\x02" * 32, NODE, 3), (ROOT, address_from_bytes(b"\x08" * 20), 3), (ROOT, NODE, 4)]
    assert all(draw_targets(RUN, root, node, index, 2) != drawn for root, node, index in others)


@pytest.mark.parametrize("capacity", [-1, 3, 1 << 70])
def test_a_class_that_the_run_does_not_have_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match="capacity class"):
        draw_targets(RUN, ROOT, NODE, 0, capacity)


def test_without_budgets_there_is_one_class_and_no_target() -> None:
    plain = msgspec.structs.replace(RUN, length_budget=LengthBudget())
    assert (highest_capacity(plain), draw_targets(plain, ROOT, NODE, 0, 0)) == (0, ())
    assert limits(plain, ()) == [50] * 64
    with pytest.raises(ValueError, match="capacity class 1"):
        draw_targets(plain, ROOT, NODE, 0, 1)


@pytest.mark.parametrize(
    ("mode", "length", "expected"),
    [
        ("exact", 20, 1.0),
        ("exact", 30, 0.9),
        ("exact", 5, 0.85),
        ("max", 20, 0.5),
        ("max", 10, 0.6),
        ("max", 75, 0.0),
        ("clip", 20, 1.0),
        ("clip", 21, 0.0),
    ],
)
def test_rewards_are_shaped_as_published(mode: str, length: int, expected: float) -> None:
    budget = msgspec.structs.replace(BUDGET, mode=mode)
    assert shaped(budget, 1.0, length, 20) == pytest.approx(expected)


def test_the_task_reward_can_be_told_from_the_shaped_one() -> None:
    for task in (0.0, 1.0):
        assert task_reward(BUDGET, shaped(BUDGET, task, 33, 20), 33, 20) == task
    assert task_reward(BUDGET, 0.7, 33, None) == 0.7
    assert task_reward(msgspec.structs.replace(BUDGET, mode="max"), 0.4, 10, 20) == 1.0


def test_the_model_is_told_its_budget_where_the_run_says() -> None:
    assert told(BUDGET, "1+1=", 20) == "1+1= Think for 20 tokens before giving a response."
    before = msgspec.structs.replace(BUDGET, place="before", text="{target}!")
    assert told(before, "{target}", 20) == "20! {target}"


def test_an_evaluation_asks_for_every_target_in_turn() -> None:
    assert [target_in_evaluation(RUN, number) for number in range(4)] == [10, 20, 40, 10]
    assert target_in_evaluation(msgspec.structs.replace(RUN, length_budget=LengthBudget()), 1) is None


def test_a_cut_ends_answers_in_proportion_to_their_target() -> None:
    cut = msgspec.structs.replace(RUN, length_budget=msgspec.structs.replace(BUDGET, cut=1.5))
    assert [output_limit(cut, target) for target in (1, 10, 20, 40, None)] == [2, 15, 30, 50, 50]
    assert output_limit(RUN, 10) == 50


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"length_budget": LengthBudget(targets=(20, 10))}, "length_budget.targets"),
        ({"length_budget": LengthBudget(targets=(0,))}, "length_budget.targets"),
        ({"length_budget": LengthBudget(text="short!")}, "length_budget.text"),
        ({"length_budget": LengthBudget(alpha=float("nan"))}, "length_budget.alpha"),
        ({"filters": Filters(refill=0.5)}, "filters.refill"),
        ({"requirements": Requirements(worker=Requirement(cores=-1))}, "requirements.worker"),
        ({"alarms": Alarms(entropy_rise=0.5)}, "alarms.entropy_rise"),
        ({"environment": EnvironmentSpec(name="mix")}, "environments"),
        ({"environment": EnvironmentSpec(name="sort", parts=(EnvironmentPart(name="sort"),))}, "environments"),
        (
            {"environment": EnvironmentSpec(name="mix", parts=(EnvironmentPart(name="sort", weight=0),))},
            "environments.weight",
        ),
        (
            {"environment": EnvironmentSpec(name="mix", parts=(EnvironmentPart(name="a"), EnvironmentPart(name="a")))},
            "environments.label",
        ),
    ],
)
def test_a_section_that_makes_no_sense_names_its_field(change: dict, field: str) -> None:
    with pytest.raises(RunError, match=field):
        msgspec.structs.replace(RUN, **change).check()


def test_a_run_without_sections_of_an_older_program_reads_with_their_defaults() -> None:
    plain = msgspec.json.decode(encode_run(RUN))
    for section in ("length_budget", "filters", "requirements", "budget", "alarms"):
        del plain[section]
    assert decode_run(msgspec.json.encode(plain)).filters == Filters()
