"""Files are shared out: the more validators, the fewer files each looks at, and no file is looked at by too few."""

from collections import Counter
from typing import Any, cast

import pytest
import trio

from contracts.bindings import ValidatorsSet, ValidatorStruck
from node.services.judging.fetching import FILL_AFTER, CommittedFile
from node.services.judging.judge import Validator
from node.services.judging.verdict_publisher import VerdictPublisher
from node.services.membership.events import Events
from node.swarm.vote_set import FileState
from protocol.audit import share_of_files
from protocol.checks import Fault, Reason
from protocol.identity import NodeKey
from protocol.lots import draws_file
from protocol.messages import Seal, VerdictIssued, seal_of
from protocol.statements import work_id
from tests.attacks.validators.court import OTHER, POOL, WORKER, Court, TruthfulEngine, root_of

EIGHT = tuple(NodeKey(bytes([40 + n]) * 32) for n in range(8))


class Idle(Validator):
    """Takes every file and says nothing about any."""

    async def _judge_file(self, candidate: CommittedFile) -> None:
        await trio.lowlevel.checkpoint()


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.attacks.validators.court.VALIDATORS", EIGHT)


def speakers(court: Court) -> dict[bytes, set[str]]:
    said: dict[bytes, set[str]] = {}
    for one in court.trainer.board.messages(VerdictIssued):
        said.setdefault(work_id(one.message.verdict), set()).add(one.author)
    return said


def test_one_more_than_the_quorum_are_expected_to_look() -> None:
    assert [share_of_files(n, 2) for n in (1, 3, 4, 8)] == [1.0, 1.0, 0.75, 0.375]
    drawn = sum(draws_file(bytes([n % 256]) * 32, n.to_bytes(32, "big"), 0.375) for n in range(4000))
    assert 1300 < drawn < 1700
    assert not draws_file(b"\x01" * 32, bytes(32), 0.0) and draws_file(b"\x01" * 32, bytes(32), 1.0)


async def test_eight_validators_look_at_three_eighths_of_the_files_and_all_are_decided(
    autojump_clock: Any, eight: None
) -> None:
    court = Court([Validator] * 8)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        works = [await court.commit(index=index) for index in range(24)]
        await trio.sleep(20)
        assert {court.trainer.jury.state.vote_set.state(id) for id in works} == {FileState.ACCEPTED}
        said = speakers(court)
        looks = sum(len(said[id]) for id in works) / len(works)
        assert all(len(said[id]) >= 2 for id in works) and 2.0 <= looks < 4.5, looks
        assert court.trainer.jury.state.disputes.raised == 0 and not any(court.quarantined())
        each = Counter(author for id in works for author in said[id])
        assert len(each) == 8  # everybody has its share
        nursery.cancel_scope.cancel()


async def test_a_file_that_too_few_look_at_is_filled_up_by_rank(autojump_clock: Any, eight: None) -> None:
    court = Court([Idle] * 5 + [Validator] * 3)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        works = [await court.commit(index=index) for index in range(8)]
        await trio.sleep(FILL_AFTER + 9 + 5)
        assert {court.trainer.jury.state.vote_set.state(id) for id in works} == {FileState.ACCEPTED}
        nursery.cancel_scope.cancel()


async def test_who_finds_a_fault_has_everybody_look_so_that_a_stake_need_not_wait(
    autojump_clock: Any, eight: None
) -> None:
    court = Court([Validator] * 8)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        id = await court.commit(fault=Fault(Reason.WRONG_DRAW, "easy problems"), key=OTHER)
        await trio.sleep(12)
        assert len(speakers(court)[id]) == 8
        assert {node for node, _, _ in court.slashed()} == {OTHER.address}
        nursery.cancel_scope.cancel()


async def test_who_is_not_drawn_is_not_called_silent(autojump_clock: Any, eight: None) -> None:
    court = Court([Validator] * 7 + [Idle], verdict_seconds=5.0)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        works = [await court.commit(index=index) for index in range(34)]
        await trio.sleep(1)
        court.hand_over(*works)
        await trio.sleep(20)
        vote_set = court.trainer.jury.state.vote_set
        for id in works:
            vote_set.state(id)
        assert [vote_set.is_inactive(key.address) for key in EIGHT] == [False] * 7 + [True]
        assert root_of(0, 0) in {request.file_root for engine in court.engines for request in engine.asked}
        nursery.cancel_scope.cancel()


