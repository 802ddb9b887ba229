"""Replicas: kept while nobody lighter wants them; two nodes have one no longer than they do not hear each other."""

import msgspec

from protocol.identity import NodeKey
from protocol.manifest import ComposedBatch, UsedReport, UsedWork
from protocol.replicas import broken_rule, choose, groups_of, share, weight

RUN = bytes(32)
PEOPLE = [NodeKey(bytes([n]) * 32).address for n in range(1, 9)]


def test_nodes_that_start_at_once_come_to_seats_of_their_own_and_keep_them() -> None:
    replicas = dict.fromkeys(PEOPLE, -1)
    for _ in range(10):  # all choose by what was said last
        replicas = {
            own: choose(RUN, own, 8, replicas[own], {k: v for k, v in replicas.items() if v >= 0}) for own in PEOPLE
        }
    assert sorted(replicas.values()) == list(range(8))
    assert all(choose(RUN, own, 8, replicas[own], replicas) == replicas[own] for own in PEOPLE)


def test_who_finds_no_seat_has_none_and_the_lightest_keeps_one_that_two_want() -> None:
    one, two, three = PEOPLE[:3]
    assert choose(RUN, three, 2, -1, {one: 0, two: 1}) == -1
    lighter, heavier = sorted((one, two), key=lambda node: weight(RUN, 0, node))
    assert choose(RUN, lighter, 4, 0, {heavier: 0}) == 0
    assert choose(RUN, heavier, 4, 0, {lighter: 0}) in (1, 2, 3)


def test_a_round_deals_works_evenly_and_each_round_deals_anew() -> None:
    works = [number.to_bytes(32) for number in range(4000)]
    dealt = [[share(bytes([round_]) * 32, work, 4) for work in works] for round_ in (1, 2)]
    assert all(900 < one.count(replica_id) < 1100 for one in dealt for replica_id in range(4))
    same = sum(a == b for a, b in zip(*dealt, strict=True))
    assert 900 < same < 1100, "who held a work back for a round would get another replica by chance"
    assert dealt[0] == [share(bytes([1]) * 32, work, 4) for work in works]


def batch(files: list[bytes], used: bytes = b"\x03") -> ComposedBatch:
    report = UsedReport(bytes(20), bytes(32), 10, used)
    works = (UsedWork(bytes(20), bytes(32), 5, 0, file, 10, 0, 10, (report,), used, b"\x00") for file in files)
    return ComposedBatch(bytes(32), 0, 5, tuple(works))


def test_a_seat_learns_from_accepted_works_of_its_share_and_from_no_group_twice() -> None:
    outer = bytes([9]) * 32
    files = [number.to_bytes(32) for number in range(64)]
    own, others = ([one for one in files if (share(outer, one, 2) == 0) is is_own] for is_own in (True, False))

    def why(*batches: ComposedBatch, used: set[tuple[bytes, int]] | None = None, refused: bytes = b"") -> str:
        return broken_rule(outer, 0, 2, batches, used or set(), lambda work: work != refused)

    honest = batch(own[:2]), batch([own[2]]), batch([own[0]], b"\x0c")  # two more groups of its first file
    assert why(*honest) == ""
    assert "of replica 1" in why(batch([others[0]]))
    assert "not accepted" in why(*honest, refused=own[2])
    assert "learnt from before" in why(*honest, batch([own[1]], b"\x02"))
    assert "learnt from before" in why(*honest, used={(own[0], 3)}) and why(*honest, used={(own[0], 4)}) == ""
    assert sorted(groups_of(honest[2])) == [(own[0], 2), (own[0], 3)]
    # in a pool a work goes by its commitment, not by its file
    assert {name for name, _ in groups_of(msgspec.structs.replace(honest[1], pool=7))}.isdisjoint(files)
