"""What one abuser costs honest nodes: gossip delivered, blobs fetched, memory and CPU of the node under attack.

    python -m benchmarks.abuse [--only NAME ...] [--quick] [--seconds 8] [--json]

Three honest nodes, each a process of its own with the product's network, board and blob exchange, post heartbeats and
fetch a blob from each other once a second. A fourth process attacks the first of them: as a stranger, as a member, or
from many addresses of the loopback network. Each attack has a fresh swarm, whose seconds before the attack are its
control. While the attack runs, a newcomer dials the victim from an address of its own.

All processes share the machine's cores: an abuser's own work takes some of them from the honest, which a second
machine would not do. `nothing` measures what is left of that: an abuser that only keeps a core busy.
"""

import argparse
import json
import os
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog
import trio
import trio.lowlevel
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.utils import encode_varint_prefixed
from libp2p.utils.varint import encode_uvarint
from multiaddr import Multiaddr

from benchmarks.children import Child
from node.blobs import wire
from node.blobs.exchange import BlobExchange
from node.blobs.store import BlobStore
from node.network.errors import NetworkError
from node.network.gossip import gossip
from node.network.gossip.gossip import MESHSUB
from node.network.gossip.messages import name_of
from node.network.host import Libp2pNetwork
from node.network.yamux import stream_below
from node.swarm.board import Board
from protocol.blobs import describe_pieces
from protocol.identity import Address, NodeKey
from protocol.messages import Heartbeat, topic
from protocol.statements import Domain

HONEST = 3
MEMBERS_BAD = 12
"""Keys of members that abusers have."""
MIB = 1024**2
BLOB = MIB
GOSSIP_EVERY = 0.34
FETCH_EVERY = 1.0
DOMAIN = Domain(31337, Address("0x" + "11" * 20))
POOL = 1
TOPIC = topic(DOMAIN, POOL)


class Members:
    """Who may say what on the board: the honest, and the abuser where it is a member."""

    def __init__(self, members: set[Address]) -> None:
        self._members = members

    def is_member(self, address: Address) -> bool:
        return address in self._members

    def is_validator(self, address: Address) -> bool:
        return address in self._members

    def is_trainer(self, address: Address) -> bool:
        return False


# -- an honest node, in its own process --------------------------------------------------------------


