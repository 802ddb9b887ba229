"""The pool of the planned rule, its committees, and an hour of both: each on a scale of seconds."""

from typing import Any

import msgspec
import numpy as np
import pytest
from blake3 import blake3

from benchmarks.simulation import committees, field, pool
from benchmarks.simulation.committees import DECIDE, SEALED_WITHIN, chance, drawn, sayings, shard_of, spoken
from benchmarks.simulation.evidence import HONEST, Looks
from benchmarks.simulation.hour import Hour
from benchmarks.simulation.pool import FALSE, HONESTLY, LIARS, OTHER_DRAW, RUN, Kind, Pool
from benchmarks.simulation.rule import Alarm, Rule
from protocol.identity import NodeKey

RULE = Rule()
GARBAGE = Kind("blatant", "garbage")


@pytest.fixture(scope="module")
def looks() -> Looks:
    return Looks(RUN)


def played(looks: Looks, kinds: list[Kind], policies: int, *, seed: int = 1, rule: Rule = RULE, **given: Any) -> Pool:
    fresh = given.pop("fresh", [False] * len(kinds))
    return Pool(kinds, fresh, looks, rule, seed=seed, **given).run(policies)


@pytest.mark.parametrize(("workers", "floor"), [(10, 1.0), (100, 0.2), (1_000, 0.02), (10_000, 0.005)])
def test_the_floor_is_a_number_of_looks_for_the_whole_pool_and_never_below_a_share(workers: int, floor: float) -> None:
    assert RULE.floor(8 * workers) == pytest.approx(floor)


def test_a_newcomer_is_looked_at_whole_then_less_and_a_trusted_one_at_the_floor() -> None:
    clean, whole = np.array([0.0, 24.0, 199.0, 200.0]), np.array([24, 0, 0, 0])
    assert RULE.share(clean, whole, 0.02).tolist() == pytest.approx([1.0, 0.5, 24 / 223, 0.02])
    assert RULE.share(clean, whole, 0.3).tolist() == pytest.approx([1.0, 0.5, 0.3, 0.3])
    assert RULE.kept ** (14 * 288) == pytest.approx(0.5)


def test_pay_falls_ten_times_as_fast_as_the_refused_share() -> None:
    paid = RULE.paid(np.array([80.0, 80.0, 80.0, 80.0]), np.array([0, 1, 5, 50]), np.array([0, 50, 50, 50]))
    assert paid.tolist() == pytest.approx([80.0, 64.0, 0.0, 0.0])


def test_two_refusals_ring_nothing_three_ring_for_this_batch_and_three_quiet_policies_end_it() -> None:
    alarm, known, clean = Alarm(RULE), np.array([0, 0, 24]), np.array([0, 1, 5])
    alarm.heard(0, 2, 100)
    assert alarm.since is None and alarm.trains_whole(known, clean).tolist() == [True, True, False]
    alarm.heard(1, 3, 100)
    assert alarm.since == 1 and 1.0 < alarm.factor < RULE.loudest
    assert alarm.trains_whole(known, clean).tolist() == [False, True, False]
    alarm.heard(2, 50, 100)
    assert alarm.factor == RULE.loudest
    for policy, rings in ((3, True), (4, True), (5, False)):
        alarm.heard(policy, 2, 100)
        assert (alarm.since is not None) is rings


def test_what_a_look_finds_follows_the_runs_tables(looks: Looks) -> None:
    chances = {kind: looks.chance(kind) for kind in (HONEST, "stale-1", "garbage", OTHER_DRAW)}
    assert chances == {HONEST: 0.0, "stale-1": 0.0, "garbage": 1.0, OTHER_DRAW: 1.0}
    several = [*looks.of(HONEST)[:2], looks.of("garbage")[0]]
    ratios = looks.evidence(several).log_ratios
    assert ratios["garbage"] > 2 > looks.evidence(several[:2]).log_ratios["garbage"]


