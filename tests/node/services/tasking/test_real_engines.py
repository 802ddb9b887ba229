"""A task done by real engines on a tiny model: files, proofs, checks, reports and figures are all real."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import trio
from trio.testing import MockClock

from cli.task.asking import TaskDraft, with_model
from node.environments.base import one_answer
from node.inference.engines import torch_engine
from node.inference.session import EngineSession
from node.inference.wire import Inspect, LoadPolicy, Produce, Reply, Request
from node.run.assets import Run
from node.services.tasking.requests import TaskRequest
from node.tasks.findings import evaluate
from node.tasks.results import read_answers
from node.tasks.task_inputs import TaskInputs
from node.weights.merge import merge_models
from node.weights.policy_cache import PolicyCache
from protocol.checks import Reason
from protocol.merging import Merge
from protocol.policy import bf16_bits, bf16_values, decode_image, encode_image
from protocol.run import Asset, RunSpec
from protocol.statements import VerdictOutcome
from protocol.tasks import WEIGHTS, TaskError, TaskSpec
from tests.node.inference.work import produced_by, seen_by
from tests.node.services.tasking.town import POLICY, Town, at_once, opened


class InProcess:
    """An engine child's work, done here and now. other: of another policy than the task names."""

    engine_name = "torch (cpu, float32)"

    def __init__(self, session: EngineSession, other: bytes = POLICY) -> None:
        self._session = session
        self._other = other
        self.made: list[int] = []

    async def ask(
        self, request: Request, *, timeout: float, policy: LoadPolicy | None = None, on_progress: object = None
    ) -> Reply:
        await trio.sleep(1.0)
        assert isinstance(request, Produce | Inspect) and request.task is not None
        if isinstance(request, Inspect):
            return seen_by(self._session, request)
        self.made.append(request.index)
        order = msgspec.structs.replace(request.task, policy_root=self._other)
        return produced_by(self._session, msgspec.structs.replace(request, task=order))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    return MockClock(autojump_threshold=0)


@pytest.fixture(scope="module")
def session(tiny_assets: Path, tiny_run: RunSpec) -> EngineSession:
    made = EngineSession(tiny_run, tiny_assets, torch_engine)
    made.keep(POLICY, str(tiny_assets / "model" / "model.safetensors"))
    return made


async def test_two_workers_evaluate_a_policy_and_the_figure_is_that_of_a_desk(
    clock: MockClock, session: EngineSession, tiny_run: RunSpec, tmp_path: Path
) -> None:
    engines = [InProcess(session), InProcess(session)]
    town = Town(tmp_path, engines, judge=lambda: InProcess(session), run=tiny_run)
    async with opened(town) as nursery:
        town.start(nursery)
        id = await town.offer(kind="evaluate", part="held_out", last=12, samples=3, shard_size=2)
        await town.finish(id)
        answers = [answer for result in town.folder(id).results() for answer in read_answers(*result)]
        assert len(answers) == 36 and all(engine.made for engine in engines)
        problems = {p.problem_id: p for p in map(session.environment.held_back_problem, range(12))}
        asked = [problems[answer.problem_id] for answer in answers]
        scores = session.environment.score(asked, [one_answer(answer.output) for answer in answers])
        assert [answer.score for answer in answers] == scores
        found = evaluate(town.folder(id))
        assert found.mean == pytest.approx(sum(scores) / 36) and found.problems == 12