class Honest:
    """Posts, fetches, counts. Orders come as JSON lines on stdin."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.key = NodeKey(bytes.fromhex(settings["secret"]))
        members = {Address(each) for each in settings["members"]}
        self.network = Libp2pNetwork(self.key, f"/ip4/{settings['ip']}/tcp/0")
        self.board = Board(self.network, self.key, DOMAIN, POOL, Members(members))
        self.store = BlobStore(Path(settings["folder"]), quota=2 * 1024**3)
        self.exchange = BlobExchange(self.network, self.store)
        self.heard = 0
        self.waited = 0.0
        self.posted = 0
        self.fetched = 0
        self.peers: dict[Address, bytes] = {}
        self.lure: tuple[Address, list[bytes]] | None = None
        self.lured: list[float] = []

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: self.network.run(task_status=task_status))
            nursery.start_soon(self.board.run)
            nursery.start_soon(self._hear)
            info = await self.store.add(os.urandom(BLOB))
            self.store.pin(info.root)
            _say([self.network.address, self.network.contacts()[0], info.root.hex()])
            orders = trio.lowlevel.FdStream(os.dup(0))
            buffer = b""
            async for part in orders:
                *lines, buffer = (buffer + part).split(b"\n")
                for line in lines:
                    await self._obey(json.loads(line), nursery)
            nursery.cancel_scope.cancel()

    async def _obey(self, order: list[Any], nursery: trio.Nursery) -> None:
        verb, *rest = order
        if verb == "meet":
            self.network.set_contacts({Address(each): contact for each, contact in rest[0].items()})
            self.peers = {Address(each): bytes.fromhex(root) for each, root in rest[1].items()}
            others = set(self.peers) - {self.key.address}
            while not others <= self.network.connected():  # noqa: ASYNC110
                await trio.sleep(0.05)
            nursery.start_soon(self._post)
            nursery.start_soon(self._fetch)
            _say("met")
        elif verb == "lure":
            nursery.start_soon(self._follow_lures, Address(rest[0]), [bytes.fromhex(root) for root in rest[1]])
            _say("lured")
        else:
            _say(self._counts())

    def _counts(self) -> dict[str, Any]:
        cpu, stats = time.process_time(), self.network.stats()
        folders = [path for path in self.store.directory.rglob("*") if path.is_file()]
        return {
            "heard": self.heard,
            "waited": self.waited,
            "posted": self.posted,
            "fetched": self.fetched,
            "cpu": cpu,
            "rss": _rss(),
            "at": time.monotonic(),
            "faults": stats.faults,
            "dropped": stats.dropped,
            "reserved": self.store.used,
            "disk": sum(path.stat().st_blocks * 512 for path in folders),
            "lured": self.lured,
        }

    async def _post(self) -> None:
        while True:
            self.posted += 1
            said = Heartbeat(
                pool=POOL,
                boot=0,
                count=time.time_ns() // 10**6,
                at=time.time_ns() // 10**6,
                role="worker",
                state="idle",
                contact="x" * 100,
                policy_step=1,
                interval=1.0,
            )
            await self.board.post(said)
            await trio.sleep(GOSSIP_EVERY)

    async def _hear(self) -> None:
        async for signed in self.board.subscribe(Heartbeat):
            if signed.author in self.peers and signed.author != self.key.address:
                self.heard += 1
                self.waited += time.time() - signed.message.at / 1000

    async def _fetch(self) -> None:
        """One blob of each other node in turn, once a second; one that takes longer makes the next one late."""
        others = [each for each in self.peers if each != self.key.address]
        for turn in range(10**6):
            peer = others[turn % len(others)]
            started = trio.current_time()
            try:
                await self.exchange.fetch(self.peers[peer], [peer], timeout=60)
                self.fetched += BLOB
            except NetworkError as error:
                sys.stderr.write(f"{error}\n")
            self.store.evict(self.peers[peer])
            await trio.sleep(max(0.0, started + FETCH_EVERY - trio.current_time()))

    async def _follow_lures(self, liar: Address, roots: list[bytes]) -> None:
        """As a validator fetches a worker's files: one after the other, each for a while."""
        for root in roots:
            started = trio.current_time()
            try:
                await self.exchange.fetch(root, [liar], max_size=256 * MIB, timeout=2)
            except NetworkError as error:
                sys.stderr.write(f"{error}\n")
            self.lured.append(trio.current_time() - started)


def _rss() -> int:
    """Bytes of resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _say(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


# -- the abuser, in its own process ------------------------------------------------------------------


class Abuser:
    """network: a real node, connected to the victim, where the attack needs one."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.victim = Address(settings["victim"])
        self.contact: str = settings["contact"]
        self.root = bytes.fromhex(settings["root"])
        parts = self.contact.split("/")
        self.place = (parts[2], int(parts[4]))
        self.key = NodeKey(bytes.fromhex(settings["secret"]))
        self.more = [NodeKey(bytes.fromhex(secret)) for secret in settings["more"]]
        self.network = Libp2pNetwork(self.key, "/ip4/127.0.0.9/tcp/0")
        self.lures: list[bytes] = []
        self.sent = 0

    async def connect(self) -> None:
        self.network.set_contacts({self.victim: self.contact})
        with trio.fail_after(20):
            while not self.network.connected():  # noqa: ASYNC110
                await trio.sleep(0.05)

    def muxed(self) -> Any:
        """The yamux session to the victim."""
        return self.network._swarm.get_connections(self.peer)[0].muxed_conn

    @property
    def peer(self) -> ID:
        return ID.from_base58(self.contact.rpartition("/")[2])

    async def gossip(self, rpc: Callable[[], rpc_pb2.RPC]) -> None:
        """Send these as fast as they are taken; again from the start when the stream is cut."""
        while True:
            try:
                await self.connect()
                stream = await self.network._host.new_stream(self.peer, [MESHSUB])
                while True:
                    await stream.write(encode_varint_prefixed(rpc().SerializeToString()))
                    self.sent += 1
            except Exception as error:
                sys.stderr.write(f"cut: {error!r}\n")
                await trio.sleep(0.2)

    async def frames(self, frame: Callable[[], bytes]) -> None:
        """Raw yamux frames, as fast as they are taken."""
        while True:
            try:
                await self.connect()
                secured = self.muxed().secured_conn
                while True:
                    await secured.write(frame())
                    self.sent += 1
            except Exception as error:
                sys.stderr.write(f"cut: {error!r}\n")
                await trio.sleep(0.2)


