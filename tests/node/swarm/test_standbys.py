"""Which proofs of standbys count, and for which steps they are paid: liars and copiers beside those who replay."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from node.swarm.policies import PolicyClock
from node.swarm.standbys import TIME, Drawn, StandbyBook, held_back
from node.swarm.terms import Terms
from protocol.audit import AuditSpec
from protocol.earnings import of_standing, policy_units, standing_units
from protocol.identity import Address, NodeKey
from protocol.messages import PolicyAnnounced, Signed, StepReplayed
from protocol.sections import Pay
from tests.attacks.validators.court import court_run

LEADER, FIRST, SECOND, STRANGER = (NodeKey(bytes([n]) * 32).address for n in (1, 2, 3, 4))
WINDOW = 4
RUN = msgspec.structs.replace(court_run(), audit=AuditSpec(window=WINDOW))


class Bench:
    def __init__(self, run: Any = RUN) -> None:
        self.terms = Terms(LEADER, lambda: 0.0)
        self.terms.seat((LEADER, FIRST, SECOND), 60, 10)
        self.clock = PolicyClock(lambda: 0.0, self.terms)
        self.book = StandbyBook(run, self.clock, self.terms)
        self.drawn: list[Drawn] = []

    def announce(self, step: int) -> None:
        said: dict[str, Any] = {"parent": bytes(32), "batch_root": bytes(32), "state_root": bytes(32)}
        message = PolicyAnnounced(
            pool=1, step=step, policy_root=step.to_bytes(4) * 8, manifest_root=bytes(32), manifest_size=1,
            signature=bytes(65), epoch=step // 10, **said,
        )  # fmt: skip
        assert self.clock.announce(Signed(LEADER, message, b""))
        self.drawn += self.book.draw()

    def tell(self, who: Address, step: int, proof: bytes = b"p" * 32, term: int = 0) -> bool:
        return self.book.told(Signed(who, StepReplayed(pool=1, term=term, step=step, proof=proof), b""))


def test_who_told_of_every_step_in_time_is_drawn_each_window_and_who_told_of_half_of_them_in_half() -> None:
    bench, windows = Bench(), 400
    for step in range(windows * WINDOW + TIME + 1):
        bench.announce(step)
        if step:
            assert bench.tell(FIRST, step)
            if step % 2:
                assert bench.tell(SECOND, step)
    assert [one.window for one in bench.drawn] == list(range(windows))
    places = Counter(one.statement.step - one.window * WINDOW for one in bench.drawn)
    assert set(places) == set(range(WINDOW)) and min(places.values()) > windows / WINDOW / 2
    assert all(FIRST in one.told and LEADER not in one.told for one in bench.drawn)
    assert 0.4 < sum(SECOND in one.told for one in bench.drawn) / windows < 0.6
    assert {one.epoch for one in bench.drawn[:1]} == {(WINDOW - 1 + TIME) // 10}, (
        "that of the policy which tells the lot"
    )


def test_a_proof_counts_until_the_lot_may_be_known_and_no_longer() -> None:
    bench = Bench()
    for step in range(3):
        bench.announce(step)
    assert not bench.tell(FIRST, 4), "nobody can have that state"
    assert bench.tell(FIRST, 3), "its announcement may come later"
    for step in range(3, 2 + TIME):
        bench.announce(step)
    assert bench.tell(FIRST, 2), "the control: one policy before the end"
    bench.announce(2 + TIME)
    assert not bench.tell(SECOND, 2)


def test_once_a_checkpoint_is_offered_its_bytes_make_no_proof() -> None:
    bench = Bench()
    for step in range(3):
        bench.announce(step)
    assert bench.tell(FIRST, 2)
    for invented in range(100, 100 + 50 * TIME):
        bench.book.offered(invented)
    bench.book.offered(2)
    for invented in range(100, 100 + 50 * TIME):
        bench.book.offered(invented)
    assert not bench.tell(SECOND, 2), "a copier"
    assert bench.tell(SECOND, 1), "the control: nobody offers that one"


def test_the_first_word_counts_a_flood_pushes_out_nobody_elses_and_strangers_and_leaders_say_nothing() -> None:
    bench = Bench()
    for step in range(2 * WINDOW + TIME):
        bench.announce(step)
        if step:
            assert bench.tell(FIRST, step, b"a" * 32)
            bench.tell(FIRST, step, b"b" * 32)
            bench.tell(LEADER, step)
            assert not bench.tell(STRANGER, step)
            for number in range(200):
                bench.tell(SECOND, step, number.to_bytes(32), term=number + 1)
    assert len(bench.drawn) == 2
    assert all(one.told == {FIRST: b"a" * 32} for one in bench.drawn)


def test_a_book_that_begins_late_draws_what_it_has_heard_of() -> None:
    bench = Bench()
    for step in range(5 * WINDOW, 7 * WINDOW + TIME):
        bench.announce(step)
        assert bench.tell(FIRST, step)
    assert [one.window for one in bench.drawn] == [5, 6]


@pytest.mark.parametrize("pay", [Pay(standing=0.0), Pay(training=0.0)])
def test_where_standbys_are_not_paid_nothing_is_held_back(pay: Pay) -> None:
    bench = Bench()
    assert held_back(RUN, bench.terms) == TIME and held_back(RUN, Terms(LEADER, lambda: 0.0)) == 0
    free = msgspec.structs.replace(RUN, pay=pay)
    assert held_back(free, bench.terms) == 0 and standing_units(free) == 0


def test_a_window_is_paid_as_its_policies_are_times_the_share() -> None:
    said = [of_standing(RUN, 1, who, window, 3) for who in (FIRST, SECOND) for window in (0, 1)]
    assert len({one.work for one in said}) == 4
    assert {one.units for one in said} == {int(WINDOW * 0.5 * policy_units(RUN))}