def test_the_same_seed_plays_the_same_and_another_one_something_else(looks: Looks) -> None:
    kinds = [LIARS[at % 5] for at in range(10)] + [HONESTLY] * 30
    first, again, other = (played(looks, kinds, 12, seed=seed).rows for seed in (1, 1, 2))
    assert first == again != other


def test_liars_are_out_or_unpaid_and_honest_ones_are_neither(looks: Looks) -> None:
    kinds = [GARBAGE, LIARS[1], LIARS[3]] + [HONESTLY] * 17
    one = played(looks, kinds, 40, fresh=[True] * 3 + [False] * 17)
    one.settle()
    assert one.out[:3].tolist() == [True, False, True] and not one.out[3:].any()
    gains = one.gains()
    assert gains[HONEST] == 0 and gains["thief"] == pytest.approx(-0.5) and gains["identity"] == 0
    assert one.column("poison").max() == 0


def test_whoever_turns_poisons_less_with_the_alarm_than_without(looks: Looks) -> None:
    worst = {}
    for ring in (3, 10**9):
        one = played(looks, [HONESTLY] * 400, 2, rule=msgspec.structs.replace(RULE, ring=ring), floor=0.02)
        one.turn(0.2, Kind("turned", OTHER_DRAW))
        worst[ring] = one.run(12).column("poison").max()
    assert worst[3] < 0.01 < 0.1 < worst[10**9]


def test_an_honest_pool_whose_every_look_is_refused_trains_again_once_the_cuts_are_right(looks: Looks) -> None:
    one = played(looks, [HONESTLY] * 50, 1, floor=0.2)
    one.false = 1.0
    one.run(2)
    one.false = FALSE
    batch = one.run(8).column("batch")
    assert batch[0] == 1 and batch[1:3].max() < 0.2 and batch[-1] > 0.98 and one.alarm.since is None


def test_newcomers_wait_where_there_is_no_power_to_look_at_them(looks: Looks) -> None:
    fresh = [False] * 20 + [True] * 40
    batches = {
        capacity: played(looks, [HONESTLY] * 60, 4, fresh=fresh, floor=0.1, capacity=capacity).column("batch")
        for capacity in (None, 60)
    }
    assert batches[None].min() == 1 and 1 / 3 < batches[60][0] < 0.6 and batches[60][-1] < 1


def test_who_looks_and_lies_lets_a_cheat_pass_but_for_second_looks(looks: Looks) -> None:
    kinds, poisons = [GARBAGE] * 4 + [HONESTLY] * 4, []
    for blind in (0.0, 1.0):
        one = Pool(kinds, [False] * 8, looks, RULE, seed=3)
        one.seen[:] = False
        one.blind[:4] = blind
        poisons.append(one.run(1).column("poison")[0])
    assert poisons[0] == 0 and 0.3 < poisons[1] <= 0.5


def test_each_option_of_the_program_plays(looks: Looks) -> None:
    asked = vars(pool._parser().parse_args([])) | {"workers": 40, "policies": 6, "days": 1, "liars": 0.25}
    assert {"H100 of looks, mean", "gains", "honest loses"} <= pool.mixed(looks, asked, 1).keys()
    assert pool.turned(looks, asked | {"turn": 0.5}, 1)["policies with the alarm"] > 0
    row = pool.wide(looks, asked | {"thief": (1.0, 1.0), "floor": 0.5}, 1)["rows"]["thief in 100%"]
    assert row["gain"] == pytest.approx(-0.5) and row["suspected"] == 1
    found = pool.honest(looks, asked | {"capacity": 10.0}, 1)
    assert found["every look refused for 3 policies"]["smallest batch"] == 0
    assert found["as many newcomers at once, 10 H100"]["H100, most"] < 11
    last = found["refused in the last minute of its day"]
    assert last["of the day is lost"] == pytest.approx(10 / last["looks a day"])


