"""What the page is told of a status: chosen fields, cleaned of what members wrote into them, nothing of the owner's."""

import json
from typing import Any

import pytest

from node.web.page.model import Model, SpreadBook, quantiles
from node.web.page.plain import Steady, number, table, words
from node.web.page.sections import DECISION_COLUMNS, MEMBER_COLUMNS, RECENT, decisions, members, sections
from tests.swarms import address, status, typed

KEPT = 12

HOSTILE = "<img src=x onerror=alert(1)>\u202e\x1b[31m\n\u0000" + "A" * 500


def ago(_: str, seconds: Any) -> int:
    return round(1e9 - seconds)


def test_nothing_that_only_the_owner_should_see_is_told() -> None:
    told = status()
    told["last_error"] = {"what": "no RPC", "why": "https://rpc.example.org/KEY-OF-MINE failed", "remedy": "wait"}
    told["node"] |= {"contacts": ["/ip4/203.0.113.7/tcp/4001"], "pid": 4711}
    told["events"] = [
        {"at": 1.0, "name": "trouble", "text": "pay could not be settled: https://rpc.example.org/KEY-OF-MINE"},
        {"at": 2.0, "name": "joined", "text": "joined pool 1, reachable at /ip4/203.0.113.7/tcp/4001"},
        {"at": 3.0, "name": "do", "text": "contract provider register --key /secret/place/provider"},
        {"at": 4.0, "name": "claimed", "text": "3.5 tokens were paid"},
    ]
    text = json.dumps(sections(typed(told), ago))
    assert "no RPC" in text and "3.5 tokens" in text
    assert [one["name"] for one in sections(typed(told), ago)["events"]] == ["trouble", "joined", "claimed"]
    for secret in ("KEY-OF-MINE", "203.0.113.7", "/secret/place", "4711"):
        assert secret not in text


def test_what_members_wrote_is_short_and_visible() -> None:
    told = status()
    told["swarm"][1] |= {"role": HOSTILE, "activity": HOSTILE, "tokens_per_second": float("nan")}
    told["contributions"]["recent"][0]["detail"] = HOSTILE
    row = dict(zip(MEMBER_COLUMNS, next(members(typed(told), ago))[told["swarm"][1]["address"]], strict=True))
    shown = decisions(typed(told))[told["contributions"]["recent"][0]["number"] % RECENT]
    detail = dict(zip(DECISION_COLUMNS, shown, strict=True))["detail"]
    for text in (row["role"], row["activity"], detail):
        assert text.startswith("<img") and len(text) <= 200 and text.isprintable()
    assert row["rate"] == 0


def test_what_the_trainer_made_of_files_is_told_of_whom_it_is_known() -> None:
    told = status()
    first, second, third = (row["address"] for row in told["swarm"][:3])
    told["uses"] = {"workers": {first: {"used": 7, "left_out": 2}, second: {}}}
    rows = next(members(typed(told), ago))
    shown = [dict(zip(MEMBER_COLUMNS, rows[one], strict=True)) for one in (first, second, third)]
    assert [(one["used"], one["left_out"]) for one in shown] == [(7, 2), (0, 0), (None, None)]


def test_memory_that_ran_out_is_told_in_words() -> None:
    told, why = status(), "memory ran out in the backward pass of step 3: passes of at most 4,096 tokens since"
    assert sections(typed(told), ago)["training"]["memory"] == ""
    told["training"]["memory"] = why
    assert sections(typed(told), ago)["training"]["memory"] == why


def test_rounds_of_a_run_that_pretrains_are_told_cleaned_and_of_others_nothing() -> None:
    told = status()
    assert sections(typed(told), ago)["rounds"] is None
    peer = {"address": HOSTILE, "replica_id": 3, "round": 4, "in": True, "equal": None}
    told["pretraining"] = {
        "round": 4, "rounds": 20, "loss": 2.5, "bits_per_parameter": 4.16, "contributions": 3,
        "outer_states": {"equal": 5, "of": 6}, "peers": [peer], "losses": [(0, 3.5), (1, float("nan")), (2, 2.5)],
    }  # fmt: skip
    found = sections(typed(told), ago)["rounds"]
    assert found["outer_states"] == {"equal": 5, "of": 6} and found["losses"] == [(0, 3.5), (2, 2.5)]
    assert found["bits_per_parameter"] == 4.16 and found["eval_loss"] is None
    (one,) = found["peers"]
    assert len(one["address"]) <= 42 and one["address"].isprintable() and set(one) == {
        "address", "replica_id", "round", "in", "equal"
    }  # fmt: skip


@pytest.mark.parametrize("little", [{}, {"training": {}, "work": None, "pay": {"earned_wei": "x"}, "run": None}])
def test_a_node_that_knows_little_shows_little(little: dict[str, object]) -> None:
    model = Model()
    for _ in model.absorb(typed(little), 1e9):
        continue
    assert model.feed.version


def test_text_and_numbers_are_what_they_say() -> None:
    assert words("a\tb\u2028c\ud800") == "a b c "
    assert (words(7), words("x" * 9, 4)) == ("", "xxx…")
    assert [number(one) for one in (1, True, 0.123456, float("inf"), "7", None)] == [1, None, 0.1235, None, None, None]
    assert table({"a": 1, "b": "c", "d": None}) == {"a": 1} and len(table({str(i): i for i in range(99)})) == 32


def test_a_moment_that_seems_to_move_a_little_has_not() -> None:
    steady = Steady()
    assert [steady("x", 100.0 + i, i + jitter) for i, jitter in enumerate((0, 0.6, -0.6, 0.4))] == [100] * 4
    assert steady("x", 110.0, 2.0) == 108 and steady("y", 110.0, None) is None


def test_a_policy_spreads_as_members_tell_of_it() -> None:
    book = SpreadBook()
    book.feed(100.0, [("t", 4), ("a", 4), ("b", 3)])
    book.feed(110.0, [("t", 5), ("a", 4), ("b", 3)])
    book.feed(112.0, [("t", 5), ("a", 5), ("b", 3)])
    book.feed(115.0, [("t", 7), ("a", 5), ("b", 6), ("new", 7)])
    rows = book.rows(4)
    assert rows[5] == (5, 110.0, 3, 4, [0.0, 2.0, 5.0])
    assert rows[7][2:] == (1, 4, [0.0])  # the newcomer may have had it for long


def test_of_many_policies_the_newest_are_kept_and_of_many_members_quantiles() -> None:
    book = SpreadBook()
    for step in range(3 * KEPT):
        book.feed(float(step), [(address(n), step) for n in range(60)])
    rows = book.rows(60)
    assert sorted(rows) == list(range(2 * KEPT, 3 * KEPT)) and all(len(row[4]) == 16 for row in rows.values())
    assert quantiles([float(i) for i in range(1000)])[::15] == [0.0, 999.0]
