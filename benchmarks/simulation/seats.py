"""The nodes: a seat has everything of its own, a lodger speaks for itself and hears what its host has heard."""

from pathlib import Path
from typing import Any

import msgspec
import trio
from blake3 import blake3

from benchmarks.simulation.doubles import Blobs, Chain, Checker, Generator, Pins, Policies, Truth, held_policy
from benchmarks.simulation.ether import Ether, Port
from node.clock import Clock
from node.member import BlobService, Participant
from node.progress import ProgressRecord
from node.recipe.capacity import CapacityGauge, MachineCapacity
from node.run.assets import Run
from node.services.base import ServiceManager
from node.services.certifier import Certifier
from node.services.context import Context, make_context
from node.services.heartbeat import HeartbeatSender
from node.services.judging.judge import Validator
from node.services.rollout_worker import RolloutWorker
from node.swarm.membership import Membership
from node.weights.policy_cache import PolicyCache
from protocol.identity import Address, NodeKey
from protocol.messages import M, Message, PolicyAnnounced, Signed, seal
from protocol.run import RunSpec
from protocol.statements import Domain
from tests.attacks.validators.court import InlineJournal

POOL = 1
EPOCH_BEGAN = 1_800_000_000.0
"""Unix seconds at the start of the simulation."""
SHORTEST_BEAT = 1.0
KEPT_POLICIES = 8


def key_of(number: int) -> NodeKey:
    return NodeKey(blake3(b"simulated node %d" % number).digest())


def wall() -> float:
    return EPOCH_BEGAN + trio.current_time()


class Rules(msgspec.Struct, frozen=True):
    """What everybody knows: the run, who trains, who validates, how many must agree."""

    run: RunSpec
    domain: Domain
    trainer: Address
    validators: tuple[Address, ...]
    quorum: int
    truth: Truth


class Node:
    """What seats and lodgers have in common. number: its place; fetch: seconds that a policy takes to it."""

    def __init__(self, number: int, role: str, ether: Ether, fetch: float) -> None:
        self.number = number
        self.role = role
        self.fetch = fetch
        self.key = key_of(number)
        self.port = Port(ether, self.key.address, number)
        self.alive = trio.CancelScope()
        self.cheat: str | None = None
        self.idle = False
        self.worker: RolloutWorker | None = None
        self.context: Context
        self.manager = ServiceManager()
        self.manager.state = "working"
        self.came = trio.current_time()
        self.first_policy: float | None = None

    @property
    def address(self) -> Address:
        return self.key.address

    async def beat(self) -> None:
        await HeartbeatSender(self.context, self.manager, self.role, tuple, SHORTEST_BEAT).run()

    async def follow_policies(self) -> None:
        """Each announced policy is here after `fetch` seconds; whoever is behind fetches the newest only."""
        newest = self.context.board.subscribe(PolicyAnnounced)
        async for signed in newest:
            message = signed.message
            await trio.sleep(self.fetch)
            if newest.statistics().current_buffer_used == 0:
                self.context.policy_cache.put(held_policy(message.step, message.policy_root))
                self.first_policy = self.first_policy or trio.current_time()


class Seat(Node):
    """A node with a board, a table of members and a jury of its own."""

    def __init__(self, number: int, role: str, ether: Ether, fetch: float, rules: Rules, cheat: str | None) -> None:
        super().__init__(number, role, ether, fetch)
        self.cheat = cheat
        port: Any = self.port
        pins: Any = Pins()
        blobs = Blobs(rules.truth, rules.run, self.address, cheat, number)
        self.membership = Membership(self.address, port, rules.trainer, rules.validators, quorum=rules.quorum)
        self.member = Participant(
            self.key, rules.domain, POOL, port, self.membership, BlobService(blobs, pins, pins), wall
        )
        run = Run(rules.run, bytes(32), b"", Path("/"))
        journal = InlineJournal()
        self.context = make_context(self.member, run, journal, clock=Clock(wall=wall))

    async def listen(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self.member.listen)
        nursery.start_soon(self.context.jury.run)

    def make_worker(self, seconds: float, folder: Path) -> RolloutWorker:
        return _worker(RolloutWorker, self, seconds, folder)

    def make_validator(self, rules: Rules, chain: Chain, seconds: float) -> Validator:
        engine, policies = Checker(rules.truth, rules.run, seconds), Policies()
        parts: Any = (engine, policies, chain, Path("/nonexistent"))
        validator = Validator(self.context, *parts, certifier=Certifier(self.context))
        self.manager.services.append(validator)  # type: ignore[arg-type] - it has `beat`
        return validator


class Lodger(Node):
    """A worker that reads its host's board."""

    def __init__(
        self, number: int, ether: Ether, fetch: float, rules: Rules, cheat: str | None, host: Seat, *, works: bool
    ) -> None:
        super().__init__(number, "worker", ether, fetch)
        self.cheat = cheat
        pins: Any = Pins()
        voice: Any = Voice(self, host, rules.domain)
        self.context = msgspec.structs.replace(
            host.context,
            key=self.key,
            board=voice,
            blobs=Blobs(rules.truth, rules.run, self.address, cheat, number),
            journal=InlineJournal() if works else host.context.journal,  # 94 kB each
            policy_cache=PolicyCache(KEPT_POLICIES, pins),
            progress=ProgressRecord(),
        )

    def make_worker(self, seconds: float, folder: Path) -> RolloutWorker:
        return _worker(Hearsay, self, seconds, folder)


class Hearsay(RolloutWorker):
    """A worker that is not told that the run is over."""

    async def _watch_trainer(self) -> None:
        await trio.lowlevel.checkpoint()


class Voice:
    """A lodger's board: it says what it has to say, and reads its host's."""

    def __init__(self, node: Node, host: Seat, domain: Domain) -> None:
        self._node = node
        self._host = host
        self._domain = domain

    @property
    def heard(self) -> dict[Address, float]:
        return self._host.context.board.heard

    def subscribe(self, kind: type[M]) -> trio.MemoryReceiveChannel[Signed[M]]:
        return self._host.context.board.subscribe(kind)

    def sealed(self, message: Message) -> bytes:
        return seal(self._node.key, self._domain, message)

    async def post(self, message: Message) -> None:
        await self.post_raw(self.sealed(message))

    async def post_raw(self, raw: bytes) -> None:
        await self._node.port.publish("", raw)


def _worker(kind: type[RolloutWorker], node: Node, seconds: float, folder: Path) -> RolloutWorker:
    gauge = CapacityGauge(node.context.run.spec, MachineCapacity(1, 0))
    node.worker = kind(node.context, Generator(seconds, node.number), folder, gauge)
    node.manager.services.append(node.worker)
    return node.worker
