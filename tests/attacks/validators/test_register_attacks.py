"""Members who name what is not theirs: roots, policies, units and slots that anybody can write into a commitment.

Each attack is played against real boards, registers, juries and judges in memory; beside each stands a control that
would notice if the attack were not carried out, or the honest swarm blind.
"""

from typing import Any

import pytest
import trio

from node.inference.wire import Inspect, Inspected
from node.services.judging.fetching import Fetching
from node.services.judging.judge import Validator
from node.services.judging.lots import Lot
from node.swarm.register import RegisteredWork, WorkId
from node.swarm.vote_set import FileState
from protocol.checks import Fault, Reason
from protocol.earnings import most_files
from protocol.identity import NodeKey
from protocol.messages import RolloutCommitted, VerdictIssued, signed
from protocol.statements import Verdict, VerdictOutcome, WorkCommitment, sign, work_id
from tests.attacks.validators.court import (
    DOMAIN,
    OTHER,
    POOL,
    VALIDATORS,
    WORKER,
    Court,
    TruthfulEngine,
    announcement,
    changed,
    policy_root,
    root_of,
)

SILENT_AFTER = 4

MADE_UP = b"\x99" * 32
WRONG_DRAW = Fault(Reason.WRONG_DRAW, "solves easy problems")
NOT_ITS_OWN = Fault(Reason.WRONG_IDENTITY, "the file names another node")


class ReadingEngine(TruthfulEngine):
    """Knows whose file each one is, and how many units it holds, as an engine that reads the header does."""

    owner: dict[bytes, tuple[str, bytes, int]]
    units: dict[bytes, int]

    def inspect(self, order: Inspect) -> Inspected:
        found = super().inspect(order)
        fault: Fault | None = None
        if self.owner.get(order.file_root, (order.node, order.policy_root, order.index)) != (
            order.node,
            order.policy_root,
            order.index,
        ):
            fault = NOT_ITS_OWN
        elif self.units.get(order.file_root, order.units) != order.units:
            fault = Fault(Reason.UNITS, "other units than tokens")
        if fault is None:
            return found
        return changed(found, outcome=int(fault.outcome), reason=int(fault.reason), detail=fault.detail, group=-1)


def reading_court(kinds: list[type[Validator]], **named: Any) -> Court:
    """A court whose engines read headers; what `honest` commits to is remembered as whose it is."""
    owner: dict[bytes, tuple[str, bytes, int]] = {}
    units: dict[bytes, int] = {}

    def engine(number: int, bad: dict[bytes, Fault]) -> TruthfulEngine:
        made = ReadingEngine(bad)
        made.owner, made.units = owner, units
        return made

    court = Court(kinds, engine=engine, **named)
    court.owner, court.units = owner, units  # type: ignore[attr-defined]
    return court


async def honest(
    court: Any, step: int = 0, index: int = 0, fault: Fault | None = None, key: NodeKey = WORKER
) -> WorkId:
    root = root_of(step, index, fault, key)
    court.owner[root] = (key.address, policy_root(step), index)
    court.units[root] = 100
    return await court.commit(step, index, fault, key)


def state(court: Court, id: WorkId) -> FileState:
    return court.trainer.jury.state.vote_set.state(id)


