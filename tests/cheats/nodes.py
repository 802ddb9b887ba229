"""Dishonest nodes: daemons that commit to what is not theirs, or say it too often, whatever their engines do.

`python -m tests.cheats.nodes NAME join ...` is a drop-in for `python -m cli join ...`. Its own journal and register
would hold a node back from much of this; an attacker is not held back, so what floods goes straight to the network.
"""

import random
import shlex
import sys
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Self

import structlog
import trio
from blake3 import blake3

from cli.main import main as run_program
from node import daemon
from node.daemon import EVERYBODY, Services
from node.network.host import Libp2pNetwork
from node.services.base import Service
from node.services.context import Context
from node.services.engine import EngineService, PolicySync
from node.services.leaf_reader import LeafReader
from node.services.rollout_worker import RolloutWorker
from node.services.workplace import Workplace
from protocol.identity import Address
from protocol.messages import Heartbeat, PolicyAnnounced, RolloutCommitted, Signed, VerdictIssued
from protocol.statements import WorkCommitment, sign

log = structlog.get_logger("node.attack")
SPAM_RATE = 25.0
"""Messages per second: as many as others hear of one author for long."""
FARTHEST = 10**18
FARTHEST_UNITS = 10**6
ECHOED = 512
"""Of the newest old messages, how many are said again in each round."""
ECHO_PAUSE = 0.002
"""Seconds from one to the next: what is published without a pause never leaves the own queues, which hold 32."""

Slot = tuple[bytes, int]
"""(policy root, index)"""


class Attack(Service):
    """What all have: a way to sign any commitment, and to be heard."""

    name = "attack"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._board = context.board
        self._post_raw = context.board.post_raw

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.context)

    def sealed(self, slot: Slot, root: bytes, units: int, size: int) -> bytes:
        """An envelope of our own key, whatever we signed before."""
        context = self._context
        commitment = WorkCommitment(context.pool, context.key.address, *slot, root, units)
        signature = sign(context.key, context.domain, commitment)
        message = RolloutCommitted(pool=context.pool, commitment=commitment, signature=signature, size=size)
        return self._board.sealed(message)

    async def post(self, raw: bytes) -> None:
        """Gossip it, and keep it for those who ask what they missed."""
        await self._post_raw(raw)
        self.note(1)

    async def shout(self, raw: bytes) -> None:
        """Gossip it past our own board."""
        await self._board._wire.publish(self._board._topic, raw)

    def note(self, messages: int) -> None:
        """Leave a trace of what was said, for whoever reads our log afterwards."""
        log.info("attack.said", messages=messages)


class Idle(Attack):
    """Only listens: what a swarm with an attacker is compared with."""

    async def run(self) -> None:
        await trio.sleep_forever()


# -- naming what is not theirs ---------------------------------------------------------------------


class CopiedRoots(Attack):
    """Commits to everybody else's files again, each under a policy that nobody announced."""

    size: ClassVar[int | None] = None

    async def run(self) -> None:
        async for signed in self._board.subscribe(RolloutCommitted):
            if signed.author != self._context.key.address:
                theirs = signed.message.commitment
                size = self.size or signed.message.size
                await self.post(self.sealed(self.slot(theirs), theirs.file_root, theirs.units, size))

    def slot(self, theirs: WorkCommitment) -> Slot:
        return made_up(theirs.file_root), 0


class CopiedRootsSizeOne(CopiedRoots):
    """The same, and says of each file that it is one byte long."""

    size = 1


class CopiedRootsRealPolicy(CopiedRoots):
    """Commits to everybody else's files again, under the policies that they were made with."""

    first: ClassVar[int] = 0

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._used: Counter[bytes] = Counter()

    def slot(self, theirs: WorkCommitment) -> Slot:
        self._used[theirs.policy_root] += 1
        return theirs.policy_root, self.first + self._used[theirs.policy_root] - 1


class Silencing(CopiedRootsRealPolicy):
    """The same, index 0 left out: validators wait for it, the trainer has the files, who is silent?"""

    first = 1


class DecoyAccomplice(CopiedRoots):
    """Commits to everybody's files again, a friend's bad ones among them, hoping that the friend's are forgotten."""


# -- what an engine's node says beside its own -----------------------------------------------------


class Beside(Attack):
    """Does something whenever this node commits to a file of its own."""

    async def start(self, nursery: trio.Nursery) -> None:
        self._board.post_raw = self._posted  # type: ignore[method-assign]

    async def _posted(self, raw: bytes) -> None:
        message = self._board.opened(raw).message
        if isinstance(message, RolloutCommitted):
            await self.committed(message, raw)
        else:
            await self._post_raw(raw)

    async def committed(self, own: RolloutCommitted, raw: bytes) -> None:
        """raw: what an honest node would post now."""
        raise NotImplementedError


class Decoy(Beside):
    """Names each of its bad files again, in its own next slot and under a policy that nobody announced."""

    async def committed(self, own: RolloutCommitted, raw: bytes) -> None:
        bad, journal = own.commitment, self._context.journal
        beside = (bad.policy_root, bad.index + 1)
        decoy = self.sealed(beside, bad.file_root, bad.units, own.size)
        name = bad.policy_root + beside[1].to_bytes(8, "big")
        await journal.do(journal.say, "commitment", name, decoy)  # it does not use that slot twice: that is evidence
        await self.post(raw)
        await self.post(self.sealed((made_up(bad.file_root), 0), bad.file_root, bad.units, own.size))
        await self.post(decoy)


