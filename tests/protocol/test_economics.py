import math

import pytest

from protocol.audit import AuditSpec
from protocol.economics import EconomicTerms, balance, break_even

TERMS = EconomicTerms(reward_per_unit=10, slash=1_000_000, units_per_window=1000, groups_per_window=290)


def test_the_break_even_is_that_of_the_formula() -> None:
    assert break_even(10, 0.1) == pytest.approx(90)  # S >= 9 g at q = 0.1
    assert break_even(10, 1.0) == 0
    assert break_even(10, 0.0) == math.inf
    with pytest.raises(ValueError, match="no probability"):
        break_even(1, 1.5)


def test_a_cheat_is_worth_it_only_where_nobody_looks() -> None:
    looked, unseen = balance(TERMS, 0.1, AuditSpec()), balance(TERMS, 0.0, AuditSpec())
    assert looked.honest_pays and looked.expected < 0
    assert not unseen.honest_pays and unseen.expected == unseen.gain == 1000
    assert unseen.break_even == -1 and unseen.windows_to_detection == math.inf


def test_honesty_pays_exactly_from_the_break_even_on() -> None:
    at = balance(TERMS, 0.02, AuditSpec())
    pay = TERMS.units_per_window * TERMS.reward_per_unit
    stake = at.break_even - pay
    for slash, pays in ((stake + 2, True), (stake - 2, False)):
        terms = EconomicTerms(
            reward_per_unit=TERMS.reward_per_unit,
            slash=slash,
            units_per_window=TERMS.units_per_window,
            groups_per_window=TERMS.groups_per_window,
        )
        assert (balance(terms, 0.02, AuditSpec()).expected <= 0.5) == pays


def test_pay_alone_keeps_a_tenth_of_cheating_unprofitable() -> None:
    only_pay = EconomicTerms(reward_per_unit=10, slash=0, units_per_window=1000, groups_per_window=290)
    assert balance(only_pay, 0.0981, AuditSpec()).honest_pays