Attack = Callable[[Abuser], Awaitable[None]]


async def nothing(abuser: Abuser) -> None:
    """Nothing to the network: a busy loop, as the cost of sharing a machine with an abuser."""
    while True:
        until = time.perf_counter() + 0.02
        while time.perf_counter() < until:
            pass
        await trio.sleep(0.02)


async def _tcp(abuser: Abuser, source: str) -> trio.SocketStream:
    with trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM) as made:
        await made.bind((source, 0))
        await made.connect(abuser.place)
        return trio.SocketStream(trio.socket.from_stdlib_socket(socket.socket(fileno=made.detach())))


async def _hold(abuser: Abuser, source: str, slowly: bool) -> None:
    """Open a connection, and again when it is closed; say a byte per second, or nothing."""
    noise = b"\x13/multistream/1.0.0\n\x07/noise\n" + bytes(200)
    while True:
        try:
            async with await _tcp(abuser, source) as stream:
                abuser.sent += 1
                if not slowly:
                    await stream.receive_some(1)
                    while await stream.receive_some(1000):
                        pass
                for number in range(len(noise) if slowly else 0):
                    await stream.send_all(noise[number : number + 1])
                    await trio.sleep(1.0)
        except (OSError, trio.BrokenResourceError):
            pass
        await trio.sleep(0.05)


async def _many(abuser: Abuser, sources: list[str], each: int, slowly: bool) -> None:
    async with trio.open_nursery() as nursery:
        for source in sources:
            for _ in range(each):
                nursery.start_soon(_hold, abuser, source, slowly)


async def slow_handshakes(abuser: Abuser) -> None:
    """A stranger, one address: 300 connections that say one byte of the handshake a second."""
    await _many(abuser, ["127.0.0.9"], 300, slowly=True)


async def half_open(abuser: Abuser) -> None:
    """A stranger, one address: 300 connections that say nothing."""
    await _many(abuser, ["127.0.0.9"], 300, slowly=False)


async def crowd(abuser: Abuser) -> None:
    """A stranger with 64 addresses: 16 silent connections from each, opened again when they are closed."""
    await _many(abuser, [f"127.0.1.{number + 1}" for number in range(64)], 16, slowly=False)


async def connect_storm(abuser: Abuser) -> None:
    """A stranger: connect and close, as fast as one process can."""
    while True:
        try:
            stream = await _tcp(abuser, "127.0.0.9")
            abuser.sent += 1
            await trio.aclose_forcefully(stream)
        except OSError:
            await trio.sleep(0.05)


async def stranger_flood(abuser: Abuser) -> None:
    """A stranger with many keys: whole connections, two of a key and one of them closed, as many as it gets."""

    async def one() -> None:
        network = Libp2pNetwork(NodeKey.generate(), "/ip4/127.0.0.9/tcp/0")
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: network.run(task_status=task_status))
            network.set_contacts({abuser.victim: abuser.contact})
            abuser.sent += 1
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(one)
            await trio.sleep(0.1)


async def stream_flood(abuser: Abuser) -> None:
    """A member: new streams as fast as they are taken, left open."""
    number = iter(range(1001, 2**31, 2))
    await abuser.frames(lambda: b"".join(struct.pack("!BBHII", 0, 1, 1, next(number), 0) for _ in range(100)))


async def rapid_reset(abuser: Abuser) -> None:
    """A member: new streams, each reset at once."""
    number = iter(range(1001, 2**31, 2))

    def frame() -> bytes:
        ids = [next(number) for _ in range(100)]
        return b"".join(struct.pack("!BBHII", 0, 1, 1, id, 0) + struct.pack("!BBHII", 0, 1, 8, id, 0) for id in ids)

    await abuser.frames(frame)


async def empty_frames(abuser: Abuser) -> None:
    """A member: frames that ask for nothing (answers to pings that nobody sent), 5,000 in a message."""
    many = struct.pack("!BBHII", 0, 2, 2, 0, 7) * 5000
    await abuser.frames(lambda: many)


async def topic_flood(abuser: Abuser) -> None:
    """A stranger: 20,000 subscriptions, 128 in a message, then again."""
    numbers = iter(range(10**9))

    def rpc() -> rpc_pb2.RPC:
        options = rpc_pb2.RPC.SubOpts
        return rpc_pb2.RPC(
            subscriptions=[options(subscribe=True, topicid=f"t{next(numbers) % 20_000}") for _ in range(128)]
        )

    await abuser.gossip(rpc)


