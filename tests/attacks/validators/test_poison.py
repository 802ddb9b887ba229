"""Lies that need no fault of anybody else: what was shown to train a run to nothing, or to take honest stakes.

The poisoner says an early, empty word and later looks again unasked; the turncoat accepts, and turns round when the
work is paid for. Each had succeeded live with one of three validators. The control plays the same moves truthfully.
"""

from typing import Any

import pytest
import trio

from node.services.certifier import Certifier
from node.services.context import PoolTime
from node.services.judging.judge import Validator
from node.services.judging.verdict_publisher import SEAL_SECONDS, VerdictPublisher
from node.swarm.facts import JudgeContradicted
from node.swarm.register import RegisteredWork
from node.swarm.vote_set import FileState
from protocol.messages import Seal, ValidatorBatch, VerdictIssued, seal_of
from protocol.statements import VerdictOutcome, WorkCommitment, work_id
from tests.attacks.validators.court import (
    POOL,
    VALIDATORS,
    WORKER,
    Court,
    TruthfulEngine,
    policy_root,
    root_of,
)
from tests.cheats.seats import Choosy, Copier, LookingTurncoat, SecondLook, Turncoat

SEALS = 4096

LIAR = VALIDATORS[0].address


class TruthfulLook(SecondLook):
    """The control: the same unasked second look, with true values."""

    lie = False


