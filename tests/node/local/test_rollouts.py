"""Training at a desk, with the real engine's work in this process and a learner that only pretends to learn."""

import itertools
import json
import threading
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import trio

from node.inference.engines import torch_engine
from node.inference.process import share_of
from node.inference.scheduler import EngineScheduler, RequestContext
from node.inference.server import EngineServer
from node.inference.session import EngineSession
from node.inference.wire import LoadPolicy, Prepare, decode_reply, encode, requests
from node.local.rollouts import Activity, LocalRollouts
from node.metrics.journal import read_records
from node.metrics.observer import Observer
from node.state.files import write_whole
from node.training.batch import decode_batch
from node.training.errors import TrainingError
from node.training.spool import Spool
from protocol.policy import decode_image, describe_tensors, encode_image, policy_root
from protocol.run import RunSpec, encode_run
from protocol.sections import Filters, LengthBudget

LEAST_BARREN = 10

STEPS = 5
BUDGET = LengthBudget(targets=(2, 3), alpha=0.1, text="{target}")


class EngineInProcess:
    """An engine child without the child: the same requests, answered by the same code."""

    name, pid, restarts, asking = "engine", None, 0, 0

    def __init__(self, run: bytes, assets: Path) -> None:
        self._server = EngineServer(lambda _: torch_engine, EngineSession)
        self._owner = EngineScheduler()
        self._prepare = Prepare(run=run, assets_dir=str(assets))
        self.asked: list[str] = []

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        threading.Thread(target=self._owner.serve, daemon=True).start()
        await self.ask(self._prepare, timeout=60)
        task_status.started()
        await trio.sleep_forever()

    async def ask(self, request, *, timeout: float, policy: LoadPolicy | None = None, on_progress: object = None):
        if policy is not None:
            await self.ask(policy, timeout=timeout)
        self.asked.append(type(request).__name__)
        ticket = RequestContext(0, share_of(request) or "rollout")
        request = next(requests(BytesIO(encode(request))))
        reply = await trio.to_thread.run_sync(self._server.answer, request, ticket, self._owner)
        return decode_reply(encode(reply)[4:])


class Pretender:
    """Every batch gives the start model, shifted by a number that follows from the batch's bytes."""

    name, pid, restarts, memory = "learner", None, 0, ""

    def __init__(self, spool: Spool, start: Path, steps: int, stop_after: int, still: bool = False) -> None:
        self._spool, self._start, self._steps, self._stop_after, self._still = spool, start, steps, stop_after, still
        self._finishing = trio.Event()

    def finish(self) -> None:
        self._finishing.set()

    async def run(self) -> None:
        if not self._spool.is_complete(0):
            self._publish(0, 0)
        for step in range(self._spool.newest_step(), min(self._steps, self._stop_after)):
            while not self._spool.batch_path(step).exists():
                if self._finishing.is_set():
                    return
                await trio.sleep(0.005)
            data = self._spool.batch_path(step).read_bytes()
            assert all(step - row.policy_step >= 0 for row in decode_batch(data).rows)
            self._publish(step + 1, sum(data) % 7)
        if self._stop_after < self._steps:
            raise KeyboardInterrupt  # killed

    def _publish(self, step: int, shift: int) -> None:
        tensors = {name: bits.copy() for name, bits in decode_image(self._start.read_bytes()).items()}
        name = next(iter(sorted(tensors)))
        if not self._still:
            tensors[name] = (tensors[name] ^ np.uint16(shift + step)).astype(np.uint16)
        write_whole(self._spool.policy_path(step), encode_image(tensors))
        root = policy_root(step, describe_tensors(tensors)).hex()
        metrics = {"step": step, "policy_root": root, "seconds": {}}
        write_whole(self._spool.metrics_path(step), json.dumps(metrics).encode())


class Examiner:
    """Gives every policy a better mark, `late` steps after it was published, or when there will be no more."""

    name, pid, restarts = "evaluator", None, 0

    def __init__(self, spool: Spool, steps: int, late: int = 0) -> None:
        self._spool, self._steps, self._late = spool, steps, late
        self._finishing = trio.Event()

    def finish(self) -> None:
        self._finishing.set()

    async def run(self) -> None:
        for step in range(self._steps + 1):
            wanted = min(step + self._late, self._steps)
            while not self._spool.is_complete(wanted) and not self._finishing.is_set():
                await trio.sleep(0.005)
            write_whole(self._spool.evaluation_path(step), json.dumps({"eval_reward": 0.1 * step}).encode())


