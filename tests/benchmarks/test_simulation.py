"""The simulated swarm: the same seed gives the same table, and what it says of a dozen nodes is what they do."""

import gc
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import structlog

from benchmarks.simulation import fetching, rounds
from benchmarks.simulation.__main__ import computed_once, described, simulate, table
from benchmarks.simulation.ether import MOST, Mesh
from benchmarks.simulation.exchange import Case
from benchmarks.simulation.exchange import measure as fetch
from benchmarks.simulation.gossip import Swarm
from benchmarks.simulation.one_node import measure
from benchmarks.simulation.scenario import Scenario
from node.swarm import board
from node.swarm.neighbours import MOST as MOST_NEIGHBOURS
from protocol.errors import ProtocolError

SMALL = Scenario(
    nodes=10,
    full=5,
    validators=2,
    hours=0.04,
    churn=0.0,
    partition=30.0,
    cheats=0.4,
    policy_seconds=3.0,
    learner_seconds=25.0,
    file_seconds=((1.0, 12.0),),
    files_per_step=4,
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


@pytest.fixture(scope="module")
def small() -> dict[str, Any]:
    return described(simulate(SMALL))


def test_the_same_seed_gives_the_same_table() -> None:
    short = msgspec.structs.replace(SMALL, hours=0.005)
    first, again = (table(described(simulate(short))) for _ in range(2))
    assert first == again
    assert first != table(described(simulate(msgspec.structs.replace(short, seed=8))))


def test_a_dozen_nodes_train_and_trust_no_cheat(small: dict[str, Any]) -> None:
    assert small["training"]["steps"] >= 3
    assert small["cheats"]["cheated groups trained on"] == 0
    assert small["cheats"]["of them slashed"] == small["cheats"]["that cheated blatantly"] > 0
    assert small["cheats"]["slashed after their first file, s"] > 0
    assert small["cheats"]["honest ones slashed"] == 0
    assert small["gossip"]["lost, %"] == 0


def test_who_is_cut_off_waits_and_comes_back(small: dict[str, Any]) -> None:
    assert small["partition"]["workers cut off that wait, most"] > 0
    assert small["partition"]["newest policy known again after, s"] < 30
    assert small["partition"]["nobody waits any more after, s"] is not None


def test_members_that_come_are_known_and_those_that_go_are_not_trusted_for_ever() -> None:
    talking = msgspec.structs.replace(
        SMALL, nodes=12, full=4, hours=0.02, churn=20.0, partition=0.0, cheats=0.0, work=False
    )
    members = described(simulate(talking))["members"]
    assert members["came"] > 0 and members["went"] > 0
    assert members["a newcomer knows 95 % after, s"] < 30
    assert members["dead but listed as living"] < 0.3


def meshed(nodes: int) -> Mesh:
    mesh = Mesh(nodes, delay=0.05, seed=1)
    mesh.online[:] = True
    mesh.repair()
    return mesh


def test_a_tree_is_bounded_and_brings_a_message_to_everybody_once() -> None:
    mesh = meshed(200)
    degrees = [mesh.degree(node) for node in range(200)]
    assert min(degrees) >= 1 and max(degrees) <= MOST and sum(degrees) == 2 * 199
    times = mesh.times(7)
    assert np.isfinite(times).all() and times[7] == 0 and 0.05 < times.max() < 2
    assert mesh.audience(7).all() and times[3] == pytest.approx(mesh.times(3)[7])


def test_nothing_crosses_a_cut() -> None:
    mesh = meshed(60)
    mesh.island[40:] = 1
    mesh.repair()
    times = mesh.times(3)
    assert np.isfinite(times[:40]).all() and np.isinf(times[40:]).all()
    assert mesh.audience(3).tolist() == [True] * 40 + [False] * 20


def test_what_is_computed_once_is_refused_every_time_and_only_inside() -> None:
    before = board.parse_envelope
    with computed_once():
        assert board.parse_envelope is not before
        for _ in range(2):
            with pytest.raises(ProtocolError):
                board.parse_envelope(1, b"nonsense")
    assert board.parse_envelope is before


def measured(nodes: int, seconds: float) -> dict[str, Any]:
    """What is here already is no part of the node: the collector need not look through it."""
    gc.freeze()
    return measure(nodes, seconds)


def test_one_nodes_row_counts_what_it_heard_and_grows_with_the_members_only_in_what_it_keeps() -> None:
    few, more = (measured(nodes, 8.0) for nodes in (30, 90))
    assert few["heard_percent"] > 95 and more["heard_percent"] > 95
    assert few["dialled"] == more["dialled"] == MOST_NEIGHBOURS
    assert 15 < few["messages_per_s"] < 25 and 15 < more["messages_per_s"] < 25
    assert more["state_kB"] > few["state_kB"] > 0 < few["CPU_percent"]


def test_a_member_adds_little_to_what_pythons_collector_looks_through() -> None:
    few, more = (measured(nodes, 2.0)["collector_objects"] for nodes in (40, 140))
    assert 0 < more - few < 4 * 100  # a key; structs without circles are not looked at, nor tables of them


def test_gossip_loses_nothing_on_either_side_of_a_cut_nor_after_it() -> None:
    swarm = Swarm(20, 1)
    swarm.live(6.0)
    swarm.cut(list(swarm.nodes)[:7])
    apart = swarm.stretch(3.0, 5.0)
    swarm.heal()
    together = swarm.stretch(6.0, 5.0)
    assert apart["lost_percent"] == together["lost_percent"] == 0
    assert together["copies"] > 0 and swarm.due == 30 * 19


FETCH = Case(peers=20, size=12e6)


@pytest.fixture(scope="module")
def row() -> dict[str, Any]:
    return fetch(FETCH)


def test_a_blob_is_with_everybody_soon_and_its_source_sends_less_than_a_star_would(row: dict[str, Any]) -> None:
    assert row["pieces"] == 46  # the product's, of 256 KiB
    assert row["bound_s"] <= row["p50_s"] <= row["p99_s"] <= row["last_s"] < 3 * row["bound_s"]
    assert 1 <= row["source_copies"] < FETCH.peers / 2
    assert 12 <= row["node_MB_in"] < 13.2 and row["node_MB_out_mean"] < 12
    again = fetch(FETCH)
    assert {**row, "CPU_s": 0} == {**again, "CPU_s": 0}


def test_a_tenth_that_claims_everything_and_delays_everything_holds_up_nobody(row: dict[str, Any]) -> None:
    among = fetch(msgspec.structs.replace(FETCH, hoarders=0.1, hoard=20.0))
    assert among["last_s"] < row["last_s"] + 1.0


def test_who_has_no_line_to_the_origin_gets_the_blob_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "MAX_CONNECTIONS", 3)
    swarm = fetching.Swarm(30, 12e6, fetching.GBIT, 7).run()
    assert all(peer.finished for peer in swarm.honest)
    assert len(swarm.nodes[fetching.ORIGIN]._reciprocity._levels) == 3


@pytest.mark.parametrize(("rule", "splits"), [("the list", False), ("order of arrival", True)])
def test_replicas_of_peers_that_come_and_go_are_equal_and_those_that_add_in_any_order_are_not(
    tmp_path: Path, rule: str, splits: bool
) -> None:
    few = rounds.Scenario(peers=9, replicas=8, rounds=2, churn=0.3, away=0.1, lost=0.2, cheats=0.0)
    found = rounds.played(few, rule, tmp_path)
    assert found["rounds"] == 2 and bool(found["split"]) is splits and found["quarantined"] == 0, found
    assert found["unfinished"] == 0 and found["left"] >= 1 and found["contributions"][2] >= 3, found
