"""Tables that one party could fill: it crowds out its own, and another's stay. docs/limits.md lists them all."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from node.changes import Changes
from node.clock import Clock
from node.services.judging.fetching import CommittedFile, Fetching
from node.services.judging.lots import HORIZON, OwnLots
from node.services.judging.records import WorkerRecords
from node.services.pool_accounting import PoolAccounting
from node.services.rounds.judging import ContributionJudge
from node.services.training import ingest as intake_module
from node.services.training.ingest import Ingest
from node.swarm.contributions import Contributions
from node.swarm.facts import PeerTold
from node.swarm.vote_set import FileState
from protocol.blobs import describe
from protocol.decision import DecisionSpec, SuspicionLevel
from protocol.identity import Address
from protocol.messages import EarningsVote
from protocol.statements import Earnings, sign
from protocol.table import encode_head, table_after
from tests.attacks.validators.court import (
    DOMAIN,
    OTHER,
    POOL,
    VALIDATORS,
    WORKER,
    Court,
    InlineJournal,
    Validator,
    court_run,
)

URGENT = 256
REMEMBERED = 2048
CLASSES_REMEMBERED = 8

HEARD = 16
KEPT = 2048
OPEN = 1024

LIAR, HONEST = VALIDATORS[0].address, VALIDATORS[1].address
NONE: Any = None


def test_what_one_validator_says_of_workers_and_engines_leaves_what_another_said() -> None:
    """Else a liar shields a cheat from the second class of engines that its conviction needs."""
    records = WorkerRecords(DecisionSpec(), NONE)
    records.heard(HONEST, WORKER.address, int(SuspicionLevel.CONVICTED), "arm/bfloat16/sdpa")
    records.heard(LIAR, OTHER.address, int(SuspicionLevel.SUSPECT), "arm/bfloat16/sdpa")
    believed = {LIAR, HONEST}
    assert records.seconded(OTHER.address, "x86/float32/sdpa", believed)
    for number in range(REMEMBERED + CLASSES_REMEMBERED):
        records.heard(LIAR, WORKER.address, 0, f"engine {number}/float32/sdpa")
        records.heard(LIAR, Address(f"0x{number:040x}"), 0, "x86/float32/sdpa")
    assert records.seconded(WORKER.address, "x86/float32/sdpa", believed)
    assert not records.seconded(OTHER.address, "x86/float32/sdpa", believed), "the control: its own are forgotten"
    assert not records.seconded(WORKER.address, "arm/bfloat16/sdpa", believed)


async def test_a_validator_that_signs_table_after_table_hides_no_posted_one(
    autojump_clock: Any, tmp_path: Path
) -> None:
    """Of the posted one the root alone stands on chain: who forgets its signers does not find it."""
    court = Court([Validator] * 2)
    context = court.trainer.context
    table = table_after(POOL, 3, None, {3: {WORKER.address: 7}}, 7, {}, {})
    assert table is not None
    file, (head, (rows,)) = tmp_path / "table", table.files()
    kept = {head.pages[0].root: rows}
    asked: list[str] = []

    async def fetch(root: bytes, sources: Any, **_: Any) -> Path:
        await trio.lowlevel.checkpoint()
        asked.append(sources[0])
        file.write_bytes(kept.get(root) or encode_head(head))
        return file

    context.blobs = SimpleNamespace(fetch=fetch)  # type: ignore[assignment]
    none: Any = None
    tables = PoolAccounting(context, none, none)

    async def say(seat: int, root: bytes, blob: bytes = bytes(32)) -> None:
        earnings = Earnings(POOL, 3, 1, root, 7, bytes(32))
        signature = sign(VALIDATORS[seat], DOMAIN, earnings)
        message = EarningsVote(pool=POOL, earnings=earnings, table=blob, size=9, signature=signature)
        await court.seats[seat].board.post(message)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tables.listen)
        await court.open(nursery)
        await say(0, bytes(32))
        await say(1, table.root(), describe(encode_head(head)).root)
        for number in range(1, 5 * HEARD):
            await say(0, number.to_bytes(32))
            await trio.sleep(3)
        assert set(tables._signed) == {LIAR, HONEST}
        assert len(tables._signed[LIAR]) == HEARD and bytes(32) not in tables._signed[LIAR]
        posted: Any = SimpleNamespace(root=table.root(), epoch=3, total=7)
        assert await tables.head(posted) == head and asked == [HONEST]
        assert await tables.of(posted) == table
        nursery.cancel_scope.cancel()


def test_a_member_with_many_files_has_nobody_else_s_decision_counted_twice() -> None:
    states: dict[bytes, FileState] = {}
    works: dict[bytes, Any] = {}

    def committed(number: int, node: str) -> bytes:
        id = number.to_bytes(32)
        works[id] = SimpleNamespace(id=id, node=node, step=0, commitment=SimpleNamespace(units=1, index=0))
        states[id] = FileState.OPEN
        return id

    register: Any = SimpleNamespace(get=works.get)
    vote_set: Any = SimpleNamespace(state=lambda id: states[id], rejecting=lambda id: {})
    counts = Contributions(register, vote_set, lambda: 0.0)
    decided, waiting = committed(0, OTHER.address), committed(1, OTHER.address)
    states[decided] = FileState.ACCEPTED
    counts.look(decided)
    counts.look(waiting)
    for number in range(2, 5 * KEPT):
        id = committed(number, WORKER.address)
        counts.look(id)
        states[id] = FileState.ACCEPTED
        if number % 2:
            counts.look(id)
    counts.look(decided)
    states[waiting] = FileState.ACCEPTED
    counts.look_again()
    assert counts.status().members[OTHER.address].accepted == 2
    assert len(counts._states[WORKER.address]) == KEPT and len(counts._open[WORKER.address]) <= OPEN


async def test_a_dispute_that_finds_no_room_is_looked_at_again_when_there_is(autojump_clock: Any) -> None:
    """It was noted as looked at, and nobody ever did."""
    court = Court([Validator] * 2)
    fetching = court.validators[0]._fetching
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        id = await court.commit()
        await trio.sleep(5)
        jury = court.seats[0].jury
        found = jury.state.register.get(id)
        assert found is not None
        full = Fetching(court.seats[0].context, fetching._lots, lambda: None)
        for _ in range(URGENT):
            assert full.queue.hurry(CommittedFile(found))
        jury.state.disputes.open = lambda: [id]  # type: ignore[method-assign]
        nursery.start_soon(full._heed_disputes)
        await trio.sleep(3)
        assert id not in full._rechecked
        await full.queue.take()
        await trio.sleep(3)
        assert id in full._rechecked and full.queue._urgent[-1].recheck
        nursery.cancel_scope.cancel()


async def test_arrivals_are_remembered_for_a_minute_while_nothing_is_judged(autojump_clock: Any) -> None:
    """An engine that stands still asks for no load; what arrived was kept for as long as it stood."""
    now = [0.0]
    own = {"key": WORKER, "domain": DOMAIN, "pool": POOL, "journal": InlineJournal(), "board": NONE}
    clock, run = Clock(lambda: now[0]), SimpleNamespace(spec=court_run())
    context: Any = SimpleNamespace(run=run, clock=clock, **own)
    lots = OwnLots(context)
    for _ in range(1000):
        now[0] += 1.0
        lots.arrived(WORKER.address)
    assert len(lots._arrived) == pytest.approx(HORIZON, abs=1)


async def test_a_file_for_which_the_trainer_has_no_room_is_taken_later(autojump_clock: Any) -> None:
    court, taken = Court([Validator] * 2), list[bytes]()

    class Slow(Ingest):
        async def _fetch_accepted(self) -> None:
            async for work in self._accepted:
                taken.append(work.id)
                await trio.sleep(16.0 if len(taken) <= 16 else 0.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intake_module, "PENDING", 2)
        ingest = Slow(court.trainer.context, fresh=lambda step: True, taken_in=NONE, taken_back=lambda work: 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ingest.run)
        await court.open(nursery)
        works = [await court.commit(index=index) for index in range(24)]
        await trio.sleep(10)
        assert len(taken) < len(works), "the control: there was no room"
        await trio.sleep(100)
        assert set(taken) == set(works) and len(taken) == len(works)
        nursery.cancel_scope.cancel()


async def test_a_peer_that_hops_from_seat_to_seat_has_nobody_else_s_contribution_refused() -> None:
    """Whose claim of a seat is forgotten is taken for somebody who contributes from another's."""

    async def beats() -> Any:
        yield PeerTold(OTHER.address, 7, 0, b"")
        for seat in range(9000):
            yield PeerTold(WORKER.address, seat, 0, b"")

    facts, rounds = SimpleNamespace(subscribe=lambda *kinds: beats()), SimpleNamespace(moved=Changes())
    context: Any = SimpleNamespace(facts=facts, run=SimpleNamespace(root=bytes(32)))
    looks = ContributionJudge(context, cast(Any, rounds))
    await looks.hear()
    assert not looks._is_anothers(OTHER.address, b"", 7)
    assert looks._is_anothers(WORKER.address, b"", 0) and not looks._is_anothers(WORKER.address, b"", 8999)
