"""Merges of policies: stretches by several workers, computed again by validators, put together as at a desk."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from node.services.tasking import requests
from node.services.tasking.requests import TaskRequest
from node.swarm.vote_set import FileState
from node.tasks import recomputed
from node.weights import merge as merging
from node.weights.errors import WeightsError
from node.weights.merge import assemble, merge_models, merge_stretches
from protocol.checks import Reason
from protocol.identity import Address
from protocol.merging import Merge
from protocol.policy import bf16_bits, encode_image
from protocol.statements import VerdictOutcome
from protocol.tasks import MergeOrder, TaskId, TaskSpec
from tests.node.services.tasking.town import Town, at_once, opened

UNITS, STRETCH = 300, 1000
SHAPES = {"a": (70, 31), "b": (9,), "c": (40, 50)}
ROOTS = [bytes([number]) * 32 for number in (20, 21, 22)]
TIES = Merge("ties", (1, 2), density=0.3)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    monkeypatch.setattr(merging, "STRETCH", STRETCH)
    return MockClock(autojump_threshold=0)


def image(path: Path, seed: int, shapes: dict[str, tuple[int, ...]] = SHAPES) -> Path:
    source = np.random.default_rng(seed)
    tensors = {name: bf16_bits(source.normal(0, 0.02, shape).astype(np.float32)) for name, shape in shapes.items()}
    path.write_bytes(encode_image(tensors))
    return path


async def announce(town: Town) -> list[Path]:
    """Three policies that everybody has."""
    paths = []
    for step, root in enumerate(ROOTS, 1):
        paths.append(image(town.directory / "blobs" / root.hex(), step))
        for seat in (town.trainer, *town.workers, *town.seats):
            seat.jury.state.policies.learn(step, root)
        manifest: Any = SimpleNamespace(image_root=root)
        held: Any = SimpleNamespace(root=root, step=step, path=paths[-1], manifest=manifest)
        town.trainer.context.policy_cache._held[step] = held
    await trio.sleep(2)
    return paths


async def offer(town: Town, rule: Merge = TIES, models: tuple[str, ...] = ("2", "newest"), base: str = "1") -> TaskId:
    wanted = TaskSpec(
        kind="merge", last=1, shard_size=1, units=UNITS, merge=MergeOrder(models=models, base=base, rule=rule)
    )
    id = await town.offering.offer(TaskRequest(wanted))
    await town.until(lambda: all(seat.jury.state.tasks.find(id) for seat in (*town.workers, *town.seats)))
    return id


async def test_workers_merge_stretches_and_the_whole_is_what_one_desk_makes(
    clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    town = Town(tmp_path)
    async with opened(town) as nursery:
        paths = await announce(town)
        forger: Address = town.workers[2].key.address

        async def prepared(means: Any, task: Any, shard: int) -> Any:
            """The last worker changes one bit of whatever it makes."""
            work = await recomputed.prepared(means, task, shard)

            async def forged() -> bytes:
                data = await work()
                return bytes([data[0] ^ 1]) + data[1:]

            return forged if means.inputs is town.work[2]._task_inputs else work

        monkeypatch.setattr("node.services.tasking.working.prepared", prepared)
        town.start(nursery)
        id = await offer(town)
        await town.finish(id)
        records = [record for record, _, _ in town.folder(id).results()]
        register, vote_set = town.trainer.jury.state.register, town.trainer.jury.state.vote_set
        refused = [work for work in register.of(forger) if vote_set.state(work.id) is FileState.REJECTED]
        votes = [vote for work in refused for vote in vote_set.rejecting(work.id).values()]
        said = {(vote.verdict.outcome, vote.verdict.reason) for vote in votes}
    assert len(records) == 5 and {one.units for one in records} == {UNITS}
    assert len({one.node for one in records}) == 2 and forger not in {one.node for one in records}
    assert said == {(VerdictOutcome.REJECT, Reason.WRONG_REPORT)} and all(not judge.slashed for judge in town.judges)
    parts = (file for _, file, _ in town.folder(id).results())
    root = assemble(parts, paths[0], tmp_path / "together")
    desk = merge_models(TIES, [paths[1], paths[2]], tmp_path / "desk", base=paths[0])
    assert root == desk.root
    whole = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("together", "desk")]
    assert whole[0] == whole[1]


async def test_a_policy_that_is_not_here_is_refused_before_anybody_hears(clock: MockClock, tmp_path: Path) -> None:
    town = Town(tmp_path)
    async with opened(town):
        await announce(town)
        with pytest.raises(requests.TaskRefused, match="not here"):
            await offer(town, models=("2", "ff" * 32))


def test_models_of_other_shapes_and_stretches_beyond_the_end_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "STRETCH", STRETCH)
    one, other = image(tmp_path / "one", 1), image(tmp_path / "other", 2, {**SHAPES, "b": (10,)})
    with pytest.raises(merging.MergeError, match="differ in 1 tensors"):
        merge_stretches(Merge(weights=(1, 1)), [one, other], None, range(1))
    assert merge_stretches(Merge(weights=(1,)), [one], None, range(4, 5))
    with pytest.raises(merging.MergeError, match="fewer than"):
        merge_stretches(Merge(weights=(1,)), [one], None, range(5, 6))
    with pytest.raises(WeightsError):
        merge_stretches(Merge(weights=(1,)), [tmp_path / "none"], None, range(1))