def make(
    run: RunSpec,
    assets: Path,
    directory: Path,
    level: int,
    stop_after: int = STEPS,
    still: bool = False,
    late: int = 0,
    activity: Activity = lambda text: None,
) -> tuple[LocalRollouts, EngineInProcess]:
    encoded, spool = encode_run(run), Spool(directory / "spool")
    engine = EngineInProcess(encoded, assets)
    local = LocalRollouts(
        run,
        encoded,
        directory,
        assets,
        engines=[engine],  # type: ignore[arg-type]
        learner=Pretender(spool, assets / "model" / "model.safetensors", run.recipe.steps, stop_after, still),  # type: ignore[arg-type]
        evaluator=Examiner(spool, run.recipe.steps, late),  # type: ignore[arg-type]
        spool=spool,
        observer=Observer(run, directory),
        async_level=level,
        activity=activity,
    )
    return local, engine


def batches(directory: Path, steps: int = STEPS) -> list[bytes]:
    return [Spool(directory / "spool").batch_path(step).read_bytes() for step in range(steps)]


def story(directory: Path) -> list[dict]:
    """What is on record, without what a clock says."""
    timed = ("at", "elapsed", "seconds")
    records = read_records(directory / "metrics.jsonl")
    return [{name: value for name, value in record.items() if name not in timed} for record in records]


@pytest.fixture(scope="module")
def run(tiny_run: RunSpec) -> RunSpec:
    recipe = msgspec.structs.replace(tiny_run.recipe, steps=STEPS, max_staleness=3)
    sizes = {"max_output_tokens": 6, "max_prompt_tokens": 12, "prompts_per_step": 3, "prompts_per_file": 2}
    rollout = msgspec.structs.replace(tiny_run.rollout, **sizes)
    # An untrained model never sorts. With a budget on their length its answers' rewards differ all the same.
    return msgspec.structs.replace(tiny_run, recipe=recipe, rollout=rollout, length_budget=BUDGET)


class Straight(NamedTuple):
    """A run that nothing happened to. asked: of its engine."""

    directory: Path
    asked: list[str]


@pytest.fixture(scope="module")
def straight(run: RunSpec, tiny_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """At async level 1; others are compared with it."""
    directory = tmp_path_factory.mktemp("straight")
    local, engine = make(run, tiny_assets, directory, 1)
    trio.run(local.run)
    return Straight(directory, engine.asked)


@pytest.mark.parametrize("level", [0, 2])
async def test_the_policy_lags_by_exactly_the_async_level(
    run: RunSpec, tiny_assets: Path, tmp_path: Path, level: int
) -> None:
    said: list[str] = []
    local, _ = make(run, tiny_assets, tmp_path, level, activity=said.append)
    await local.run()
    assert said[0] == "learner and engine load the model", "which takes minutes with a large one"
    need = run.rollout.prompts_per_step * run.rollout.group_size
    assert f"sampling for step 1 with policy 0: 0 of {need} rollouts" in said
    for step, data in enumerate(batches(tmp_path)):
        ages = {step - row.policy_step for row in decode_batch(data).rows}
        # a surplus group of the file before may be one step older
        assert ages <= {min(level, step), min(level + 1, step)} and min(ages) == min(level, step)
    assert [record["step"] for record in story(tmp_path)] == list(range(STEPS + 1))


async def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(
    run: RunSpec, tiny_assets: Path, tmp_path: Path, straight: Straight
) -> None:
    for stop_after in (1, 3):
        killed, _ = make(run, tiny_assets, tmp_path / "killed", 1, stop_after)
        with pytest.raises(BaseExceptionGroup):
            await killed.run()
    last, _ = make(run, tiny_assets, tmp_path / "killed", 1)
    await last.run()
    assert batches(tmp_path / "killed") == batches(straight.directory)
    assert story(tmp_path / "killed") == story(straight.directory)


async def test_training_does_not_wait_for_an_evaluation_and_the_run_does(
    run: RunSpec, tiny_assets: Path, tmp_path: Path, straight: Straight
) -> None:
    """Each policy is evaluated two steps after it was published: the same batches, the same records."""
    late, _ = make(run, tiny_assets, tmp_path / "late", 1, late=2)
    await late.run()
    assert batches(tmp_path / "late") == batches(straight.directory)
    assert story(tmp_path / "late") == story(straight.directory)
    assert [record["eval_reward"] for record in story(tmp_path / "late")] == [0.1 * n for n in range(STEPS + 1)]


async def test_a_run_that_is_lengthened_goes_on_as_if_it_had_been_meant_to(
    run: RunSpec, tiny_assets: Path, tmp_path: Path, straight: Straight
) -> None:
    for steps in (2, 3, STEPS):
        recipe = msgspec.structs.replace(run.recipe, steps=steps)
        local, _ = make(msgspec.structs.replace(run, recipe=recipe), tiny_assets, tmp_path / "grown", 1)
        await local.run()
        assert local.status()["run"] == {"step": steps, "steps_total": steps}
    assert batches(tmp_path / "grown") == batches(straight.directory)
    assert story(tmp_path / "grown") == story(straight.directory)

    other = msgspec.structs.replace(run, recipe=msgspec.structs.replace(run.recipe, learning_rate=0.5))
    with pytest.raises(TrainingError, match="another run"):
        await make(other, tiny_assets, tmp_path / "grown", 1)[0].run()


def test_no_group_is_used_twice_and_none_is_lost(straight: Straight) -> None:
    used = [name for data in batches(straight.directory) for name in decode_batch(data).header.files]
    assert len(used) == len(set(used)) == STEPS * 3
    # 15 groups of 2 a file: no file more than is needed was made
    assert straight.asked.count("Produce") == 8


async def test_no_group_is_used_twice_where_it_is_not_known_any_more_which_were(
    run: RunSpec, tiny_assets: Path, tmp_path: Path
) -> None:
    killed, _ = make(run, tiny_assets, tmp_path, 1, 3)
    with pytest.raises(BaseExceptionGroup):
        await killed.run()
    (tmp_path / "spool" / "stats" / "batch-000002.json").write_bytes(b"{")
    await make(run, tiny_assets, tmp_path, 1)[0].run()
    used = [name for data in batches(tmp_path) for name in decode_batch(data).header.files]
    assert len(used) == len(set(used)) == STEPS * 3


async def test_a_policy_that_did_not_change_draws_new_problems(run: RunSpec, tiny_assets: Path, tmp_path: Path) -> None:
    local, _ = make(run, tiny_assets, tmp_path, 1, still=True)
    await local.run()
    drawn: dict[int, set[tuple[int, ...]]] = {}
    for row in (row for data in batches(tmp_path) for row in decode_batch(data).rows):
        drawn.setdefault(row.policy_step, set()).add(tuple(row.prompt))
    assert len(drawn) == STEPS - 1
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(drawn.values(), 2))