class Closed(VerdictPublisher):
    """Seals every verdict and shows none."""

    async def _seal_and_show(self, id: bytes, message: VerdictIssued) -> None:
        await trio.lowlevel.checkpoint()
        self._context.board.say([Seal(id, seal_of(message, self._own))], within=0.0)


@pytest.mark.parametrize("closed", [2, 0])
async def test_seals_that_half_of_the_bench_never_opens_stop_nothing_and_cost_no_pay(
    autojump_clock: Any, eight: None, closed: int
) -> None:
    """A seal of theirs stands in the place of a verdict until its time to be shown is over, then others fill up. Who
    does seals after a verdict was shown, and is paid all the same. From the first such file on nobody counts on them,
    after five they are not paid."""
    court = Court([Validator] * 4, verdict_seconds=20.0)
    for number in range(closed):
        court.validators[number]._pronouncing = Closed(court.seats[number].context)
    jury, honest = court.trainer.jury, {key.address for key in EIGHT[closed:4]}
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        first = [await court.commit(index=index) for index in range(12)]
        await trio.sleep(40)
        works = [await court.commit(index=index) for index in range(12, 18)]
        await trio.sleep(30)
        assert {jury.state.vote_set.state(id) for id in first + works} == {FileState.ACCEPTED}
        said = [jury.state.vote_set.has_spoken(id) for id in first + works]
        assert all(some <= honest and len(some) >= 2 for some in said)
        paid = [
            sum(jury.state.seals.was_sealed(id, one) for one in some)
            for id, some in zip(first + works, said, strict=True)
        ]
        assert min(paid) >= 2, "a quorum of those who looked is paid for each file"
        assert {key.address for key in EIGHT[:4] if jury.state.seals.leaves_unopened(key.address)} == {
            key.address for key in EIGHT[:closed]
        }
        nursery.cancel_scope.cancel()


async def test_running_nodes_heed_a_new_bench(autojump_clock: Any, eight: None) -> None:
    """Who judges, how many must agree and who is believed follow the chain, without a restart; a block that is replaced
    takes it back."""
    court, none = Court([Validator] * 4), cast(Any, None)
    everybody = [court.trainer, *court.workers, *court.seats]
    chains = [Events(none, seat.membership) for seat in everybody]
    keys = [key.address for key in EIGHT[:4]]
    where = {"pool": POOL, "transaction": "0x", "log_index": 0}
    before = ValidatorsSet(block=1, number=1, validators=tuple(keys[:2]), threshold=2, **where)
    after = ValidatorsSet(block=2, number=2, validators=tuple(keys[1:]), threshold=3, **where)

    async def speak(index: int) -> set[str]:
        id = await court.commit(index=index)
        await trio.sleep(20)
        assert {seat.jury.state.vote_set.state(id) for seat in everybody} == {FileState.ACCEPTED}
        return speakers(court)[id]

    async with trio.open_nursery() as nursery:
        for chain in chains:
            chain._apply(before)
        await court.open(nursery)
        assert await speak(0) == set(keys[:2])
        for chain in chains:
            chain._apply(after)
        assert await speak(1) == set(keys[1:])
        assert {seat.context.quorum for seat in everybody} == {3}
        assert {seat.membership.may_validate(keys[0]) for seat in everybody} == {False}
        for chain in chains:
            chain._undo(after)
        assert await speak(2) == set(keys[:2])
        for chain in chains:
            chain._apply(ValidatorStruck(block=3, validator=keys[0], **where))
        assert {seat.membership.validators for seat in everybody} == {(keys[1],)}
        nursery.cancel_scope.cancel()


async def test_where_much_waits_validators_look_at_the_same_files_and_eight_decide_more(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.7 times the files of four: all take their files in one order, so that those who are drawn meet."""
    decided = {}
    for many in (4, 8):
        monkeypatch.setattr("tests.attacks.validators.court.VALIDATORS", EIGHT[:many])
        court = Court([Validator] * many, engine=lambda number, bad: TruthfulEngine(bad, seconds=3.0))
        async with trio.open_nursery() as nursery:
            await court.open(nursery)
            works = [await court.commit(index=index, key=key) for index in range(32) for key in (WORKER, OTHER)]
            await trio.sleep(45)
            vote_set = court.trainer.jury.state.vote_set
            decided[many] = sum(vote_set.state(id) is FileState.ACCEPTED for id in works)
            nursery.cancel_scope.cancel()
    assert decided[8] >= 1.7 * decided[4] > 0, decided
