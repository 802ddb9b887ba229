"""Who comes after a validator was found out must come to the same result: what it decides is its own pay."""

from functools import partial

import pytest
import trio

from node.services.judging.judge import Validator
from node.services.judging.lots import OwnLots
from node.services.judging.records import WorkerHistory
from node.swarm.jury import QUARANTINE
from node.swarm.message_store import MessageStore
from node.swarm.vote_set import FileState
from protocol.audit import AuditLoad
from protocol.checks import Fault, Reason
from protocol.identity import NodeKey
from protocol.messages import MAX_MESSAGE_BYTES
from tests.attacks.validators.accusers import FalseAccuser, StatisticalAccuser
from tests.attacks.validators.court import GROUPS, VALIDATORS, WORKER, Court, Seat

NEWCOMER = NodeKey(b"\x21" * 32)


async def arrive(court: Court, nursery: trio.Nursery) -> Seat:
    """A worker that nobody has heard of joins the pool."""
    seat = Seat(court, NEWCOMER, "worker")
    everybody = [court.trainer, *court.workers, *court.seats]
    await seat.run(nursery)
    for other in everybody:
        other.membership.joined(NEWCOMER.address, seat.network.contacts()[0])
        seat.membership.joined(other.key.address, other.network.contacts()[0])
    nursery.start_soon(seat.beat)
    court.workers.append(seat)
    await trio.sleep(10)
    return seat


@pytest.mark.parametrize("liar", [FalseAccuser, StatisticalAccuser])
async def test_a_newcomer_learns_who_is_not_believed_and_is_not_robbed_by_it(
    autojump_clock, monkeypatch, liar: type[Validator]
) -> None:
    monkeypatch.setattr("node.swarm.board.MessageStore", partial(MessageStore, max_age=40.0))
    court = Court([liar, Validator, Validator], verdict_seconds=10.0)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        for index in range(4):
            await court.commit(index=index)
            await trio.sleep(8)
        assert all(names == {VALIDATORS[0].address} for names in court.quarantined())
        await trio.sleep(60)  # nobody tells of it any more
        await court.announce(1)
        seat = await arrive(court, nursery)
        root = await court.commit(step=1, key=NEWCOMER)
        await trio.sleep(40)  # longer than a dispute that nobody hears of would take to fail
        assert set(seat.jury.state.disputes.quarantined) == {VALIDATORS[0].address}
        assert seat.jury.state.vote_set.state(root) is FileState.ACCEPTED
        assert court.trainer.jury.state.vote_set.state(root) is FileState.ACCEPTED
        nursery.cancel_scope.cancel()


async def test_a_newcomer_catches_up_with_more_than_fits_one_answer(autojump_clock, monkeypatch) -> None:
    monkeypatch.setattr("node.swarm.catchup.MAX_CATCH_UP_BYTES", MAX_MESSAGE_BYTES)
    court = Court([Validator, Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        roots = [await court.commit(index=index) for index in range(12)]
        await trio.sleep(5)
        seat = await arrive(court, nursery)
        await trio.sleep(20)
        assert {seat.jury.state.vote_set.state(root) for root in roots} == {FileState.ACCEPTED}
        nursery.cancel_scope.cancel()


async def test_a_dispute_that_nobody_looks_at_ends_without_being_asked_about(autojump_clock) -> None:
    court = Court([FalseAccuser, Validator], verdict_seconds=10.0)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        root = await court.commit()
        for validator in court.validators:
            validator._fetching._rechecked.add(root)  # nobody makes a second look
        await trio.sleep(5)
        vote_set = court.seats[1].jury.state.vote_set
        assert vote_set.disputes.open() == [root]
        await trio.sleep(60)
        assert vote_set.disputes.open() == [] and vote_set.disputes.resolved == 1
        nursery.cancel_scope.cancel()


async def test_who_was_found_out_by_the_clock_alone_is_remembered_over_a_restart(autojump_clock, monkeypatch) -> None:
    """A dispute that its time decides, with nobody's message, has the same consequences as one that a vote decides."""
    four = (*VALIDATORS, NodeKey(b"\x22" * 32))
    monkeypatch.setattr("tests.attacks.validators.court.VALIDATORS", four)
    monkeypatch.setattr("node.services.judging.fetching.share_of_files", lambda *_: 1.0)  # the liar sees every file
    court = Court([FalseAccuser, Validator, Validator, Validator], verdict_seconds=10.0)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        root = await court.commit()
        court.validators[3]._fetching._rechecked.add(root)  # it does not look again, so there is no majority of four
        await trio.sleep(15)
        assert not court.trainer.jury.state.disputes.quarantined
        await trio.sleep(25)
        vote_set = court.trainer.jury.state.vote_set
        assert vote_set.state(root) is FileState.ACCEPTED
        await trio.sleep(1)
        assert await court.trainer.jury._journal.do(court.trainer.jury._journal.recall, QUARANTINE)
        nursery.cancel_scope.cancel()


async def test_who_is_refused_once_loses_that_file_and_is_looked_at_whole_again(autojump_clock, monkeypatch) -> None:
    """Whatever it has made before stays accepted, and is in its day's root: no share of a day goes with one file."""
    monkeypatch.setattr(OwnLots, "load", lambda _: AuditLoad(arriving=10.0, capacity=5.0, backlog=20.0))
    court = Court([Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        for validator in court.validators:
            validator._records._known[WORKER.address] = WorkerHistory(verified=10**6)
        day = [await court.commit(index=index) for index in range(3)]
        await trio.sleep(10)
        looked = [len(order.groups or range(GROUPS)) for engine in court.engines for order in engine.asked]
        assert len(looked) == 6 and max(looked) < GROUPS  # trusted: the pledge is all that is drawn
        bad = await court.commit(index=3, fault=Fault(Reason.ACTIVATIONS, "other weights"))
        await trio.sleep(10)
        last = await court.commit(index=4)
        await trio.sleep(10)
        state = court.trainer.jury.state.vote_set.state
        assert state(bad) is FileState.REJECTED
        assert {state(id) for id in (*day, last)} == {FileState.ACCEPTED}
        assert [engine.asked[-1].groups for engine in court.engines] == [tuple(range(GROUPS))] * 2
        nursery.cancel_scope.cancel()
