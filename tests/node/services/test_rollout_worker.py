"""A worker whose swarm falls apart and comes together again: real boards on a network in memory, a mock clock."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from blake3 import blake3

from node.inference.wire import LoadPolicy, Produce, Produced, Reply, Request
from node.member import BlobService, Participant
from node.recipe.capacity import CapacityGauge, MachineCapacity
from node.run.assets import Run
from node.services import rollout_worker
from node.services.base import ServiceManager
from node.services.context import make_context
from node.services.heartbeat import HeartbeatSender
from node.services.rollout_worker import RolloutWorker
from node.state.pen import Fence
from node.swarm.membership import Membership
from node.weights.policy_cache import HeldPolicy
from protocol.blobs import BlobInfo, describe
from protocol.identity import NodeKey
from protocol.messages import RolloutCommitted
from protocol.policy import PolicyManifest
from protocol.run import EnvironmentSpec, Recipe, RolloutSpec, RunSpec
from protocol.sections import Filters
from protocol.statements import Domain
from tests.attacks.validators.court import InlineJournal, SharedBlobs, announcement
from tests.memory_network import MemoryHub, MemoryNetwork

TRAINER, VALIDATOR, WORKER, IDLE = (NodeKey(bytes([n]) * 32) for n in (1, 2, 3, 4))
DOMAIN = Domain(31337, TRAINER.address)
RUN = RunSpec(
    name="torn",
    environment=EnvironmentSpec(name="sort"),
    rollout=RolloutSpec(group_size=2, prompts_per_step=4, prompts_per_file=4),
    recipe=Recipe(max_staleness=2),
)
FOUR_FILES = msgspec.structs.replace(RUN, rollout=RolloutSpec(group_size=2, prompts_per_step=16, prompts_per_file=4))
BEAT = 2.0
POLICY_EVERY = 2.0
FILE_SECONDS = 1.0
TORN = 45.0


class Engine:
    """Makes a file a second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seconds = FILE_SECONDS
        self.informative: float | None = 1.0
        self.under_way = False

    async def ask(
        self, request: Request, *, timeout: float, policy: LoadPolicy | None = None, on_progress: object = None
    ) -> Reply:
        assert isinstance(request, Produce) and policy is not None
        self.under_way = True
        await trio.sleep(self.seconds)
        self.under_way = False
        return Produced(
            path=str(self._folder / "none"),
            units=10,
            samples=8,
            tokens=20,
            seconds=self.seconds,
            reward_estimate=0.5,
            informative=self.informative,
        )


class Pins:
    def pin(self, root: bytes) -> None: ...
    def unpin(self, root: bytes) -> None: ...


def policy(step: int) -> HeldPolicy:
    root = blake3(b"policy %d" % step).digest()
    return HeldPolicy(step, root, Path("/none"), PolicyManifest(bytes(32), step, root, (), bytes(32), 0))


class DistinctBlobs(SharedBlobs):
    """Every file that is added is another one."""

    def __init__(self) -> None:
        super().__init__()
        self._added = 0

    async def add(self, source: Path | bytes) -> BlobInfo:
        await trio.lowlevel.checkpoint()
        self._added += 1
        return describe(b"file %d" % self._added)


class Seat:
    """One node: a member with a jury and a heart."""

    def __init__(self, hub: MemoryHub, key: NodeKey, role: str, run: RunSpec = RUN) -> None:
        network = MemoryNetwork(key, hub)
        membership = Membership(key.address, network, TRAINER.address, (VALIDATOR.address,))
        pins: Any = Pins()
        self.member = Participant(key, DOMAIN, 1, network, membership, BlobService(DistinctBlobs(), pins, pins))
        self.context = make_context(self.member, Run(run, bytes(32), b"", Path("/")), InlineJournal())
        self.heart = HeartbeatSender(self.context, ServiceManager(), role, tuple, BEAT)

    @property
    def commitments(self) -> int:
        """Files that this node has heard of."""
        return len(self.member.board.messages(RolloutCommitted))


