"""The books of a pool, from events that come in their order, and of which some are taken back."""

from typing import Any

from contracts.bindings import (
    Claimed,
    EarningsDropped,
    EarningsPosted,
    Filed,
    FilingDropped,
    GivenBack,
    Joined,
    NodeAttested,
    PoolFunded,
    Redeemed,
    Slashed,
    SlashOverturned,
    ValidatorsSet,
)
from node.chain.ledger import Ledger
from protocol.identity import NodeKey

MOST_TABLES = 1_024

OWN, OTHER = NodeKey.generate().address, NodeKey.generate().address


def place(number: int) -> dict[str, Any]:
    return {"block": number, "transaction": f"0x{number:064x}", "log_index": 0, "pool": 1}


def claimed(number: int, node: Any, units: int) -> Claimed:
    return Claimed(**place(number), node=node, provider=OTHER, units=units, amount=10 * units)


def slashed(number: int, case: int) -> Slashed:
    return Slashed(**place(number), node=OTHER, provider=OWN, reason=5, amount=1, file_root=bytes(32), case_id=case)


def test_our_nodes_pay_is_added_up_and_taken_back_with_its_block() -> None:
    ledger = Ledger(OWN)
    events = [claimed(1, OWN, 5), claimed(2, OTHER, 7), claimed(3, OWN, 1)]
    for event in events:
        ledger.apply(event)
    assert (ledger.paid, ledger.claims) == (60, [events[0], events[2]])
    for event in events[1:]:
        ledger.undo(event)
    assert (ledger.paid, ledger.claims) == (50, [events[0]])


def test_what_our_node_filed_and_was_redeemed_or_dropped_is_known_and_taken_back() -> None:
    ledger = Ledger(OWN)
    events = [
        Filed(**place(1), node=OWN, epoch=4, units=40),
        Filed(**place(2), node=OTHER, epoch=4, units=9),
        Filed(**place(3), node=OWN, epoch=3, units=60),
        FilingDropped(**place(4), node=OWN, units=100),
        Filed(**place(5), node=OWN, epoch=4, units=5),
        Redeemed(**place(6), node=OWN, provider=OTHER, filed=5, units=2, amount=20),
    ]
    left = []
    for event in events:
        ledger.apply(event)
        left.append(ledger.unredeemed)
    assert ledger.filed == {3: 60, 4: 45} and left == [40, 40, 100, 0, 5, 0]
    for event in reversed(events[2:]):
        ledger.undo(event)
    assert (ledger.filed, ledger.unredeemed) == ({4: 40}, 40)


def test_the_escrow_and_what_each_node_has_claimed_are_known_as_of_a_block_and_taken_back_with_it() -> None:
    ledger = Ledger(OWN)
    events = [
        PoolFunded(**place(1), payer=OWN, amount=50, escrow=50),
        claimed(2, OWN, 2),
        claimed(3, OTHER, 1),
        GivenBack(**place(4), node=OTHER, units=1),
        PoolFunded(**place(5), payer=OWN, amount=70, escrow=90),
    ]
    for event in events:
        ledger.apply(event)
    assert [ledger.escrow(block, 10) for block in (0, 1, 4, 5)] == [0, 5, 6, 13] and ledger.escrow(5, 0) == 0
    assert ledger.claimed() == {OWN: 2, OTHER: 2} and ledger.claimed(3) == {OWN: 2}
    for event in reversed(events[1:]):
        ledger.undo(event)
    assert (ledger.escrow(9, 10), ledger.claimed()) == (5, {})


def posted(epoch: int) -> EarningsPosted:
    given = {"number": 1, "blob": bytes(32), "counts_at": epoch, "signers": ()}
    return EarningsPosted(**place(epoch), epoch=epoch, root=bytes(32), total=epoch, **given)  # type: ignore[arg-type]


def test_the_newest_table_counts_and_old_ones_are_forgotten() -> None:
    ledger = Ledger(OWN)
    for epoch in range(MOST_TABLES + 5):
        ledger.apply(posted(epoch))
    assert len(ledger.tables) == MOST_TABLES
    last = ledger.tables[-1]
    ledger.undo(last)
    assert ledger.tables[-1].epoch == last.epoch - 1
    ledger.apply(last)
    dropped = EarningsDropped(**place(MOST_TABLES + 6), epoch=last.epoch, root=bytes(32))
    ledger.apply(dropped)
    assert ledger.tables[-1].epoch == last.epoch - 1, "the arbiter found it false"
    ledger.undo(dropped)
    assert ledger.tables[-1] == last


def test_a_node_is_as_big_as_a_quorum_had_found_it_by_a_time_and_a_block() -> None:
    ledger = Ledger(OWN)
    for block, units, made_at, until in ((1, 3, 100, 200), (2, 5, 150, 400), (3, 0, 300, 400)):
        ledger.apply(NodeAttested(**place(block), node=OTHER, units=units, made_at=made_at, until=until))
    assert [ledger.attested(OTHER, at, 9) for at in (100, 101, 151, 300, 301, 500)] == [0, 3, 5, 5, 0, 0]
    assert ledger.attested(OTHER, 350, 2) == 5 and ledger.attested(OTHER, 201, 1) == ledger.attested(OWN, 101, 9) == 0
    ledger.undo(NodeAttested(**place(3), node=OTHER, units=0, made_at=300, until=400))
    assert ledger.attested(OTHER, 350, 9) == 5


def test_a_slash_counts_until_it_is_overturned_and_again_when_that_is_taken_back() -> None:
    ledger = Ledger(OWN)
    ledger.apply(Joined(**place(1), node=OTHER, provider=OWN, contact="", lease_until=9))
    ledger.apply(Joined(**place(2), node=OTHER, provider=OWN, contact="", lease_until=9))
    judged, overturned = slashed(3, 1), SlashOverturned(**place(4), node=OTHER, case_id=1, compensation=0)
    ledger.apply(judged)
    assert ledger.slashed == {OTHER: judged}
    ledger.apply(overturned)
    assert ledger.slashed == {}
    ledger.undo(overturned)
    assert ledger.slashed == {OTHER: judged}
    ledger.apply(overturned)
    final = slashed(5, 0)
    ledger.apply(final)
    assert ledger.slashed == {OTHER: final}
    ledger.undo(final)
    assert ledger.slashed == {}


def test_cases_and_benches_are_remembered_and_taken_back_with_their_block() -> None:
    ledger = Ledger(OWN)
    seated = [ValidatorsSet(**place(n), number=n, validators=(OTHER,), threshold=1) for n in (1, 2)]
    for event in (*seated, slashed(3, 1), slashed(4, 0), slashed(5, 2)):
        ledger.apply(event)
    assert ledger.cases == [1, 2] and list(ledger.benches) == seated
    ledger.apply(SlashOverturned(**place(6), node=OTHER, case_id=2, compensation=0))
    ledger.undo(seated[1])
    assert ledger.cases == [1] and list(ledger.benches) == seated[:1]
