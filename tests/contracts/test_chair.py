"""The chair: one transaction wins a term, and everybody can read from which policy on its holder's word counts."""

from typing import Any

import pytest

from contracts.bindings import NOBODY, TermEnded, TermHeld, TermTaken, TrainersSeated
from protocol.identity import NodeKey
from protocol.statements import TermSilent, sign
from tests.contracts.conftest import WINDOW, Pool

LEASE, GRACE = 200, 30
ROOT = b"\x55" * 32


class Chair:
    """A pool with three trainers: a, the first, leads; b and c stand by."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.world, self.contracts = pool, pool.world, pool.contracts
        self.a, self.b, self.c = (self.world.person() for _ in range(3))
        order = [key.address for key in (self.a, self.b, self.c)]
        self.seated = self.world.send(self.contracts.seat_trainers(pool.id, order, LEASE, GRACE), pool.manager)

    @property
    def now(self) -> Any:
        found = self.contracts.chair_of(self.pool.id)
        assert found is not None
        return found

    def take(self, by: NodeKey, *, term: int = 1, step: int = 7, at: int | None = None) -> Any:
        return self.world.send(self.contracts.take_chair(self.pool.id, term, step, ROOT), by, at=at)

    def hold(self, by: NodeKey, *, at: int | None = None) -> Any:
        return self.world.send(self.contracts.hold_chair(self.pool.id, 7, ROOT), by, at=at)

    def end(self, *, until: int | None = None, term: int = 0, by: list[NodeKey] | None = None) -> Any:
        silent = TermSilent(self.pool.id, term, self.now.until if until is None else until)
        signatures = [sign(key, self.world.domain, silent) for key in by or self.pool.validators]
        return self.world.send(self.contracts.end_term(silent, signatures), self.world.deployer)


@pytest.fixture
def chair(pool: Pool) -> Chair:
    return Chair(pool)


def test_a_pool_that_nobody_seated_has_no_chair(pool: Pool) -> None:
    assert pool.contracts.chair_of(pool.id) is None


def test_the_first_trainer_leads_from_the_start_in_term_0(chair: Chair, refused: Any) -> None:
    seated, taken = chair.world.events(chair.seated)
    order = (chair.a.address, chair.b.address, chair.c.address)
    assert isinstance(seated, TrainersSeated) and seated.trainers == order == chair.now.trainers
    assert isinstance(taken, TermTaken) and (taken.holder, taken.term, taken.from_step) == (chair.a.address, 0, 0)
    assert chair.now.holder == chair.a.address and taken.until == chair.now.until
    with refused("AlreadySeated"):
        chair.world.send(chair.contracts.seat_trainers(chair.pool.id, order, LEASE, GRACE), chair.pool.manager)


def test_only_the_manager_seats_and_only_what_is_in_form(pool: Pool, refused: Any) -> None:
    seat, send = pool.contracts.seat_trainers, pool.world.send
    one, two = pool.node.address, pool.provider.address
    with refused("OnlyManager"):
        send(seat(pool.id, [one], LEASE, GRACE), pool.node)
    for lease, grace in ((0, 0), (7 * 24 * 3600 + 1, 0), (LEASE, LEASE + 1)):
        with refused("BadLease"):
            send(seat(pool.id, [one], lease, grace), pool.manager)
    for trainers in ([], [NodeKey.generate().address for _ in range(9)]):
        with refused("BadTrainers"):
            send(seat(pool.id, trainers, LEASE, GRACE), pool.manager)
    for trainers in ([one, two, one], [NOBODY]):
        with refused("NotATrainer"):
            send(seat(pool.id, trainers, LEASE, GRACE), pool.manager)
    send(seat(pool.id, [NodeKey.generate().address for _ in range(8)], LEASE, LEASE), pool.manager)


def test_who_holds_has_another_lease_and_nobody_takes_meanwhile(chair: Chair, refused: Any) -> None:
    until = chair.now.until
    (held,) = chair.world.events(chair.hold(chair.a, at=until - 1))
    assert isinstance(held, TermHeld) and held.until == until - 1 + LEASE == chair.now.until
    with refused("NotTheHolder"):
        chair.hold(chair.b)
    with refused("TooEarly"):
        chair.take(chair.b, at=held.until - 1)
    assert chair.hold(chair.a, at=held.until + 10)  # nobody took: it is still its own


def test_standbys_take_in_their_order_and_the_last_holder_comes_last(chair: Chair, refused: Any) -> None:
    until = chair.now.until
    assert [chair.now.turn(key.address) for key in (chair.b, chair.c, chair.a)] == [
        until,
        until + GRACE,
        until + 2 * GRACE,
    ]
    with refused("TooEarly"):
        chair.take(chair.c, at=until + GRACE - 1)
    (taken,) = chair.world.events(chair.take(chair.c, at=until + GRACE))
    assert isinstance(taken, TermTaken)
    assert (taken.holder, taken.term, taken.from_step, taken.parent) == (chair.c.address, 1, 7, ROOT)
    with refused("OtherTerm"):
        chair.take(chair.b)  # it lost: somebody has this term
    with refused("NotTheHolder"):
        chair.hold(chair.a)
    end = chair.now.until
    with refused("TooEarly"):
        chair.take(chair.b, term=2, at=end)
    chair.take(chair.a, term=2)  # behind c comes a again


def test_a_term_begins_no_earlier_than_the_one_before_it(chair: Chair, refused: Any) -> None:
    chair.take(chair.b, at=chair.now.until)
    with refused("BadStep"):
        chair.take(chair.c, term=2, step=6, at=chair.now.until)
    chair.take(chair.c, term=2, step=7)


def test_a_quorum_ends_a_silent_term_at_once(chair: Chair, refused: Any) -> None:
    (ended,) = chair.world.events(chair.end())
    assert isinstance(ended, TermEnded) and (ended.term, ended.ended_at) == (0, chair.world.now())
    assert chair.now.ended
    with refused("TermIsOver"):
        chair.hold(chair.a)
    with refused("TermIsOver"):
        chair.end()
    chair.take(chair.b)
    assert chair.now.holder == chair.b.address and not chair.now.ended


def test_words_of_silence_from_before_the_last_hold_end_nothing(chair: Chair, refused: Any) -> None:
    before = chair.now.until
    chair.hold(chair.a, at=chair.world.now() + 1)
    with refused("OtherTerm"):
        chair.end(until=before)
    with refused("OtherTerm"):
        chair.end(term=1)


def test_only_a_quorum_ends_a_term(chair: Chair, refused: Any) -> None:
    first, second = chair.pool.validators
    with refused("QuorumMissing"):
        chair.end(by=[first])
    with refused("DuplicateVerdict"):
        chair.end(by=[first, first])
    with refused("NotAValidator"):
        chair.end(by=[first, chair.b])
    chair.end(by=[second, first])


def test_strangers_and_who_was_thrown_out_take_nothing(chair: Chair, refused: Any) -> None:
    until = chair.now.until
    with refused("NotATrainer"):
        chair.take(chair.world.person(), at=until + 1000)


def test_who_was_thrown_out_holds_nothing_and_takes_nothing(pool: Pool, refused: Any) -> None:
    world, contracts = pool.world, pool.contracts
    other = world.person()
    world.send(contracts.seat_trainers(pool.id, [pool.node.address, other.address], LEASE, GRACE), pool.manager)
    pool.slash(pool.commitment(), pool.manager)
    with refused("TermIsOver"):
        world.send(contracts.hold_chair(pool.id, 1, ROOT), pool.node)
    world.send(contracts.take_chair(pool.id, 1, 1, ROOT), other)  # at once: there is nobody to wait for
    end = contracts.chair_of(pool.id)
    assert end is not None
    with refused("NotATrainer"):
        world.send(contracts.take_chair(pool.id, 2, 1, ROOT), pool.node, at=end.until + GRACE)


def test_other_trainers_come_a_window_after_the_manager_names_them(chair: Chair, refused: Any) -> None:
    world, contracts, id = chair.world, chair.contracts, chair.pool.id
    new = world.person()
    with refused("OnlyManager"):
        world.send(contracts.propose_trainers(id, [new.address]), chair.a)
    with refused("NoProposal"):
        world.send(contracts.apply_trainers(id), new)
    world.send(contracts.propose_trainers(id, [chair.c.address, chair.a.address]), chair.pool.manager)
    start = world.now() + WINDOW
    with refused("TooEarly"):
        world.send(contracts.apply_trainers(id), new, at=start - 1)
    world.send(contracts.apply_trainers(id), new, at=start)
    assert chair.now.holder == chair.a.address and chair.now.term == 0  # it leads on, from another place
    world.send(contracts.propose_trainers(id, [chair.b.address, new.address]), chair.pool.manager)
    with refused("ProposalLapsed"):
        world.send(contracts.apply_trainers(id), new, at=world.now() + WINDOW + 7 * 24 * 3600)


def test_a_holder_that_is_not_named_any_more_has_no_term(chair: Chair, refused: Any) -> None:
    world, contracts, id = chair.world, chair.contracts, chair.pool.id
    world.send(contracts.propose_trainers(id, [chair.b.address, chair.c.address]), chair.pool.manager)
    world.send(contracts.apply_trainers(id), chair.b, at=world.now() + WINDOW)
    assert chair.now.ended
    with refused("TooEarly"):
        chair.take(chair.c)
    chair.take(chair.b)


def test_nobody_takes_the_chair_of_a_pool_that_is_over(chair: Chair, refused: Any) -> None:
    until = chair.now.until
    chair.world.send(chair.contracts.end_pool(chair.pool.id), chair.pool.manager)
    with refused("PoolOver"):
        chair.take(chair.b, at=until)
