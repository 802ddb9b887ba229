"""The table of earnings: one form, one root, and lines that follow from one number whatever the pool can pay."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.identity import Address, NodeKey, address_bytes, address_from_bytes
from protocol.pages import PAGE_ROWS, read_page, verify
from protocol.table import (
    OWED_EPOCHS,
    EarningsLine,
    EarningsTable,
    Owed,
    Share,
    TableHead,
    checked_head,
    decode_head,
    encode_head,
    table_after,
    whole,
)

NODES = [NodeKey(bytes([n]) * 32).address for n in range(1, 8)]
A, B = NODES[:2]
FREE = 2**50


def first(earned: Mapping[Address, int], most: int = FREE, sources: Sequence[bytes] = ()) -> EarningsTable:
    found = table_after(1, 3, None, {3: earned}, most, {}, {}, sources)
    assert found is not None
    return found


def units(table: EarningsTable, claimed: Mapping[Address, int] | None = None) -> Counter[Address]:
    """Of each node: its line, or what it has claimed where that was dropped."""
    return Counter(claimed or {}) | Counter({address_from_bytes(line.node): line.units for line in table.lines})


def read(table: EarningsTable, node: Address) -> tuple[TableHead, Share]:
    """As its node reads it: the head, and the pages that may be its own."""
    return read_of(*table.files(), node)


def read_of(head: TableHead, files: Sequence[bytes], node: Address) -> tuple[TableHead, Share]:
    name = address_bytes(node)
    mine = {n: read_page(files[n], page, EarningsLine) for n, page in enumerate(head.pages) if n in head.pages_of(node)}
    debts = zip(head.owing.pages if head.owing else (), files[len(head.pages) :], strict=True)
    owed = [row for page, data in debts for row in read_page(data, page, Owed) if row.node == name]
    return head, head.share(node, mine, owed)


# lines from one number


class Pool(NamedTuple):
    """earned: by epoch; most: by how much its table may grow; claims: who claims what then stands in its line."""

    earned: list[dict[Address, int]]
    most: list[int]
    claims: list[list[Address]]


amounts = st.one_of(st.integers(0, 3), st.integers(0, 1000))
epochs = st.integers(1, 9)
pools = epochs.flatmap(
    lambda n: st.builds(
        Pool,
        *(
            st.lists(each, min_size=n, max_size=n)
            for each in (
                st.dictionaries(st.sampled_from(NODES), amounts),
                st.one_of(st.integers(0, 40), st.integers(0, 3000)),
                st.lists(st.sampled_from(NODES), max_size=4),
            )
        ),
    )
)


def history(pool: Pool) -> list[tuple[EarningsTable, dict[Address, int]]]:
    """Each table with what was claimed by then, and at last one for which there is money enough."""
    before: EarningsTable | None = None
    waiting, claimed = dict[int, dict[Address, int]](), dict[Address, int]()
    found: list[tuple[EarningsTable, dict[Address, int]]] = []
    for epoch, (earned, most, claims) in enumerate(
        zip([*pool.earned, {}], [*pool.most, FREE], [*pool.claims, []], strict=True)
    ):
        waiting[epoch] = earned
        table = table_after(1, epoch, before, waiting, most, claimed, claimed)
        if table is None:
            continue
        assert 0 < table.total - (before.total if before else 0) <= most
        before, waiting = table, {}
        found.append((table, dict(claimed)))
        claimed |= {node: units(table, claimed)[node] for node in claims if units(table, claimed)[node]}
    return found


def halved(earned: Mapping[Address, int], node: Address) -> dict[Address, int]:
    """The work of one node, done by two."""
    more = earned.get(node, 0)
    return {**earned, node: more // 3, OTHER_HALF: more - more // 3}


OTHER_HALF = NodeKey(b"h" * 32).address


@given(pools)
@settings(max_examples=60)
def test_lines_never_fall_and_what_a_short_escrow_left_is_caught_up_to_the_unit(pool: Pool) -> None:
    before, total = Counter[Address](), 0
    for table, claimed in history(pool):
        now = units(table, claimed)
        assert all(now[node] >= before[node] for node in before)
        assert table.total == now.total() >= total
        before, total = now, table.total
    assert +before == +Counter({node: sum(one.get(node, 0) for one in pool.earned) for node in NODES})


@given(pools)
@settings(max_examples=40)
def test_the_oldest_epochs_come_first_and_inside_one_everybody_has_the_same_share(pool: Pool) -> None:
    """Against the closed form itself, reckoned from the beginning."""
    reached = 0
    for table, claimed in history(pool):
        reached = max(reached, table.total)
        through = [*pool.earned, {}][: table.epoch + 1]
        whole_ones, left = Counter[Address](), table.total
        for earned in through:
            of = sum(earned.values())
            if left < of:
                shares = Counter({node: more * left / of for node, more in earned.items()})
                # the dust of one that fits in part: less than a unit for each who shares it
                for node in NODES:
                    assert -1 <= units(table, claimed)[node] - whole_ones[node] - shares[node] < len(NODES)
                break
            whole_ones.update(earned)
            left -= of
        else:
            assert +units(table, claimed) == +whole_ones and not table.owed


@given(pools, st.integers(0, 2**32))
@settings(max_examples=30)
def test_equal_earnings_give_equal_tables_in_whatever_order_they_came(pool: Pool, seed: int) -> None:
    dice = random.Random(seed)
    mixed = [dict(dice.sample(list(earned.items()), len(earned))) for earned in pool.earned]
    for (one, _), (other, _) in zip(history(pool), history(pool._replace(earned=mixed)), strict=True):
        assert encode_head(one.files()[0]) == encode_head(other.files()[0])


@given(
    st.dictionaries(st.sampled_from(NODES), st.integers(1, 1000), min_size=1), st.integers(1, 5000), st.integers(0, 6)
)
@settings(max_examples=40)
def test_whoever_divides_its_work_among_nodes_is_paid_no_more(
    earned: dict[Address, int], most: int, number: int
) -> None:
    node = sorted(earned)[number % len(earned)]
    alone = table_after(1, 0, None, {0: earned}, most, {}, {})
    divided = table_after(1, 0, None, {0: halved(earned, node)}, most, {}, {})
    more = units(divided)[node] + units(divided)[OTHER_HALF] if divided else 0
    assert more <= (units(alone)[node] if alone else 0)


def test_one_unit_over_what_can_be_paid_costs_one_unit_and_not_all_pay() -> None:
    table = first({A: 200, B: 101}, most=300)
    assert units(table) == {A: 199, B: 100} and table.behind == 2
    again = table_after(1, 4, table, {4: {A: 200, B: 101}}, 300, {}, {})
    assert again is not None and units(again) == {A: 398, B: 200} and again.total == 598
    assert table_after(1, 4, table, {}, 0, {}, {}) is None, "no table unless a line grows"


def test_what_is_owed_is_told_apart_by_epoch_up_to_a_bound_and_stays_owed_beyond_it() -> None:
    earned = {epoch: {A: 10, B: 10} for epoch in range(100)}
    table = table_after(1, 99, None, earned, 25, {}, {})
    assert table is not None and units(table) == {A: 12, B: 12}
    assert len({row.epoch for row in table.owed}) == OWED_EPOCHS and table.behind == 2000 - 24
    last = table_after(1, 100, table, {}, FREE, {}, {})
    assert last is not None and units(last) == {A: 1000, B: 1000} and not last.owed


# pages


def test_the_16385th_earner_is_paid_and_reads_one_page_of_the_table() -> None:
    many = {address_from_bytes(n.to_bytes(20)): n for n in range(1, 4 * PAGE_ROWS + 2)}
    table = first(many)
    assert len(table.lines) == 16_385
    made = table.files()
    for number in (1, PAGE_ROWS, PAGE_ROWS + 1, 16_385):
        node = address_from_bytes(number.to_bytes(20))
        head, share = read_of(*made, node)
        assert len(head.pages) == 5 and len(head.pages_of(node)) <= 2
        assert share.units == number
        assert verify(head.root(), EarningsLine(number.to_bytes(20), number).leaf(), share.proof)


def test_every_node_has_a_proof_of_its_line_whatever_their_number_and_whatever_is_owed() -> None:
    for many in range(1, 8):
        for most in (FREE, 11 * many - 1):
            table = first({node: 10 + n for n, node in enumerate(NODES[:many])}, most)
            assert bool(table.owed) is (most < FREE and many > 2)
            for node in NODES[:many]:
                head, share = read(table, node)
                line = EarningsLine(address_bytes(node), units(table)[node])
                assert share.units == line.units and head.root() == table.root()
                assert share.units + share.rest == 10 + NODES.index(node)
                assert verify(table.root(), line.leaf(), share.proof)
                assert not verify(table.root(), EarningsLine(line.node, 99).leaf(), share.proof)
            assert read(table, OTHER_HALF)[1] == Share(None, 0, ())


def test_a_line_that_was_claimed_is_dropped_and_comes_back_with_the_next_unit() -> None:
    before = first({A: 5, B: 6})
    table = table_after(1, 4, before, {4: {B: 1}}, FREE, {A: 5, B: 6}, {A: 5, B: 6})
    assert table is not None and table.lines == (EarningsLine(address_bytes(B), 7),) and table.total == 12
    again = table_after(1, 5, table, {5: {A: 2}}, FREE, {A: 5, B: 7}, {A: 5})
    assert again is not None and units(again) == {A: 7, B: 7} and again.total == 14
    short = table_after(1, 5, table, {5: {A: 2, B: 20}}, 1, {A: 5, B: 7}, {A: 5, B: 7})
    assert short is None, "the one unit is dust"
    owed = table_after(1, 5, table, {5: {A: 2, B: 20}}, 11, {A: 5, B: 7}, {A: 5, B: 7})
    assert owed is not None and units(owed) == {A: 6, B: 17}, "who is owed anything keeps its line"


# from strangers


def test_a_table_that_is_doubled_unsorted_owes_what_it_does_not_or_is_another_pools_is_refused() -> None:
    table = first({A: 50, B: 60}, 70)
    head, files = table.files()
    lines, owed = read_page(files[0], head.pages[0], EarningsLine), read_page(files[1], head.owing.pages[0], Owed)  # type: ignore[union-attr]
    data = encode_head(head)
    assert whole(checked_head(data, 1, table.root(), table.total), lines, owed) == table
    with pytest.raises(ProtocolError, match="pool 1"):
        decode_head(data, 2)
    for root, total in ((bytes(32), table.total), (table.root(), table.total + 1)):
        with pytest.raises(ProtocolError, match="do not hash"):
            checked_head(data, 1, root, total)
    for wrong in (lines[:1] * 2, lines[::-1]):
        with pytest.raises(ProtocolError, match="in order"):
            whole(head, wrong, owed)
        with pytest.raises(ProtocolError):
            read_page(msgspec.msgpack.encode(wrong), head.pages[0], EarningsLine)
    with pytest.raises(ProtocolError, match="hash"):
        read_page(msgspec.msgpack.encode((lines[0], EarningsLine(lines[1].node, 9))), head.pages[0], EarningsLine)
    with pytest.raises(ProtocolError, match="total"):
        whole(msgspec.structs.replace(head, total=1), lines, owed)
    assert head.owing is not None
    for change in ({"behind": 1}, {"epoch": 9}, {"of": 9}):
        lying = msgspec.structs.replace(head, owing=msgspec.structs.replace(head.owing, **change))
        with pytest.raises(ProtocolError, match="add up"):
            whole(lying, lines, owed)
        assert lying.root() != head.root()
    for change in ({"pages": ()}, {"part": 110}):
        lying = msgspec.structs.replace(head, owing=msgspec.structs.replace(head.owing, **change))
        with pytest.raises(ProtocolError, match="owes nothing"):
            decode_head(encode_head(lying), 1)
    crossed = msgspec.structs.replace(head, pages=(head.pages[0], head.pages[0], head.pages[0]))
    backwards = (head.pages[0], msgspec.structs.replace(head.pages[0], first=bytes(20)))
    assert decode_head(encode_head(crossed), 1)
    with pytest.raises(ProtocolError, match="in order"):
        decode_head(encode_head(msgspec.structs.replace(head, pages=backwards)), 1)
    with pytest.raises(ProtocolError):
        decode_head(b"\xc1", 1)
