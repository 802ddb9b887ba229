"""What nodes show, and what works are worth: one form, one root, nothing that two readers can read differently."""

import msgspec
import pytest

from protocol import earnings, pages
from protocol.earnings import (
    MAX_LEAVES_BYTES,
    Accepted,
    EarningsLine,
    Leaf,
    all_leaves,
    decode_leaves,
    leaves_of,
    of_file,
    of_judgement,
    own_line,
    proof_of,
    refusal_of,
)
from protocol.errors import ProtocolError
from protocol.identity import Address, NodeKey, address_bytes, address_from_bytes
from protocol.pages import read_page, verify
from protocol.statements import EpochRoot, Rechecked, Verdict, WorkCommitment, work_id
from tests.attacks.validators.court import court_run

KEYS = [NodeKey(bytes([n]) * 32) for n in range(1, 8)]
A, B = KEYS[0].address, KEYS[1].address
SIGNATURE = bytes(65)


def works(*numbers: int, node: str = A) -> list[Accepted]:
    return [Accepted(1, Address(node), 3, number.to_bytes(32), 5) for number in numbers]


def rooted(made: list[Accepted]) -> tuple[EpochRoot, bytes, list[bytes]]:
    found, files = leaves_of(made)
    total = sum(one.units for one in made)
    return EpochRoot(1, 3, 9, found.root(), total, bytes(32)), msgspec.msgpack.encode(found), files


def test_leaves_are_by_node_then_work_in_full_files_and_each_has_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pages, earnings):
        monkeypatch.setattr(module, "PAGE_ROWS", 3)
    said, data, files = rooted([*works(4, 1, node=B), *works(3, 2, 9, 8, 7)])
    found = decode_leaves(data, said)
    rows = [read_page(file, page, Leaf) for file, page in zip(files[:3], found.pages, strict=True)]
    leaves = all_leaves(said, found, rows)
    assert [len(each) for each in rows] == [3, 3, 1] and list(leaves) == sorted(leaves, key=lambda one: one.key)
    for one in leaves:
        assert verify(said.root, one.leaf(), proof_of(leaves, one))
    assert not verify(said.root, Leaf(leaves[0].node, leaves[0].work, 6).leaf(), proof_of(leaves, leaves[0]))
    own = {number for number in pages.pages_of(found.pages, address_bytes(A))}
    assert {n for n, each in enumerate(rows) if any(row.node == address_bytes(A) for row in each)} <= own


def test_each_node_has_a_line_that_is_the_sum_of_its_works_with_a_way_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pages, earnings):
        monkeypatch.setattr(module, "PAGE_ROWS", 3)
    made = [
        one for n, key in enumerate(KEYS) for one in works(*range(10 * n + 1, 10 * n + 2 + n % 3), node=key.address)
    ]
    said, data, files = rooted(made)
    found = decode_leaves(data, said)
    lines = [read_page(file, page, EarningsLine) for file, page in zip(files[-3:], found.lines, strict=True)]
    assert [len(each) for each in lines] == [3, 3, 1]
    for number, rows in enumerate(lines):
        for line in rows:
            path = found.proof_of_line(number, rows, line)
            node = address_from_bytes(line.node)
            assert line.units == sum(one.units for one in made if one.node == node)
            assert verify(said.root, line.leaf(), path) and own_line(found, made, node) == (line.units, path)
            assert not verify(said.root, EarningsLine(line.node, line.units + 1).leaf(), path)
    assert own_line(found, made, Address("0x" + "99" * 20)) is None


def test_lines_that_are_not_what_the_works_come_to_are_refused() -> None:
    said, data, files = rooted([*works(1, 2), *works(3, node=B)])
    found = decode_leaves(data, said)
    rows = [read_page(files[0], found.pages[0], Leaf)]
    more = [EarningsLine(row.node, row.units + 5) for row in read_page(files[1], found.lines[0], EarningsLine)]
    false = msgspec.structs.replace(found, lines=tuple(page for page, _ in pages.paged(more)))
    with pytest.raises(ProtocolError, match="not what the works"):
        all_leaves(said, false, rows)
    with pytest.raises(ProtocolError, match="not what the works"):
        all_leaves(said, msgspec.structs.replace(found, lines=found.lines * 2), rows)


def test_leaves_of_another_root_total_or_order_or_in_files_that_are_not_full_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (pages, earnings):
        monkeypatch.setattr(module, "PAGE_ROWS", 3)
    said, data, files = rooted(works(1, 2, 3, 4, 5))
    found = decode_leaves(data, said)
    rows = [read_page(file, page, Leaf) for file, page in zip(files[:2], found.pages, strict=True)]
    with pytest.raises(ProtocolError, match="do not hash"):
        decode_leaves(data, msgspec.structs.replace(said, root=bytes(32)))
    with pytest.raises(ProtocolError, match="another total"):
        all_leaves(msgspec.structs.replace(said, total=24), found, rows)
    with pytest.raises(ProtocolError, match="not full"):
        all_leaves(said, found, [rows[0][:2], rows[1]])
    with pytest.raises(ProtocolError, match="in order"):
        all_leaves(said, found, [rows[0], rows[0]])
    for wrong in (b"\xc1", msgspec.msgpack.encode([[]]), bytes(MAX_LEAVES_BYTES + 1)):
        with pytest.raises(ProtocolError):
            decode_leaves(wrong, said)


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
