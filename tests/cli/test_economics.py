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
        int(told["objective_fault"]["penalty_wei"]) - int(told["pay_wei"]) == 20 * 10**18
    )  # what one node's provider bonds
    gain, q = int(told["objective_fault"]["gain_wei"]), told["objective_fault"]["detection"]
    assert int(told["objective_fault"]["break_even_wei"]) == pytest.approx(gain * (1 - q) / q, rel=1e-6)


def test_where_nobody_looks_cheating_pays(capsys: Any) -> None:
    told = ask(capsys, "--checked", "0")
    assert not told["objective_fault"]["honest_pays"]
    assert told["objective_fault"]["break_even_wei"] is None


def test_a_slash_takes_no_more_than_is_bonded_and_nodes_share_one_bond(capsys: Any) -> None:
    assert int(ask(capsys, "--nodes", "10")["stake_at_risk_wei"]) == 11 * 10**18
    assert int(ask(capsys, "--nodes", "10", "--bonded", "2000")["stake_at_risk_wei"]) == 100 * 10**18
    assert int(ask(capsys, "--bonded", "0")["stake_at_risk_wei"]) == 0


def test_a_workers_unit_costs_the_pool_what_all_posts_earn(capsys: Any) -> None:
    told = ask(capsys, "--checked", "0.9", "--validators", "4", "--workers", "3")
    workers, judging, training = 3 * int(told["pay_wei"]), int(told["validator_pay_wei"]), int(told["trainer_pay_wei"])
    assert judging == pytest.approx(workers * 0.25 * 0.5), "half of the groups are paid for, however many are checked"
    assert told["pool_units_per_unit"] == pytest.approx((workers + 4 * judging + training) / workers)
    assert int(told["gas_per_day_wei"]) == told["gas_per_day"] * 5_000_000


def test_people_read_a_table(capsys: Any) -> None:
    assert main(["contract", "economics", "--slash", "5"]) == 0
    assert "honesty pays" in capsys.readouterr().out
