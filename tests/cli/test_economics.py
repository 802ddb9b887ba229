"""`contract economics`: the numbers follow from the run and add up."""

import json
from typing import Any

import pytest

from cli.main import main


def ask(capsys: Any, *flags: str) -> dict[str, Any]:
    assert main(["contract", "economics", "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_default_run_makes_honesty_pay_with_stake_and_without(capsys: Any) -> None:
    told = ask(capsys)
    assert told["run"] == "sort"
    assert told["groups_per_window"] == 192  # one file of 24 groups per policy, 8 policies
    assert told["objective_fault"]["detection"] >= 0.95
    assert told["objective_fault"]["honest_pays"] and told["statistical_fault"]["honest_pays"]
    assert (
        int(told["objective_fault"]["penalty_wei"]) - int(told["pay_wei"]) == 100 * 10**18
    )  # what one node's provider bonds
    gain, q = int(told["objective_fault"]["gain_wei"]), told["objective_fault"]["detection"]
    assert int(told["objective_fault"]["break_even_wei"]) == pytest.approx(gain * (1 - q) / q, rel=1e-6)


def test_where_nobody_looks_cheating_pays(capsys: Any) -> None:
    told = ask(capsys, "--checked", "0")
    assert not told["objective_fault"]["honest_pays"]
    assert told["objective_fault"]["break_even_wei"] is None


def test_a_slash_takes_no_more_than_each_node_bonds_for_itself(capsys: Any) -> None:
    assert int(ask(capsys, "--nodes", "10")["stake_at_risk_wei"]) == 100 * 10**18
    assert int(ask(capsys, "--nodes", "10", "--bonded", "200")["stake_at_risk_wei"]) == 20 * 10**18
    assert int(ask(capsys, "--bonded", "0")["stake_at_risk_wei"]) == 0


def test_a_workers_unit_costs_the_pool_what_all_posts_earn(capsys: Any) -> None:
    told = ask(capsys, "--checked", "0.9", "--validators", "4", "--workers", "3")
    workers, judging, training = 3 * int(told["pay_wei"]), int(told["validator_pay_wei"]), int(told["trainer_pay_wei"])
    assert judging == pytest.approx(workers * 0.25 * 0.5), "half of the groups are paid for, however many are checked"
    assert told["pool_units_per_unit"] == pytest.approx((workers + 4 * judging + training) / workers)
    assert int(told["gas_per_day_wei"]) == told["gas_per_day"] * 5_000_000


def test_a_wrong_slash_costs_its_carrier_a_quarter_of_it_however_many_signed(capsys: Any) -> None:
    """As `StakeVault.freeze` reckons it, with what `contract deploy` sets (ADR 106)."""
    assert int(ask(capsys, "--validators", "4")["wrong_slash_wei"]) == 25 * 10**18
    assert int(ask(capsys, "--validators", "1")["wrong_slash_wei"]) == 25 * 10**18
    assert int(ask(capsys, "--slash", "2")["wrong_slash_wei"]) == 10**18, "a bond is a token at least"


def test_whoever_carries_tables_pays_for_them_besides(capsys: Any) -> None:
    alone, carrier = ask(capsys)["gas_per_day"], ask(capsys, "--epochs", "24")["gas_per_day"]
    assert carrier - alone == pytest.approx(24 * 128_727, rel=0.01), "what benchmarks.gas measures of two of three"


def test_people_read_a_table(capsys: Any) -> None:
    assert main(["contract", "economics", "--slash", "5"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "honesty pays" in told and "a wrong slash costs whoever carries it 1.25 tokens, and no judge's stake" in told
    assert "19,572 (98 gwei of coin), a lease and a claim a week, out of its own pocket" in told