async def control_spam(abuser: Abuser) -> None:
    """A stranger: GRAFT, PRUNE, IHAVE and IWANT for made-up topics and messages."""
    numbers = iter(range(10**9))

    def rpc() -> rpc_pb2.RPC:
        topics = [f"topic {next(numbers)} of nobody's" for _ in range(250)]
        control = rpc_pb2.ControlMessage(
            graft=[rpc_pb2.ControlGraft(topicID=name) for name in topics],
            prune=[rpc_pb2.ControlPrune(topicID=name, backoff=3600) for name in topics],
            ihave=[rpc_pb2.ControlIHave(topicID=name, messageIDs=[os.urandom(46)]) for name in topics],
            iwant=[rpc_pb2.ControlIWant(messageIDs=[os.urandom(46)]) for _ in topics],
        )
        return rpc_pb2.RPC(control=control)

    await abuser.gossip(rpc)


async def iwant_bomb(abuser: Abuser) -> None:
    """A stranger that hears the swarm's gossip: IWANT for one true message, 5,000 times in one request."""
    known: list[bytes] = []
    abuser.network.subscribe(TOPIC, lambda publisher, data: True)
    await abuser.connect()
    trees = abuser.network._gossip.trees
    came = trees.came

    def note(giver: bytes, message: rpc_pb2.Message) -> None:
        known.append(name_of(message))
        came(giver, message)

    trees.came = note  # type: ignore[method-assign]
    while not known:  # noqa: ASYNC110
        await trio.sleep(0.1)

    def rpc() -> rpc_pb2.RPC:
        wanted = [rpc_pb2.ControlIWant(messageIDs=[known[-1]] * 5000)]
        return rpc_pb2.RPC(control=rpc_pb2.ControlMessage(iwant=wanted))

    await abuser.gossip(rpc)


def claim_another_program() -> None:
    """From now on this process's nodes say that they run none of ours."""
    gossip.KIN = MESHSUB


def _keep_heard(network: Libp2pNetwork) -> list[rpc_pb2.Message]:
    """The last 100 messages that a node will have heard."""
    known: list[rpc_pb2.Message] = []
    trees = network._gossip.trees
    came = trees.came

    def note(giver: bytes, message: rpc_pb2.Message) -> None:
        known[:] = [*known[-99:], message]
        came(giver, message)

    trees.came = note  # type: ignore[method-assign]
    return known


async def _insist(abuser: Abuser, rpc: Callable[[list[rpc_pb2.Message]], rpc_pb2.RPC]) -> None:
    """As another program that hears the swarm's topic: these, made of what was heard, as fast as they are taken."""
    abuser.network.subscribe(TOPIC, lambda publisher, data: True)
    known = _keep_heard(abuser.network)
    while True:
        await abuser.connect()
        line = abuser.network._gossip._lines.get(abuser.peer.to_bytes())
        if line is None or line.stream is None or not known:
            await trio.sleep(0.05)
            continue
        try:
            await line.stream.write(encode_varint_prefixed(rpc(known).SerializeToString()))
            abuser.sent += 1
        except MuxedStreamError as error:
            sys.stderr.write(f"cut: {error!r}\n")


def _graft() -> rpc_pb2.ControlMessage:
    return rpc_pb2.ControlMessage(graft=[rpc_pb2.ControlGraft(topicID=TOPIC)])


async def other_copies(abuser: Abuser) -> None:
    """A member that says it runs another program, whose copies cost it no link: the last 100 messages, again and
    again."""
    await _insist(abuser, lambda known: rpc_pb2.RPC(publish=known, control=_graft()))


async def other_wants(abuser: Abuser) -> None:
    """The same: asks for all that was said lately, again and again."""

    def rpc(known: list[rpc_pb2.Message]) -> rpc_pb2.RPC:
        control = _graft()
        control.iwant.append(rpc_pb2.ControlIWant(messageIDs=[name_of(each) for each in known]))
        return rpc_pb2.RPC(control=control)

    await _insist(abuser, rpc)


