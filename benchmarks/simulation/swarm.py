"""Everybody together: who comes, who goes, who is cut off, who is thrown out, and what is remembered of it."""

import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import trio
from blake3 import blake3

from benchmarks.simulation import CHAIN
from benchmarks.simulation.doubles import FETCH_SECONDS, Chain, Truth, held_policy, policy_root
from benchmarks.simulation.ether import Ether
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.seats import Lodger, Node, Rules, Seat, key_of
from contracts.bindings import Slashed
from node.recipe.pool import Group, PoolSample, RolloutPool, Selection
from node.services.context import Context
from node.services.judging.judge import Validator
from node.services.training.feeding import AHEAD
from node.services.training.ingest import Ingest
from node.services.training.stage_timings import StageTimings
from node.swarm.register import RegisteredWork
from protocol.identity import Address
from protocol.liveness import MemberState
from protocol.lots import unpack_groups
from protocol.manifest import PolicyStatement
from protocol.messages import PolicyAnnounced
from protocol.statements import Domain, sign

TRAINER = 0
START_OVER = 20.0
"""Seconds over which everybody starts."""
CUT_OFF = 1 / 3
KNOWS_ALL = 0.95
LOOK = 5.0
"""Seconds between two looks at what is measured by looking."""
GIVE_UP = 1800.0
EVERY = 5.0
"""Wall seconds between two lines."""
GLANCE = 2.0
"""Swarm seconds between two looks at the wall."""
LOOKED_AT = 4
"""Newcomers that have everything of their own, at once."""
LOOK_EVERY = 0.5
"""Seconds between two looks of the trainer at what waits for a batch."""


class Newcomer(msgspec.Struct):
    """Seconds after its start; None: not yet. members: 95 % of the living are alive to it."""

    members: float | None = None
    policy: float | None = None