class Swarm:
    """A trainer, a validator and a worker. Policies come while the worker can hear. more: seats of others."""

    def __init__(self, folder: Path, run: RunSpec = RUN) -> None:
        self.hub = MemoryHub(delay=0.01)
        self.trainer, self.validator = Seat(self.hub, TRAINER, "trainer"), Seat(self.hub, VALIDATOR, "validator")
        self.own = Seat(self.hub, WORKER, "worker", run)
        self.more: list[Seat] = []
        self.engine = Engine(folder)
        gauge = CapacityGauge(run, MachineCapacity(1, 0))
        self.worker = RolloutWorker(self.own.context, self.engine, folder, gauge)
        self.torn = False
        self.every = POLICY_EVERY

    async def run(self, nursery: trio.Nursery) -> None:
        seats = (self.trainer, self.validator, self.own, *self.more)
        for seat in seats:
            await nursery.start(seat.member.network.run)
        for seat in seats:
            for other in seats:
                seat.member.membership.joined(other.member.key.address, other.member.network.contacts()[0])
            nursery.start_soon(seat.member.listen)
            nursery.start_soon(seat.heart.run)
        nursery.start_soon(self.own.context.jury.run)
        nursery.start_soon(self.worker.run)
        nursery.start_soon(self._train)
        await trio.sleep(20)

    async def _train(self) -> None:
        step = 0
        while True:
            if not self.torn:
                root = policy(step).root
                news = announcement(step, root, self.trainer.member.key, DOMAIN, pool=1)
                await self.trainer.member.board.post(news)
                self.own.context.policy_cache.put(policy(step))
                step += 1
            await trio.sleep(self.every)

    async def tear(self) -> None:
        """The worker alone on one side, in the middle of a file."""
        while not self.engine.under_way:
            await trio.sleep(0.1)
        self.torn = True
        self.hub.isolate(WORKER.address)

    async def heal(self) -> None:
        self.hub.heal()
        await trio.sleep(1)
        self.torn = False

    @property
    def made(self) -> int:
        return self.own.commitments


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_worker_that_hears_nobody_makes_no_files_that_nobody_wants(
    tmp_path: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    if not guarded:
        monkeypatch.setattr(rollout_worker, "is_cut_off", lambda *_: False)
    swarm = Swarm(tmp_path)
    async with trio.open_nursery() as nursery:
        await swarm.run(nursery)
        await swarm.tear()
        before = swarm.made
        await trio.sleep(TORN)
        meanwhile = swarm.made - before - 1  # the one that was under way
        nursery.cancel_scope.cancel()
    assert meanwhile <= 2 if guarded else meanwhile >= 8


async def test_what_was_under_way_is_committed_and_work_goes_on_once_somebody_is_heard_again(
    tmp_path: Path, autojump_clock: Any
) -> None:
    swarm = Swarm(tmp_path)
    async with trio.open_nursery() as nursery:
        await swarm.run(nursery)
        assert swarm.worker.status()["work"]["waiting"] is None
        await swarm.tear()
        heard, under_way = swarm.trainer.commitments, swarm.made + 1
        await trio.sleep(TORN)
        assert swarm.made >= under_way and swarm.trainer.commitments == heard
        assert swarm.worker.status()["work"]["waiting"].startswith("hears nobody since")
        made = swarm.made
        await swarm.heal()
        await trio.sleep(15)
        assert swarm.worker.waiting is None
        assert swarm.made >= made + 4
        assert swarm.trainer.commitments == swarm.made  # the files of the silence too
        nursery.cancel_scope.cancel()


async def test_a_healed_worker_does_not_make_up_for_the_time_of_its_silence(
    tmp_path: Path, autojump_clock: Any
) -> None:
    """The trainer has nothing new: the time in which nobody was heard says nothing about what it lacks."""
    swarm = Swarm(tmp_path)
    async with trio.open_nursery() as nursery:
        await swarm.run(nursery)
        await swarm.tear()
        await trio.sleep(TORN)
        made = swarm.made
        swarm.hub.heal()
        await trio.sleep(rollout_worker.CATCHING_UP + 3)
        assert swarm.worker.waiting is None and swarm.made - made <= 1
        nursery.cancel_scope.cancel()


async def test_a_large_model_is_not_taken_for_a_trainer_that_lacks_rollouts(
    tmp_path: Path, autojump_clock: Any
) -> None:
    """Of the first policy twice a worker's share is made; hardly more while the trainer learns from it, for minutes."""
    swarm = Swarm(tmp_path)
    swarm.engine.seconds, swarm.every = 20.0, 120.0
    async with trio.open_nursery() as nursery:
        await swarm.run(nursery)
        await trio.sleep(swarm.every - 25)
        assert 2 <= swarm.made <= 3
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("informative", "more"), [(1.0, False), (None, False), (0.0, True)])
async def test_rewards_that_a_worker_cannot_tell_are_not_taken_for_groups_without_a_signal(
    tmp_path: Path, autojump_clock: Any, informative: float | None, more: bool
) -> None:
    """Judges say the reward of a judged run: a worker knows none, and would make several times what a batch takes."""
    swarm = Swarm(tmp_path, msgspec.structs.replace(FOUR_FILES, filters=Filters(online=True, refill=4)))
    swarm.engine.informative, swarm.every = informative, 120.0
    async with trio.open_nursery() as nursery:
        await swarm.run(nursery)
        await trio.sleep(5 * swarm.every)
        nursery.cancel_scope.cancel()
    made = Counter(work.step for work in swarm.own.context.journal.files.records(200))
    assert (made[4] > 4) is more, made


