"""What an engine needs for a task's shards: the policy that it names, and the files of its environment.

Fetched once, when the task is heard of or first worked on; kept as long as the task is open. Both the worker and the
validator ask here, so both compute from the same bytes.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog
import trio

from node.blobs.interface import Blobs
from node.errors import NodeError
from node.inference.wire import LoadPolicy, ShardOrder
from node.run.assets import Run, place_asset
from node.swarm.task_table import Task
from node.weights.fetch import PolicyFollower
from node.weights.policy_cache import HeldPolicy, PolicyCache
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.tasks import WEIGHTS, TaskId

log = structlog.get_logger()
POLICY_TIMEOUT = 60.0
ASSET_TIMEOUT = 600.0
FILE_TIMEOUT = 60.0
# The trainer offers tasks, but every worker pays with its disk.
MOST_ASSET_BYTES = 1 << 30


class TaskUnready(NodeError):
    """What a task needs cannot be had now."""


class TaskInputs:
    """run: the node's; members: whom to ask for files; directory: where the files of tasks are placed."""

    def __init__(
        self,
        run: Run,
        blobs: Blobs,
        policies: PolicyFollower,
        policy_cache: PolicyCache,
        members: Callable[[], Sequence[Address]],
        directory: Path,
    ) -> None:
        self._run = run
        self._blobs = blobs
        self._policies = policies
        self._policy_cache = policy_cache
        self._members = members
        self._directory = directory
        self._placed: dict[TaskId, Task] = {}
        """Whose files are here."""
        self._held: dict[TaskId, Task] = {}
        """Whose policies are held."""
        self._turn = trio.Lock()

    async def order(self, task: Task) -> tuple[ShardOrder, LoadPolicy]:
        """What to tell an engine about a task; fetches what is missing. Raises TaskUnready."""
        # Outside the turn: a policy takes up to a minute, and files of other tasks need not wait for it.
        policy = None if task.spec.weights else await self._policy(task, task.spec.policy)
        assets = await self.files(task)
        order = ShardOrder(task.encoded, str(assets), task.policy_root)
        if policy is not None:
            return order, policy.load()
        return order, LoadPolicy(policy_root=task.policy_root, step=task.spec.step, path=str(assets / WEIGHTS))

    async def files(self, task: Task) -> Path:
        """The directory of the files that a task brings along, the run's own where it brings none. Raises
        TaskUnready."""
        if not task.spec.assets:
            return self._run.assets
        async with self._turn:
            if task.id not in self._placed:
                await self._place_files(task)
                self._placed[task.id] = task
        return self._place(task)

    async def file(self, task: Task, number: int) -> Path:
        """One of them by itself, as a blob. Raises TaskUnready."""
        asset = task.spec.assets[number]
        holders = [task.owner, *self._members()]
        try:
            return await self._blobs.fetch(
                bytes.fromhex(asset.root), holders, max_size=asset.size, timeout=FILE_TIMEOUT
            )
        except IntellectError as error:
            raise TaskUnready(f"{task.title} cannot be worked on", error.why, "wait for its owner") from None

    async def policies(self, task: Task) -> dict[str, HeldPolicy]:
        """All policies that a task names, by root as hex. Raises TaskUnready."""
        return {root: await self._policy(task, root) for root in task.spec.policies}

    def handle(self, task: Task) -> None:
        """Something has become of a task. Of one that is over the policy goes when its time comes, the files when room
        is made for others'."""
        if not task.open:
            self._let_go_of(task)

    def _let_go_of(self, task: Task) -> None:
        if self._held.pop(task.id, None):
            # Another open task may work with the same policy, and the shelf does not count.
            others = {root for one in self._held.values() for root in one.spec.policies}
            for root in set(task.spec.policies) - others:
                self._policy_cache.let_go(bytes.fromhex(root))

    async def _policy(self, task: Task, named: str) -> HeldPolicy:
        root = bytes.fromhex(named)
        # Results that come late are looked at, too, and nobody tells of their task any more.
        for over in [one for one in self._held.values() if not one.open and one.id != task.id]:
            self._let_go_of(over)
        # Before it is fetched: a newer policy could otherwise push it out as it comes.
        self._held[task.id] = task
        self._policy_cache.hold(root)
        policy = self._policy_cache.by_root(root) or await self._policies.get(root, POLICY_TIMEOUT)
        if policy is None:
            raise TaskUnready(
                f"{task.title} cannot be worked on",
                f"its policy {named[:16]} was not announced, or cannot be fetched",
                "wait: it is asked for again; else its owner must offer the task with a policy that somebody holds",
            )
        return policy

    async def _place_files(self, task: Task) -> None:
        # Only now: the files of a task that is over may still be read by its last shard.
        for over in [one for one in self._placed.values() if not one.open]:
            del self._placed[over.id]
            await trio.to_thread.run_sync(shutil.rmtree, self._place(over), True)
        most = MOST_ASSET_BYTES
        if task.spec.weights:  # as large as the run's own
            most += self._run.spec.weight_bytes()
        if (size := sum(asset.size for asset in task.spec.assets)) > most:
            why = f"its files have {size:,} bytes, which are more than {most:,}"
            raise TaskUnready(f"{task.title} cannot be worked on", why, "split them")
        with trio.move_on_after(ASSET_TIMEOUT):
            for asset in task.spec.assets:
                try:
                    # The owner first: it has them for certain.
                    await place_asset(asset, self._blobs, lambda: [task.owner, *self._members()], self._place(task))
                except OSError as error:  # a full disk, or a name that is another one's folder
                    why = f"{asset.path} cannot be placed: {error.strerror}"
                    raise TaskUnready(f"{task.title} cannot be worked on", why, "free space there") from None
            return
        raise TaskUnready(f"{task.title} cannot be worked on", "nobody handed its files over", "wait for its owner")

    def _place(self, task: Task) -> Path:
        return self._directory / task.id.hex()[:32]
