"""The trainer: the product's intake and pool of groups between policies that a model of a learner makes."""

from collections import Counter

import msgspec
import trio

from benchmarks.simulation.doubles import FETCH_SECONDS, Truth, held_policy, policy_root
from node.recipe.pool import Group, RolloutPool, Sample, Selection
from node.services.station import Station
from node.services.training.intake import Intake
from node.services.training.journeys import Journeys
from node.services.training.trainer import AHEAD, POLL
from node.swarm.register import Work
from protocol.lots import unpack_groups
from protocol.manifest import PolicyStatement
from protocol.messages import PolicyAnnounced, stated
from protocol.statements import sign


class Batch(msgspec.Struct, frozen=True):
    """at: when it was full; staleness: groups by steps between their policy and this; stages: mean seconds of each
    stage from policy to batch; cheated: groups of it that were not honestly made; workers: whose groups."""

    step: int
    at: float
    staleness: dict[int, int]
    stages: dict[str, float]
    cheated: int
    workers: int


class Taking(Intake):
    """The intake, without bytes: the groups of a file are those that a validator recomputed."""

    async def _obtain(self, work: Work) -> tuple[list[Group], None]:
        if not self._fresh(work.step):
            return [], None
        await trio.sleep(2 * FETCH_SECONDS)
        work.delivered = True
        votes = self._station.jury.ballots.accepting(work.id).values()
        groups = self._spec.rollout.prompts_per_file
        covered = {group for vote in votes for group in unpack_groups(vote.checked, groups) or ()}
        return [self._group(work, group) for group in sorted(covered)], None

    def _group(self, work: Work, number: int) -> Group:
        samples = tuple(Sample(1000, float(n & 1), float(n & 1), True) for n in range(self._spec.rollout.group_size))
        order = (work.step, work.commitment.index)
        return Group((work.id, number), work.step, (None,) * len(samples), samples, order=order)


class Learning:
    """One learner. seconds: per step."""

    def __init__(self, station: Station, truth: Truth, seconds: float) -> None:
        self._station = station
        self._truth = truth
        self._seconds = seconds
        self._pool = RolloutPool(station.run.spec)
        self._journeys = Journeys(station.clock.monotonic)
        self._intake = Taking(
            station,
            fresh=self._fresh,
            taken_in=self._pool.add,
            taken_back=self._pool.forget,
            journeys=self._journeys,
        )
        self._next = 0
        self._send, self._batches = trio.open_memory_channel[int](AHEAD)
        self.step = -1
        self.published: list[float] = []
        self.batches: list[Batch] = []

    @property
    def dropped(self) -> int:
        """Groups that were too old when their turn came."""
        return self._pool.stale_rollouts // self._station.run.spec.rollout.group_size

    @property
    def waiting(self) -> int:
        return len(self._pool)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._intake.run)
            nursery.start_soon(self._feed)
            await self._publish(0)
            async for step in self._batches:
                await trio.sleep(self._seconds)
                await self._publish(step + 1)

    def _fresh(self, policy_step: int) -> bool:
        return self._next - policy_step <= self._station.run.spec.recipe.max_staleness

    async def _publish(self, step: int) -> None:
        self.step = step
        self.published.append(trio.current_time())
        self._journeys.published(step)
        root = policy_root(step)
        self._station.shelf.put(held_policy(step, root))
        station = self._station
        statement = PolicyStatement(station.pool, 0, step, bytes(32), root, bytes(32), root)
        word = sign(station.key, station.domain, statement.commitment(station.key.address))
        message = PolicyAnnounced(
            pool=station.pool,
            step=step,
            policy_root=root,
            manifest_root=bytes(32),
            manifest_size=1,
            **stated(statement, 1, word),
        )
        await self._station.board.post(message)

    async def _feed(self) -> None:
        """As the product's trainer does: a batch as soon as its policy is there, or about to be."""
        while True:
            selection = self._pool.take(self._next) if self._next <= self.step + AHEAD else None
            if selection is None:
                await trio.sleep(10 * POLL)
                continue
            self.batches.append(self._described(selection))
            self._next += 1
            await self._send.send(selection.step)

    def _described(self, selection: Selection) -> Batch:
        register = self._station.jury.register
        works = {group.key[0]: register.get(group.key[0]) for group in selection.groups}
        cheated = sum(
            group.key[1] in self._truth.cheated.get(work.commitment.file_root, ())
            for group in selection.groups
            if (work := works[group.key[0]]) is not None
        )
        return Batch(
            selection.step,
            trio.current_time(),
            dict(Counter(selection.step - group.policy_step for group in selection.groups)),
            self._journeys.means(selection.groups),
            cheated,
            len({work.node for work in works.values() if work}),
        )
