"""What a teacher says of accepted rollouts: computed by workers, checked by validators, learnt from by a trainer that
holds no teacher. Liars are refused and earn nothing."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import trio
from trio.testing import MockClock

from node.inference.wire import Inspect, Inspected, LoadPolicy, Reply, Request, Taught, Teach
from node.recipe.manifest import compose, materialise
from node.recipe.pool import Group, Selection
from node.recipe.teacher_queue import TeacherQueue
from node.services.certifier import Certifier
from node.services.committing import commit
from node.services.tasking.teachers import Teachers
from node.services.training.ingest import Ingest
from node.services.training.stating import make
from node.swarm.vote_set import FileState
from node.tasks.recomputed import RECOMPUTED
from protocol.blobs import describe
from protocol.checks import Reason
from protocol.identity import address_from_bytes
from protocol.manifest import JudgedTask, MalformedManifest, decode_composed, encode_manifest
from protocol.rollout import (
    MalformedRollout,
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
from protocol.sections import Distill
from protocol.statements import VerdictOutcome
from protocol.tasks import LESSON, TaskError, TaskSpec, decode_task, encode_task
from protocol.teaching import encode_taught
from protocol.values import mean_logprobs, reward_tags
from tests.attacks.validators.court import POOL, court_run
from tests.node.services.tasking.town import POLICY, WORKERS, Town, ToyEngine, at_once

SIZE, GROUPS, PAY = 4, 3, 0.5
RUN = msgspec.structs.replace(
    court_run(),
    rollout=RolloutSpec(group_size=SIZE, prompts_per_step=2 * GROUPS, prompts_per_file=GROUPS),
    distill=Distill(teacher="teacher", tasks=True, pay=PAY),
)
ROOT = bytes(32)
Said = list[list[float]]
"""Log-probabilities, row by row."""
Lie = Callable[[Said], Said]


def rows_of(index: int) -> tuple[SampleRow, ...]:
    """Of one file."""
    places = [(group, sample) for group in range(GROUPS) for sample in range(SIZE)]
    return tuple(SampleRow(g, s, f"p{g}", [7], [10 * index + s, 1], True, b"") for g, s in places)


def truth(rows: Sequence[SampleRow]) -> Said:
    return [[-(token % 7) / 4 for token in row.output] for row in rows]


def within_rounding(said: Said) -> Said:
    """As another honest engine says it: a bf16 one differed by 0.005 on average and 0.2 at most (node/inference)."""
    return [
        [one - 0.01 - 0.15 * (place == 0) * (token == 0) for token, one in enumerate(row)]
        for place, row in enumerate(said)
    ]


class Reader(ToyEngine):
    """Accepts every rollout; says what the teacher says, or something else."""

    def __init__(self, lie: Lie = lambda said: said) -> None:
        super().__init__()
        self.lie = lie
        self.asked: list[Teach] = []

    async def ask(
        self, request: Request, *, timeout: float, policy: LoadPolicy | None = None, on_progress: object = None
    ) -> Reply:
        await trio.sleep(0.05)
        if isinstance(request, Teach):
            self.asked.append(request)
            rows = decode(Path(request.path).read_bytes(), 64).rows
            said = self.lie(truth(rows))
            data = encode_taught(request.file_root, request.task, rows[: len(said)], said)
            Path(request.out_path).write_bytes(data)
            return Taught(path=request.out_path, tokens=1, seconds=0.05)
        assert isinstance(request, Inspect)
        return self._accepted(request)

    def _accepted(self, order: Inspect) -> Inspected:
        batch = decode(Path(order.path).read_bytes(), 64)
        rewards = [0.25 * row.sample for row in batch.rows]
        rows = [ReportRow(r.group, r.sample, v, [-0.5, -0.5]) for r, v in zip(batch.rows, rewards, strict=True)]
        report = ValidatorReport(ReportHeader(order.file_root.hex(), order.policy_root.hex()), tuple(rows))
        Path(order.report_path).write_bytes(encode_report(report))
        return Inspected(
            outcome=int(VerdictOutcome.ACCEPT),
            reason=0,
            detail="",
            report_path=order.report_path,
            rewards_mean=0.0,
            tokens=batch.units,
            seconds=0.05,
            statistics={},
            checked=tuple(range(GROUPS)),
            rewards=reward_tags(rewards, SIZE, ()),
            logprobs=mean_logprobs({group: [np.full(2, -0.5, np.float32)] for group in range(GROUPS)}),
        )


class School(Town):
    """The town with a trainer who trains, and lies: of its workers. newest: the step that its next batch is for."""

    def __init__(self, directory: Path, *lies: Lie) -> None:
        super().__init__(directory, [Reader(lie) for lie in lies], judge=Reader, run=RUN)
        self.newest, self.taken = 0, list[Group]()
        self.teacher_queue = TeacherQueue(
            RUN, lambda step: self.newest - step <= RUN.recipe.max_staleness, self.taken.extend
        )
        self.offering._askers = [Teachers(self.offering, self.teacher_queue, RUN, self.blobs)]  # type: ignore[list-item]
        self.ingest = Ingest(
            self.trainer.context,
            fresh=self.teacher_queue.fresh,
            taken_in=self.teacher_queue.put,
            taken_back=self.teacher_queue.forget,
        )

    async def submit(self, index: int = 0) -> bytes:
        """A worker's file; the id of its work, once it is accepted."""
        seat, path = self.workers[0], self.directory / f"file-{index}"
        header = RolloutHeader(POOL, seat.key.address, POLICY.hex(), index)
        rows = rows_of(index)
        path.write_bytes(encode(RolloutBatch(header, rows)))
        register, vote_set = self.trainer.jury.state.register, self.trainer.jury.state.vote_set
        files = lambda: {work.id for work in register.of(seat.key.address) if work.is_sampled}
        before = files()
        await commit(seat.context, POLICY, index, path, 2 * len(rows), 0)
        await self.until(lambda: files() - before)
        (id,) = files() - before
        await self.until(lambda: vote_set.state(id) is FileState.ACCEPTED)
        return id

    def results(self, number: int) -> list[FileState]:
        """What became of a worker's results of tasks."""
        works = self.trainer.jury.state.register.of(self.workers[number].key.address)
        return [self.trainer.jury.state.vote_set.state(work.id) for work in works if work.task is not None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    return MockClock(autojump_threshold=0)


@asynccontextmanager
async def opened(town: School) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        await town.open(nursery)
        nursery.start_soon(town.ingest.run)
        yield nursery
        nursery.cancel_scope.cancel()


async def test_a_batch_has_what_the_teacher_said_and_is_made_again_from_its_names_alone(
    clock: MockClock, tmp_path: Path
) -> None:
    town = School(tmp_path, within_rounding, within_rounding)
    async with opened(town) as nursery:
        town.start(nursery)
        for index in range(2):
            await town.submit(index)
        await town.until(lambda: len(town.taken) == 2 * GROUPS)
        assert town.teacher_queue.counts == {"taught": 2 * GROUPS, "too_late": 0, "unusable": 0} and not len(
            town.teacher_queue
        )
        assert not [one for number in range(2) for one in town.results(number) if one is FileState.REJECTED]
        chosen = sorted(town.taken, key=lambda group: (group.order, group.key))
        composed = decode_composed(encode_manifest(compose(RUN, ROOT, POOL, Selection(1, tuple(chosen)))))
        composed.check(ROOT, POOL, 1, RUN.recipe.max_staleness)
        batch = await make(town.trainer.context, composed)
        assert batch.rows == tuple(row for group in chosen for row in group.rows)
        for row in batch.rows:
            assert row.teacher_logprobs == pytest.approx([-(token % 7) / 4 for token in row.output], abs=0.17)
        first, second = composed.works
        ((task,), (other,)) = first.judged, second.judged
        (shard,) = task.shards
        assert address_from_bytes(shard.node) in {seat.key.address for seat in town.workers}
        blobs = tmp_path / "blobs"

        def read(root: bytes) -> bytes:
            return (blobs / root.hex()).read_bytes()

        replace = msgspec.structs.replace

        def again(judged: JudgedTask | None) -> None:
            changed = replace(first, judged=() if judged is None else (judged,))
            materialise(RUN, replace(composed, works=(changed, second)), read, read)

        again(task)
        (report,) = first.reports
        elsewhere = other.shards[0].shard
        for why, judged in {
            "the teacher says nothing of group 0": None,
            "asked about another file": replace(other, shards=(replace(shard, shard=elsewhere),)),
            "not what its author signed": replace(task, shards=(replace(shard, report_root=report.root),)),
            "of another file or task": replace(
                task, shards=(replace(shard, file_root=report.root, report_root=report.root),)
            ),
        }.items():
            with pytest.raises((MalformedManifest, MalformedRollout), match=why):
                again(judged)


LIES: dict[str, Lie] = {
    "shifted": lambda said: [[one - 0.2 for one in row] for row in said],
    "one group": lambda said: [[one - 0.3 * (n >= 2 * SIZE) for one in row] for n, row in enumerate(said)],
    "one token": lambda said: [[one - 1.2 * (n == 0 == t) for t, one in enumerate(row)] for n, row in enumerate(said)],
    "random": lambda said: [[-float(n * 7919 % 13) for _ in row] for n, row in enumerate(said)],
    "not finite": lambda said: [[float("-inf") for _ in row] for row in said],
    "short": lambda said: said[:-SIZE],
}


@pytest.mark.parametrize("name", LIES)
def test_every_lie_is_told_from_rounding(name: str) -> None:
    batch = RolloutBatch(RolloutHeader(POOL, WORKERS[0].address, POLICY.hex(), 0), rows_of(0))
    root = describe(encode(batch)).root
    assets = (Asset(path=LESSON.format(0), root=root.hex(), size=9),)
    task: Any = SimpleNamespace(id=ROOT, spec=TaskSpec(kind="teach", last=1, assets=assets, shard_size=1, units=5))

    def said(lie: Lie) -> bytes:
        told = lie(truth(batch.rows))
        return encode_taught(root, ROOT, batch.rows[: len(told)], told)

    differs = RECOMPUTED["teach"].differs
    assert differs and differs(task, 0, said(lambda one: one), said(within_rounding), RUN.audit.logprob_tolerance) == ""
    assert differs(task, 0, said(within_rounding), said(LIES[name]), RUN.audit.logprob_tolerance)


@pytest.mark.parametrize("name", ["shifted", "random"])
async def test_a_liar_is_refused_and_earns_nothing_and_the_file_is_taught_by_somebody_else(
    clock: MockClock, tmp_path: Path, name: str
) -> None:
    town = School(tmp_path, LIES[name], within_rounding)
    async with opened(town) as nursery:
        own = town.seats[0].key.address
        nursery.start_soon(Certifier(town.seats[0].context).run)
        await town.submit()
        town.start(nursery, 0)
        await town.until(lambda: FileState.REJECTED in town.results(0))
        assert not town.taken
        town.start(nursery, 1)
        await town.until(lambda: len(town.taken) == GROUPS)
        await trio.sleep(5)
        liar, honest = (seat.key.address for seat in town.workers)
        rollouts = 2 * SIZE * GROUPS  # the liar's own, which are no lie
        assert town.certified(own, liar) == rollouts and town.certified(own, honest) == round(PAY * rollouts)
        assert FileState.ACCEPTED not in town.results(0) and town.results(1) == [FileState.ACCEPTED]
        register, vote_set = town.trainer.jury.state.register, town.trainer.jury.state.vote_set
        refused = [work for work in register.of(liar) if work.task is not None]
        said = {(v.verdict.outcome, v.verdict.reason) for w in refused for v in vote_set.rejecting(w.id).values()}
        assert said == {(VerdictOutcome.REJECT, Reason.WRONG_REPORT)} and all(
            not judge.slashed for judge in town.judges
        )


async def test_who_looks_without_comparing_takes_a_lie_for_the_truth(
    clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the tests above find a validator that is blind."""
    monkeypatch.setattr("node.tasks.recomputed.taught_otherwise", lambda *_: "")
    town = School(tmp_path, LIES["shifted"])
    async with opened(town) as nursery:
        await town.submit()
        town.start(nursery)
        await town.until(lambda: town.taken)
        assert town.results(0) == [FileState.ACCEPTED]


async def test_files_that_grow_stale_are_given_up_and_their_task_is_cancelled(clock: MockClock, tmp_path: Path) -> None:
    town = School(tmp_path, within_rounding)
    async with opened(town) as nursery:
        await town.submit()
        await town.until(lambda: town.offering.own)
        (task,) = list(town.offering.own)
        await town.until(lambda: town.workers[0].jury.state.tasks.find(task))
        town.newest = RUN.recipe.max_staleness + 1
        await town.until(lambda: not town.task(task, town.workers[0]).open)
        assert (
            town.teacher_queue.counts == {"taught": 0, "too_late": GROUPS, "unusable": 0}
            and not town.teacher_queue.files
        )
        town.start(nursery)
        await trio.sleep(30)
        assert not town.taken and not town.engines[0].asked  # type: ignore[attr-defined]


async def test_files_that_come_while_enough_is_asked_share_a_task_and_a_restart_asks_nothing_twice(
    clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.services.tasking.teachers.MOST_OPEN", 1)
    town = School(tmp_path, within_rounding, within_rounding)
    async with opened(town) as nursery:
        for index in range(3):
            await town.submit(index)
        await trio.sleep(2)
        assert len(town.offering.own) == 1
        ((asker,), teacher_queue) = town.offering._askers, town.teacher_queue
        town.offering._askers = [Teachers(town.offering, teacher_queue, RUN, town.blobs)]  # type: ignore[list-item]
        town.start(nursery)
        await town.until(lambda: len(town.taken) == 3 * GROUPS)
        specs = [one.spec for one in town.offering.own.values()]
        roots = [asset.root for spec in specs for asset in spec.assets]
        assert len(roots) == len(set(roots)) == 3 and len(specs) == 2 and asker is not town.offering._askers[0]


def test_a_task_to_teach_names_one_rollout_file_for_each_problem() -> None:
    root = "ab" * 32
    assets = tuple(Asset(path=LESSON.format(number), root=root, size=9) for number in range(2))
    spec = TaskSpec(kind="teach", last=2, assets=assets, shard_size=1, units=5)
    assert decode_task(encode_task(spec)) == spec and not spec.samples_asked and spec.policies == ()
    for name, changed in {
        "assets": {"last": 3},
        "shard_size": {"shard_size": 2},
        "units": {"units": 0},
        "subject": {"subject": root},
    }.items():
        with pytest.raises(TaskError, match=name):
            msgspec.structs.replace(spec, **changed).check()
    with pytest.raises(TaskError, match="assets"):
        msgspec.structs.replace(spec, assets=assets[::-1]).check()