def test_beside_others_rules_ours_looks_at_more_and_no_cheat_gains() -> None:
    rows = field.compared(1_000, 8, 2, 1)
    assert rows["grail"]["looked at"] < rows["ours"]["looked at"] < rows["today"]["looked at"]
    assert rows["today"]["H100"] == pytest.approx(880, abs=5)
    assert rows["BOINC"]["gain in 100%"] > 0 and rows["grail"]["gain in 100%"] > 0
    assert field.grail_gain(100, 8, 1.0) < -0.5


def test_committees_are_drawn_by_the_beacon_and_as_likely_as_reckoned() -> None:
    beacon = blake3(b"a beacon").digest()
    one = drawn(beacon, b"shard 3", 100, 7)
    assert one == drawn(beacon, b"shard 3", 100, 7) != drawn(beacon, b"shard 4", 100, 7)
    assert len(set(one)) == 7 and drawn(beacon, b"all", 31, 31) == tuple(range(31))
    seats = np.zeros(20)
    for day in range(600):
        seats[list(drawn(blake3(b"%d" % day).digest(), b"", 20, 7))] += 1
    assert seats.min() > 150 and seats.max() < 270
    assert chance(100, 20, 7, 7) == pytest.approx(4.84e-6, rel=0.01)
    rows = committees.liars(100, 0.33, 1500, 1)
    assert all(abs(row["exact"] - row["played"]) < 0.04 for row in rows.values())
    many = [shard_of(beacon, NodeKey(blake3(b"%d" % one).digest()).address, 4) for one in range(40)]
    assert set(many) == {0, 1, 2, 3}


def test_a_validators_words_are_each_said_once_together_and_in_time() -> None:
    key = NodeKey(blake3(b"judge").digest())
    made = committees.commitment(key, bytes(32), bytes(32))
    shown = committees.verdict(key, made.commitment, 8, (3,), accept=True)
    assert shown.fault() is None and made.fault() is None
    words = [word for at in (0.0, 0.5, 40.0) for word in spoken(key, msgspec.structs.replace(shown), at, DECIDE)]
    said = list(sayings(words))
    assert sum(len(one.seals) for _, one in said) == 3 == sum(len(one.carried) for _, one in said)
    assert [when for when, one in said if one.seals] == [SEALED_WITHIN, 40.0 + SEALED_WITHIN]


def test_shards_spare_a_worker_what_others_say() -> None:
    rows = committees.roles(2_000, 20, 300.0, 8, 1)
    heard = {role: row["messages a second"] for role, row in rows.items()}
    assert heard["worker"] < heard["validator"] < heard["trainer"] < heard["everybody, without shards"]
    gas = committees.gas(100, 21)
    assert gas["seating 100 by their hash"] < 60_000 and min(gas.values()) > 21_000


@pytest.fixture(scope="module")
def hour() -> dict[str, Any]:
    asked = {"workers": 60, "validators": 9, "policies": 3, "liars": 0.2, "turn": 0.2, "lying": 0.34, "churn": 0.5}
    return Hour(asked | {"partition": 120.0, "trainer_minutes": 5.0, "ring": 3, "seed": 2}).play()


def test_nodes_of_the_product_hear_an_hour_and_accept_nothing_that_a_quorum_refused(hour: dict[str, Any]) -> None:
    for role in ("worker", "validator", "trainer"):
        assert hour[role]["muted or refused"] == 0 and hour[role].get("good works accepted", 0) > 0
    validator = hour["validator"]
    assert validator["messages heard a second"] > hour["worker"]["messages heard a second"]
    assert validator.get("refused works accepted", 0) <= hour["committees"]["objections"]
    assert validator.get("refused works rejected", 0) + validator.get("refused works disputed", 0) > 0
    assert validator.get("good works rejected", 0) == 0


def test_liars_in_committees_are_objected_to(hour: dict[str, Any]) -> None:
    told = hour["committees"]
    assert told["objections"] > 0 and told["looks of grand committees"] == 9 * told["objections"]
    assert hour["rule"]["H100 of looks at what was refused or objected to"] > 0 and told["came and went"] > 0