class UnitsFork(Beside):
    """Commits to an honest file twice, with other units; one validator hears the other one first."""

    async def committed(self, own: RolloutCommitted, raw: bytes) -> None:
        honest = own.commitment
        other = self.sealed((honest.policy_root, honest.index), honest.file_root, honest.units + 1, own.size)
        for victim in sorted(self._context.state.validators())[:1]:
            await whisper(self._board._wire, victim, self._board._topic, other)  # type: ignore[arg-type]
            self.note(1)
        await self.post(raw)
        await self.shout(other)


def peer_of(network: Libp2pNetwork, member: Address) -> bytes:
    """Whom gossip knows by this raw id."""
    return next(peer for peer in network._gossip.trees.peers.open() if network._links.known.address_of(peer) == member)


async def whisper(network: Libp2pNetwork, hearer: Address, topic: str, data: bytes) -> None:
    """Gossip something that we hand to one peer only; the others hear it from that one."""
    peers, target, handed = network._gossip.trees.peers, peer_of(network, hearer), False
    send = peers.send

    def to_one(peer: bytes, packet: bytes) -> None:
        nonlocal handed
        if data not in packet:
            send(peer, packet)
        elif not handed:  # once, and to this one, be it a link of the tree or not
            handed = True
            send(target, packet)

    peers.send = to_one
    try:
        await network.publish(topic, data)
    finally:
        peers.send = send


# -- too much --------------------------------------------------------------------------------------


class CommitmentSpam(Attack):
    """Commits 25 times a second to files that do not exist, under policies that nobody announced."""

    async def run(self) -> None:
        while True:
            units, size = random.randrange(1, FARTHEST_UNITS), random.randrange(1, FARTHEST_UNITS)
            await self.shout(self.sealed(self.slot(), random.randbytes(32), units, size))
            self.note(1)
            await trio.sleep(1 / SPAM_RATE)

    def slot(self) -> Slot:
        return random.randbytes(32), random.randrange(4)


class IndexSpam(CommitmentSpam):
    """The same under the newest policy, with indices up to 10^18."""

    def slot(self) -> Slot:
        newest = self._board.messages(PolicyAnnounced)[-1:]
        return (newest[0].message.policy_root if newest else random.randbytes(32)), random.randrange(FARTHEST)


class PolicyEcho(Attack):
    """Says again what others said, policies, commitments, verdicts and heartbeats of old, as fast as it can."""

    async def run(self) -> None:
        heard: list[bytes] = []
        async with trio.open_nursery() as nursery:
            for kind in (PolicyAnnounced, RolloutCommitted, VerdictIssued, Heartbeat):
                nursery.start_soon(self._collect, self._board.subscribe(kind), heard)
            while True:
                for raw in heard[-ECHOED:]:
                    await self.shout(raw)
                    await trio.sleep(ECHO_PAUSE)
                self.note(len(heard[-ECHOED:]))
                await trio.sleep(ECHO_PAUSE)

    async def _collect(self, messages: trio.MemoryReceiveChannel[Signed], heard: list[bytes]) -> None:
        async for signed in messages:
            if signed.author != self._context.key.address:
                heard.append(signed.raw)


def made_up(root: bytes) -> bytes:
    """A policy's root, by its looks."""
    return blake3(b"made up" + root).digest()


# -- the table -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Node:
    """services: what it does in a worker's place; engine: the module that computes for it, empty for the honest one."""

    services: Services
    engine: str = ""


def _idle(attack: type[Attack]) -> Node:
    """A bonded member that makes no files of its own."""
    return Node((*EVERYBODY, attack))


def _working(attack: type[Attack], engine: str = "") -> Node:
    return Node((*EVERYBODY, EngineService, PolicySync, attack, RolloutWorker, LeafReader), engine)


NODES: dict[str, Node] = {
    "idle": _idle(Idle),
    "copied-roots": _idle(CopiedRoots),
    "copied-roots-size-1": _idle(CopiedRootsSizeOne),
    "copied-roots-real-policy": _idle(CopiedRootsRealPolicy),
    "silencing": _idle(Silencing),
    "decoy": _working(Decoy, "tests.cheats.own_problems"),
    "decoy-accomplice": _idle(DecoyAccomplice),
    "units-fork": _working(UnitsFork),
    "commitment-spam": _idle(CommitmentSpam),
    "index-spam": _idle(IndexSpam),
    "policy-echo": _idle(PolicyEcho),
}


def main() -> None:
    """Be the node that the first argument names; what follows is the program's own command line."""
    if len(sys.argv) < 2 or sys.argv[1] not in NODES:
        sys.exit(f"which node? one of: {', '.join(NODES)}")
    node = NODES[sys.argv.pop(1)]
    daemon.ROLES["worker"] = node.services
    engine = ["--engine-command", shlex.join([sys.executable, "-m", node.engine])] if node.engine else []
    sys.exit(run_program([*sys.argv[1:], *engine]))


if __name__ == "__main__":
    main()
