"""Groups of a judged environment: accepted without rewards, scored by three judges, trained on while they are fresh."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import trio
from trio.testing import MockClock

from node.inference.wire import Inspect, Inspected, LoadPolicy, Produce, Produced, Reply, Request
from node.recipe.label_queue import LabelQueue, LabelRequest
from node.recipe.manifest import compose, materialise
from node.recipe.pool import Group, Selection
from node.services.committing import commit
from node.services.tasking.judges import Judges
from node.services.training.ingest import Ingest, _decided
from node.services.training.stating import make
from node.swarm.vote_set import FileState
from protocol.blobs import describe
from protocol.identity import Address, address_from_bytes
from protocol.manifest import JudgedTask, MalformedManifest, decode_composed, encode_manifest
from protocol.rollout import (
    ReportHeader,
    ReportRow,
    RolloutBatch,
    RolloutHeader,
    SampleRow,
    ValidatorReport,
    decode,
    encode,
    encode_report,
)
from protocol.run import Asset, RolloutSpec
from protocol.statements import VerdictOutcome
from protocol.tasks import SUBJECT, TaskSpec, decode_task, encode_task, task_id
from protocol.values import mean_logprobs, reward_tags
from tests.attacks.validators.court import POOL, court_run
from tests.node.services.tasking.town import POLICY, Town, ToyEngine, at_once

SIZE, GROUPS = 4, 3
RUN = msgspec.structs.replace(
    court_run(judges=True), rollout=RolloutSpec(group_size=SIZE, prompts_per_step=GROUPS, prompts_per_file=GROUPS)
)
ROOT = bytes(32)
DECIDED = 1
"""The group whose reward is no matter of opinion."""


class Critic(ToyEngine):
    """Judges a file without deciding about most of its groups; its opinions of answers are in `says`."""

    def __init__(self, directory: Path, says: dict[str, list[float]]) -> None:
        super().__init__()
        self._directory = directory
        self.says = says

    async def ask(self, request: Request, *, timeout: float, policy: LoadPolicy | None = None) -> Reply:
        if isinstance(request, Inspect) and request.task is None:
            await trio.sleep(0.05)
            return self._left_open(request)
        return await super().ask(request, timeout=timeout, policy=policy)

    def _left_open(self, order: Inspect) -> Inspected:
        batch = decode(Path(order.path).read_bytes(), 64)
        rewards = [0.25 * row.sample if row.group == DECIDED else math.nan for row in batch.rows]
        rows = [ReportRow(r.group, r.sample, v, [-0.5, -0.5]) for r, v in zip(batch.rows, rewards, strict=True)]
        report = ValidatorReport(ReportHeader(order.file_root.hex(), order.policy_root.hex()), tuple(rows))
        Path(order.report_path).write_bytes(encode_report(report))
        return self._found(order, batch, rewards, {*range(GROUPS)} - {DECIDED})

    def _found(self, order: Inspect, batch: RolloutBatch, rewards: list[float], undecided: set[int]) -> Inspected:
        groups = sorted({row.group for row in batch.rows})
        means = mean_logprobs({group: [np.full(2, -0.5, np.float32)] for group in groups})
        return Inspected(
            outcome=int(VerdictOutcome.ACCEPT),
            reason=0,
            detail="",
            report_path=order.report_path,
            rewards_mean=0.0,
            tokens=batch.units,
            seconds=0.05,
            statistics={},
            checked=tuple(groups),
            rewards=reward_tags(rewards, len(batch.rows) // len(groups), undecided),
            logprobs=means,
        )

    def _produce(self, order: Produce, spec: TaskSpec) -> Produced:
        header = RolloutHeader(order.pool, Address(order.node), order.policy_root.hex(), order.index)
        names = [f"{row.group}/{row.sample}" for row in self._subject(spec)]
        numbers = spec.numbers(order.index)
        rows = tuple(SampleRow(g, 0, names[n], [5], [6, 1], True, b"") for g, n in enumerate(numbers))
        Path(order.out_path).write_bytes(encode(RolloutBatch(header, rows)))
        self.made.append(order.index)
        units = 2 * len(rows)
        return Produced(
            path=order.out_path, units=units, samples=len(rows), tokens=units, seconds=1.0, reward_estimate=0.0
        )

    def _inspect(self, order: Inspect, spec: TaskSpec) -> Inspected:
        batch = decode(Path(order.path).read_bytes(), 64)
        rewards = [self.says[row.problem_id][order.index % spec.copies] for row in batch.rows]
        rows = [ReportRow(r.group, 0, v, [-0.5, -0.5]) for r, v in zip(batch.rows, rewards, strict=True)]
        report = ValidatorReport(ReportHeader(order.file_root.hex(), order.policy_root.hex()), tuple(rows))
        Path(order.report_path).write_bytes(encode_report(report))
        return self._found(order, batch, rewards, set())

    def _subject(self, spec: TaskSpec) -> tuple[SampleRow, ...]:
        (asset,) = [one for one in spec.assets if one.path == SUBJECT]
        return decode((self._directory / "blobs" / asset.root).read_bytes(), 64).rows


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    return MockClock(autojump_threshold=0)


class Court(Town):
    """The town with a trainer who trains. newest: the step that its next batch is for."""

    def __init__(self, directory: Path, says: dict[str, list[float]]) -> None:
        critics = [Critic(directory, says) for _ in range(3)]
        super().__init__(directory, critics, judge=lambda: Critic(directory, says), run=RUN)
        self.newest, self.taken = 0, list[Group]()
        self.label_queue = LabelQueue(
            RUN, lambda step: self.newest - step <= RUN.recipe.max_staleness, self.taken.extend
        )
        self.offering._askers = [Judges(self.offering, self.label_queue, RUN, directory / "tasks")]
        self.ingest = Ingest(
            self.trainer.context,
            fresh=self.label_queue.fresh,
            taken_in=self.taken.extend,
            taken_back=self.label_queue.forget,
            to_judge=self.label_queue.put,
        )

    async def submit(self) -> bytes:
        """A worker's file; the id of its work, once it is accepted."""
        seat, path = self.workers[0], self.directory / "file"
        header = RolloutHeader(POOL, seat.key.address, POLICY.hex(), 0)
        places = [(group, sample) for group in range(GROUPS) for sample in range(SIZE)]
        rows = tuple(SampleRow(g, s, f"p{g}", [7], [6, 1], True, b"") for g, s in places)
        path.write_bytes(encode(RolloutBatch(header, rows)))
        await commit(seat.context, POLICY, 0, path, 2 * len(rows), 0)
        register, vote_set = self.trainer.jury.state.register, self.trainer.jury.state.vote_set
        await self.until(lambda: register.of(seat.key.address))
        (work,) = register.of(seat.key.address)
        await self.until(lambda: vote_set.state(work.id) is FileState.ACCEPTED)
        return work.id


