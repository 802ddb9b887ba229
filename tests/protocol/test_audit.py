import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.audit import (
    RATE_ONE,
    UNMEASURED_SHARE,
    AuditLoad,
    AuditSpec,
    as_rate,
    as_share,
    detection_power,
    joint_share,
    last_step_of,
    needed_share,
    pledged_share,
    share_of_file,
    window_of,
)

SPEC = AuditSpec()


def test_twenty_nine_of_290_groups_see_a_cheat_in_a_tenth_of_them() -> None:
    share = needed_share(290, SPEC)
    assert math.ceil(share * 290) == 29
    assert detection_power(share, 290, SPEC) == pytest.approx(0.95)


@given(groups=st.integers(1, 5000), power=st.floats(0.01, 0.999), cheated=st.floats(0.001, 1.0))
def test_the_needed_share_gives_the_wanted_power(groups: int, power: float, cheated: float) -> None:
    spec = AuditSpec(power=power, cheated_share=cheated)
    share = as_share(as_rate(needed_share(groups, spec)))
    assert 0 < share <= 1
    assert detection_power(share, groups, spec) >= power - 1e-9


@given(each=st.floats(0.0, 1.0), validators=st.integers(1, 16))
def test_a_group_escapes_all_of_several_validators_or_is_looked_at(each: float, validators: int) -> None:
    assert joint_share([each] * validators) == pytest.approx(1 - (1 - each) ** validators)


def test_the_closest_live_peer_sees_such_a_cheat_with_less_than_a_tenth() -> None:
    """A quarter of the workers, four groups each: 8.6 %."""
    assert 0.25 * detection_power(4 / 160, 160, SPEC) < 0.1


def test_nothing_checked_is_no_power() -> None:
    assert detection_power(0.0, 100, SPEC) == 0.0
    assert detection_power(1.0, 0, SPEC) == 0.0
    assert detection_power(1.0, 1, SPEC) == 1.0


def test_windows_are_consecutive_policies() -> None:
    spec = AuditSpec(window=4)
    assert [window_of(step, spec) for step in (0, 3, 4, 7)] == [0, 0, 1, 1]
    assert last_step_of(1, spec) == 7


def test_a_validator_pledges_what_is_needed_and_no_more_than_it_can() -> None:
    needed = needed_share(200, SPEC)
    assert pledged_share(AuditLoad(arriving=10, capacity=100), 200, SPEC) == needed
    weak = pledged_share(AuditLoad(arriving=100, capacity=1), 200, SPEC)
    assert weak == pytest.approx(0.008)
    assert detection_power(weak, 200, SPEC) < SPEC.power


@pytest.mark.parametrize("load", [None, AuditLoad(arriving=0, capacity=100)])
def test_a_validator_that_has_measured_nothing_pledges_little_and_never_more_than_is_needed(load: Any) -> None:
    assert pledged_share(load, 200, SPEC) == UNMEASURED_SHARE < needed_share(200, SPEC)
    assert pledged_share(load, 100_000, SPEC) == needed_share(100_000, SPEC) < UNMEASURED_SHARE


def test_everybody_is_looked_at_while_there_is_time_then_newcomers_and_suspects_and_nobody_by_who_is_behind() -> None:
    known, busy, behind = {"verified": 1000, "suspect": False, "spec": SPEC}, 20.0, 31.0
    newcomer, suspect = {**known, "verified": SPEC.probation - 1}, {**known, "suspect": True}
    for each in (known, newcomer, suspect):
        assert share_of_file(0.1, None, **each) == share_of_file(0.1, AuditLoad(1, 5), **each) == 1.0
        assert share_of_file(0.1, AuditLoad(10, 5, behind), **each) == 0.1
    assert share_of_file(0.1, AuditLoad(10, 5, busy), **known) == 0.1
    assert share_of_file(0.1, AuditLoad(10, 5, busy), **{**known, "verified": SPEC.probation}) == 0.1
    assert share_of_file(0.1, AuditLoad(10, 5, busy), **newcomer) == 1.0
    assert share_of_file(0.1, AuditLoad(10, 5, busy), **suspect) == 1.0


def test_rates_never_round_power_away() -> None:
    assert as_rate(0.0) == 0
    assert as_rate(1e-9) == 1
    assert as_rate(1.0) == RATE_ONE
