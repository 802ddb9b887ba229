"""Tables of earnings and what nodes show: one form, one root, nothing that two readers can read differently."""

import msgspec
import pytest

from protocol.earnings import (
    MAX_LINES,
    Line,
    ShownWork,
    Source,
    checked_table,
    decode_certificates,
    decode_table,
    encode_certificates,
    encode_table,
    largest_that_fits,
    leaf_hash,
    merkle_root,
    of_file,
    of_judgement,
    refusal_of,
    table_after,
    verify,
)
from protocol.errors import ProtocolError
from protocol.identity import NodeKey, address_bytes
from protocol.statements import Rechecked, Verdict, WorkCommitment, work_id
from tests.attacks.validators.court import court_run

KEYS = [NodeKey(bytes([n]) * 32) for n in range(1, 8)]
A, B = KEYS[0].address, KEYS[1].address
SIGNATURE = bytes(65)


def test_every_node_has_a_proof_of_its_line_whatever_their_number() -> None:
    for many in range(1, 8):
        table = table_after(1, 0, None, {key.address: 10 + n for n, key in enumerate(KEYS[:many])})
        for n, key in enumerate(KEYS[:many]):
            line = Line(address_bytes(key.address), 10 + n)
            assert verify(table.root(), leaf_hash(line), table.proof(key.address))
            assert not verify(table.root(), leaf_hash(Line(line.node, 99)), table.proof(key.address))
        with pytest.raises(KeyError):
            table.proof(NodeKey(b"x" * 32).address)


def test_equal_earnings_give_equal_tables_in_whatever_order_they_came() -> None:
    sources = [Source(1, address_bytes(A), b"r" * 32, 9), Source(0, address_bytes(B), b"s" * 32, 9)]
    one = table_after(1, 3, None, {A: 5, B: 6}, sources)
    other = table_after(1, 3, None, {B: 6, A: 5}, reversed(sources))
    assert encode_table(one) == encode_table(other) and one.total == 11
    after = table_after(1, 4, one, {B: 1})
    assert (after.units_of(A), after.units_of(B), after.units_of(KEYS[2].address)) == (5, 7, 0)
    assert checked_table(encode_table(after), 1, after.root()) == after
    with pytest.raises(ProtocolError, match="do not hash"):
        checked_table(encode_table(after), 1, one.root())


def test_a_table_that_is_huge_doubled_unsorted_or_another_pools_is_refused() -> None:
    table = table_after(1, 3, None, {A: 5, B: 6})
    with pytest.raises(ProtocolError, match="pool 1"):
        decode_table(encode_table(table), 2)
    for lines in (table.lines[:1] * 2, table.lines[::-1]):
        with pytest.raises(ProtocolError, match="in order"):
            decode_table(encode_table(msgspec.structs.replace(table, lines=lines)), 1)
    many = tuple(Line(n.to_bytes(20), 1) for n in range(MAX_LINES + 1))
    with pytest.raises(ProtocolError):
        decode_table(encode_table(msgspec.structs.replace(table, lines=many)), 1)
    rich = (Line(bytes(20), 2**63 - 1), Line(bytes(19) + b"\1", 1))
    with pytest.raises(ProtocolError, match="out of range"):
        decode_table(encode_table(msgspec.structs.replace(table, lines=rich)), 1)
    with pytest.raises(ProtocolError):
        decode_table(b"\xc1", 1)


def test_certificates_are_read_as_one_nodes_of_one_epoch_and_never_doubled() -> None:
    works = [ShownWork(bytes([n]) * 32, 5, (SIGNATURE,)) for n in (2, 1)]
    data = encode_certificates(A, 3, works)
    assert [one.work[0] for one in decode_certificates(data, A, 3).works] == [1, 2]
    for node, epoch in ((B, 3), (A, 4)):
        with pytest.raises(ProtocolError, match="another"):
            decode_certificates(data, node, epoch)
    with pytest.raises(ProtocolError, match="doubled"):
        decode_certificates(encode_certificates(A, 3, [works[0], works[0]]), A, 3)
    with pytest.raises(ProtocolError):
        decode_certificates(encode_certificates(A, 3, [ShownWork(b"w" * 32, 5, (SIGNATURE,) * 17)]), A, 3)


def test_a_judgement_is_one_work_whatever_is_said_of_its_size() -> None:
    commitment = WorkCommitment(1, A, b"p" * 32, 4, b"f" * 32, 1000, 9)
    verdict = Verdict(1, A, b"p" * 32, 4, b"f" * 32, 1000, 0, 0, 9)
    run = court_run()
    few, many = of_judgement(run, B, verdict, 1, 16), of_judgement(run, B, verdict, 16, 16)
    assert few.work == many.work != of_file(commitment).work and 0 < few.units < many.units
    assert few.epoch == 9 and few.node == B and of_file(commitment).work == work_id(commitment)


def test_a_refusal_says_what_was_signed_against_which_work() -> None:
    verdict = Verdict(1, A, b"p" * 32, 4, b"f" * 32, 1000, 1, 5, 9, b"v" * 32)
    looked = Rechecked(1, A, b"p" * 32, 4, b"f" * 32, 1000, 2, 5, 9, b"w" * 32)
    refusal = refusal_of([(verdict, SIGNATURE), (looked, SIGNATURE)])
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(refusal), type=type(refusal))
    assert again.statements(1) == [(verdict, SIGNATURE), (looked, SIGNATURE)] and again.work(1) == work_id(verdict)


def test_the_latest_epoch_that_fits_what_is_funded_and_allowed_is_tabled() -> None:
    earned = {4: 10, 5: 0, 6: 30}

    def through(epoch: int) -> int:
        return sum(units for at, units in earned.items() if at <= epoch)

    assert largest_that_fits(4, 6, through, 100, 100) == 6
    assert largest_that_fits(4, 6, through, 39, 100) == 5, "the escrow has too little for the last one"
    assert largest_that_fits(4, 6, through, 100, 13) == 5, "three epochs may bring 39"
    assert largest_that_fits(4, 6, through, 9, 100) is None
    assert largest_that_fits(4, 6, through, 100, 5) == 5, "who earned too much in one epoch waits for the next"


def test_no_nodes_have_an_empty_root() -> None:
    assert merkle_root([]) == bytes(32)