@pytest.mark.parametrize("size", [9, 1])
async def test_copied_roots_under_a_made_up_policy_are_ignored(autojump_clock, size: int) -> None:
    court = reading_court([Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        works = []
        for index in range(4):
            works.append(await honest(court, index=index))
            await court.commit(index=index, key=OTHER, root=root_of(0, index), policy=MADE_UP, size=size)
        await trio.sleep(20)
        heard = [one.author for one in court.trainer.board.messages(RolloutCommitted)]
        assert heard.count(OTHER.address) == 4, "the control: the copies did arrive"
        assert {state(court, id) for id in works} == {FileState.ACCEPTED}
        assert all(court.trainer.jury.state.register.get(id).signed.message.size == 9 for id in works)  # type: ignore[union-attr]
        judged = {one.message.verdict.node for one in court.trainer.board.messages(VerdictIssued)}
        assert judged == {WORKER.address} and court.slashed() == [] and not any(court.quarantined())
        nursery.cancel_scope.cancel()


async def test_copied_roots_under_a_real_policy_cost_the_copiers_stake(autojump_clock) -> None:
    court = reading_court([Validator, Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        root = root_of()
        court.owner[root], court.units[root] = (WORKER.address, policy_root(0), 0), 100  # type: ignore[attr-defined]
        copy = await court.commit(key=OTHER, root=root)  # the copier is even faster than its victim
        original = await honest(court)
        await trio.sleep(20)
        assert (state(court, original), state(court, copy)) == (FileState.ACCEPTED, FileState.REJECTED)
        assert {(node, reason) for node, reason, _ in court.slashed()} == {(OTHER.address, Reason.WRONG_IDENTITY)}
        assert not any(court.quarantined()) and court.trainer.jury.state.disputes.raised == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("decoy", ["none", "own slot, made-up policy", "own slot, real policy", "accomplice"])
async def test_a_cheat_is_slashed_as_fast_with_a_decoy_as_without(autojump_clock, decoy: str) -> None:
    court = reading_court([Validator, Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        bad = await honest(court, fault=WRONG_DRAW)
        root = root_of(fault=WRONG_DRAW)
        if decoy == "own slot, made-up policy":
            await court.commit(root=root, policy=MADE_UP)
        elif decoy == "own slot, real policy":
            await court.commit(index=1, root=root)
        elif decoy == "accomplice":
            await court.commit(index=0, root=root, key=OTHER)
        await trio.sleep(6)
        slashed = {(node, reason) for node, reason, _ in court.slashed()}
        assert (WORKER.address, Reason.WRONG_DRAW) in slashed or (WORKER.address, Reason.WRONG_IDENTITY) in slashed
        assert state(court, bad) is FileState.REJECTED
        assert ((OTHER.address, Reason.WRONG_IDENTITY) in slashed) == (decoy == "accomplice"), (
            "a decoy is a fault itself"
        )
        nursery.cancel_scope.cancel()


async def test_two_commitments_that_differ_in_units_contradict_nobody_and_are_evidence(autojump_clock) -> None:
    court = reading_court([Validator, Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        root = root_of()
        court.owner[root], court.units[root] = (WORKER.address, policy_root(0), 0), 100  # type: ignore[attr-defined]
        forked = WorkCommitment(POOL, WORKER.address, policy_root(0), 0, root, 900)
        envelope = court.workers[0].board.sealed(
            RolloutCommitted(pool=POOL, commitment=forked, signature=sign(WORKER, DOMAIN, forked), size=9)
        )
        court.seats[0].board._accept(WORKER.address, envelope)  # one validator hears this one first
        await trio.sleep(0.001)
        true = await court.commit(root=root, units=100)
        await trio.sleep(40)
        said = {
            (one.author, one.message.verdict.units): one.message.verdict.reason
            for one in court.trainer.board.messages(VerdictIssued)
        }
        first = VALIDATORS[0].address
        assert said[first, 900] == Reason.UNITS and (first, 100) not in said, "the control: it judged the other one"
        assert {said[key.address, 100] for key in VALIDATORS[1:]} == {Reason.NONE}
        assert not any(court.quarantined()) and court.trainer.jury.state.disputes.raised == 0
        assert [judge.equivocations for judge in court.judges if judge.equivocations], "the attacker pays"
        work = court.trainer.jury.state.register.get(true)
        assert work is not None and court.trainer.jury.state.register.is_contested(work), "nothing of it is trained on"
        nursery.cancel_scope.cancel()


class SaysWrongIdentity(Validator):
    """Says of the first worker's files that they are somebody else's."""

    async def _inspect(self, work: RegisteredWork, path: Any, lot: Lot | None) -> Inspected:
        found = await super()._inspect(work, path, lot)
        if work.node != WORKER.address:
            return found
        return changed(found, outcome=int(VerdictOutcome.SLASH), reason=int(Reason.WRONG_IDENTITY), detail="invented")


@pytest.mark.parametrize("policy", [None, MADE_UP])
async def test_a_liar_whose_worker_copies_the_root_is_the_only_one_not_believed(
    autojump_clock, policy: bytes | None
) -> None:
    court = reading_court([SaysWrongIdentity, Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        work = await honest(court)
        await court.commit(key=OTHER, root=root_of(), policy=policy)
        await trio.sleep(40)
        assert court.trainer.jury.state.disputes.raised == 1, "the control: there was something to settle"
        assert state(court, work) is FileState.ACCEPTED
        assert all(names == {VALIDATORS[0].address} for names in court.quarantined())
        assert WORKER.address not in {node for node, _, _ in court.slashed()}
        nursery.cancel_scope.cancel()


async def test_steps_without_signal_over_a_windows_border_quarantine_nobody(autojump_clock) -> None:
    """Each step of unchanged weights is a policy of its own, because a policy's root holds its step."""
    court = Court([Validator, Validator, Validator], window=2)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        works = []
        for step in range(6):
            works.append(await court.commit(step=step))
            await trio.sleep(2)
            await court.announce(step + 1)
        await trio.sleep(5)
        assert {state(court, id) for id in works} == {FileState.ACCEPTED} and not any(court.quarantined())
        assert court.trainer.jury.state.lots.kept > 0, "the control: windows did pass"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("told", ["everybody", "one half first"])
async def test_a_trainer_that_announces_one_policy_twice_quarantines_nobody_and_is_trusted_no_more(
    autojump_clock, told: str
) -> None:
    court = Court([Validator, Validator, Validator], window=2)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        again = announcement(5, policy_root(1))
        raw = court.trainer.board.sealed(again)
        if told == "one half first":
            for seat in (*court.workers, court.seats[0]):
                seat.board._accept(seat.key.address, raw)
            await trio.sleep(0.001)
        await court.announce(1)
        await court.commit(step=1)
        await trio.sleep(5)
        await court.trainer.board.post_raw(raw)
        await trio.sleep(30)
        everybody = (court.trainer, *court.workers, *court.seats)
        assert not any(court.quarantined())
        assert all(seat.jury.state.distrust and seat.jury.state.policies.equivocation for seat in everybody)
        before = len(court.trainer.board.messages(VerdictIssued))
        await court.commit(step=1, index=1)
        await trio.sleep(30)
        assert len(court.trainer.board.messages(VerdictIssued)) == before, "nobody judges for such a trainer"
        nursery.cancel_scope.cancel()


async def test_a_flood_of_commitments_leaves_honest_work_as_it_is(autojump_clock) -> None:
    court = Court([Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        first = await court.commit(index=0)
        for number in range(600):
            kind = number % 3
            await court.commit(
                index=number if kind == 0 else 0,
                key=OTHER,
                root=bytes([number % 256, number // 256]) * 16,
                policy=(policy_root(0), number.to_bytes(32), policy_root(0))[kind],
                units=100 + number,
            )
        second = await court.commit(index=1)
        await trio.sleep(30)
        assert (state(court, first), state(court, second)) == (FileState.ACCEPTED, FileState.ACCEPTED)
        register = court.trainer.jury.state.register
        kept = [work for work in register._works.values() if work.node == OTHER.address]
        assert 0 < len(kept) <= 2 * most_files(court.run) and not any(court.quarantined())
        nursery.cancel_scope.cancel()


class Speaking(Fetching):
    """Speaks at once, of files that nobody committed to and of those that its accomplice hands to nobody."""

    async def _fetch(self, work: RegisteredWork) -> Any:
        if work.node == OTHER.address:
            await self._speak_of(work.commitment)
        for number in range(3):
            invented = work.id[:31] + bytes([number])
            await self._speak_of(WorkCommitment(POOL, WORKER.address, policy_root(0), 7 + number, invented, 5))
        return await super()._fetch(work)

    async def _speak_of(self, c: WorkCommitment) -> None:
        verdict = Verdict(
            c.pool, c.node, c.policy_root, c.index, c.file_root, c.units, VerdictOutcome.SLASH, Reason.WRONG_IDENTITY
        )
        message = VerdictIssued(pool=POOL, verdict=verdict, signature=b"")
        await self._context.board.post(signed(message, self._context.key, DOMAIN))


class Inventor(Validator):
    fetching_kind = Speaking


@pytest.mark.parametrize("accomplice", [False, True])
async def test_verdicts_on_invented_or_undeliverable_files_make_nobody_silent(autojump_clock, accomplice: bool) -> None:
    court = Court([Inventor, Validator, Validator], verdict_seconds=10.0)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        for index in range(2 * SILENT_AFTER):
            await court.commit(index=index)
            if accomplice:
                court.blobs.missing.add(root_of(0, index, None, OTHER))
                await court.commit(index=index, key=OTHER)
        everybody = (court.trainer, *court.workers, *court.seats)
        for _ in range(30):
            await trio.sleep(1)
            said = [one.message.verdict for one in court.trainer.board.messages(VerdictIssued)]
            for seat in everybody:
                for verdict in said:
                    seat.jury.state.vote_set.state(work_id(verdict))
                assert {key.address for key in VALIDATORS[1:]} <= set(seat.jury.state.vote_set.active_validators())
        assert any(verdict.index >= 7 for verdict in said), "the control: it did speak of them"
        assert accomplice == any(verdict.node == OTHER.address for verdict in said)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("leaves", [True, False])
async def test_leaving_the_pool_upon_the_first_accusation_saves_no_stake(autojump_clock, leaves: bool) -> None:
    """The contract can still reach who left; who commits while in the pool is judged, whether it stays or not."""
    court = Court([Validator] * 3, engine=lambda number, bad: TruthfulEngine(bad, seconds=0.01 + 2.0 * number))
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        await court.commit(fault=WRONG_DRAW, key=OTHER)
        while not court.workers[1].board.messages(VerdictIssued):
            await trio.sleep(0.05)
        if leaves:
            for seat in (court.trainer, *court.workers, *court.seats):
                seat.membership.left(OTHER.address)
        await trio.sleep(20)
        assert {(node, reason) for node, reason, _ in court.slashed()} == {(OTHER.address, Reason.WRONG_DRAW)}
        said = {one.author for one in court.trainer.board.messages(VerdictIssued)}
        assert said == {key.address for key in VALIDATORS}
        nursery.cancel_scope.cancel()


class Babbler(Validator):
    """Accuses all that it hears of, for every reason there is, to bury what others say."""

    async def _judge_file(self, candidate: Any) -> None:
        c = candidate.work.commitment
        for reason in range(1, 18):
            verdict = Verdict(
                c.pool, c.node, c.policy_root, c.index, c.file_root, c.units, VerdictOutcome.SLASH, reason
            )
            message = VerdictIssued(pool=POOL, verdict=verdict, signature=b"")
            await self._context.board.post(signed(message, self._context.key, DOMAIN))


async def test_a_validator_that_accuses_everybody_of_everything_buries_no_true_accusation(
    autojump_clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.services.court.slashing.PENDING", 8)
    court = Court([Babbler, Validator, Validator], verdict_seconds=10.0)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        await court.commit(fault=WRONG_DRAW, key=OTHER)
        for index in range(6):
            await court.commit(index=index)
        await trio.sleep(40)
        assert {(node, reason) for node, reason, _ in court.slashed()} == {(OTHER.address, Reason.WRONG_DRAW)}
        assert all(names == {VALIDATORS[0].address} for names in court.quarantined())
        nursery.cancel_scope.cancel()