async def test_answers_of_another_model_are_refused_and_the_shard_is_done_by_somebody_else(
    clock: MockClock, session: EngineSession, tiny_run: RunSpec, tiny_assets: Path, tmp_path: Path
) -> None:
    from tests.cheats.other_weights import OtherWeights

    cheating = OtherWeights(tiny_run, tiny_assets, torch_engine)
    cheating.keep(POLICY, str(tiny_assets / "model" / "model.safetensors"))
    town = Town(tmp_path, [InProcess(session), InProcess(cheating)], judge=lambda: InProcess(session), run=tiny_run)
    async with opened(town) as nursery:
        id = await town.offer(kind="generate", last=8, samples=2, shard_size=2)
        town.start(nursery, 1)
        await town.until(lambda: town.task(id).leases.held(town.workers[1].key.address, trio.current_time()))
        town.start(nursery, 0)
        await town.finish(id)
        assert {record.node for record, _, _ in town.folder(id).results()} == {town.workers[0].key.address}
        register, vote_set = town.trainer.jury.state.register, town.trainer.jury.state.vote_set
        (first, *_) = register.of(town.workers[1].key.address)
        said = {(v.verdict.outcome, v.verdict.reason) for v in vote_set.rejecting(first.id).values()}
        assert said and said <= {(VerdictOutcome.REJECT, Reason.ACTIVATIONS), (VerdictOutcome.REJECT, Reason.SAMPLING)}


class Fetching(InProcess):
    """Takes the weights that its order names, as a child does; `cheats` samples from the run's policy instead."""

    def __init__(self, session: EngineSession, *, cheats: bool = False) -> None:
        super().__init__(session)
        self._cheats = cheats

    async def ask(
        self, request: Request, *, timeout: float, policy: LoadPolicy | None = None, on_progress: object = None
    ) -> Reply:
        assert policy is not None
        self._session.keep(policy.policy_root, policy.path)
        self._other = POLICY if self._cheats else policy.policy_root
        return await super().ask(request, timeout=timeout, policy=policy, on_progress=on_progress)


class MergingTown(Town):
    """Whose nodes fetch what a task brings along."""

    def _task_inputs(self, name: str) -> Any:
        none: Any = None
        run, policy_cache = Run(self.run, bytes(32), b"", self.directory), PolicyCache(2, none)
        return TaskInputs(run, self.blobs, none, policy_cache, list, self.directory / name)


async def test_a_merged_model_is_evaluated_though_it_is_no_policy_of_the_run(
    clock: MockClock, session: EngineSession, tiny_run: RunSpec, tiny_assets: Path, tmp_path: Path
) -> None:
    first = tiny_assets / "model" / "model.safetensors"
    source, other = np.random.default_rng(0), tmp_path / "other.safetensors"
    tensors = {name: bf16_values(one) for name, one in decode_image(first.read_bytes()).items()}
    for name, values in tensors.items():
        tensors[name] = values + source.normal(0, 0.5 * values.std() + 1e-3, values.shape).astype(np.float32)
    other.write_bytes(encode_image({name: bf16_bits(values) for name, values in tensors.items()}))
    merge_models(Merge("average", (1, 1)), [first, other], tmp_path / "merged")
    wanted = TaskSpec(kind="evaluate", part="held_out", last=8, samples=2, shard_size=2)
    draft = with_model(TaskDraft(wanted, "", {}), tmp_path / "merged")
    engines = [Fetching(session), Fetching(session, cheats=True)]
    town = MergingTown(tmp_path, engines, judge=lambda: Fetching(session), run=tiny_run)
    async with opened(town) as nursery:
        files = {path: str(file) for path, file in draft.files.items()}
        id = await town.offering.offer(TaskRequest(draft.spec, files=files))
        town.start(nursery, 1)
        await town.until(lambda: town.trainer.jury.state.tasks.find(id) and engines[1].made)
        town.start(nursery, 0)
        await town.finish(id)
        found, folder = evaluate(town.folder(id)), town.folder(id)
        assert found.problems == 8 and folder.spec().policies == ()
        assert {record.node for record, _, _ in folder.results()} == {town.workers[0].key.address}
        register, vote_set = town.trainer.jury.state.register, town.trainer.jury.state.vote_set
        refused = register.of(town.workers[1].key.address)
        assert refused and all(vote_set.rejecting(work.id) for work in refused)


def test_weights_that_are_not_what_the_task_names_are_refused() -> None:
    asset = Asset(path=WEIGHTS, root="ab" * 32, size=1)
    TaskSpec(kind="evaluate", last=1, policy="ab" * 32, assets=(asset,)).check()
    with pytest.raises(TaskError, match="must be what `policy` names"):
        TaskSpec(kind="evaluate", last=1, policy="cd" * 32, assets=(asset,)).check()
