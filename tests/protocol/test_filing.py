"""What a node files of an epoch: the best that a quorum of its bench named, bounded, in the contract's order."""

import msgspec
import pytest

from protocol.errors import ProtocolError
from protocol.filing import MOST_LINES, Filing, RootLine, Seated, bench_at, best_filing, filings_of, in_turn, read_line
from protocol.identity import NodeKey
from protocol.messages import EpochRootSigned, seal
from protocol.statements import Domain, EpochRoot, sign

KEYS = [NodeKey(bytes([n]) * 32) for n in range(1, 6)]
BENCH = Seated(3, 100, 2, tuple(key.address for key in KEYS[:3]))
DOMAIN = Domain(31337, KEYS[0].address)


def line(number: int, units: int, epoch: int = 4) -> RootLine:
    return RootLine(0, EpochRoot(1, epoch, number, bytes(32), 900, bytes(32)), bytes(65), units, ())


def places(filing: Filing) -> list[tuple[int, int]]:
    return [(one.seat, one.root.number) for one in filing.lines]


def test_those_that_named_most_are_shown_by_seat_then_number() -> None:
    a, b, c, stranger = (key.address for key in KEYS[:4])
    named = {a: [line(9, 5), line(2, 40)], b: [line(1, 20)], c: [line(8, 30), line(7, 30)], stranger: [line(1, 999)]}
    found = best_filing(4, BENCH, named)
    assert found and places(found) == [(0, 2), (0, 9), (2, 7), (2, 8)] and found.units == 45
    assert (found.epoch, found.bench, found.threshold, found.validators) == (4, 3, 2, BENCH.validators)
    assert best_filing(4, BENCH, {a: named[a], stranger: named[stranger]}) is None, "one of a bench is no quorum"
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Filing) == found


def test_the_largest_roots_are_shown_where_there_are_too_many() -> None:
    many = [line(number, number) for number in range(1, 200)]
    found = best_filing(4, BENCH, {key.address: many for key in KEYS[:2]})
    assert found and len(found.lines) == MOST_LINES and min(one.units for one in found.lines) == 200 - MOST_LINES // 2
    assert places(found) == sorted(set(places(found)))


def test_the_bench_is_the_one_that_sat_when_the_epoch_began() -> None:
    benches = [Seated(n, since, 1, (KEYS[n].address,)) for n, since in ((1, 10), (2, 50), (3, 50), (4, 90))]
    assert bench_at(benches, 9) is None
    assert [one.number for at in (10, 49, 50, 89, 90) if (one := bench_at(benches, at))] == [1, 1, 3, 3, 4]
    lines = [(KEYS[n].address, line(1, 10 * n, epoch)) for n in (1, 4) for epoch in (0, 1, 2)]
    found = filings_of(lines, benches, lambda epoch: (10, 50, 90)[epoch])
    assert [(one.epoch, one.bench, one.units) for one in found] == [(0, 1, 10), (2, 4, 40)]


def test_a_transaction_carries_so_many_lines() -> None:
    filings = [Filing(n, 1, 1, (), tuple(line(i, 1) for i in range(40))) for n in range(5)]
    assert [one.epoch for one in in_turn(filings)] == [0, 1]
    big = Filing(9, 1, 1, (), tuple(line(i, 1) for i in range(MOST_LINES + 1)))
    assert in_turn([big, *filings]) == [big] and in_turn([]) == []


def test_a_line_is_of_who_signed_the_root() -> None:
    said = EpochRoot(1, 4, 7, bytes(32), 900, bytes(32))
    message = EpochRootSigned(pool=1, statement=said, signature=sign(KEYS[0], DOMAIN, said))
    raw = seal(KEYS[0], DOMAIN, message)
    author, read = read_line(DOMAIN, 1, raw, 12, (b"p" * 32,))
    assert author == KEYS[0].address and read == RootLine(0, said, message.signature, 12, (b"p" * 32,))
    with pytest.raises(ProtocolError):
        read_line(DOMAIN, 2, raw, 12, ())
    assert read_line(Domain(1, KEYS[0].address), 1, raw, 12, ())[0] not in BENCH.validators, "made for another chain"
