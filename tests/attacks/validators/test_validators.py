"""Validators that accuse falsely, stamp, keep silent or contradict: none costs an honest worker its stake."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from node.inference.wire import Inspected
from node.services.judging.fetching import CommittedFile, Fetching
from node.services.judging.judge import Validator
from node.services.judging.lots import Lot
from node.swarm.facts import Quarantined
from node.swarm.jury import Jury
from node.swarm.register import RegisteredWork
from node.swarm.vote_set import FileState
from protocol.checks import Fault, Reason
from protocol.decision import SuspicionLevel, WorkerStanding
from protocol.identity import NodeKey
from protocol.messages import LotsRevealed, VerdictIssued, signed
from protocol.statements import VerdictOutcome, work_id
from tests.attacks.validators.accusers import FalseAccuser, StatisticalAccuser
from tests.attacks.validators.court import (
    OTHER,
    POOL,
    VALIDATORS,
    WORKER,
    Court,
    Seat,
    TruthfulEngine,
    changed,
    root_of,
)

EVIDENCE = 64

WRONG_DRAW = Fault(Reason.WRONG_DRAW, "solves easy problems")
BAD_GROUP = Fault(Reason.ACTIVATIONS, "other weights", 5)


class RubberStamp(Validator):
    """Accepts everything unseen, with values of its own invention."""

    async def _inspect(self, work: RegisteredWork, path: Any, lot: Lot | None) -> Inspected:
        found = TruthfulEngine({}).inspect(
            # the right form, about another file
            _order(b"\x55" * 32, lot.groups if lot else None)
        )
        return changed(found, outcome=0, reason=0, detail="")


class LazyStamp(Validator):
    """Recomputes nothing and says so, hoping that nobody looks at its lots."""

    async def _inspect(self, work: RegisteredWork, path: Any, lot: Lot | None) -> Inspected:
        found = await super()._inspect(work, path, lot)
        return changed(found, outcome=0, reason=0, detail="", checked=(), logprobs=b"")


class EarlyTeller(LazyStamp):
    """Tells the secret of each window before there is anything to compare it with."""

    async def _inspect(self, work: RegisteredWork, path: Any, lot: Lot | None) -> Inspected:
        if lot is not None:
            secret = self.own_lots._secret(lot.window)
            await self._context.board.post(LotsRevealed(pool=POOL, window=lot.window, secret=secret))
        return await super()._inspect(work, path, lot)


class Silent(Validator):
    """Alive, and never says a word."""

    async def _judge_file(self, candidate: CommittedFile) -> None:
        await trio.lowlevel.checkpoint()


class Contradictory(Validator):
    """Tells one what it wants to hear, and another the opposite."""

    async def _pronounce(self, work: RegisteredWork, found: Any, *rest: Any, **named: Any) -> None:
        await super()._pronounce(work, found, *rest, **named)
        raw = await self._context.journal.do(self._context.journal.said, "verdict", work.id)
        said = self._context.board.opened(raw, VerdictIssued).message
        other = msgspec.structs.replace(said, rewards=bytes(len(said.rewards)))
        await self._context.board.post(signed(other, self._context.key, self._context.domain))


def _order(root: bytes, groups: tuple[int, ...] | None) -> Any:
    from node.inference.wire import Inspect

    return Inspect(
        policy_root=bytes(32),
        node=WORKER.address,
        pool=1,
        index=0,
        units=1,
        path="",
        report_path="",
        file_root=root,
        groups=groups,
    )


async def test_honest_validators_accept_honest_files_and_take_the_stake_of_a_cheat(autojump_clock) -> None:
    court = Court([Validator, Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        honest = await court.commit()
        forged = await court.commit(fault=WRONG_DRAW, key=OTHER)
        await trio.sleep(5)
        for seat in [court.trainer, *court.workers, *court.seats]:
            assert seat.jury.state.vote_set.state(honest) is FileState.ACCEPTED
            assert seat.jury.state.vote_set.state(forged) is FileState.REJECTED
        assert {node for node, _, _ in court.slashed()} == {OTHER.address}
        assert all(votes >= 2 for _, _, votes in court.slashed())
        assert not any(court.quarantined())
        nursery.cancel_scope.cancel()


async def test_engines_that_differ_in_the_last_digits_do_not_quarrel(autojump_clock) -> None:
    court = Court([Validator] * 3, engine=lambda number, bad: TruthfulEngine(bad, noise=0.01 * number))
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        root = await court.commit()
        await trio.sleep(5)
        assert court.trainer.jury.state.vote_set.state(root) is FileState.ACCEPTED
        assert court.trainer.jury.state.disputes.raised == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("liar", [FalseAccuser, RubberStamp, Contradictory])
async def test_a_validator_that_lies_about_facts_is_believed_no_more(autojump_clock, liar: type[Validator]) -> None:
    court = Court([liar, Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        first = await court.commit(index=0)
        await trio.sleep(20)
        second = await court.commit(index=1)
        await trio.sleep(30)
        assert court.trainer.jury.state.vote_set.state(first) is FileState.ACCEPTED
        assert court.trainer.jury.state.vote_set.state(second) is FileState.ACCEPTED
        assert all(names == {VALIDATORS[0].address} for names in court.quarantined())
        assert court.trainer.jury.state.disputes.quarantined[VALIDATORS[0].address].evidence
        assert court.slashed() == []
        nursery.cancel_scope.cancel()


async def test_who_accuses_by_arithmetic_is_believed_no_more_after_three_times(autojump_clock) -> None:
    court = Court([StatisticalAccuser, Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        seen: list[int] = []
        for index in range(4):
            root = await court.commit(index=index)
            await trio.sleep(20)
            assert court.trainer.jury.state.vote_set.state(root) is FileState.ACCEPTED
            seen.append(len(court.trainer.jury.state.disputes.quarantined))
        assert seen == [0, 0, 1, 1]
        assert court.slashed() == []
        nursery.cancel_scope.cancel()


async def test_a_false_accusation_by_one_of_two_takes_no_stake(autojump_clock) -> None:
    """With two validators nobody can say who is right: the file is lost, the stake is not."""
    court = Court([FalseAccuser, Validator], quorum=2)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        root = await court.commit()
        await trio.sleep(100)
        assert court.trainer.jury.state.vote_set.state(root) is not FileState.ACCEPTED
        assert court.slashed() == []
        assert not any(court.quarantined())
        nursery.cancel_scope.cancel()


async def test_honest_hands_execute_no_accusation_that_another_validator_disputes(autojump_clock) -> None:
    """Even where one signature were enough for the contract."""
    court = Court([FalseAccuser, Validator, Validator], quorum=1)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        await court.commit()
        await trio.sleep(60)
        assert [one for judge in court.judges[1:] for one in judge.slashed] == []
        nursery.cancel_scope.cancel()


async def test_silence_delays_a_few_files_and_then_nothing(autojump_clock) -> None:
    court = Court([Silent, Validator], quorum=2)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        roots = [await court.commit(index=index) for index in range(4)]
        await trio.sleep(10)
        court.hand_over(*roots)
        vote_set = court.trainer.jury.state.vote_set
        assert {vote_set.state(root) for root in roots} == {FileState.OPEN}
        await trio.sleep(30)
        for root in roots:
            vote_set.state(root)
        assert vote_set.is_inactive(VALIDATORS[0].address)
        assert {vote_set.state(root) for root in roots} == {FileState.ACCEPTED}
        nursery.cancel_scope.cancel()


async def test_a_dead_validator_does_not_stall_the_run(autojump_clock) -> None:
    court = Court([Validator, Validator, Validator], quorum=3)
    async with trio.open_nursery() as nursery:
        await court.open(nursery, absent=[2])
        root = await court.commit()
        await trio.sleep(5)
        assert court.trainer.jury.state.vote_set.state(root) is FileState.OPEN
        await trio.sleep(30)
        assert court.trainer.jury.state.vote_set.state(root) is FileState.ACCEPTED
        nursery.cancel_scope.cancel()


async def test_a_slow_validator_decides_nothing(autojump_clock) -> None:
    """Its late word is heard, and if it is wrong it is answered."""
    slow = {0: 20.0}
    court = Court(
        [FalseAccuser, Validator, Validator],
        engine=lambda number, bad: TruthfulEngine(bad, seconds=slow.get(number, 0.01)),
    )
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        root = await court.commit()
        await trio.sleep(5)
        assert court.trainer.jury.state.vote_set.state(root) is FileState.ACCEPTED
        await trio.sleep(60)
        assert court.trainer.jury.state.vote_set.state(root) is FileState.ACCEPTED
        assert court.quarantined()[0] == {VALIDATORS[0].address}
        nursery.cancel_scope.cancel()


async def test_a_fault_that_only_one_lot_drew_is_seen_by_all_in_the_end(autojump_clock, monkeypatch) -> None:
    """Nobody who did not draw the group is blamed for having accepted the file."""
    monkeypatch.setattr("node.services.judging.lots.share_of_file", lambda pledged, *rest: max(pledged, 0.5))
    court = Court([Validator, Validator, Validator], window=64)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        split = False
        for index in range(24):
            root = await court.commit(index=index, fault=BAD_GROUP)
            await trio.sleep(2)
            outcomes = {
                one.message.verdict.outcome
                for one in court.trainer.board.messages(VerdictIssued)
                if work_id(one.message.verdict) == root
            }
            await trio.sleep(8)
            if outcomes == {VerdictOutcome.ACCEPT, VerdictOutcome.REJECT}:
                split = True
                assert court.trainer.jury.state.vote_set.state(root) is FileState.REJECTED
                break
        assert split
        for_the_contract: dict[str, set[bool]] = {}
        for one in court.trainer.board.messages(VerdictIssued):
            assert isinstance(one.message, VerdictIssued)
            if work_id(one.message.verdict) == root and one.message.signature:
                for_the_contract.setdefault(one.author, set()).add(one.message.verdict.outcome == VerdictOutcome.ACCEPT)
        assert all(len(words) == 1 for words in for_the_contract.values())  # both would cost an honest stake
        assert not any(court.quarantined())
        assert court.slashed() == []
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("lazy", [LazyStamp, EarlyTeller])
async def test_who_recomputes_less_than_its_lots_demand_is_found_out_by_its_own_secret(
    autojump_clock: Any, lazy: type[Validator]
) -> None:
    court = Court([lazy, Validator, Validator], window=2)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        for step in range(10):
            await court.commit(step=step)
            await trio.sleep(2)
            await court.announce(step + 1)
            await trio.sleep(2)
        assert all(names == {VALIDATORS[0].address} for names in court.quarantined())
        why = court.trainer.jury.state.disputes.quarantined[VALIDATORS[0].address].why
        assert "drawn groups were not recomputed" in why
        assert court.trainer.jury.state.lots.kept > 0
        nursery.cancel_scope.cancel()


async def test_an_honest_worker_survives_a_restart_of_its_only_validator(autojump_clock) -> None:
    """Files that wait for a validator are not too old by the time it comes."""
    court = Court([Validator], quorum=1)
    async with trio.open_nursery() as nursery:
        await court.open(nursery, absent=[0])
        root = await court.commit(step=0)
        for step in range(1, 9):
            await court.announce(step)
        await court.arrive(0, nursery)
        await trio.sleep(10)
        assert court.trainer.jury.state.vote_set.state(root) is FileState.ACCEPTED
        nursery.cancel_scope.cancel()


async def test_troubles_of_the_validator_are_never_held_against_a_worker(autojump_clock) -> None:
    from node.inference.errors import EngineCrashed

    class Crashing(TruthfulEngine):
        async def ask(self, request: Any, *, timeout: float, policy: Any = None, on_progress: Any = None) -> Any:
            await trio.sleep(1)
            raise EngineCrashed("the engine gave no answer", "300 seconds passed", "the node restarts it")

    court = Court([Validator], quorum=1, engine=lambda number, bad: Crashing(bad))
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        await court.commit()
        await trio.sleep(60)
        assert court.trainer.board.messages(VerdictIssued) == []
        assert court.validators[0].outcomes["withheld"] == 1
        nursery.cancel_scope.cancel()


async def test_gaps_late_files_and_undelivered_ones_cost_pay_and_no_stake(autojump_clock) -> None:
    court = Court([Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        skipped = await court.commit(index=1)
        await trio.sleep(30)
        for step in range(1, 5):
            await court.announce(step)
        await trio.sleep(15)
        late = await court.commit(step=0, key=OTHER)
        missing = await court.commit(step=4)
        court.blobs.missing.add(root_of(step=4))
        await trio.sleep(60)
        vote_set = court.trainer.jury.state.vote_set
        reasons = {
            work_id(one.message.verdict): one.message.verdict.reason
            for one in court.trainer.board.messages(VerdictIssued)
        }
        assert reasons == {skipped: Reason.GAP, late: Reason.STALE, missing: Reason.UNAVAILABLE}
        assert {vote_set.state(root) for root in reasons} == {FileState.REJECTED}
        assert court.slashed() == []
        assert vote_set.disputes.raised == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("cut_off", [False, True])
async def test_a_validator_that_hears_no_quorum_says_nothing_of_who_delivers(autojump_clock, cut_off: bool) -> None:
    """Its line may be down: then no file comes, from whomever."""
    court = Court([Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        await trio.sleep(10)
        own = court.validators[0]
        if cut_off:
            own._context.state.validators = list  # type: ignore[method-assign]
        court.blobs.missing.add(root_of())
        missing = await court.commit()
        await trio.sleep(60)
        said = [one for one in court.trainer.board.messages(VerdictIssued) if one.author == own._context.key.address]
        assert [work_id(one.message.verdict) for one in said] == ([] if cut_off else [missing])
        nursery.cancel_scope.cancel()


async def test_the_files_that_a_dead_worker_left_behind_are_not_waited_for_one_by_one(autojump_clock) -> None:
    court = Court([Validator], quorum=1)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        left = [await court.commit(index=index) for index in range(4)]
        for index in range(4):
            court.blobs.missing.add(root_of(index=index))
        await trio.sleep(court.run.audit.delivery_seconds + 4 * 5 + 5)
        told = {work_id(one.message.verdict) for one in court.trainer.board.messages(VerdictIssued)}
        assert told == set(left)
        court.blobs.missing.clear()
        alive = await court.commit(index=4)
        await trio.sleep(5)
        assert court.trainer.jury.state.vote_set.state(alive) is FileState.ACCEPTED
        nursery.cancel_scope.cancel()


async def test_an_objection_that_comes_while_a_slash_waits_its_turn_stops_it(
    autojump_clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.services.court.slashing.seconds_to_wait", lambda *_: 30.0)
    court = Court([Validator, Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        await court.commit(fault=Fault(Reason.WRONG_DRAW, "not what was drawn"))
        await trio.sleep(20)
        with monkeypatch.context() as meanwhile:
            for seat in court.seats:
                meanwhile.setattr(seat.jury.state.vote_set, "undisputed", lambda _: False)
            await trio.sleep(40)
            assert court.slashed() == []
        await trio.sleep(60)
        assert {(node, reason) for node, reason, _ in court.slashed()} == {(WORKER.address, Reason.WRONG_DRAW)}
        nursery.cancel_scope.cancel()


async def test_a_run_may_let_a_gap_cost_the_stake_once_every_validator_has_seen_it(autojump_clock) -> None:
    court = Court([Validator, Validator, Validator], hearsay_costs="stake")
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        await court.commit(index=1)
        await trio.sleep(80)
        assert {(node, reason) for node, reason, _ in court.slashed()} == {(WORKER.address, Reason.GAP)}
        nursery.cancel_scope.cancel()


async def test_a_gap_that_one_living_validator_did_not_see_costs_no_stake(autojump_clock) -> None:
    """It heard the first submission, the others did not: two of three are a quorum, but hearsay is for all to see."""
    court = Court([Validator, Validator, Validator], hearsay_costs="stake")
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        court.validators[0]._register.gap = lambda _: None  # type: ignore[method-assign]
        root = await court.commit(index=1)
        await trio.sleep(80)
        said = [one.message.verdict for one in court.trainer.board.messages(VerdictIssued)]
        assert sorted(one.outcome for one in said) == [
            VerdictOutcome.ACCEPT,
            VerdictOutcome.SLASH,
            VerdictOutcome.SLASH,
        ]
        assert court.slashed() == [] and court.trainer.jury.state.vote_set.state(root) is FileState.REJECTED
        nursery.cancel_scope.cancel()


async def test_equivocation_is_evidence_by_itself(autojump_clock) -> None:
    court = Court([Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        await court.commit()
        await court.commit(fault=WRONG_DRAW)  # another file for the same submission
        await trio.sleep(5)
        assert court.judges[0].equivocations == [WORKER.address]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("classes", "stake"),
    [
        (("a", "b"), True),
        (("a", "a"), False),
        (("x86/float32/sdpa", "x86/float32/eager"), False),
        (("x86/float32/sdpa/ieee/tp1/a", "x86/float32/sdpa/tf32/tp2/b"), False),  # twice the same look
        (("x86/float32/sdpa", "x86/bfloat16/sdpa"), True),
        (("x86/bfloat16/sdpa", "arm/bfloat16/sdpa"), True),
    ],
)
async def test_a_conviction_by_odds_needs_two_classes_of_engines(
    autojump_clock, monkeypatch, classes: tuple[str, str], stake: bool
) -> None:
    convicted = WorkerStanding(level=SuspicionLevel.CONVICTED, log_odds=25.0, against="int8", files=9)
    monkeypatch.setattr("node.services.judging.records.standing", lambda record, spec: convicted)
    court = Court([Validator, Validator])
    for engine, name in zip(court.engines, classes, strict=True):
        engine.engine_name = name
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        for index in range(3):
            root = await court.commit(index=index)
            await trio.sleep(10)
            assert court.trainer.jury.state.vote_set.state(root) is FileState.REJECTED  # pay is lost either way
        assert {(node, reason) for node, reason, _ in court.slashed()} == (
            {(WORKER.address, Reason.CONVICTED)} if stake else set()
        )
        nursery.cancel_scope.cancel()


async def test_suspicion_costs_pay_and_never_the_stake(autojump_clock, monkeypatch) -> None:
    suspected = WorkerStanding(level=SuspicionLevel.SUSPECT, log_odds=10.0, against="int8", files=3)
    monkeypatch.setattr("node.services.judging.records.standing", lambda record, spec: suspected)
    court = Court([Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        for index in range(3):
            await court.commit(index=index)
        await trio.sleep(60)
        reasons = {one.message.verdict.reason for one in court.trainer.board.messages(VerdictIssued)}
        assert reasons == {Reason.SUSPECTED}
        assert court.slashed() == []
        assert court.trainer.jury.state.disputes.raised == 0
        nursery.cancel_scope.cancel()


class NeverDelivered(Fetching):
    async def deliver(self, work: RegisteredWork) -> Path | None:
        await trio.lowlevel.checkpoint()
        return None


class Hearsayer(Validator):
    """Claims of every file that it was never delivered."""

    fetching_kind = NeverDelivered


async def test_who_rejects_by_hearsay_alone_stops_nobody(autojump_clock) -> None:
    court = Court([Hearsayer, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        root = await court.commit()
        await trio.sleep(10)
        assert court.trainer.jury.state.vote_set.state(root) is FileState.OPEN
        await trio.sleep(30)
        assert court.trainer.jury.state.vote_set.state(root) is FileState.ACCEPTED
        assert not any(court.quarantined())
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("settled", [False, True])
async def test_a_dispute_outlives_a_restart_of_everybody(autojump_clock: Any, settled: bool) -> None:
    """The journal has what opens it again, as long as it is open."""
    court = Court([RubberStamp, Validator, Validator], verdict_seconds=60.0)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        if not settled:
            for seat in court.seats:
                seat.jury.state.disputes.open = list  # nobody looks again
        id = await court.commit()
        await trio.sleep(10)
        blank = Seat(court, NodeKey(b"\x21" * 32), "worker")  # it tells nobody
        for seat in (court.trainer, *court.workers, *court.seats):
            blank.membership.joined(seat.key.address, "")
        again = Jury(blank.board, blank.membership, court.run, 1, court.seats[1].jury._journal)
        assert again.state.disputes.open() == []
        nursery.start_soon(again.run)
        await trio.sleep(0.01)
        assert again.state.disputes.open() == ([] if settled else [id])
        nursery.cancel_scope.cancel()


async def test_a_restart_does_not_make_a_liar_credible(autojump_clock) -> None:
    court = Court([Contradictory, Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        await court.commit()
        await trio.sleep(10)
        blank = Seat(court, NodeKey(b"\x21" * 32), "worker")  # has heard nothing
        again = Jury(blank.board, blank.membership, court.run, 1, court.trainer.jury._journal)
        nursery.start_soon(again.run)
        await trio.sleep(0.01)
        (one,) = again.state.disputes.quarantined.values()
        assert one.validator == VALIDATORS[0].address
        assert len(one.evidence) == 4  # the policy's announcement, the commitment, both verdicts
        nursery.cancel_scope.cancel()


async def test_liars_of_benches_long_gone_keep_nobody_believed(autojump_clock) -> None:
    court = Court([Contradictory, Validator, Validator])
    keys = [NodeKey(bytes([100 + number]) * 32) for number in range(EVIDENCE)]
    gone = [Quarantined(key.address, "it lied", 0.0, ()) for key in keys]
    async with trio.open_nursery() as nursery:
        court.trainer.jury.state.disputes.restore(gone)
        await court.open(nursery)
        await court.commit()
        await trio.sleep(40)
        believed_no_more = court.trainer.jury.state.disputes.quarantined
        assert VALIDATORS[0].address in believed_no_more and len(believed_no_more) == EVIDENCE
        assert gone[0].validator not in believed_no_more and gone[1].validator in believed_no_more
        nursery.cancel_scope.cancel()