async def made_beside_one_that_makes_nothing(folder: Path, *, every: float, policies: int) -> Counter[int | None]:
    """Files of each step of four; a file takes four seconds, and a policy comes `every` so many."""
    swarm = Swarm(folder, FOUR_FILES)
    swarm.more.append(Seat(swarm.hub, IDLE, "worker"))
    swarm.engine.seconds, swarm.every = 4.0, every
    async with trio.open_nursery() as nursery:
        await swarm.run(nursery)
        await trio.sleep(policies * every)
        nursery.cancel_scope.cancel()
    return Counter(work.step for work in swarm.own.context.journal.files.records(100))


async def test_who_lives_and_makes_nothing_has_a_share_in_the_first_steps_only(
    tmp_path: Path, autojump_clock: Any
) -> None:
    made = await made_beside_one_that_makes_nothing(tmp_path, every=16.0, policies=9)
    assert [made[step] for step in (1, 2, 8)] == [2, 2, 4]  # of the first policy twice a share


async def test_what_nobody_commits_to_is_made_by_who_has_made_its_share(tmp_path: Path, autojump_clock: Any) -> None:
    """Two quiet files' time after its share the other's two are not awaited any more; by patience alone two files
    would be made in the time."""
    made = await made_beside_one_that_makes_nothing(tmp_path, every=23.5, policies=4)
    assert [made[step] for step in (1, 2)] == [4, 4]


async def test_a_worker_that_starts_again_counts_on(tmp_path: Path, autojump_clock: Any) -> None:
    swarm = Swarm(tmp_path)
    async with trio.open_nursery() as nursery:
        await swarm.run(nursery)
        nursery.cancel_scope.cancel()
    journal = swarm.own.context.journal
    refused = journal.files.records(1)[0]
    journal.files.judge_file(refused.root, "rejected")
    journal.files.note_reasons(refused.root, "copied, late")
    again = RolloutWorker(swarm.own.context, swarm.engine, tmp_path, CapacityGauge(RUN, MachineCapacity(1, 0)))
    await again.works.count()
    work = again.status()["work"]
    assert work["files_committed"] == swarm.made > 1 and work["files_rejected"] == 1
    assert work["units"] == 10 * swarm.made
    assert work["rejected_by_reason"] == {"copied": 1, "late": 1}
    assert refused.step is not None and refused.step >= 0


async def test_a_worker_behind_its_fence_says_what_it_waits_for_and_makes_the_next_policys_files(
    tmp_path: Path, autojump_clock: Any
) -> None:
    swarm = Swarm(tmp_path)
    async with trio.open_nursery() as nursery:
        await swarm.run(nursery)
        newest = swarm.own.context.policy_cache.newest
        assert newest is not None
        swarm.own.context.journal.close_fence(Fence(newest.step))
        assert "join --vouch" in swarm.worker.activity() and f"after policy {newest.step}" in swarm.worker.activity()
        made = swarm.own.commitments
        await trio.sleep(3 * POLICY_EVERY)
        assert swarm.own.commitments > made and "join --vouch" not in swarm.worker.activity()
        nursery.cancel_scope.cancel()
