"""What the trainer takes in, and when: verified or optimistic, and what happens to a file that is rejected too late."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

from node.recipe.pool import Group
from node.services.judging.judge import Validator
from node.services.training.ingest import Ingest
from node.services.training.values import Believed
from node.swarm.register import RegisteredWork
from node.swarm.vote_set import FileState
from protocol.blobs import describe
from protocol.checks import Fault, Reason
from protocol.identity import Address
from protocol.messages import RolloutCommitted, Signed, VerdictRequested
from protocol.statements import WorkCommitment, work_id
from tests.attacks.validators.court import (
    GROUPS,
    VALIDATORS,
    WORKER,
    Court,
    TruthfulEngine,
    policy_root,
)
from tests.attacks.validators.test_unshown import Play
from tests.cheats.seats import Unserving
from tests.node.services.training.test_stating import Crowded

BAD = Fault(Reason.ACTIVATIONS, "other weights", 5)
ROOT = b"\x02" * 32


class Bystander(Ingest):
    """Follows the jury; what it would fetch trains step 3 at once."""

    taken: list[bytes]

    async def _fetch_accepted(self) -> None:
        async for work in self._accepted:
            self.taken.append(work.id)
            await self._context.journal.do(self._context.journal.used.consume, [work.id + b"group"], 3)


def intake_of(court: Court, **how: Any) -> Bystander:
    context = court.trainer.context
    groups: list[Group] = []
    ingest = Bystander(context, fresh=lambda step: True, taken_in=groups.extend, taken_back=lambda root: 0, **how)
    ingest.taken = []
    return ingest


@asynccontextmanager
async def session(court: Court, questions: tuple[float, float] = (2.0, 64.0), **named: Any) -> AsyncIterator[Bystander]:
    async with trio.open_nursery() as nursery:
        trainer = intake_of(court, questions=questions)
        nursery.start_soon(trainer.run)
        await court.open(nursery, **named)
        yield trainer
        nursery.cancel_scope.cancel()


def slow(seconds: float) -> Any:
    """The first validator answers at once, the others after `seconds`."""
    return lambda number, bad: TruthfulEngine(bad, seconds=seconds if number else 0.01)


@pytest.mark.parametrize(("trust", "early"), [("verified", 0), ("optimistic", 1)])
async def test_a_file_trains_after_its_quorum_or_after_the_first_word(autojump_clock, trust: str, early: int) -> None:
    court = Court([Validator, Validator], engine=slow(10.0), trust=trust)
    async with session(court) as trainer:
        root = await court.commit()
        await trio.sleep(5)
        assert len(trainer.taken) == early
        await trio.sleep(30)
        assert trainer.taken == [root]
        assert trainer.invalidated == 0


async def test_a_file_whose_batch_was_taken_back_is_taken_in_again(autojump_clock) -> None:
    court = Court([Validator, Validator])
    async with session(court) as trainer:
        root, other = await court.commit(), await court.commit(index=1)
        await trio.sleep(10)
        assert sorted(trainer.taken) == sorted([root, other])
        trainer._context.journal.used.forget_consumed(3)
        trainer.take_again({root, b"\1" * 32})
        await trio.sleep(10)
        assert trainer.taken[2:] == [root]


async def test_what_the_quorum_rejects_after_it_trained_is_on_record(autojump_clock) -> None:
    court = Court([Validator, Validator, Validator], engine=slow(10.0), trust="optimistic")
    court.engines[0].bad = {}  # the first one is blind
    async with session(court) as trainer:
        root = await court.commit(fault=BAD)
        await trio.sleep(5)
        assert trainer.taken == [root]
        await trio.sleep(60)
        assert court.trainer.jury.state.vote_set.state(root) is FileState.REJECTED
        assert trainer.invalidated == 1
        assert [(one, step) for one, step, _ in trainer._context.journal.used.invalidated()] == [(root, 3)]


async def test_a_silent_validator_is_asked_once_more(autojump_clock) -> None:
    court = Court([Validator, Validator])
    async with session(court, absent=[1]) as trainer:
        root = await court.commit()
        await trio.sleep(20)
        (asked,) = court.trainer.board.messages(VerdictRequested)
        assert isinstance(asked.message, VerdictRequested)
        assert trainer.taken == []
        await trio.sleep(20)
        assert trainer.taken == [root]  # one validator is alive, and it has spoken


async def test_where_everything_waits_the_trainer_asks_for_no_more_than_others_hear(autojump_clock) -> None:
    court = Court([Validator, Validator])
    async with session(court, (0.1, 2.0), absent=[1]):
        for index in range(5):
            await court.commit(index=index)
        for seconds, asked in ((20, 2), (8, 3)):
            await trio.sleep(seconds)
            assert len(court.trainer.board.messages(VerdictRequested)) == asked


async def test_a_worker_whose_files_nobody_has_leaves_others_their_questions() -> None:
    ingest = intake_of(Court([Validator]), questions=(1.0, 1.0))
    flood = [promised(bytes([number]) * 32) for number in range(20)]
    theirs = [promised(bytes([100 + number]) * 32, slot=number, worker=VALIDATORS[0].address) for number in range(2)]
    for work in (*flood, *theirs):
        ingest._note(work)
    asked = [work for second in range(4) for work in ingest._next_questions(1.0, float(second))]
    assert asked == [flood[0], theirs[0], flood[1], theirs[1]]
    asked = [work for second in range(4, 100) for work in ingest._next_questions(1.0, float(second))]
    assert asked == flood[2:]  # alone, it has them all


class Slow(Ingest):
    """Whatever it obtains takes three seconds, and is of no use."""

    obtained = 0

    async def _obtain(self, work: RegisteredWork) -> tuple[list[Group], None, bool]:
        await trio.sleep(3)
        self.obtained += 1
        return [], None, False


async def test_a_file_that_was_fetched_stays_in_a_full_store_until_it_was_read(tmp_path: Path) -> None:
    file, context = bytes(100), Court([Validator]).trainer.context
    blobs = context.blobs = Crowded(tmp_path, [file])  # type: ignore[assignment]
    ingest = Ingest(context, fresh=lambda step: True, taken_in=lambda groups: None, taken_back=lambda root: 0)
    read: list[bytes] = []

    async def of(work: RegisteredWork, votes: Any, fetch: Any) -> None:
        path = await fetch()
        await blobs.crowd()
        read.append(path.read_bytes())

    ingest.values.of = of  # type: ignore[method-assign]
    await ingest._obtain(promised(describe(file).root))
    assert read == [file]
    await blobs.crowd()
    assert not blobs.has(describe(file).root)  # the control: it is held no longer than that


async def test_files_of_a_crowd_are_on_their_way_together(autojump_clock) -> None:
    context = Court([Validator]).trainer.context
    ingest = Slow(context, fresh=lambda step: True, taken_in=lambda groups: None, taken_back=lambda root: 0)
    for number in range(16):
        ingest._accepted_send.send_nowait(promised(bytes([number]) * 32))
    with trio.move_on_after(4):
        await ingest.run()
    assert ingest.obtained == 16


class Counting(Ingest):
    """Groups without rows, one for each that is believed."""

    def _join(self, work: RegisteredWork, believed: Believed, origins: Any = None) -> tuple[list[Group], None]:
        return [Group((work.id, group), work.step, (), ()) for group in sorted(believed.rows)], None


class AsksOnce(Counting):
    """The control."""

    def _try_again(self, now: float) -> None:
        pass


@pytest.mark.parametrize("kind", [Counting, AsksOnce])
async def test_a_validator_that_serves_no_report_keeps_no_accepted_file_out(
    autojump_clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Counting]
) -> None:
    """It and one more accept at once, the third when the file was asked for: two reports are there only then."""
    play, taken = Play(tmp_path, monkeypatch, Unserving), list[Group]()
    play.court.engines[2].seconds = 2.5
    context = play.court.trainer.context
    ingest = kind(context, fresh=lambda step: True, taken_in=taken.extend, taken_back=lambda root: 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ingest.run)
        await play.run()
        nursery.cancel_scope.cancel()
    keys = [group.key for group in taken]
    assert len(keys) == len(set(keys)), "no group is taken in twice"
    whole = {work for work in play.works if {(work, group) for group in range(GROUPS)} <= set(keys)}
    if kind is Counting:
        assert whole == set(play.works) and not ingest.lost and not ingest._lacking
    else:
        assert len(whole) < len(play.works), "it counts on what nobody serves"


async def test_what_is_lacking_is_asked_for_as_long_as_the_file_may_train(
    autojump_clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, tries, oldest = Play(tmp_path, monkeypatch, Unserving), list[float](), 0

    class Counted(Counting):
        async def _obtain(self, work: RegisteredWork) -> Any:
            tries.append(trio.current_time())
            return await super()._obtain(work)

    play.court.quorum = 2
    context = play.court.trainer.context
    ingest = Counted(
        context, fresh=lambda step: step >= oldest, taken_in=lambda groups: None, taken_back=lambda root: 0
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ingest.run)
        await play.court.open(nursery, absent=[2])
        await play.court.commit()
        await trio.sleep(100)
        assert 4 <= len(tries) <= 7, tries  # 4, 8, 16, 32 seconds apart, and what a try takes
        assert not ingest.lost and len(ingest._lacking) == 1
        oldest = 1
        await trio.sleep(5)
        assert ingest.lost == 1 and not ingest._lacking, "it is given up with its policy"
        before = len(tries)
        await trio.sleep(200)
        assert len(tries) == before
        nursery.cancel_scope.cancel()


def promised(root: bytes = ROOT, slot: int = 0, worker: Address = WORKER.address) -> RegisteredWork:
    commitment = WorkCommitment(1, worker, policy_root(0), slot, root, 6)
    message = RolloutCommitted(pool=1, commitment=commitment, signature=b"", size=9)
    return RegisteredWork(work_id(commitment), Signed(worker, message, b""), 0, 0.0, 0, False, 4)