@pytest.mark.parametrize("kind", [SecondLook, TruthfulLook])
async def test_a_second_look_outside_a_dispute_counts_for_nothing(autojump_clock, kind: type[Validator]) -> None:
    court = Court([kind, Validator, Validator], window=2)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        id = await court.commit()
        await trio.sleep(10)
        vote_set = court.trainer.jury.state.vote_set
        assert vote_set.state(id) is FileState.ACCEPTED and vote_set.disputes.raised == 0
        said = vote_set.accepting(id)
        assert all(isinstance(one, VerdictIssued) and one.report_root != b"\x07" * 32 for one in said.values())
        assert {author for author, one in said.items() if one.checked.strip(b"\0")} >= {
            key.address for key in VALIDATORS[1:]
        }
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", [Turncoat, LookingTurncoat])
async def test_who_turns_round_takes_no_stake_even_where_an_honest_validator_was_away(
    autojump_clock, kind: type[Validator]
) -> None:
    """With one honest validator's verdict missing, the turncoat's first word made the quorum: it stays said."""
    court = Court([kind, Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery, absent=[2])
        id = await court.commit()
        await trio.sleep(80)
        vote_set = court.trainer.jury.state.vote_set
        assert court.slashed() == []
        assert vote_set.state(id) is not FileState.REJECTED
        assert not vote_set.disputes.open()
        if not issubclass(kind, LookingTurncoat):
            assert all(names == {LIAR} for names in court.quarantined() if names)
            assert LIAR in vote_set.disputes.quarantined and len(vote_set.disputes.quarantined[LIAR].evidence) == 4
        nursery.cancel_scope.cancel()


async def test_two_words_of_one_validator_are_told_to_who_carries_evidence(autojump_clock) -> None:
    court = Court([Turncoat, Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        id = await court.commit()
        await trio.sleep(20)
        (told,) = court.trainer.jury.facts.standing(JudgeContradicted)
        assert told.author == LIAR and work_id(told.first.verdict) == work_id(told.second.verdict) == id
        assert {told.first.verdict.outcome, told.second.verdict.outcome} == {
            VerdictOutcome.ACCEPT,
            VerdictOutcome.SLASH,
        }
        nursery.cancel_scope.cancel()


# seals


class Hasty(VerdictPublisher):
    """Shows its verdict without sealing it first."""

    async def say(self, work: RegisteredWork, message: Any) -> None:
        raw = self._context.board.sealed(message)
        await self._context.journal.do(self._context.journal.say, "verdict", work.id, raw)
        await self._context.board.post_raw(raw)


async def test_a_verdict_is_shown_after_everybody_has_sealed_and_who_copied_is_not_paid(autojump_clock) -> None:
    court = Court([Copier, Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        id = await court.commit()
        await trio.sleep(15)
        for seat in (court.trainer, *court.workers, *court.seats[1:]):
            vote_set = seat.jury.state.vote_set
            assert vote_set.has_spoken(id) == {key.address for key in VALIDATORS}
            assert not seat.jury.state.seals.was_sealed(id, LIAR)
            assert all(seat.jury.state.seals.was_sealed(id, key.address) for key in VALIDATORS[1:])
        nursery.cancel_scope.cancel()


async def test_who_shows_without_having_sealed_decides_but_is_not_paid(autojump_clock) -> None:
    court = Court([Validator, Validator, Validator])
    court.validators[0]._pronouncing = Hasty(court.seats[0].context)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        id = await court.commit()
        await trio.sleep(10)
        vote_set = court.trainer.jury.state.vote_set
        assert vote_set.state(id) is FileState.ACCEPTED and LIAR in vote_set.accepting(id)
        assert not court.trainer.jury.state.seals.was_sealed(id, LIAR)
        nursery.cancel_scope.cancel()


async def test_seals_that_are_never_opened_or_fit_nothing_hold_nobody_up(autojump_clock) -> None:
    court = Court([Validator, Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        for start in range(40):
            works = [bytes([start]) * 31 + bytes([n]) for n in range(32)]
            seals = tuple(Seal(one, one) for one in works)
            await court.seats[0].board.post(ValidatorBatch(pool=POOL, seals=seals))
        await trio.sleep(60)
        sealer = court.trainer.jury.state.seals._sealers[LIAR]
        assert 0 < len(sealer.unopened) <= len(sealer.seals) <= SEALS
        id = await court.commit()
        forged = ValidatorBatch(pool=POOL, seals=(Seal(id, bytes(32)),))
        await court.seats[0].board.post(forged)
        await trio.sleep(10)
        vote_set = court.trainer.jury.state.vote_set
        assert vote_set.state(id) is FileState.ACCEPTED
        jury = court.trainer.jury
        assert not jury.state.seals.was_sealed(id, LIAR) and jury.state.seals.was_sealed(id, VALIDATORS[1].address)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", [Choosy, VerdictPublisher])
async def test_who_seals_everything_and_shows_what_it_likes_is_neither_awaited_nor_paid(
    autojump_clock: Any, kind: type[VerdictPublisher]
) -> None:
    court = Court([Validator] * 3)
    court.validators[0]._pronouncing = kind(court.seats[0].context)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        works = [await court.commit(index=index) for index in range(16)]
        await trio.sleep(20)
        assert {court.trainer.jury.state.vote_set.state(id) for id in works} == {FileState.ACCEPTED}
        last = await court.commit(index=16)
        await trio.sleep(1)
        for seat in (court.trainer, *court.seats[1:]):
            assert (
                seat.jury.state.seals.leaves_unopened(LIAR) == seat.jury.state.seals.is_behind(LIAR) == (kind is Choosy)
            )
            assert (LIAR in seat.jury.state.seals.sealing(last)) == (kind is VerdictPublisher)
            assert not any(seat.jury.state.seals.leaves_unopened(key.address) for key in VALIDATORS[1:])
        nursery.cancel_scope.cancel()


class Forward(VerdictPublisher):
    """Seals its verdict, and shows it before anybody else has sealed one."""

    async def _seal_and_show(self, id: bytes, message: VerdictIssued) -> None:
        self._context.board.say([Seal(id, seal_of(message, self._own))], within=0.0)
        await trio.sleep(0.1)
        await self._context.board.post(message)


@pytest.mark.parametrize("kind", [Forward, Hasty, VerdictPublisher])
async def test_who_shows_before_a_quorum_has_sealed_costs_nobody_else_the_pay(
    autojump_clock: Any, kind: type[VerdictPublisher]
) -> None:
    """Before, the fastest of a bench could take the others' pay for every file: what it showed may have been copied.
    Now it is the one that is not paid, which a copier with such an accomplice would have to share."""
    court = Court([Validator] * 3, engine=lambda number, bad: TruthfulEngine(bad, seconds=2.0 if number else 0.01))
    court.validators[0]._pronouncing = kind(court.seats[0].context)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        works = list[bytes]()
        for index in range(3):
            works.append(await court.commit(index=index))
            await trio.sleep(6)
        for seat in (court.trainer, *court.seats):
            assert {seat.jury.state.vote_set.state(id) for id in works} == {FileState.ACCEPTED}
            assert all(seat.jury.state.seals.was_sealed(id, key.address) for id in works for key in VALIDATORS[1:])
            assert {seat.jury.state.seals.was_sealed(id, LIAR) for id in works} == {kind is VerdictPublisher}
        nursery.cancel_scope.cancel()


class Tardy(VerdictPublisher):
    """Seals every verdict, and shows it after its time: whoever looks meanwhile may be one of its friends."""

    async def _seal_and_show(self, id: bytes, message: VerdictIssued) -> None:
        self._context.board.say([Seal(id, seal_of(message, self._own))], within=0.0)
        await trio.sleep(20.5)  # the longest time is fifteen seconds, and five on the way
        await self._context.board.post(message)


@pytest.mark.parametrize("kind", [Tardy, VerdictPublisher])
async def test_who_copies_is_paid_for_few_files_however_late_an_accomplice_opens_its_seals(
    autojump_clock: Any, kind: type[VerdictPublisher]
) -> None:
    """Who seals late in the place of one that did not open is paid. So an accomplice's late seals could pay a copier:
    those of one opening time in ten minutes do, and then nobody counts on them."""
    court = Court([Copier, Validator, Validator], verdict_seconds=30.0)
    court.validators[1]._pronouncing = kind(court.seats[1].context)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        works = list[bytes]()
        for index in range(12):
            works.append(await court.commit(index=index))
            await trio.sleep(4)
        await trio.sleep(35)
        for seat in (court.trainer, court.seats[2]):
            copied = [seat.jury.state.seals.was_sealed(id, LIAR) for id in works]
            assert all(LIAR in seat.jury.state.vote_set.has_spoken(id) for id in works)
            assert not any(copied[7:]) and any(copied) == (kind is Tardy), copied
            assert all(seat.jury.state.seals.was_sealed(id, VALIDATORS[2].address) for id in works)
        nursery.cancel_scope.cancel()


class Mute(VerdictPublisher):
    """Looks at everything, and says nothing of it."""

    async def say(self, work: RegisteredWork, message: Any) -> None:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("foreseen", [True, False])
async def test_a_seal_that_came_before_its_work_pays_nobody_who_copies(autojump_clock: Any, foreseen: bool) -> None:
    """A worker could tell an accomplice the names of thousands of works that it will make."""
    court = Court([Copier, Validator, Validator], verdict_seconds=30.0)
    court.validators[1]._pronouncing = Mute(court.seats[1].context)
    id = work_id(WorkCommitment(POOL, WORKER.address, policy_root(0), 0, root_of(), 100))
    seal = ValidatorBatch(pool=POOL, seals=(Seal(id, bytes(32)),))
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        if foreseen:
            await court.seats[1].board.post(seal)
            await trio.sleep(1)
        assert await court.commit() == id
        if not foreseen:
            await trio.sleep(0.1)
            await court.seats[1].board.post(seal)
        await trio.sleep(40)
        assert court.trainer.jury.state.seals.was_sealed(id, VALIDATORS[2].address)
        assert court.trainer.jury.state.seals.was_sealed(id, LIAR) != foreseen
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", [Mute, VerdictPublisher])
async def test_who_seals_nothing_is_waited_for_four_times_and_costs_nobody_the_pay_of_a_short_window(
    autojump_clock: Any, kind: type[VerdictPublisher]
) -> None:
    """Before, each file waited three seconds for it, and its pay for verdict_seconds: too late for a table."""
    court = Court([Validator] * 3, verdict_seconds=3600.0)
    court.validators[0]._pronouncing = kind(court.seats[0].context)
    vote_set, waited = court.trainer.jury.state.vote_set, list[float]()
    async with trio.open_nursery() as nursery:
        for seat in court.seats[1:]:
            seat.context.time = PoolTime(window=20, wall=trio.current_time)
            nursery.start_soon(Certifier(seat.context).run)
        await court.open(nursery)
        for index in range(6):
            id = await court.commit(index=index)
            began = trio.current_time()
            while vote_set.state(id) is FileState.OPEN:
                await trio.sleep(0.05)
            waited.append(trio.current_time() - began)
            await trio.sleep(5)
        assert all(took > SEAL_SECONDS for took in waited[:4]) == (kind is Mute)
        assert all(took < SEAL_SECONDS / 3 for took in waited[4:])
        assert not vote_set.is_inactive(LIAR)  # what is known of it after an hour, and costs it its say
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    first, second = (seat.context.journal.pay.unsigned(seat.key.address, POOL, 1)[0] for seat in court.seats[1:])
    assert len({one.work for one in first} & {one.work for one in second}) >= 6


async def test_who_is_two_seconds_slower_than_the_quorum_is_waited_for_and_paid_for_ever(autojump_clock: Any) -> None:
    """The control of the one above: also after a time in which it said nothing."""
    court = Court([Validator] * 3, engine=lambda number, bad: TruthfulEngine(bad, seconds=0.01 if number else 2.0))
    slow = court.validators[0]
    spoken, slow._pronouncing = slow._pronouncing, Mute(court.seats[0].context)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        nursery.start_soon(spoken.run)
        for index in range(10):
            if index == 5:
                slow._pronouncing = spoken
            id = await court.commit(index=index)
            await trio.sleep(8)
        assert court.trainer.jury.state.seals.was_sealed(id, LIAR)
        nursery.cancel_scope.cancel()


class Hurried(VerdictPublisher):
    """Shows its verdict as soon as a quorum has sealed, and waits for nobody who is slower."""

    def _enough_sealed(self, id: bytes, sealed: set[Any]) -> bool:
        return len(sealed) >= self._context.quorum


@pytest.mark.parametrize("away", [False, True])
async def test_who_hurries_takes_no_slower_ones_pay_and_pays_no_copier_that_nobody_waits_for(
    autojump_clock: Any, away: bool
) -> None:
    """away: the slower one sealed none of the files before, and seals after it could read what was shown."""
    court = Court([Validator] * 3, engine=lambda number, bad: TruthfulEngine(bad, seconds=0.01 if number else 1.0))
    slow = court.validators[0]
    spoken, court.validators[1]._pronouncing = slow._pronouncing, Hurried(court.seats[1].context)
    slow._pronouncing = Mute(court.seats[0].context) if away else spoken
    seals = [seat.jury.state.seals for seat in (court.trainer, *court.seats)]
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        if away:
            nursery.start_soon(spoken.run)
        for index in range(6):
            slow._pronouncing = spoken if index == 5 else slow._pronouncing
            id = await court.commit(index=index)
            await trio.sleep(8)
        for one in seals:
            assert one.was_sealed(id, LIAR) != away
            assert all(one.was_sealed(id, key.address) for key in VALIDATORS[1:])
        nursery.cancel_scope.cancel()


async def test_a_slow_validator_without_whom_nothing_is_decided_is_waited_for_and_paid(autojump_clock: Any) -> None:
    """It seals long after the other; and what it shows late counts, since it sealed in time."""
    court = Court([Validator] * 2, engine=lambda number, bad: TruthfulEngine(bad, seconds=6.0 * number))
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        id = await court.commit()
        await trio.sleep(5.5)
        assert not court.trainer.jury.state.vote_set.has_spoken(id)
        await trio.sleep(3)
        jury = court.trainer.jury
        assert jury.state.vote_set.state(id) is FileState.ACCEPTED
        assert all(jury.state.seals.was_sealed(id, key.address) for key in VALIDATORS[:2])
        nursery.cancel_scope.cancel()


class Silent(VerdictPublisher):
    """Makes verdicts and says none of them; said: by work."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.said: dict[bytes, VerdictIssued] = {}

    async def say(self, work: RegisteredWork, message: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.said[work.id] = message


@pytest.mark.parametrize("seal_first", [True, False])
async def test_on_a_loaded_node_a_seal_still_comes_before_the_verdict_that_came_after_it(
    autojump_clock: Any, seal_first: bool
) -> None:
    """All of them wait to be read; the control comes the other way round, as from a copier."""
    court = Court([Validator] * 3)
    silent = [Silent(seat.context) for seat in court.seats]
    for validator, one in zip(court.validators, silent, strict=True):
        validator._pronouncing = one
    board, jury, slow = court.trainer.board, court.trainer.jury, court.seats[1]
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        for index in range(8):
            id = await court.commit(index=index)
            await trio.sleep(2)
            shown, own = silent[0].said[id], silent[1].said[id]
            for number in (0, 2):  # so that the first had to show
                sealed = Seal(id, seal_of(silent[number].said[id], court.seats[number].key.address))
                await court.seats[number].board.post(ValidatorBatch(pool=POOL, seals=(sealed,)))
            await trio.sleep(2.5)  # and has waited for the slower one
            seal = ValidatorBatch(pool=POOL, seals=(Seal(id, seal_of(own, slow.key.address)),))
            said = [(slow, seal), (court.seats[0], shown)]
            for seat, message in (*(said if seal_first else said[::-1]), (slow, own)):
                assert board._accept(seat.key.address, seat.board.sealed(message))
            await court.seats[2].board.post(silent[2].said[id])  # or it would not be counted on
            await trio.sleep(1)
            assert jury.state.seals.was_sealed(id, slow.key.address) == seal_first
        nursery.cancel_scope.cancel()
