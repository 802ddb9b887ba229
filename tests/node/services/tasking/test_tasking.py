"""Tasks in a swarm: every row once, whoever dies, hoards, lies or offers."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from node.errors import StateError
from node.inference.wire import LoadPolicy, Produce, Produced, ShardOrder
from node.services.certifier import Certifier
from node.services.committing import commit
from node.services.tasking.requests import TaskRefused, TaskRequest
from node.services.training.ingest import Ingest
from node.swarm.task_table import Task
from node.swarm.vote_set import FileState
from node.tasks.exports import write_filtered
from node.tasks.records import STATE
from node.tasks.results import read_answers, scores_by_problem
from node.tasks.task_inputs import TaskUnready
from protocol.checks import Reason
from protocol.errors import ProtocolError
from protocol.leases import MOST_HELD, ResultStanding
from protocol.messages import TaskClaimed, VerdictIssued
from protocol.run import EnvironmentSpec
from protocol.statements import VerdictOutcome
from protocol.tasks import MAX_SPEC_BYTES
from tests.attacks.validators.court import POOL
from tests.node.services.tasking.town import (
    LEASE,
    Town,
    ToyEngine,
    ToyInputs,
    at_once,
    offer_of,
    opened,
    score_of,
    spec,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    return MockClock(autojump_threshold=0)


async def claim(town: Town, worker: int, task: bytes, shard: int) -> None:
    """A worker says that a shard is its own, and nothing more."""
    message = TaskClaimed(pool=POOL, task=task, shard=shard, sequence=int(trio.current_time() * 1000))
    await town.workers[worker].board.post(message)
    await trio.sleep(0.2)


def rows(town: Town, id: bytes) -> list[tuple[str, int]]:
    found = [read_answers(*result) for result in town.folder(id).results()]
    return [(answer.problem_id, answer.sample) for answers in found for answer in answers]


async def test_three_workers_do_every_row_once_and_the_scores_are_the_validators(
    clock: MockClock, tmp_path: Path
) -> None:
    town = Town(tmp_path)
    async with opened(town) as nursery:
        town.start(nursery)
        id = await town.offer()
        await town.finish(id)
        assert sorted(rows(town, id)) == sorted((f"p{n}", s) for n in range(40) for s in range(4))
        answers = [answer for result in town.folder(id).results() for answer in read_answers(*result)]
        scores = scores_by_problem(answers)
        assert all(scores[f"p{n}"] == [score_of(n, s) for s in range(4)] for n in range(40))
        assert all(engine.made for engine in town.engines)  # the work was shared
        record = next(town.folder(id).results())[0]
        assert len(record.verdicts) == 2 and len(record.signature) == 130
        filtered = write_filtered(town.folder(id), None, tmp_path / "kept.jsonl", 0.25, 0.5)
        assert (filtered.rows, filtered.kept, filtered.undecided) == (40, 16, 0)


async def test_a_holder_that_dies_is_taken_over_long_before_its_lease_ends(clock: MockClock, tmp_path: Path) -> None:
    town = Town(tmp_path, [ToyEngine(), ToyEngine(), ToyEngine(seconds=1e6)])
    async with opened(town) as nursery:
        town.start(nursery)
        id = await town.offer(lease_seconds=10_000.0)
        address = town.workers[2].key.address
        await town.until(lambda: town.task(id).leases.held(address, trio.current_time()))
        (held,) = town.task(id).leases.held(address, trio.current_time())
        town.kill(2)
        await town.finish(id)
        assert len(rows(town, id)) == len(set(rows(town, id))) == 160
        assert town.task(id).leases.taken_over == 1
        assert held in town.engines[0].made + town.engines[1].made


async def test_a_late_result_after_a_take_over_earns_nothing_and_costs_no_stake(
    clock: MockClock, tmp_path: Path
) -> None:
    town = Town(tmp_path, [ToyEngine(), ToyEngine(seconds=30.0)])
    async with opened(town) as nursery:
        id = await town.offer(last=4, lease_seconds=10.0)
        town.start(nursery, 1)
        slow = town.workers[1].key.address
        await town.until(lambda: town.task(id).leases.holder(0, trio.current_time()) == slow)
        town.start(nursery, 0)
        await town.finish(id)
        assert next(town.folder(id).results())[0].node == town.workers[0].key.address
        await town.until(lambda: town.work[1].counts["lost"])  # an honest daemon does not even say it
        order, load = await town.work[1]._task_inputs.order(town.task(id))
        asked = Produce(policy_root=id, node=slow, pool=POOL, index=0, out_path=str(tmp_path / "late"), task=order)
        late = await town.engines[0].ask(asked, timeout=1.0, policy=load)
        assert isinstance(late, Produced)
        await commit(town.workers[1].context, id, 0, Path(late.path), late.units)  # a stubborn one does
        register, vote_set = town.trainer.jury.state.register, town.trainer.jury.state.vote_set
        await town.until(lambda: register.of(slow) and len(vote_set.rejecting(register.of(slow)[0].id)) == 2)
        (work,) = register.of(slow)
        assert town.trainer.jury.state.tasks.find(id).leases.standing(work.id) is ResultStanding.LATE
        assert vote_set.state(work.id) is FileState.REJECTED
        said = [vote.verdict for vote in vote_set.rejecting(work.id).values()]
        assert {(one.outcome, one.reason) for one in said} == {(VerdictOutcome.REJECT, Reason.NOT_LEASED)} and len(
            said
        ) == 2
        assert all(not judge.slashed for judge in town.judges)


async def test_a_result_for_another_shard_costs_the_stake_and_its_shard_is_done_again(
    clock: MockClock, tmp_path: Path
) -> None:
    town = Town(tmp_path, [ToyEngine(), ToyEngine(shift=1)])
    async with opened(town) as nursery:
        id = await town.offer(last=16)
        town.start(nursery, 1)
        await town.until(lambda: town.engines[1].made)
        town.start(nursery, 0)
        await town.finish(id)
        cheat = town.workers[1].key.address
        assert {record.node for record, _, _ in town.folder(id).results()} == {town.workers[0].key.address}
        await town.until(lambda: town.judges[0].slashed or town.judges[1].slashed)
        slashed = [one for judge in town.judges for one in judge.slashed]
        assert {(node, reason) for node, reason, _ in slashed} == {(cheat, Reason.WRONG_DRAW)}


async def test_a_hoarder_delays_a_task_by_its_lease_and_holds_no_more_than_two_shards(
    clock: MockClock, tmp_path: Path
) -> None:
    town = Town(tmp_path, [ToyEngine(), ToyEngine()])
    async with opened(town) as nursery:
        id = await town.offer(last=24)
        for shard in range(6):
            await claim(town, 1, id, shard)
        hoarder = town.workers[1].key.address
        assert len(town.task(id).leases.held(hoarder, trio.current_time())) == MOST_HELD
        began = trio.current_time()
        town.start(nursery, 0)
        await town.finish(id)
        assert trio.current_time() - began < 2 * LEASE
        assert {record.node for record, _, _ in town.folder(id).results()} == {town.workers[0].key.address}


async def test_only_the_pools_trainer_may_offer(clock: MockClock, tmp_path: Path) -> None:
    town = Town(tmp_path)
    async with opened(town) as nursery:
        town.start(nursery)
        id, message = offer_of(town.workers[0].key)
        with pytest.raises(ProtocolError):
            town.trainer.board.opened(town.workers[0].board.sealed(message))
        await town.workers[0].network.publish(town.workers[0].board._topic, town.workers[0].board.sealed(message))
        await trio.sleep(5)
        everybody = [town.trainer, *town.workers, *town.seats]
        assert all(seat.jury.state.tasks.find(id) is None for seat in everybody)
        assert not any(engine.made for engine in town.engines)


async def test_what_makes_no_sense_is_refused_before_anybody_hears_of_it(clock: MockClock, tmp_path: Path) -> None:
    town = Town(tmp_path)
    async with opened(town):
        with pytest.raises(TaskRefused, match="not here"):
            await town.offering.offer(TaskRequest(spec(), policy="99"))
        with pytest.raises(ProtocolError, match="samples"):
            await town.offer(samples=0)
        id = await town.offer()
        assert await town.offer() == id and len(town.offering.tasks()) == 1  # the same again is the same task
        await town.offering.cancel(id)
        await trio.sleep(1)
        assert not town.task(id, town.workers[0]).open
        with pytest.raises(TaskRefused):
            await town.offering.cancel(bytes(32))


async def test_a_task_that_is_too_long_to_be_told_is_refused_and_the_others_go_on(
    clock: MockClock, tmp_path: Path
) -> None:
    town = Town(tmp_path)
    async with opened(town) as nursery:
        town.start(nursery)
        long = EnvironmentSpec(name="sort", args={"words": "w" * MAX_SPEC_BYTES})
        with pytest.raises(TaskRefused, match="too long"):
            await town.offering.offer(TaskRequest(spec(environment=long)))
        await town.finish(await town.offer())
        assert len(town.offering.tasks()) == 1


async def test_a_task_whose_folder_somebody_spoils_ends_no_other_task(clock: MockClock, tmp_path: Path) -> None:
    town = Town(tmp_path)
    async with opened(town) as nursery:
        id = await town.offer(last=4)
        (town.folder(id).path / STATE).write_bytes(b"")
        town.start(nursery)
        await town.until(lambda: len(town.folder(id).done()) == 1)
        await town.finish(await town.offer())
        with pytest.raises(StateError):
            await town.offering.cancel(id)


async def test_results_of_tasks_are_counted_like_work_and_never_trained_on(clock: MockClock, tmp_path: Path) -> None:
    town = Town(tmp_path, [ToyEngine()])
    async with opened(town) as nursery:
        certifying, taken, own = Certifier(town.seats[0].context), list[object](), town.seats[0].key.address
        nursery.start_soon(certifying.run)
        ingest = Ingest(town.trainer.context, fresh=lambda step: True, taken_in=taken.append, taken_back=lambda id: 0)
        nursery.start_soon(ingest.run)
        town.start(nursery)
        id = await town.offer(last=8)
        await town.finish(id)
        await trio.sleep(5)
        units = sum(record.units for record, _, _ in town.folder(id).results())
        paid = {one.key.address: town.certified(own, one.key.address) for one in (*town.workers, *town.seats)}
        assert paid[town.workers[0].key.address] == units == 8 * 4 * 2
        judged = int(town.run.pay.judging * 32 * town.run.pay.judged_share)
        assert paid[town.seats[0].key.address] == 2 * judged
        assert not taken and not ingest._open and not ingest._taken
        assert not [s for s in town.trainer.board.messages(VerdictIssued) if len(s.message.checked) == 0]


async def test_a_task_whose_files_nobody_hands_over_keeps_no_worker_from_the_others(
    clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    town, lacking = Town(tmp_path), set[bytes]()
    has = ToyInputs.order

    async def order(task_inputs: ToyInputs, task: Task) -> tuple[ShardOrder, LoadPolicy]:
        if task.id in lacking:
            raise TaskUnready("it cannot be worked on", "nobody handed its files over", "wait")
        return await has(task_inputs, task)

    monkeypatch.setattr(ToyInputs, "order", order)
    async with opened(town) as nursery:
        lacking.add(await town.offer(nonce="lacking"))
        other = await town.offer()
        town.start(nursery)
        await town.finish(other)
        lacking.clear()
        await town.finish(next(iter(town.offering.own)))
