import msgspec
import pytest

from protocol import liveness
from protocol.identity import NodeKey
from protocol.liveness import MemberState, MemberTable, heartbeat_interval
from protocol.messages import Heartbeat

A, B = NodeKey(b"\x05" * 32).address, NodeKey(b"\x06" * 32).address
BEAT = Heartbeat(
    pool=1, boot=0, count=10, at=10, role="worker", state="working", contact="", policy_step=0, interval=2.0
)


def table() -> MemberTable:
    members = MemberTable()
    members.admit(A)
    return members


@pytest.mark.parametrize(
    ("silence", "state"),
    [(0, MemberState.HEALTHY), (5.9, MemberState.HEALTHY), (6, MemberState.UNHEALTHY), (16, MemberState.DEAD)],
)
def test_silence_is_counted_in_the_members_own_intervals(silence: float, state: MemberState) -> None:
    members = table()
    assert members.beat(A, BEAT, 100.0)
    assert members.all()[0].state(100.0 + silence) is state


def test_a_member_is_joining_until_it_is_heard() -> None:
    assert table().all()[0].state(1e9) is MemberState.JOINING


def test_a_dead_member_comes_back_with_a_beat() -> None:
    members = table()
    members.beat(A, BEAT, 0.0)
    assert members.live(1000.0) == []
    assert members.beat(A, msgspec.structs.replace(BEAT, count=11), 1000.0)
    assert members.live(1000.0, "worker") == [A]
    assert members.live(1000.0, "validator") == []


def test_old_and_foreign_beats_are_ignored() -> None:
    members = table()
    assert members.beat(A, BEAT, 0.0)
    assert not members.beat(A, BEAT, 1.0)
    assert not members.beat(A, msgspec.structs.replace(BEAT, count=9), 1.0)
    assert not members.beat(B, BEAT, 1.0)


def test_eviction_is_final_but_leaving_is_not() -> None:
    members = table()
    members.remove(A, MemberState.LEFT)
    assert A not in members
    members.admit(A)
    assert A in members
    members.remove(A, MemberState.EVICTED)
    members.admit(A)
    assert A not in members
    assert not members.beat(A, BEAT, 0.0)


def test_intervals_stretch_so_that_the_swarms_traffic_stays_bounded() -> None:
    assert heartbeat_interval(5) == 1.0
    assert 1000 / heartbeat_interval(1000) <= 20


def test_a_member_lives_from_its_first_beat_until_it_has_missed_too_many() -> None:
    members = table()
    assert not members.is_live(A, 0.0) and not members.is_live(B, 0.0)
    members.beat(A, BEAT, 100.0)
    assert members.is_live(A, 110.0) and members.live(110.0) == [A]
    assert not members.is_live(A, 116.0) and members.live(116.0) == []


def test_where_the_table_is_full_a_newcomer_takes_the_place_of_who_left_first_or_of_a_ghost_and_of_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(liveness, "MAX_MEMBERS", 4)
    first, back, evicted, stays, newcomer, last = (NodeKey(bytes([n]) * 32).address for n in range(11, 17))
    members = MemberTable()
    for address in (first, back, evicted, stays):
        members.admit(address)
    for address, how in ((back, "left"), (first, "left"), (evicted, "evicted")):
        members.remove(address, MemberState(how))
    members.admit(back)
    assert members.admit(newcomer) is None
    assert members.get(first) is None and all(each in members for each in (back, stays, newcomer))
    for living in (stays, newcomer):
        members.beat(living, BEAT, 100.0)
    assert members.admit(last, 101.0) == back and last in members
    members.beat(last, BEAT, 101.0)
    assert members.admit(first, 102.0) is None and first not in members
    assert evicted not in members and members.get(evicted) is not None
    assert members.admit(first, 101.0 + 8 * BEAT.interval) == stays  # it has been dead for a second
