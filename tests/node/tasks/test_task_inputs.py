"""What an engine needs for a task is fetched once, kept while the task is open, and let go."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.run.assets import Run
from node.swarm.task_table import Task
from node.tasks.task_inputs import TaskInputs, TaskUnready
from node.weights.policy_cache import HeldPolicy, PolicyCache
from protocol.blobs import describe
from protocol.identity import Address
from protocol.leases import Leases
from protocol.merging import Merge
from protocol.run import Asset, EnvironmentSpec, RunSpec
from protocol.tasks import MergeOrder, TaskSpec, encode_task, task_id

ROWS = b"rows"
OWNER = Address("0x" + "11" * 20)


class Blobs:
    def __init__(self, directory: Path) -> None:
        self._path = directory / "blob"
        self._path.write_bytes(ROWS)
        self.fetched = 0

    async def fetch(self, root: bytes, sources: Any, *, max_size: int, timeout: float, priority: int = 0) -> Path:
        assert root == describe(ROWS).root and sources[0] == OWNER
        self.fetched += 1
        return self._path


class Pins:
    def pin(self, root: bytes) -> None: ...
    def unpin(self, root: bytes) -> None: ...


class Policies:
    """Fetches any policy but the second."""

    def __init__(self, policy_cache: PolicyCache) -> None:
        self._policy_cache = policy_cache

    async def get(self, root: bytes, timeout: float) -> HeldPolicy | None:
        if root != bytes([2]) * 32:
            self._policy_cache.put(policy(root[0]))
        return self._policy_cache.by_root(root)


def policy(number: int) -> HeldPolicy:
    root = bytes([number]) * 32
    manifest: Any = SimpleNamespace(image_root=root, patches=(), snapshot=None)
    return HeldPolicy(number, root, Path(f"/{number}"), manifest)


def task(number: int, *assets: Asset) -> Task:
    spec = TaskSpec(kind="filter", last=4, policy=(bytes([number]) * 32).hex(), assets=assets)
    encoded = encode_task(spec)
    id = task_id(encoded)
    return Task(id, spec, encoded, OWNER, Leases(id, spec, 0.0), 0.0, backlog=False)


async def test_a_policy_stays_as_long_as_its_task_and_files_lie_where_the_engine_looks(tmp_path: Path) -> None:
    policy_cache, blobs = PolicyCache(2, Pins()), Blobs(tmp_path)
    run = Run(RunSpec(name="r", environment=EnvironmentSpec(name="sort")), bytes(32), b"", tmp_path / "assets")
    inputs = TaskInputs(run, blobs, Policies(policy_cache), policy_cache, list, tmp_path / "tasks")  # type: ignore[arg-type]
    own = task(1, Asset(path="data/rows.jsonl", root=describe(ROWS).root.hex(), size=4))
    order, load = await inputs.order(own)
    assert (Path(order.assets_dir) / "data" / "rows.jsonl").read_bytes() == ROWS
    assert (load.policy_root, load.path, order.policy_root) == (bytes([1]) * 32, "/1", bytes([1]) * 32)
    for number in range(3, 9):
        policy_cache.put(policy(number))
    assert await inputs.order(own) == (order, load) and blobs.fetched == 1 and policy_cache.count == 3
    other = task(1)
    assert (await inputs.order(other))[0].assets_dir == str(tmp_path / "assets")
    own.open = other.open = False
    inputs.handle(own)
    assert policy_cache.by_root(bytes([1]) * 32)  # another task works with it
    inputs.handle(other)
    assert policy_cache.by_root(bytes([1]) * 32) is None and policy_cache.count == 2
    await inputs.files(task(4, own.spec.assets[0]))
    assert not Path(order.assets_dir).exists()


async def test_a_merge_that_is_over_lets_no_policy_go_that_another_task_works_with(tmp_path: Path) -> None:
    policy_cache = PolicyCache(2, Pins())
    run: Any = SimpleNamespace(assets=tmp_path)
    inputs = TaskInputs(run, Blobs(tmp_path), Policies(policy_cache), policy_cache, list, tmp_path)  # type: ignore[arg-type]
    roots = [bytes([number]) * 32 for number in (1, 3)]
    merge, answers = task(9), task(1)
    models = tuple(root.hex() for root in roots)
    merge.spec = TaskSpec(kind="merge", last=4, merge=MergeOrder(models=models, rule=Merge(weights=(1, 1))))
    await inputs.policies(merge)
    await inputs.order(answers)
    for number in range(4, 9):
        policy_cache.put(policy(number))
    merge.open = answers.open = False
    inputs.handle(merge)
    assert policy_cache.by_root(roots[0]) and policy_cache.by_root(roots[1]) is None
    inputs.handle(answers)
    assert policy_cache.by_root(roots[0]) is None


async def test_a_look_at_a_late_result_keeps_policy_and_files_only_until_the_next_task(tmp_path: Path) -> None:
    policy_cache, blobs = PolicyCache(2, Pins()), Blobs(tmp_path)
    run: Any = SimpleNamespace(assets=tmp_path)
    inputs = TaskInputs(run, blobs, Policies(policy_cache), policy_cache, list, tmp_path / "tasks")  # type: ignore[arg-type]
    late = task(1, Asset(path="rows.jsonl", root=describe(ROWS).root.hex(), size=4))
    await inputs.order(late)
    late.open = False
    inputs.handle(late)
    for number in range(4, 7):
        policy_cache.put(policy(number))
    assert policy_cache.by_root(bytes([1]) * 32) is None
    order, load = await inputs.order(late)  # a validator looks at it: nothing more becomes of the task
    assert load.path == "/1" and (Path(order.assets_dir) / "rows.jsonl").exists()
    await inputs.order(task(3, late.spec.assets[0]))
    assert policy_cache.by_root(bytes([1]) * 32) is None and not Path(order.assets_dir).exists()


async def test_the_files_of_a_review_that_is_over_make_room_too(tmp_path: Path) -> None:
    policy_cache = PolicyCache(2, Pins())
    inputs = TaskInputs(None, Blobs(tmp_path), Policies(policy_cache), policy_cache, list, tmp_path / "tasks")  # type: ignore[arg-type]
    rows = Asset(path="rows.jsonl", root=describe(ROWS).root.hex(), size=4)
    review, other = task(1, rows), task(3, rows)
    there = await inputs.files(review)
    review.open = False
    inputs.handle(review)
    await inputs.files(other)
    assert not there.exists()


async def test_a_policy_that_nobody_has_is_said_to_be_missing(tmp_path: Path) -> None:
    policy_cache = PolicyCache(2, Pins())
    run: Any = None
    inputs = TaskInputs(run, Blobs(tmp_path), Policies(policy_cache), policy_cache, list, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(TaskUnready, match="cannot be worked on"):
        await inputs.order(task(2))


async def test_files_that_cannot_lie_beside_each_other_are_the_tasks_own_trouble(tmp_path: Path) -> None:
    run = Run(RunSpec(name="r", environment=EnvironmentSpec(name="sort")), bytes(32), b"", tmp_path / "assets")
    policy_cache = PolicyCache(2, Pins())
    inputs = TaskInputs(run, Blobs(tmp_path), Policies(policy_cache), policy_cache, list, tmp_path / "tasks")  # type: ignore[arg-type]
    root = describe(ROWS).root.hex()
    own = task(1, Asset(path="rows", root=root, size=4), Asset(path="rows/more.jsonl", root=root, size=4))
    with pytest.raises(TaskUnready, match="cannot be worked on"):
        await inputs.files(own)