async def test_the_online_filter_keeps_sampling_until_groups_have_signal(
    run: RunSpec, tiny_assets: Path, tmp_path: Path
) -> None:
    recipe = msgspec.structs.replace(run.recipe, steps=2)
    varied = msgspec.structs.replace(run, filters=Filters(online=True, refill=3.0), recipe=recipe)
    local, _ = make(varied, tiny_assets, tmp_path, 1)
    await local.run()
    rows = [row for data in batches(tmp_path, 2) for row in decode_batch(data).rows]
    assert len(rows) == 2 * 3 * run.rollout.group_size and {row.target_length for row in rows} == {2, 3}
    assert all(row.reward == pytest.approx(row.solved - 0.1 * abs(len(row.output) - row.target_length)) for row in rows)


@pytest.mark.parametrize("online", [False, True])
async def test_a_run_whose_answers_are_all_alike_learns_nothing_says_so_and_ends(
    run: RunSpec, tiny_assets: Path, tmp_path: Path, online: bool
) -> None:
    told: list[dict] = []
    recipe = msgspec.structs.replace(run.recipe, steps=2)
    filters = Filters(online=online, refill=1.0)
    flat = msgspec.structs.replace(run, length_budget=LengthBudget(), recipe=recipe, filters=filters)
    for _ in range(2):  # also where it is resumed
        local, _engine = make(flat, tiny_assets, tmp_path, 1)
        local._told = told.append
        await local.run()
        assert local.ended_by and "batches had a signal" in local.ended_by
    assert Spool(tmp_path / "spool").newest_step() == 0 and not Spool(tmp_path / "spool").batch_path(0).exists()
    assert [one["barren_batches"] for one in told if "barren_batches" in one][:LEAST_BARREN] == [*range(1, 11)]
    assert [record["step"] for record in story(tmp_path)] == [0]
    assert [alarm.name for alarm in local.rung] == ["no_signal"]


async def test_a_run_ends_when_its_tokens_are_spent(run: RunSpec, tiny_assets: Path, tmp_path: Path) -> None:
    from protocol.sections import Budget

    local, _ = make(msgspec.structs.replace(run, budget=Budget(tokens=1)), tiny_assets, tmp_path, 1)
    await local.run()
    assert local.ended_by == "budget.tokens = 1 is used up"
    assert [record["step"] for record in story(tmp_path)] == [0, 1]