@asynccontextmanager
async def opened(town: Court) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        await town.open(nursery)
        nursery.start_soon(town.ingest.run)
        yield nursery
        nursery.cancel_scope.cancel()


def opinions(apart: int = -1) -> dict[str, list[float]]:
    """Of three judges, on each answer: its sample's number in sixteenths and one more or less; apart: of one group not
    near each other."""
    near = {f"{g}/{s}": [s / 16, (s + 1) / 16, (s + 2) / 16] for g in range(GROUPS) for s in range(SIZE)}
    return {name: [0.0, 0.5, 1.0] if name == f"{apart}/1" else found for name, found in near.items()}


async def test_judges_give_the_rewards_of_groups_that_nobody_else_decides(
    clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.services.tasking.owned.LAST_WORDS", 1)
    town = Court(tmp_path, opinions(apart=2))
    async with opened(town) as nursery:
        town.start(nursery)
        id = await town.submit()
        await town.until(lambda: town.label_queue.counts["judged"])
        groups = {group.key: [sample.reward for sample in group.samples] for group in town.taken}
        assert groups == {(id, DECIDED): [0.0, 0.25, 0.5, 0.75], (id, 0): [(s + 1) / 16 for s in range(SIZE)]}
        assert town.label_queue.counts == {"judged": 1, "apart": 1, "too_late": 0} and not town.label_queue.files
        assert [row.sampler_logprobs for group in town.taken for row in group.rows] == [[-0.5, -0.5]] * 8
        (task,) = town.trainer.jury.state.tasks.tasks()
        assert task.spec.problems == 8  # nobody was asked about the group that was decided
        await town.until(lambda: not town.offering.own)  # nothing is kept of it
        assert not list((tmp_path / "tasks").iterdir())


async def test_a_batch_with_judged_rewards_is_made_again_from_its_names_and_from_nothing_else(
    clock: MockClock, tmp_path: Path
) -> None:
    town = Court(tmp_path, opinions())
    async with opened(town) as nursery:
        town.start(nursery)
        await town.submit()
        await town.until(lambda: len(town.taken) == GROUPS)
        chosen = sorted(town.taken, key=lambda group: group.key)
        composed = decode_composed(encode_manifest(compose(RUN, ROOT, POOL, Selection(1, tuple(chosen)))))
        composed.check(ROOT, POOL, 1, RUN.recipe.max_staleness)
        batch = await make(town.trainer.context, composed)
        assert batch.rows == tuple(row for group in chosen for row in group.rows)
        ((work,), blobs) = composed.works, tmp_path / "blobs"
        (task,) = work.judged
        judges = {address_from_bytes(one.node) for one in task.shards}
        assert (
            judges == {seat.key.address for seat in town.workers}
            and task.task == town.trainer.jury.state.tasks.tasks()[0].id
        )

        def read(root: bytes) -> bytes:
            return (blobs / root.hex()).read_bytes()

        def again(judged: JudgedTask | None) -> None:
            other = msgspec.structs.replace(work, judged=() if judged is None else (judged,))
            made = materialise(RUN, msgspec.structs.replace(composed, works=(other,)), read, read)
            assert made.rows != batch.rows, "it was made of something else"

        file = read(work.file_root)
        rows = decode(file, 64).rows
        other = [msgspec.structs.replace(row, output=[6, 9]) for row in rows if row.group != DECIDED]
        forged = encode(RolloutBatch(decode(file, 64).header, tuple(other)))
        (blobs / describe(forged).root.hex()).write_bytes(forged)
        spec = msgspec.structs.replace(
            decode_task(read(task.task)), subject=describe(forged).root.hex(), assets=(_asset(forged),)
        )
        (blobs / task_id(encode_task(spec)).hex()).write_bytes(encode_task(spec))
        first, *rest = task.shards
        replace = msgspec.structs.replace
        for why, judged in {
            "lack group": None,
            "not for judges of this file": replace(task, subject=describe(forged).root),
            "another answer": replace(task, task=task_id(encode_task(spec)), subject=describe(forged).root),
            "not about the judge's work": replace(
                task, shards=(replace(first, report_root=rest[0].report_root), *rest)
            ),
            "no shard": replace(task, shards=(first, *rest[:-1], replace(rest[-1], shard=4000))),
            "the reports lack group 0": replace(task, shards=tuple(rest)),  # two opinions are none together
        }.items():
            with pytest.raises(MalformedManifest, match=why):
                again(judged)
        for shards in ((first, first, *rest), (*rest, first)):
            assert replace(task, shards=shards).fault()


def _asset(data: bytes) -> Asset:
    return Asset(path=SUBJECT, root=describe(data).root.hex(), size=len(data))


async def test_groups_that_grow_stale_are_given_up_and_nobody_works_on_them_any_more(
    clock: MockClock, tmp_path: Path
) -> None:
    town = Court(tmp_path, opinions())
    async with opened(town) as nursery:
        await town.submit()
        await town.until(lambda: town.offering.own)
        (task,) = list(town.offering.own)
        await town.until(lambda: town.workers[0].jury.state.tasks.find(task))
        town.newest = RUN.recipe.max_staleness + 1
        await town.until(lambda: not town.task(task, town.workers[0]).open)
        assert town.label_queue.counts == {"judged": 0, "apart": 0, "too_late": 2} and not town.label_queue.files
        town.start(nursery)
        await trio.sleep(30)
        assert len(town.taken) == 1 and not any(engine.made for engine in town.engines)
        town.label_queue.put(LabelRequest(b"w" * 32, bytes(32), 0, RolloutBatch(None, ()), ()))  # type: ignore[arg-type]
        town.label_queue.forget(b"w" * 32)  # its file was rejected after all
        assert not town.label_queue.files


def test_a_run_without_judges_asks_nobody_whatever_validators_leave_open() -> None:
    label_queue = LabelQueue(court_run(), lambda step: True, print)
    label_queue.put(LabelRequest(b"w" * 32, bytes(32), 0, RolloutBatch(None, ()), ()))  # type: ignore[arg-type]
    assert not label_queue.files


def test_a_group_that_one_validator_scored_is_left_to_no_judge() -> None:
    open_to_all, of_one = reward_tags([0.0] * 12, SIZE, {0, 1, 2}), reward_tags([0.0] * 12, SIZE, {0, 2})
    votes: list[Any] = [SimpleNamespace(rewards=tags) for tags in (open_to_all, of_one, b"")]
    assert _decided(votes, GROUPS) == {1} and _decided(votes[:1], GROUPS) == set()