async def other_slots(abuser: Abuser) -> None:
    """Twelve members and four strangers that say they run another program: they take the victim's links, and hand on
    nothing."""

    async def one(key: NodeKey) -> None:
        network = Libp2pNetwork(key, "/ip4/127.0.0.9/tcp/0")
        network.subscribe(TOPIC, lambda publisher, data: False)
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: network.run(task_status=task_status))
            network.set_contacts({abuser.victim: abuser.contact})
            while True:
                line = network._gossip._lines.get(abuser.peer.to_bytes())
                if line is not None:
                    line.send(encode_varint_prefixed(rpc_pb2.RPC(control=_graft()).SerializeToString()))
                    line.flush()
                    abuser.sent += 1
                await trio.sleep(0.5)

    keys = [abuser.key, *abuser.more, *(NodeKey.generate() for _ in range(4))]
    async with trio.open_nursery() as nursery:
        for key in keys:
            nursery.start_soon(one, key)


async def graft_spam(abuser: Abuser) -> None:
    """A stranger: GRAFT and PRUNE for the swarm's own topic, by turns, 500 in a request."""
    one = rpc_pb2.ControlMessage(
        graft=[rpc_pb2.ControlGraft(topicID=TOPIC)], prune=[rpc_pb2.ControlPrune(topicID=TOPIC, backoff=3600)]
    )
    many = rpc_pb2.ControlMessage()
    for _ in range(250):
        many.MergeFrom(one)
    await abuser.gossip(lambda: rpc_pb2.RPC(control=many))


async def ihave_lies(abuser: Abuser) -> None:
    """A stranger: IHAVE for the swarm's own topic, of 5,000 messages that nobody has, to be asked for them in vain."""

    def rpc() -> rpc_pb2.RPC:
        names = [os.urandom(46) for _ in range(5000)]
        return rpc_pb2.RPC(
            control=rpc_pb2.ControlMessage(ihave=[rpc_pb2.ControlIHave(topicID=TOPIC, messageIDs=names)])
        )

    await abuser.gossip(rpc)


async def big_packets(abuser: Abuser) -> None:
    """A stranger: gossip packets that announce a gigabyte, and as much of one as is taken."""
    while True:
        try:
            await abuser.connect()
            stream = await abuser.network._host.new_stream(abuser.peer, [MESHSUB])
            await stream.write(encode_uvarint(2**30))
            while True:
                await stream.write(bytes(256 * 1024))
                abuser.sent += 1
        except Exception as error:
            sys.stderr.write(f"cut: {error!r}\n")
            await trio.sleep(0.1)


async def gossip_flood(abuser: Abuser) -> None:
    """A stranger: signed messages of 1 KiB on the swarm's topic, as fast as they are taken."""
    abuser.network.subscribe(TOPIC, lambda publisher, data: True)
    while True:
        try:
            await abuser.connect()
            await abuser.network.publish(TOPIC, os.urandom(1000))
            abuser.sent += 1
        except Exception as error:
            sys.stderr.write(f"cut: {error!r}\n")
        await trio.lowlevel.checkpoint()


async def oversized(abuser: Abuser) -> None:
    """A member: frames that announce 16 MB for a stream that nobody opened, and send it."""
    body = bytes(MIB)
    header = struct.pack("!BBHII", 0, 0, 0, 9999, 16 * MIB)
    parts = iter(range(10**9))
    await abuser.frames(lambda: header if next(parts) % 17 == 0 else body)


async def big_requests(abuser: Abuser) -> None:
    """A stranger: requests that announce a gigabyte, and send as much of it as they can."""

    async def one() -> None:
        while True:
            try:
                await abuser.connect()
                stream = await abuser.network._host.new_stream(abuser.peer, [TProtocol(wire.PROTOCOL)])
                await stream.write((2**30).to_bytes(4))
                for _ in range(4096):
                    await stream.write(bytes(256 * 1024))
                    abuser.sent += 1
            except Exception as error:
                sys.stderr.write(f"cut: {error!r}\n")
                await trio.sleep(0.1)

    await _at_once(8, one)


