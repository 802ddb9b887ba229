"""What a relay does for whom."""

import pytest

from node.network.circuit.rules import RelayLimits, RelayRules, RelayStatus
from protocol.identity import Address

ONE, TWO, THREE, STRANGER = (Address(f"0x{number:040x}") for number in range(1, 5))
LIMITS = RelayLimits(reservations=2, circuits=3, circuits_each=2, lease=60.0, rate=1000.0, rate_each=100.0, burst=100.0)


def _rules(limits: RelayLimits = LIMITS, *members: Address) -> RelayRules:
    rules = RelayRules(limits, lambda address: address in (members or (ONE, TWO, THREE)))
    rules.offered = True
    return rules


def test_nothing_is_reserved_where_no_relay_is_offered() -> None:
    rules = _rules()
    rules.offered = False
    assert rules.reserve(ONE, 0.0) is RelayStatus.RESERVATION_REFUSED


def test_only_members_reserve_call_and_are_called() -> None:
    rules = _rules()
    assert rules.reserve(STRANGER, 0.0) is RelayStatus.PERMISSION_DENIED
    assert rules.reserve(ONE, 0.0) is RelayStatus.OK
    assert rules.open(STRANGER, ONE, 0.0) is RelayStatus.PERMISSION_DENIED
    assert rules.open(ONE, STRANGER, 0.0) is RelayStatus.PERMISSION_DENIED


def test_reservations_are_few_and_run_out_unless_renewed() -> None:
    rules = _rules()
    assert [rules.reserve(each, 0.0) for each in (ONE, TWO)] == [RelayStatus.OK, RelayStatus.OK]
    assert rules.reserve(THREE, 0.0) is RelayStatus.RESOURCE_LIMIT_EXCEEDED
    assert rules.reserve(ONE, 50.0) is RelayStatus.OK
    assert rules.reserve(THREE, 61.0) is RelayStatus.OK
    assert rules.open(THREE, ONE, 61.0) is RelayStatus.OK
    assert rules.open(ONE, TWO, 61.0) is RelayStatus.NO_RESERVATION


def test_who_is_gone_is_not_called() -> None:
    rules = _rules()
    rules.reserve(ONE, 0.0)
    rules.forget(ONE)
    assert rules.open(TWO, ONE, 1.0) is RelayStatus.NO_RESERVATION


def test_circuits_of_one_member_are_bounded_at_either_end_and_freed() -> None:
    rules = _rules()
    rules.reserve(ONE, 0.0)
    rules.reserve(TWO, 0.0)
    assert [rules.open(TWO, ONE, 0.0), rules.open(THREE, ONE, 0.0)] == [RelayStatus.OK, RelayStatus.OK]
    assert rules.open(ONE, TWO, 0.0) is RelayStatus.RESOURCE_LIMIT_EXCEEDED
    rules.close(THREE, ONE)
    assert rules.open(ONE, TWO, 0.0) is RelayStatus.OK
    assert rules.circuits == 2


def test_circuits_of_all_are_bounded() -> None:
    rules = _rules(RelayLimits(circuits=1, circuits_each=9))
    rules.reserve(ONE, 0.0)
    assert rules.open(TWO, ONE, 0.0) is RelayStatus.OK
    assert rules.open(THREE, ONE, 0.0) is RelayStatus.RESOURCE_LIMIT_EXCEEDED


@pytest.mark.parametrize(("size", "seconds"), [(100, 0.0), (300, 2.0)])
def test_a_member_waits_for_the_bytes_beyond_its_rate(size: int, seconds: float) -> None:
    rules = _rules()
    rules.reserve(ONE, 0.0)
    rules.open(TWO, ONE, 0.0)
    assert rules.pay(TWO, ONE, size, 0.0) == pytest.approx(seconds)


def test_all_members_together_wait_beyond_the_rate_of_all() -> None:
    rules = _rules(RelayLimits(rate=100.0, rate_each=1e9, burst=100.0))
    rules.reserve(ONE, 0.0)
    rules.open(TWO, ONE, 0.0)
    rules.open(THREE, ONE, 0.0)
    assert rules.pay(TWO, ONE, 100, 0.0) == 0.0
    assert rules.pay(THREE, ONE, 100, 0.0) == pytest.approx(1.0)
