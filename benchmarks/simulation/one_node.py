"""What one node spends on the others, as they become more: CPU, messages, bytes, memory.

    python -m benchmarks.simulation.one_node [--nodes 10 100 1000] [--minutes 2] [--quick] [--json]

One node is the product's: membership, neighbours, redialer, board, message store, allowances, catch-up, peer records,
and gossip with its trees, windows and signatures. Nothing is remembered for it (`shared.py`) and only its sockets are
modelled: packets of neighbours come as bytes, and packets for them are counted. The others are a script: each joins
by an event of the chain, then speaks as often as its heartbeat interval says, for so many minutes and until everybody
has spoken twice; a message comes from one link, every second one from another, too (`gossip.py` counts 1.4 to 1.5
copies); each second three neighbours tell the names of the last three seconds. What this node asks a peer when it
catches up, it answers itself: a node is asked as often as it asks.

Python's collector looks through what this node keeps, and not through the script: objects, and the time it takes.

CPU is this thread's, all of it, from the first message on; what the script sends was made before. Not in it: ciphers,
streams and pings, which follow from the number of neighbours and of bytes.
"""

import gc
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import msgspec
import trio
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.secp256k1 import create_new_key_pair
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from trio.testing import MockClock

from benchmarks.command import parser_of
from benchmarks.simulation.seats import EPOCH_BEGAN, key_of
from node.network.gossip import messages
from node.network.gossip.digests import DIGEST_PEERS
from node.network.gossip.gossip import MAX_PACKET, Gossip
from node.network.gossip.messages import TOLD_TICKS
from node.network.gossip.trees import TICK as TICK_SECONDS
from node.network.host import Libp2pNetwork
from node.network.packets import Cutter, packet
from node.swarm.board import Board
from node.swarm.membership import Membership
from node.swarm.neighbours import MOST
from node.swarm.peer_records import PeerRecords
from protocol.identity import Address, NodeKey
from protocol.liveness import heartbeat_interval
from protocol.messages import Heartbeat, seal, topic
from protocol.statements import Domain

POOL = 1
OWN, TRAINER = 0, 1
SEED = 5
COPIES = 1.5
TOLD_SECONDS = TOLD_TICKS * TICK_SECONDS


class Packet(msgspec.Struct, frozen=True):
    """at: seconds; giver: raw peer id of the neighbour that brings it."""

    at: float
    giver: bytes
    data: bytes


class Host:
    """What gossip needs of libp2p's host, without sockets."""

    def __init__(self, peer: ID) -> None:
        self._peer = peer

    def get_id(self) -> ID:
        return self._peer

    def set_stream_handler(self, protocol: object, handler: object) -> None: ...


class Script:
    """The others. Their keys, contacts and messages, made beforehand."""

    def __init__(self, nodes: int, seconds: float) -> None:
        self.domain = Domain(31337, key_of(TRAINER).address)
        self.topic = topic(self.domain, POOL)
        self.interval = heartbeat_interval(nodes)
        self.seconds = max(seconds, 2 * self.interval)
        self._draw = random.Random(SEED)
        self.members = [key_of(number) for number in range(1, nodes)]
        self._pairs = [create_new_key_pair(key.secret) for key in self.members]
        self.neighbours = [ID.from_pubkey(pair.public_key).to_bytes() for pair in self._pairs[:MOST]]
        self.messages = 0
        self.packets = sorted(self._all(), key=lambda each: each.at)

    def contact(self, key: NodeKey) -> str:
        return f"/ip4/11.0.{self._draw.randrange(256)}.{self._draw.randrange(256)}/tcp/4001/p2p/{key.peer_id}"

    def _all(self) -> Iterator[Packet]:
        names: list[tuple[float, bytes]] = []
        for key, pair in zip(self.members, self._pairs, strict=True):
            contact, at = self.contact(key), self._draw.uniform(0, self.interval)
            while at < self.seconds:
                message = self._message(key, pair, contact, at)
                names.append((at, messages.name_of(message)))
                yield from self._copies(message, at)
                at += self.interval
        self.messages = len(names)
        yield from self._digests(sorted(names))

    def _message(self, key: NodeKey, pair: KeyPair, contact: str, at: float) -> rpc_pb2.Message:
        now = EPOCH_BEGAN + at
        beat = Heartbeat(
            pool=POOL,
            boot=0,
            count=int(1000 * now),
            at=int(1000 * now),
            role="worker",
            state="working",
            contact=contact,
            policy_step=3,
            interval=self.interval,
        )
        author = ID.from_pubkey(pair.public_key).to_bytes()
        return messages.write(pair.private_key, author, self.topic, seal(key, self.domain, beat), int(now * 1e9))

    def _copies(self, message: rpc_pb2.Message, at: float) -> Iterator[Packet]:
        data = packet(rpc_pb2.RPC(publish=[message]))
        givers = self._draw.sample(self.neighbours[:3], min(2, len(self.neighbours)))
        yield Packet(at, givers[0], data)
        if self._draw.random() < COPIES - 1:
            yield Packet(at + 0.03, givers[-1], data)

    def _digests(self, names: Sequence[tuple[float, bytes]]) -> Iterator[Packet]:
        first = 0
        for second in range(1, int(self.seconds)):
            while first < len(names) and names[first][0] < second - TOLD_SECONDS:
                first += 1
            told = [name for at, name in names[first : first + 1000] if at < second - 0.5]
            have = rpc_pb2.ControlIHave(topicID=self.topic, messageIDs=told)
            data = packet(rpc_pb2.RPC(control=rpc_pb2.ControlMessage(ihave=[have])))
            for giver in self._draw.sample(self.neighbours, min(DIGEST_PEERS, len(self.neighbours))):
                yield Packet(second, giver, data)