async def stranger_bytes(abuser: Abuser) -> None:
    """Eight strangers of one address: all pieces of the victim's blob, again and again, a gigabyte if they get it."""
    ask = msgspec.msgpack.encode(wire.AskPieces(abuser.root, tuple(range(BLOB // (256 * 1024)))))

    async def one() -> None:
        network = Libp2pNetwork(NodeKey.generate(), "/ip4/127.0.0.9/tcp/0")
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: network.run(task_status=task_status))
            network.set_contacts({abuser.victim: abuser.contact})
            while True:
                try:
                    got = await network.request(abuser.victim, wire.PROTOCOL, ask, max_response=2 * BLOB, timeout=20)
                    abuser.sent += len(got) // 1000
                except NetworkError as error:
                    sys.stderr.write(f"{error}\n")
                    await trio.sleep(0.02)

    await _at_once(8, one)


async def blob_flood(abuser: Abuser) -> None:
    """A member: requests for all pieces of the victim's blob, 100 at a time, whose answers it never reads."""
    ask = msgspec.msgpack.encode(wire.AskPieces(abuser.root, tuple(range(BLOB // (256 * 1024)))))
    request = len(ask).to_bytes(4) + ask

    async def one() -> None:
        while True:
            try:
                await abuser.connect()
                stream = await abuser.network._host.new_stream(abuser.peer, [TProtocol(wire.PROTOCOL)])
                await stream_below(stream).widen(8 * MIB)
                await stream.write(request)
                abuser.sent += 1
                await trio.sleep(2)
                await stream.reset()
            except Exception as error:
                sys.stderr.write(f"cut: {error!r}\n")
                await trio.sleep(0.1)

    await _at_once(100, one)


async def slow_lanes(abuser: Abuser) -> None:
    """A member: opens connections as long as it may, asks for pieces on each, and reads one byte a second."""
    ask = msgspec.msgpack.encode(wire.AskPieces(abuser.root, tuple(range(BLOB // (256 * 1024)))))
    swarm = abuser.network._swarm

    async def one() -> None:
        while True:
            try:
                await abuser.connect()
                connection = await swarm.dial_addr(Multiaddr(abuser.contact), abuser.peer)
                muxed: Any = connection.muxed_conn
                for _ in range(8):
                    stream = await muxed.open_stream()
                    await stream.widen(8 * MIB)
                    said = (f"{name}\n".encode() for name in ("/multistream/1.0.0", wire.PROTOCOL))
                    await stream.write(b"".join(bytes([len(each)]) + each for each in said))
                    await stream.write(len(ask).to_bytes(4) + ask)
                    abuser.sent += 1
                source = muxed.secured_conn._source
                read = source.read

                async def slowly(n: int | None = None, read: Any = read) -> bytes:
                    await trio.sleep(1)
                    return await read(1)

                source.read = slowly
                await muxed.event_closed.wait()
            except Exception as error:
                sys.stderr.write(f"cut: {error!r}\n")
            await trio.sleep(0.5)

    await _at_once(40, one)


LURES = 20
LURE = 255 * MIB


def lure_roots() -> list[tuple[bytes, bytes]]:
    """(root, piece list) of files near the limit that nobody has."""
    made = []
    for number in range(LURES):
        hashes = [bytes([number]) * 31 + bytes([piece % 256]) for piece in range(LURE // (256 * 1024))]
        info = describe_pieces(LURE, 256 * 1024, hashes)
        made.append((info.root, msgspec.msgpack.encode(info)))
    return made


async def garbage_blobs(abuser: Abuser) -> None:
    """A member that committed to 20 files of 255 MiB, names their pieces and sends other bytes."""
    lists = dict(lure_roots())

    async def answer(asker: Address, request: bytes) -> bytes:
        ask = wire.read_request(request)
        abuser.sent += 1
        if isinstance(ask, wire.AskInfo) and ask.root in lists:
            return wire.FOUND + msgspec.msgpack.encode(wire.HaveInfo(lists[ask.root]))
        if isinstance(ask, wire.Tell):
            return wire.FOUND + msgspec.msgpack.encode(wire.HaveMap())
        if isinstance(ask, wire.AskPieces):
            return wire.pieces_header(list(ask.pieces), 0.0) + bytes(256 * 1024 * len(ask.pieces))
        return wire.MISSING

    abuser.network.serve(wire.PROTOCOL, answer, max_request=wire.MAX_REQUEST)
    await abuser.connect()
    await trio.sleep_forever()


STRANGER, MEMBER, ALONE = "stranger", "member", "no node"
ATTACKS: dict[str, tuple[Attack, str]] = {
    "nothing": (nothing, ALONE),
    "slow-handshakes": (slow_handshakes, ALONE),
    "half-open": (half_open, ALONE),
    "crowd": (crowd, ALONE),
    "connect-storm": (connect_storm, ALONE),
    "stranger-flood": (stranger_flood, ALONE),
    "stream-flood": (stream_flood, MEMBER),
    "rapid-reset": (rapid_reset, MEMBER),
    "empty-frames": (empty_frames, MEMBER),
    "oversized": (oversized, MEMBER),
    "topic-flood": (topic_flood, STRANGER),
    "control-spam": (control_spam, STRANGER),
    "graft-spam": (graft_spam, STRANGER),
    "ihave-lies": (ihave_lies, STRANGER),
    "iwant-bomb": (iwant_bomb, STRANGER),
    "big-packets": (big_packets, STRANGER),
    "gossip-flood": (gossip_flood, STRANGER),
    "big-requests": (big_requests, STRANGER),
    "stranger-bytes": (stranger_bytes, ALONE),
    "blob-flood": (blob_flood, MEMBER),
    "slow-lanes": (slow_lanes, MEMBER),
    "garbage-blobs": (garbage_blobs, MEMBER),
    "other-copies": (other_copies, MEMBER),
    "other-wants": (other_wants, MEMBER),
    "other-slots": (other_slots, MEMBER),
}


async def _at_once(many: int, one: Callable[[], Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(many):
            nursery.start_soon(one)


async def abuse(settings: dict[str, Any]) -> None:
    """Wait for a line on stdin, then attack until stdin ends."""
    abuser = Abuser(settings)
    attack, role = ATTACKS[settings["attack"]]
    if attack in (other_copies, other_wants, other_slots):
        claim_another_program()
    async with trio.open_nursery() as nursery:
        if role != ALONE and attack is not other_slots:
            await nursery.start(lambda task_status: abuser.network.run(task_status=task_status))
            await abuser.connect()
        _say("ready")
        orders = trio.lowlevel.FdStream(os.dup(0))
        await orders.receive_some(100)
        nursery.start_soon(attack, abuser)
        while await orders.receive_some(100):
            _say([abuser.sent, time.process_time()])
        nursery.cancel_scope.cancel()


# -- the swarm ---------------------------------------------------------------------------------------


def child(kind: str, settings: dict[str, Any], errors: Path) -> Child:
    with errors.open("ab") as log:
        return Child([sys.executable, "-m", "benchmarks.abuse", kind, json.dumps(settings)], log)


class Swarm:
    """The honest nodes, and a member's key for the abuser."""

    def __init__(self, folder: Path) -> None:
        self.errors = folder / "errors"
        self.bad, *self.more = (NodeKey.generate() for _ in range(MEMBERS_BAD))
        keys = [NodeKey.generate() for _ in range(HONEST)]
        bad = [self.bad, *self.more]
        members = [key.address for key in [*keys, *bad]]
        self.nodes: list[Child] = []
        for number, key in enumerate(keys):
            settings = {"secret": key.secret.hex(), "ip": f"127.0.0.{number + 2}", "members": members}
            self.nodes.append(child("honest", {**settings, "folder": f"{folder}/{number}"}, self.errors))
        said = [node.hear() for node in self.nodes]
        self.victim, self.contact, self.root = said[0]
        contacts = {each[0]: each[1] for each in said}
        contacts |= {key.address: f"/ip4/127.0.0.9/tcp/1/p2p/{key.peer_id}" for key in bad}
        for node in self.nodes:
            node.tell(["meet", contacts, {each[0]: each[2] for each in said}])
        for node in self.nodes:
            node.hear()

    def count(self) -> list[dict[str, Any]]:
        return [node.ask(["count"]) for node in self.nodes]

    def end(self) -> None:
        for node in self.nodes:
            node.end()


def play(swarm: Swarm, name: str, seconds: float) -> dict[str, Any]:
    """A calm stretch, then the attack, then its end."""
    key = swarm.bad if ATTACKS[name][1] == MEMBER else NodeKey.generate()
    settings = {"attack": name, "victim": swarm.victim, "contact": swarm.contact, "root": swarm.root}
    secrets = {"secret": key.secret.hex(), "more": [each.secret.hex() for each in swarm.more]}
    abuser = child("abuser", {**settings, **secrets}, swarm.errors)
    try:
        abuser.hear()
        before = swarm.count()
        time.sleep(seconds)
        calm = swarm.count()
        abuser.tell("go")
        if name == "garbage-blobs":
            swarm.nodes[0].ask(["lure", key.address, [each.hex() for each, _ in lure_roots()]])
        time.sleep(1)
        start = swarm.count()
        newcomer = trio.run(_newcomer, swarm.victim, swarm.contact)
        time.sleep(max(1.0, seconds - (newcomer or 10.0)))
        end = swarm.count()
        sent = abuser.ask("count")
    finally:
        abuser.end()
    log = swarm.errors.read_text(errors="replace").splitlines()
    return {
        "attack": name,
        **_compare(before, calm, start, end),
        "newcomer": newcomer,
        "sent": sent[0],
        "log": log[-2:],
    }


async def _newcomer(victim: Address, contact: str) -> float | None:
    """Seconds until somebody new, at an address of its own, has an answer of the victim; None after ten."""
    network = Libp2pNetwork(NodeKey.generate(), "/ip4/127.0.0.30/tcp/0")
    started = time.monotonic()
    answered: float | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: network.run(task_status=task_status))
        network.set_contacts({victim: contact})
        with trio.move_on_after(10):
            while answered is None:
                try:
                    await network.request(victim, "/intellect-node/ping/1", b"x", max_response=32, timeout=5)
                    answered = time.monotonic() - started
                except NetworkError:
                    await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    return answered


def _rates(first: list[dict[str, Any]], last: list[dict[str, Any]]) -> dict[str, float]:
    """Of the honest nodes together: gossip delivered (share, mean delay), MB/s of blobs; the victim's CPU, in cores."""

    def grew(name: str) -> float:
        return sum(b[name] - a[name] for a, b in zip(first, last, strict=True))

    seconds = last[0]["at"] - first[0]["at"]
    return {
        "gossip": grew("heard") / max(1, grew("posted") * (HONEST - 1)),
        "posted": grew("posted") / seconds,
        "mean_ms": 1000 * grew("waited") / max(1, grew("heard")),
        "blobs": grew("fetched") / seconds / 1e6,
        "cpu": (last[0]["cpu"] - first[0]["cpu"]) / seconds,
    }


def _compare(before: list[Any], calm: list[Any], start: list[Any], end: list[Any]) -> dict[str, Any]:
    control, attacked = _rates(before, calm), _rates(start, end)
    return {
        "control": control,
        "attacked": attacked,
        "gossip_ratio": attacked["gossip"] * attacked["posted"] / (control["gossip"] * control["posted"]),
        "blob_ratio": attacked["blobs"] / control["blobs"] if control["blobs"] else 0.0,
        "rss_before": calm[0]["rss"],
        "rss_growth": end[0]["rss"] - calm[0]["rss"],
        "disk_growth": end[0]["disk"] - calm[0]["disk"],
        "reserved_growth": end[0]["reserved"] - calm[0]["reserved"],
        "lured": end[0]["lured"],
    }


def _row(result: dict[str, Any]) -> str:
    control, attacked = result["control"], result["attacked"]
    newcomer = f"{result['newcomer']:.1f} s" if result["newcomer"] is not None else "refused"
    return (
        f"{result['attack']:16} gossip {100 * result['gossip_ratio']:4.0f} % "
        f"({control['mean_ms']:.0f} -> {attacked['mean_ms']:.0f} ms)  blobs {attacked['blobs']:.2f} of "
        f"{control['blobs']:.2f} MB/s {100 * result['blob_ratio']:4.0f} %  CPU {control['cpu']:.2f} -> "
        f"{attacked['cpu']:.2f}  memory {result['rss_growth'] / MIB:+.0f} MiB  newcomer {newcomer}  "
        f"({result['sent']} sent)"
    )


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    if len(sys.argv) == 3 and sys.argv[1] in ("honest", "abuser"):
        settings = json.loads(sys.argv[2])
        trio.run(Honest(settings).run) if sys.argv[1] == "honest" else trio.run(abuse, settings)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(ATTACKS), default=list(ATTACKS), metavar="NAME")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the control, and of the attack")
    parser.add_argument("--quick", action="store_true", help="5 seconds each")
    parser.add_argument("--json", action="store_true", help="the last line is one object with all that was measured")
    args = parser.parse_args()
    results = []
    shared = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        swarm = Swarm(Path(folder))
        try:
            time.sleep(3)
            for name in args.only:
                results.append(play(swarm, name, 5.0 if args.quick else args.seconds))
                print(_row(results[-1]), flush=True)
                time.sleep(3)
        finally:
            swarm.end()
    if args.json:
        print(json.dumps({each["attack"]: each for each in results}))


if __name__ == "__main__":
    main()
