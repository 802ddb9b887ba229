"""The exchange's decisions, without any network: which piece, from whom, who next."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.blobs.scheduling import bitfield
from node.blobs.scheduling.download import Download
from node.blobs.scheduling.upload import HALF_LIFE, Reciprocity, SuperSeed, UploadQueue
from protocol.errors import ProtocolError

PEER_BYTES = 16 * 1024**2
ALLOWANCE = 8

PIECE = 256 * 1024


def _flags(count: int, *pieces: int) -> np.ndarray:
    flags = np.zeros(count, np.bool_)
    flags[list(pieces)] = True
    return flags


def _download(count: int) -> Download[str]:
    return Download(count * PIECE, PIECE, np.zeros(count, np.bool_), seed=1)


def test_a_map_survives_the_wire_and_a_malformed_one_does_not() -> None:
    flags = _flags(19, 0, 7, 8, 18)
    assert (bitfield.unpack(bitfield.pack(flags), 19) == flags).all()
    for data, count in ((b"", 1), (b"\x00\x00", 8), (b"\x80", 7)):
        with pytest.raises(ProtocolError):
            bitfield.unpack(data, count)


def test_the_rarest_piece_is_asked_for_first_and_none_twice() -> None:
    download = _download(4)
    for peer, have in (("a", (0, 1, 2, 3)), ("b", (0, 1, 3)), ("c", (0, 3))):
        download.add(peer)
        download.learn(peer, _flags(4, *have))
    first = download.plan("a", 0.0)
    assert first is not None and first.pieces.tolist() == [2]
    second = download.plan("a", 0.0)
    assert second is not None and second.pieces.tolist() == [1]
    third = download.plan("b", 0.0)
    assert third is not None and set(third.pieces.tolist()) < {0, 3}


def test_a_failed_request_is_free_for_others_and_a_forgotten_source_leaves_nothing_behind() -> None:
    download = _download(1)
    for peer in ("a", "b"):
        download.add(peer)
        download.learn(peer, bitfield.full(1))
    flight = download.plan("a", 0.0)
    assert flight is not None and download.plan("b", 0.0) is None
    assert download.remove("a") == [flight]
    again = download.plan("b", 0.1)
    assert again is not None and again.pieces.tolist() == [0]
    download.landed(again, [0], PIECE, 0.0, 0.2)
    assert download.complete and download.in_flight == 0 and download.done == PIECE


def test_a_stalled_request_is_given_to_another_source_and_the_loser_is_pointless() -> None:
    download = _download(1)
    for peer in ("slow", "fast"):
        download.add(peer)
        download.learn(peer, bitfield.full(1))
    stalled = download.plan("slow", 0.0)
    assert stalled is not None and download.plan("fast", 1.0) is None
    copy = download.plan("fast", 100.0)
    assert copy is not None and copy.pieces.tolist() == [0]
    assert download.landed(copy, [0], PIECE, 0.0, 100.1) == [stalled]


def test_a_source_that_runs_dry_gets_more_requests_and_a_crowded_one_fewer() -> None:
    download = _download(1000)
    download.add("a")
    download.learn("a", bitfield.full(1000))

    def in_flight(waited: float, now: float) -> int:
        flights = []
        while (flight := download.plan("a", now)) is not None:
            flights.append(flight)
        for flight in flights:
            download.landed(flight, flight.pieces.tolist(), flight.size, waited, now + 10)
        return len(flights)

    counts = [in_flight(0.0, 100.0 * step) for step in range(4)]
    assert counts == sorted(counts) and counts[-1] > counts[0]
    counts = [in_flight(5.0, 1000.0 + 100.0 * step) for step in range(8)]
    assert counts == sorted(counts, reverse=True) and counts[-1] < counts[0]


@pytest.mark.parametrize(("megabytes_a_second", "largest"), [(80.0, 16), (4.0, 3), (1.0, 1)])
def test_requests_are_as_large_as_what_the_whole_source_delivers(megabytes_a_second: float, largest: int) -> None:
    """However long each of them waits behind the others: 24 lines of one piece would be 24 small requests for ever."""
    count = 4000
    download = _download(count)
    download.add("a")
    download.learn("a", bitfield.full(count))
    line, sizes, now = [], [], 0.0
    for _ in range(400):
        while flight := download.plan("a", now):
            line.append(flight)
        flight = line.pop(0)
        now += flight.size / (megabytes_a_second * 1e6)
        sizes.append(len(flight.pieces))
        download.landed(flight, flight.pieces.tolist(), flight.size, 0.0, now)
        if sum(sizes) > count / 2:
            break
    assert int(np.median(sizes[-20:])) == largest


def test_what_a_choosing_source_may_send_is_not_asked_for_by_name() -> None:
    download = _download(40)
    download.add("origin")
    download.learn("origin", bitfield.full(40), chooses=True)
    flights = [download.plan("origin", 0.0) for _ in range(2)]
    assert all(flight is not None and not len(flight.pieces) for flight in flights)
    download.add("seed")
    download.learn("seed", bitfield.full(40))
    named = download.plan("seed", 0.0)
    assert named is not None and len(named.pieces)


def test_an_origin_gives_each_piece_once_and_first_to_those_who_share() -> None:
    seed: SuperSeed[str] = SuperSeed(24, seed=3)
    nothing = np.zeros(24, np.bool_)
    first = seed.choose("a", nothing, ALLOWANCE + 1)
    second = seed.choose("b", nothing, 4)
    assert len(first) == ALLOWANCE + 1 and not set(first.tolist()) & set(second.tolist())
    assert seed.burden("a") > 0 and seed.burden("b") == 0
    seed.seen("a", _flags(24, *first.tolist()))  # its own word does not count
    assert seed.burden("a") > 0
    seed.seen("b", _flags(24, *first.tolist()[:3]))
    assert seed.burden("a") == 0
    seed.lost("b", second)
    assert set(second.tolist()) <= set(seed.choose("c", nothing, 24).tolist())
    assert not seed.active


def test_who_owes_least_is_served_first_and_nobody_is_shut_out() -> None:
    reciprocity: Reciprocity[str] = Reciprocity()
    queue: UploadQueue[str] = UploadQueue(reciprocity, slots=1, per_peer=2, total=4)
    reciprocity.received("giver", 1000, 0.0)
    reciprocity.sent("taker", 1000, 0.0)
    taker, giver = queue.offer("taker", 10, 0.0), queue.offer("giver", 10, 0.1)
    assert taker is not None and giver is not None
    assert queue.next(0.2) is giver and queue.next(0.2) is None
    queue.withdraw(giver, 0.3)
    assert queue.next(0.3) is taker
    assert reciprocity.debt("taker", HALF_LIFE) == pytest.approx(reciprocity.debt("taker", 0.3) / 2, rel=0.05)


def test_the_queue_is_bounded_and_a_stalled_taker_loses_its_slot() -> None:
    queue: UploadQueue[str] = UploadQueue(Reciprocity(), slots=1, per_peer=2, total=3, stalled=5.0)
    tickets = [queue.offer(peer, 10, 0.0) for peer in ("a", "a", "a", "b", "c")]
    assert [ticket is not None for ticket in tickets] == [True, True, False, True, False]
    assert queue.next(0.0) is not None and queue.next(4.0) is None
    assert queue.next(5.1) is not None
    for ticket in tickets:
        if ticket is not None:
            queue.withdraw(ticket, 6.0)
    assert queue.waiting == 0 and queue.offer("c", 10, 6.0) is not None


def test_answers_that_go_side_by_side_share_a_slot() -> None:
    lanes = {"far": 3}
    queue: UploadQueue[str] = UploadQueue(Reciprocity(), slots=2, abreast=lambda peer: lanes.get(peer, 1))
    far = [queue.offer("far", 10, 0.0) for _ in range(7)]
    near = [queue.offer("near", 10, 1.0) for _ in range(2)]
    served = [queue.next(2.0) for _ in range(5)]
    assert served[0] is far[0] and near[0] in served and served[-1] is None
    assert sum(ticket in far for ticket in served) == 3 and near[1] not in served


def test_the_last_slot_is_kept_for_a_peer_that_has_none() -> None:
    queue: UploadQueue[str] = UploadQueue(Reciprocity(), slots=3)
    bad = [queue.offer("bad", 10, 0.0) for _ in range(5)]
    assert [queue.next(1.0) for _ in range(3)] == [bad[0], bad[1], None]
    good = queue.offer("good", 10, 2.0)
    assert queue.next(2.0) is good and queue.next(2.0) is None


def test_a_taker_that_reads_nothing_gets_no_more_than_fits_its_share_of_memory() -> None:
    queue: UploadQueue[str] = UploadQueue(Reciprocity(), slots=1, per_peer=99, stalled=5.0, abreast=lambda peer: 12)
    bad = [queue.offer("bad", PEER_BYTES // 4, 0.0) for _ in range(12)]
    for moment in range(20):
        for _ in range(20):
            queue.next(10.0 * moment)
    assert sum(ticket.size for ticket in (*queue._sending, *queue._stuck)) == PEER_BYTES
    good = queue.offer("good", 10, 300.0)
    assert queue.next(300.0) is good and queue.next(300.0) is None
    given = next(ticket for ticket in bad if ticket in queue._stuck)
    assert given is not None and good is not None
    for ticket in (given, good):
        queue.withdraw(ticket, 301.0)
    assert queue.next(301.0) in bad


def test_what_one_lane_is_late_with_is_asked_for_again_at_the_end() -> None:
    download = _download(4)
    download.add("far")
    download.learn("far", np.ones(4, np.bool_))
    first = download.plan("far", 0.0)
    assert first is not None
    download.landed(first, first.pieces.tolist(), first.size, 0.0, 1.0)  # one a second
    while download.plan("far", 1.0) is not None:
        pass
    assert download.ending and download.plan("far", 9.0) is None
    download.spread("far", 2, 9)
    again = download.plan("far", 9.0)
    assert again is not None and len(again.pieces)
    assert download._pieces.copies[again.pieces].tolist() == [2] * again.count


def test_debts_fade_for_weeks_and_keep_their_order() -> None:
    reciprocity: Reciprocity[str] = Reciprocity()
    now = 0.0
    reciprocity.sent("much", 4000, now)
    reciprocity.sent("little", 1000, now)
    for _ in range(2000):
        now += 1000.0
        reciprocity.sent("new", 1000, now)
        assert reciprocity.debt("new", now) == pytest.approx(1000)
        assert reciprocity.level("new") > reciprocity.level("much") >= reciprocity.level("little") >= 0.0
    reciprocity.received("giver", 10, now)
    assert reciprocity.level("giver") < reciprocity.level("stranger") == 0.0
    assert reciprocity.debt("new", now + HALF_LIFE) == pytest.approx(500)


def test_of_equals_who_came_first_is_served_first_and_each_in_its_own_order() -> None:
    queue: UploadQueue[str] = UploadQueue(Reciprocity(), slots=9)
    tickets = [queue.offer(peer, 10, float(at)) for at, peer in enumerate("baab")]
    served = [queue.next(4.0) for _ in tickets]
    assert served == [tickets[0], tickets[1], tickets[2], tickets[3]] and queue.waiting == 0


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=15)
def test_no_request_that_should_be_doubled_is_skipped_as_being_in_time(seed: int) -> None:
    """Looking at each source's oldest request first changes no decision."""
    draw = random.Random(seed)
    looking, thorough = _ending(random.Random(seed)), _ending(random.Random(seed))
    thorough._in_time = lambda holder, source, now: False  # type: ignore[method-assign]
    now = 100.0
    for _ in range(40):
        now += draw.expovariate(2.0)
        peer = draw.choice(looking.sources)
        one, other = looking.plan(peer, now), thorough.plan(peer, now)
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.pieces.tolist() == other.pieces.tolist()
            if draw.random() < 0.6:
                for download, flight in ((looking, one), (thorough, other)):
                    download.landed(flight, flight.pieces.tolist(), flight.size, 0.5, now)


def _ending(draw: random.Random) -> Download[str]:
    """A download of which everything was asked for, of sources of very different speeds."""
    count = 60
    download = _download(count)
    for name in "abcdef":
        download.add(name)
        download.learn(name, np.array([draw.random() < 0.8 for _ in range(count)]))
        source = download._sources[name]
        source.rate, source.window = draw.choice([0.0, 1e4, 1e5, 1e6, 1e7]), 12.0
    for step in range(count):
        download.plan(draw.choice("abcdef"), 100.0 * step / count)
    return download