class Wire:
    """The network as the board sees it: gossip's real one, and requests that come back to ourselves."""

    def __init__(self, network: Libp2pNetwork, gossip: Gossip, peers: frozenset[Address]) -> None:
        self._gossip = gossip
        self._peers = peers
        self._handlers: dict[str, Any] = {}
        self.mute, self.subscribe = network.mute, network.subscribe
        self.asked_bytes = 0

    def connected(self) -> frozenset[Address]:
        return self._peers

    async def publish(self, topic: str, data: bytes) -> None:
        await self._gossip.publish(topic, data)

    def serve(self, protocol: str, handler: Any, *, max_request: int) -> None:
        self._handlers[protocol] = handler

    async def request(self, peer: Address, protocol: str, data: bytes, *, max_response: int, timeout: float) -> bytes:
        answer = await self._handlers[protocol](peer, data)
        self.asked_bytes += len(data) + len(answer)
        return answer


class One:
    """The node."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._key = key_of(OWN)
        pair = create_new_key_pair(self._key.secret)
        self.network = Libp2pNetwork(self._key)
        host: Any = Host(ID.from_pubkey(pair.public_key))
        self.gossip = Gossip(host, pair.private_key, self.network._screen, lambda peer: True, lambda stream: True)
        self.gossip.trees.peers.clock = trio.current_time
        self.gossip._number = int(EPOCH_BEGAN * 1e9)
        self.gossip.trees.peers.send = self._send
        self.bytes_out = self.packets_out = 0
        self.membership = Membership(self._key.address, self.network, script.members[0].address, ())
        near = frozenset(key.address for key in script.members[: len(script.neighbours)])
        self.wire = Wire(self.network, self.gossip, near)
        self.network.connected = self.wire.connected
        self.board = Board(
            self.wire, self._key, script.domain, POOL, self.membership, wall=lambda: EPOCH_BEGAN + trio.current_time()
        )
        self.book = PeerRecords(self._key.address, script.domain, POOL, self.membership.is_member)

    def _send(self, peer: bytes, data: bytes) -> None:
        self.packets_out += 1
        self.bytes_out += len(data)

    def meet(self) -> None:
        trees = self.gossip.trees
        trees.join(self._script.topic)
        for peer in self._script.neighbours:
            trees.opened(peer)
            trees.subscribed(peer, [rpc_pb2.RPC.SubOpts(subscribe=True, topicid=self._script.topic)])

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.gossip.run)
            nursery.start_soon(self.board.run)
            nursery.start_soon(self.membership.follow, self.board)
            nursery.start_soon(self.membership.places.maintain)
            nursery.start_soon(self._learn)
            nursery.start_soon(self._beat)

    async def _learn(self) -> None:
        async for signed in self.board.subscribe(Heartbeat):
            self.book.learn(signed, EPOCH_BEGAN + trio.current_time())

    async def _beat(self) -> None:
        while True:
            now = trio.current_time()
            interval = heartbeat_interval(1 + len(self.membership.table.live(now)))
            at = int(1000 * (EPOCH_BEGAN + now))
            beat = Heartbeat(
                pool=POOL,
                boot=0,
                count=at,
                at=at,
                role="worker",
                state="",
                contact="",
                policy_step=0,
                interval=interval,
            )
            await self.board.post(beat)
            await trio.sleep(interval)

    async def take(self, one: Packet, cutter: Cutter) -> None:
        for body in cutter.cut(one.data):
            for _ in self.gossip._take(one.giver, bytes(body)):
                await trio.lowlevel.checkpoint()

    def state_bytes(self) -> int:
        """Of everything that can be reached from the node, classes and functions aside."""
        return size_of([self.membership, self.board, self.gossip, self.network, self.book])


def size_of(roots: list[object]) -> int:
    seen: set[int] = set()
    total, todo = 0, list(roots)
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, (type, ModuleType, FunctionType, BuiltinFunctionType, Script)):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        todo += [one.__self__] if isinstance(one, MethodType) else gc.get_referents(one)
    return total


class Steps(trio.abc.Instrument):
    """The longest time for which one task kept the event loop, in seconds of CPU."""

    def __init__(self) -> None:
        self.longest, self._began = 0.0, float("inf")

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, time.thread_time() - self._began)


def measure(nodes: int, seconds: float) -> dict[str, float]:
    """One row. seconds: of swarm time, at least."""
    print(f"{nodes} nodes: their messages are signed", file=sys.stderr, flush=True)
    script = Script(nodes, seconds)
    print(f"{nodes} nodes: {script.seconds:.0f} s of swarm time begin", file=sys.stderr, flush=True)
    return trio.run(_measured, nodes, script, clock=MockClock(autojump_threshold=0))


async def _measured(nodes: int, script: Script) -> dict[str, float]:
    gc.collect()
    gc.freeze()  # the script is no part of the node; the daemon does the same with what it has imported
    one = One(script)
    began = time.thread_time()
    for key in script.members:
        one.membership.joined(key.address, script.contact(key))
    joined = time.thread_time() - began
    one.meet()
    steps = Steps()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.run)
        await trio.lowlevel.checkpoint()
        trio.lowlevel.add_instrument(steps)
        began, cutter, got = time.thread_time(), Cutter(MAX_PACKET), 0
        for each in script.packets:
            await trio.sleep_until(each.at)
            got += len(each.data)
            await one.take(each, cutter)
        await trio.sleep_until(script.seconds)
        spent = time.thread_time() - began
        nursery.cancel_scope.cancel()
    heard = one.board.counts["Heartbeat"]
    objects, collected = _collected()
    gc.unfreeze()
    return {
        "nodes": nodes,
        "seconds": round(script.seconds),
        "messages_per_s": round(script.messages / script.seconds, 2),
        "heard_percent": round(100 * heard / (script.messages + max(script.seconds // script.interval, 1)), 1),
        "kB_in_per_s": round(got / script.seconds / 1e3, 2),
        "kB_out_per_s": round(one.bytes_out / script.seconds / 1e3, 2),
        "catch_up_kB_per_s": round(one.wire.asked_bytes / script.seconds / 1e3, 2),
        "CPU_percent": round(100 * spent / script.seconds, 2),
        "CPU_ms_per_message": round(1000 * spent / script.messages, 3),
        "longest_step_ms": round(1000 * steps.longest, 1),
        "CPU_s_all_joined": round(joined, 3),
        "dialled": len(one.membership.places._dialled),
        "state_kB": round(one.state_bytes() / 1e3),
        "collector_objects": objects,
        "collection_ms": round(1000 * collected, 1),
    }


def _collected() -> tuple[int, float]:
    """(objects that Python's collector looks through, seconds of CPU for that; nothing else runs meanwhile)"""
    gc.collect()
    began = time.thread_time()
    gc.collect()
    return len(gc.get_objects()), time.thread_time() - began


def main() -> None:
    parser = parser_of(__doc__, "10 and 60 nodes, 20 seconds", "line")
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--minutes", type=float, default=2.0, help="of swarm time, at least")
    given = parser.parse_args()
    sizes, seconds = ([10, 60], 20.0) if given.quick else (given.nodes, 60 * given.minutes)
    rows = [measure(size, seconds) for size in sizes]
    for name in rows[0]:
        print(f"{name.replace('_', ' '):22}" + "".join(f"{row[name]:>12g}" for row in rows))
    if given.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
