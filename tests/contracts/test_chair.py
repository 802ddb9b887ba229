"""The chair: one transaction wins a term, and everybody can read from which policy on its holder's word counts."""

from typing import Any

import pytest

from contracts.bindings import NOBODY, ContractError, Slashed, TermEnded, TermHeld, TermTaken, TrainersSeated
from protocol.identity import NodeKey
from protocol.manifest import PolicyStatement
from protocol.statements import TermSilent, VerdictOutcome, WorkCommitment, sign
from tests.contracts.conftest import WINDOW, Pool

LEASE, GRACE = 200, 30
ROOT = b"\x55" * 32


def members(pool: Pool, count: int) -> list[NodeKey]:
    """Members with a stake: only such a one leads."""
    keys = pool.world.validators(count)
    for key in keys:
        pool.world.send(pool.contracts.join(pool.id, "x"), key)
    return keys


class Chair:
    """A pool with three trainers: a, the first, leads; b and c stand by."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.world, self.contracts = pool, pool.world, pool.contracts
        self.a, self.b, self.c = members(pool, 3)
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
        judges, until = by or self.pool.validators, self.now.until if until is None else until
        silent = [TermSilent(self.pool.id, term, until, 9 - number) for number, _ in enumerate(judges)]
        signatures = [sign(key, self.world.domain, one) for key, one in zip(judges, silent, strict=True)]
        return self.world.send(self.contracts.end_term(silent, signatures), self.world.deployer)

    def bad(self, holder: NodeKey, *, term: int = 0) -> WorkCommitment:
        """What the holder signed by stating a step."""
        roots = (ROOT, b"\x66" * 32, b"\x77" * 32, b"\x88" * 32)
        return PolicyStatement(self.pool.id, term, 7, 0, *roots).commitment(holder.address)

    def convict(
        self,
        bad: WorkCommitment,
        *,
        term: int = 0,
        by: list[NodeKey] | None = None,
        outcome: VerdictOutcome = VerdictOutcome.REJECT,
    ) -> Any:
        """By verdicts with reasons and values of their own."""
        judges = by or self.pool.validators
        said = [self.pool.verdict(bad, int(outcome), 30 + i, values=bytes([i]) * 32) for i, _ in enumerate(judges)]
        signatures = [sign(key, self.world.domain, one) for key, one in zip(judges, said, strict=True)]
        call = self.contracts.end_term_by_verdicts(term, bad, said, signatures)
        return self.world.send(call, self.world.deployer)


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
    with refused("OnlyOpener"):
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


def test_a_term_takes_back_a_few_policies_at_most(chair: Chair, refused: Any) -> None:
    chair.world.send(chair.contracts.hold_chair(chair.pool.id, 5000, ROOT), chair.a)
    with refused("BadStep"):
        chair.take(chair.b, step=4935, at=chair.now.until)
    chair.take(chair.b, step=4936)
    assert chair.now.reached == 5000 and chair.now.from_step == 4936, "and no second one takes back as many again"


def test_a_quorum_ends_a_silent_term_at_once(chair: Chair, refused: Any) -> None:
    (ended,) = chair.world.events(chair.end())
    assert isinstance(ended, TermEnded) and (ended.term, ended.ended_at) == (0, chair.world.now())
    assert chair.now.ended and chair.now.reached == ended.reached == 8, "the second of two who know of 9 and 8"
    with refused("TermIsOver"):
        chair.hold(chair.a)
    with refused("OtherTerm"):  # words about no lease that there was
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


def test_a_quorum_that_found_a_step_bad_ends_the_term_of_who_stated_it(chair: Chair, refused: Any) -> None:
    """At once, whatever each of them saw in it, and whether the holder speaks on or not."""
    chair.hold(chair.a)
    (ended,) = chair.world.events(chair.convict(chair.bad(chair.a)))
    assert isinstance(ended, TermEnded) and (ended.term, ended.ended_at) == (0, chair.world.now())
    with refused("TermIsOver"):
        chair.hold(chair.a)
    with refused("TermIsOver"):
        chair.convict(chair.bad(chair.a))
    chair.take(chair.b)
    assert chair.now.holder == chair.b.address and not chair.now.ended


def test_less_than_a_quorums_verdicts_end_no_term(chair: Chair, refused: Any) -> None:
    first, second = chair.pool.validators
    bad = chair.bad(chair.a)
    with refused("QuorumMissing"):
        chair.convict(bad, by=[first])
    with refused("DuplicateVerdict"):
        chair.convict(bad, by=[first, first])
    with refused("NotAValidator"):
        chair.convict(bad, by=[first, chair.b])
    with refused("NothingFound"):
        chair.convict(bad, outcome=VerdictOutcome.ACCEPT)
    said = [chair.pool.verdict(bad, 1, 30)] * 2
    with refused("BadValues"):
        signature = sign(first, chair.world.domain, said[0])
        chair.world.send(chair.contracts.end_term_by_verdicts(0, bad, said, [signature]), chair.world.deployer)
    chair.convict(bad, by=[second, first])


def test_verdicts_end_the_term_in_which_the_step_was_stated_and_no_other(chair: Chair, refused: Any) -> None:
    with refused("NotTheHolder"):
        chair.convict(chair.bad(chair.b))
    with refused("OtherTerm"):
        chair.convict(chair.bad(chair.a, term=1), term=1)
    chair.convict(chair.bad(chair.a))
    chair.take(chair.b)
    chair.take(chair.a, term=2, at=chair.now.until + GRACE)  # b fell silent, c slept
    with refused("OtherTerm"):
        chair.convict(chair.bad(chair.a), term=2)  # what it lost its first term for
    with refused("OtherTerm"):
        chair.convict(chair.pool.commitment(), term=0)
    assert not chair.now.ended
    chair.convict(chair.bad(chair.a, term=2), term=2)


def test_a_quorums_proof_against_a_step_takes_the_stake_and_the_term_and_gives_both_back_if_it_was_wrong(
    pool: Pool, refused: Any
) -> None:
    """The Court reads it as a verdict on a file: what a slash takes, and who answers for a wrong one, is the same."""
    world, contracts, leader = pool.world, pool.contracts, pool.node
    (other,) = members(pool, 1)
    world.send(contracts.seat_trainers(pool.id, [leader.address, other.address], LEASE, GRACE), pool.manager)
    statement = PolicyStatement(pool.id, 0, 7, 0, ROOT, b"\x66" * 32, b"\x77" * 32, b"\x88" * 32)
    bad = statement.commitment(leader.address)
    said = [pool.verdict(bad, 2, 30, values=bytes([i]) * 32) for i in range(2)]
    signatures = [sign(key, world.domain, one) for key, one in zip(pool.validators, said, strict=True)]
    values = [one.values for one in said]
    word = sign(leader, world.domain, bad)
    with refused("NotAValidator"):
        world.send(contracts.slash(bad, word, 31, signatures, values, 0), other)
    stake, slash = contracts.stake_of(pool.provider.address), pool.info.slash_amount
    world.put_up(other, contracts.case_bond(slash))
    receipt = world.send(contracts.slash(bad, word, 30, signatures, values, 0), other)
    (slashed,) = [event for event in world.events(receipt) if isinstance(event, Slashed)]
    assert (slashed.node, slashed.reason, slashed.amount) == (leader.address, 30, slash)
    with refused("TermIsOver"):
        world.send(contracts.hold_chair(pool.id, 1, ROOT), leader)
    judge = contracts.node_info(pool.validators[0].address).owner  # of both
    before = contracts.stake_of(judge).bonded
    world.send(contracts.overturn(pool.id, leader.address), world.deployer)
    assert contracts.stake_of(pool.provider.address) == stake
    assert contracts.stake_of(judge).bonded == before
    assert contracts.credit_of(pool.provider.address) == slash // 4 * 9 // 10
    world.send(contracts.join(pool.id, "x"), leader)
    world.send(contracts.hold_chair(pool.id, 1, ROOT), leader)


def test_strangers_and_who_was_thrown_out_take_nothing(chair: Chair, refused: Any) -> None:
    until = chair.now.until
    with refused("NotATrainer"):
        chair.take(chair.world.person(), at=until + 1000)


def test_who_was_thrown_out_holds_nothing_and_takes_nothing(pool: Pool, refused: Any) -> None:
    world, contracts = pool.world, pool.contracts
    (other,) = members(pool, 1)
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
    with refused("OnlyOpener"):
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


def test_a_holder_that_is_nobody_is_an_endpoints_word_and_no_contracts(
    chair: Chair, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = chair.contracts.view

    def ask(contract: str, function: str, *arguments: Any) -> Any:
        answer = real(contract, function, *arguments)
        return (answer[0], 9, *answer[2:]) if function == "termOf" else answer

    monkeypatch.setattr(chair.contracts, "view", ask)
    with pytest.raises(ContractError, match="chair"):
        chair.contracts.chair_of(chair.pool.id)