class Swarm:
    """One simulation. fetch: seconds in which a policy comes to each place of the swarm, ascending."""

    def __init__(self, scenario: Scenario, fetch: list[float]) -> None:
        self.scenario = scenario
        self._random = random.Random(scenario.seed)
        places = scenario.nodes + int(1.5 * scenario.nodes * scenario.churn * scenario.hours) + 16
        self.ether = Ether(scenario, places)
        self.truth = Truth()
        validators = tuple(key_of(number).address for number in range(1, scenario.validators + 1))
        trainer = key_of(TRAINER).address
        self.rules = Rules(scenario.run(), Domain(31337, trainer), trainer, validators, scenario.quorum, self.truth)
        self.fetch = fetch
        self.kinds: dict[Address, str | None] = {}
        self.nodes: dict[Address, Node] = {}
        self.hosts: list[Seat] = []
        self.seats: list[Seat] = []
        self.members: dict[Address, None] = {}
        self.learning: Learning | None = None
        self.validators: list[Validator] = []
        self.newcomers: list[Newcomer] = []
        self.slashed: dict[Address, float] = {}
        self.cut: tuple[float, float] | None = None
        self.healed: float | None = None
        self.waiting: list[tuple[float, int]] = []
        self.all_live: float | None = None
        self.came = self.went = 0

    async def run(self) -> None:
        """Until the scenario's time is over."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self.ether.run)
            await self._open()
            if self.scenario.churn:
                self._nursery.start_soon(self._come)
                self._nursery.start_soon(self._go)
            if self.scenario.partition:
                self._nursery.start_soon(self._part)
            self._nursery.start_soon(self._look)
            self._nursery.start_soon(report, self.scenario.seconds)
            await trio.sleep_until(self.scenario.seconds)
            self._nursery.cancel_scope.cancel()

    # who is there

    async def _open(self) -> None:
        scenario = self.scenario
        self._full = min(max(scenario.full, scenario.validators + 2), scenario.nodes)
        made = [self._make(number, full=number < self._full) for number in range(scenario.nodes)]
        ghosts = (Address(f"0x{blake3(b'ghost %d' % number).digest(20).hex()}") for number in range(scenario.ghosts))
        self.members = {node.address: None for node in made} | dict.fromkeys(ghosts)
        for seat in self.seats:
            for member in self.members:
                seat.membership.table.admit(member)
        self.ether.mesh.repair()
        for node in made:
            self._nursery.start_soon(self._live, node, self._random.uniform(0.0, START_OVER))

    def _make(self, number: int, *, full: bool) -> Node:
        fetch = self.fetch[self._random.randrange(len(self.fetch))]
        role = "trainer" if number == TRAINER else "validator" if number <= self.scenario.validators else "worker"
        cheat = None
        if role == "worker" and self._random.random() < self.scenario.cheats:
            cheat = "blatant" if self._random.random() < 0.5 else "subtle"
        node: Node
        if full:
            node = Seat(number, role, self.ether, fetch, self.rules, cheat)
            self.seats.append(node)
            if number < self.scenario.nodes and role == "worker":
                self.hosts.append(node)
        else:
            host = self.hosts[number % len(self.hosts)]
            node = Lodger(number, self.ether, fetch, self.rules, cheat, host, works=self.scenario.work)
            node.port.host = host.number
        if self.scenario.slow > 0 and self._random.random() < self.scenario.slow:
            self.ether.mesh.slow[number] = self.scenario.slow_seconds
        node.idle = role == "worker" and self.scenario.idle > 0 and self._random.random() < self.scenario.idle
        self.nodes[node.address] = node
        self.kinds[node.address] = cheat
        self.ether.join(node.port, full=full)
        return node

    async def _live(self, node: Node, after: float = 0.0) -> None:
        await trio.sleep(after)
        node.came = trio.current_time()
        with node.alive:
            async with trio.open_nursery() as nursery:
                if isinstance(node, Seat):
                    await node.listen(nursery)
                nursery.start_soon(node.beat)
                if self.scenario.work and not node.idle:
                    self._work(node, nursery)
                await trio.sleep_forever()

    def _work(self, node: Node, nursery: trio.Nursery) -> None:
        if node.role == "trainer" and isinstance(node, Seat):
            self.learning = Learning(node.context, self.truth, self.scenario.learner_seconds)
            nursery.start_soon(self.learning.run)
        elif node.role == "validator" and isinstance(node, Seat):
            validator = node.make_validator(self.rules, Chain(self._on_slash), self.scenario.group_seconds)
            self.validators.append(validator)
            nursery.start_soon(validator.run)
        elif isinstance(node, Seat | Lodger):
            nursery.start_soon(node.follow_policies)
            nursery.start_soon(node.make_worker(self._file_seconds(), Path("/nonexistent")).run)

    def _file_seconds(self) -> float:
        shares, seconds = zip(*self.scenario.file_seconds, strict=True)
        return self._random.choices(seconds, shares)[0]

    # what happens to them

    def _pause(self) -> float:
        """Until the next one leaves, or comes."""
        return self._random.expovariate(self.scenario.churn * self.scenario.nodes / 3600)

    async def _come(self) -> None:
        number = self.scenario.nodes
        while number < len(self.ether.mesh.online):
            await trio.sleep(self._pause())
            node = self._make(number, full=self._random.random() < 0.2 and len(self.seats) < self._full + LOOKED_AT)
            self.members[node.address] = None
            await trio.sleep(CHAIN)
            for seat in self.seats:
                seat.membership.table.admit(node.address)
            if isinstance(node, Seat):
                for member in self.members:
                    node.membership.table.admit(member)
                self._nursery.start_soon(self._welcome, node)
            self._nursery.start_soon(self._live, node)
            number, self.came = number + 1, self.came + 1

    async def _welcome(self, node: Seat) -> None:
        """How long a newcomer takes to know the others, and the policy."""
        newcomer, began = Newcomer(), trio.current_time()
        self.newcomers.append(newcomer)
        while trio.current_time() - began < GIVE_UP and (newcomer.members is None or newcomer.policy is None):
            await trio.sleep(1.0)
            now = trio.current_time()
            if newcomer.members is None and len(node.membership.table.live(now)) >= KNOWS_ALL * len(self.nodes):
                newcomer.members = now - began
            if newcomer.policy is None and (node.first_policy or not self.scenario.work):
                newcomer.policy = (node.first_policy or now) - began

    async def _go(self) -> None:
        while True:
            await trio.sleep(self._pause())
            free = [node for node in self.nodes.values() if node.role == "worker" and node not in self.hosts]
            if free:
                self._remove(self._random.choice(free))
                self.went += 1

    def _remove(self, node: Node) -> None:
        """Half of them say on chain that they leave."""
        node.alive.cancel()
        self.nodes.pop(node.address, None)
        self.ether.leave(node.port)
        if isinstance(node, Seat):
            self.seats.remove(node)
        if self._random.random() < 0.5:
            self.members.pop(node.address, None)
            for seat in self.seats:
                seat.membership.table.remove(node.address, MemberState.LEFT)

    def _on_slash(self, node: Address, reason: int) -> None:
        if node not in self.slashed:
            self.slashed[node] = trio.current_time()
            self._nursery.start_soon(self._evict, node, reason)

    async def _evict(self, node: Address, reason: int) -> None:
        await trio.sleep(CHAIN)
        told: dict[str, Any] = {"block": 1, "transaction": f"slash of {node}", "log_index": 0, "pool": 1, "case_id": 0}
        record = Slashed(**told, node=node, provider=node, reason=reason, amount=1, file_root=bytes(32))
        for seat in self.seats:
            seat.membership.slash(record)
        gone = self.nodes.get(node)
        if gone is not None and gone not in self.hosts:
            self._remove(gone)

    async def _part(self) -> None:
        """A third is cut off, in the middle: neither the trainer nor a validator is among them."""
        await trio.sleep_until(self.scenario.seconds / 2)
        hosts = self.hosts[:: round(1 / CUT_OFF)]
        numbers = {host.number for host in hosts}
        apart = {node.number for node in self.nodes.values() if node.port.host in numbers} | numbers
        began = trio.current_time()
        self.ether.cut(apart)
        await trio.sleep(self.scenario.partition)
        self.ether.cut(set())
        self.cut = began, trio.current_time()
        while not all(self._is_up_to_date(host) for host in hosts):
            await trio.sleep(0.5)
        self.healed = trio.current_time() - self.cut[1]

    def _is_up_to_date(self, host: Seat) -> bool:
        known = host.context.state.policies.newest_step
        return self.learning is None or known >= self.learning.step

    async def _look(self) -> None:
        while True:
            await trio.sleep(LOOK)
            now = trio.current_time()
            if self.all_live is None and all(
                len(seat.membership.table.live(now)) >= len(self.nodes) for seat in self.hosts
            ):
                self.all_live = now
            idle = sum(node.worker is not None and node.worker.waiting is not None for node in self.nodes.values())
            self.waiting.append((now, idle))


async def report(whole: float) -> None:
    """Tell whoever waits how far it is, until cancelled. whole: swarm seconds of the simulation."""
    began = told = time.monotonic()
    while True:
        await trio.sleep(GLANCE)
        now = time.monotonic()
        if now - told >= EVERY:
            done, spent = trio.current_time(), now - began
            left = f"{spent:.0f} s spent, about {spent * (whole - done) / done:.0f} s to go"
            print(f"{done / 60:6.1f} of {whole / 60:.1f} min of swarm time, {left}", file=sys.stderr, flush=True)
            told = now


class Batch(msgspec.Struct, frozen=True):
    """at: when it was full; staleness: groups by steps between their policy and this; stages: mean seconds of each
    stage from policy to batch; cheated: groups of it that were not honestly made; workers: whose groups."""

    step: int
    at: float
    staleness: dict[int, int]
    stages: dict[str, float]
    cheated: int
    workers: int


class Taking(Ingest):
    """The ingest, without bytes: the groups of a file are those that a validator recomputed."""

    async def _obtain(self, work: RegisteredWork) -> tuple[list[Group], None, bool]:
        if not self._fresh(work.step):
            return [], None, False
        await trio.sleep(2 * FETCH_SECONDS)
        work.delivered = True
        votes = self._context.state.vote_set.accepting(work.id).values()
        groups = self._spec.rollout.prompts_per_file
        covered = {group for vote in votes for group in unpack_groups(vote.checked, groups) or ()}
        return [self._group(work, group) for group in sorted(covered)], None, False

    def _group(self, work: RegisteredWork, number: int) -> Group:
        samples = tuple(
            PoolSample(1000, float(n & 1), float(n & 1), True) for n in range(self._spec.rollout.group_size)
        )
        order = (work.step, work.commitment.index)
        return Group((work.id, number), work.step, (None,) * len(samples), samples, order=order)


class Learning:
    """One learner. seconds: per step."""

    def __init__(self, context: Context, truth: Truth, seconds: float) -> None:
        self._context = context
        self._truth = truth
        self._seconds = seconds
        self._pool = RolloutPool(context.run.spec)
        self._timings = StageTimings(context.clock.monotonic)
        self._ingest = Taking(
            context, fresh=self._fresh, taken_in=self._pool.add, taken_back=self._pool.forget, timings=self._timings
        )
        self._next = 0
        self._send, self._batches = trio.open_memory_channel[int](AHEAD)
        self.step = -1
        self.published: list[float] = []
        self.batches: list[Batch] = []

    @property
    def dropped(self) -> int:
        """Groups that were too old when their turn came."""
        return self._pool.stale_rollouts // self._context.run.spec.rollout.group_size

    @property
    def waiting(self) -> int:
        return len(self._pool)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ingest.run)
            nursery.start_soon(self._feed)
            await self._publish(0)
            async for step in self._batches:
                await trio.sleep(self._seconds)
                await self._publish(step + 1)

    def _fresh(self, policy_step: int) -> bool:
        return self._next - policy_step <= self._context.run.spec.recipe.max_staleness

    async def _publish(self, step: int) -> None:
        self.step = step
        self.published.append(trio.current_time())
        self._timings.published(step)
        root = policy_root(step)
        self._context.policy_cache.put(held_policy(step, root))
        context = self._context
        statement = PolicyStatement(context.pool, 0, step, 0, bytes(32), root, bytes(32), root)
        word = sign(context.key, context.domain, statement.commitment(context.key.address))
        message = PolicyAnnounced(
            pool=context.pool,
            statement=statement,
            signature=word,
            manifest_root=bytes(32),
            manifest_size=1,
        )
        await self._context.board.post(message)

    async def _feed(self) -> None:
        """As the product's trainer does: a batch as soon as its policy is there, or about to be."""
        while True:
            selection = self._pool.take(self._next) if self._next <= self.step + AHEAD else None
            if selection is None:
                await trio.sleep(LOOK_EVERY)
                continue
            self.batches.append(self._described(selection))
            self._next += 1
            await self._send.send(selection.step)

    def _described(self, selection: Selection) -> Batch:
        register = self._context.state.register
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
            self._timings.means(selection.groups),
            cheated,
            len({work.node for work in works.values() if work}),
        )
