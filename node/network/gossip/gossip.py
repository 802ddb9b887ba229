"""Gossip of one node: streams to and from its peers, and the trees that decide what goes where.

What is to be sent to a peer waits in a `PeerQueue`, what it says in an `Inbox`. Knows streams, budgets by way of
`admit`, and when a message counts; leaves who gets what to `trees`.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from random import SystemRandom
from typing import Protocol

import structlog
import trio
from libp2p.abc import INetStream
from libp2p.crypto.keys import PrivateKey
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.stream_muxer.exceptions import MuxedStreamEOF

from node.changes import every
from node.network.budget import TokenBucket
from node.network.gossip import messages
from node.network.gossip.trees import TICK, Trees
from node.network.packets import Cutter
from node.network.yamux import BODY_BYTES, YamuxStream, stream_below

AT_ONCE = BODY_BYTES
"""Bytes of waiting packets that are written together: one frame."""


class PeerQueue:
    """What is to be sent to one peer: a bounded queue, and whoever writes it into a stream. scope: of the task that
    keeps it."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.stream: YamuxStream | None = None
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._news = trio.Event()
        self._writing = self._turned = False

    def begin(self, stream: YamuxStream) -> None:
        """What is sent from now on goes there."""
        # What waited for the former stream is named in the greeting: sent as well, it would come twice.
        self._waiting.clear()
        self._bytes = 0
        self.stream = stream

    def turn(self) -> None:
        """There may be a better way."""
        self._turned = True
        self._news.set()

    def stop(self) -> None:
        self.stream = None

    def send(self, packet: bytes) -> None:
        """With the next `flush`. Dropped while there is no stream: a greeted peer is told what it missed."""
        if self.stream is not None:
            self._waiting.append(packet)
            self._bytes += len(packet)

    def flush(self) -> None:
        """Write what waits, in as few pieces as it takes. What the connection does not take now is its task's to write,
        who would need two turns of the event loop for all of it."""
        while self._waiting and self.stream is not None:
            # Once the task writes, all goes through it: two writers would mix packets of one stream.
            if self._writing or self._turned or not self._write_now(self.stream):
                self._news.set()
                return

    def _write_now(self, stream: YamuxStream) -> bool:
        batch = self._taken()
        if stream.write_now(batch):
            return True
        self._waiting.appendleft(batch)
        self._bytes += len(batch)
        return False

    async def write(self) -> bool:
        """Until the peer takes no more, or there may be a better way: whether that is why. Raises MuxedStreamError."""
        # Bytes that wait for one peer: who takes nothing for so long is left, and greeted anew.
        most_bytes = 4 * 1024**2
        while (stream := self.stream) and not stream.send_closed and self._bytes < most_bytes:
            if self._turned:
                self._turned = False
                return True
            if self._waiting:
                self._writing = True
                try:
                    await stream.write(self._taken())
                finally:
                    self._writing = False
            else:
                self._news = trio.Event()
                await self._news.wait()
        return False

    def _taken(self) -> bytes:
        first = self._waiting.popleft()
        packets, size = [first], len(first)
        while self._waiting and size + len(self._waiting[0]) <= AT_ONCE:
            packets.append(self._waiting.popleft())
            size += len(packets[-1])
        self._bytes -= size
        return b"".join(packets)

    def look(self) -> None:
        """Its connection may be gone."""
        self._news.set()


HEARD = (400.0, 2000.0)
"""Pieces of one peer, per second and in a burst. Who says more is heard later: a message that came before costs no
signature, and no other budget."""


class Inbox:
    """What one peer says on its stream: heard by the connection's reader as it comes, and by a task what is much.

    A task that is woken for each packet costs a turn of the event loop, which is more than a packet does. hear: works a
    packet off, in one piece at least; heard: called after several pieces. Both are quick.
    """

    def __init__(
        self, stream: YamuxStream, limit: int, hear: Callable[[bytes], Iterator[None]], heard: Callable[[], None]
    ) -> None:
        self._scope = trio.CancelScope()
        self._closed = False
        self._stream = stream
        self._hear = hear
        self._heard = heard
        self._pieces = self._cut(Cutter(limit))
        self._budget = TokenBucket(*HEARD)
        self._behind = trio.Event()
        self._ended: Exception | None = None

    async def run(self) -> None:
        """Until it is closed. Raises what ended the stream, or `hear`, and ValueError for a packet beyond the limit."""
        try:
            with self._scope:
                self._stream.listen(self._arrived)
                while True:
                    await self._behind.wait()
                    if self._ended is not None:
                        raise self._ended
                    await trio.sleep(self._debt())
                    self._work()
        finally:
            self._closed = True

    def close(self) -> None:
        """Nothing is heard from now on."""
        self._closed = True
        self._scope.cancel()

    def _arrived(self) -> None:
        # Behind: the task takes up what has come, in its order; here it would overtake.
        if self._closed or self._behind.is_set():
            return
        if self._debt():
            self._behind.set()
        else:
            self._work()

    def _debt(self) -> float:
        """Seconds until more may be heard."""
        return self._budget.delay(trio.current_time())

    def _work(self) -> None:
        """Some pieces; `_behind` says whether more are here."""
        pieces_at_once = 8  # pieces that are worked off without letting others run
        try:
            room = pieces_at_once
            while room > 0 and (count := next(self._pieces)):
                room -= count
            self._budget.charge(pieces_at_once - room)
            if room <= 0:
                self._behind.set()
            elif self._behind.is_set():
                self._behind = trio.Event()
        except Exception as error:
            self._ended = error
            self._behind.set()
        self._heard()

    def _cut(self, cutter: Cutter) -> Iterator[int]:
        """How many pieces each counts for, once it is worked off; 0 whenever nothing is left."""
        while True:
            while not (data := self._stream.read_now()):
                yield 0
            for packet in cutter.cut(data):
                count = 1 + len(packet) // 2048  # of a packet: one that is longer counts for more pieces
                for _ in self._hear(packet):
                    yield count
                    count = 1


log = structlog.get_logger(__name__)

MESHSUB = TProtocol("/meshsub/1.1.0")
KIN = TProtocol("/intellect-node/meshsub/1")
"""The same, said between nodes of this program: so they know each other. A tree prunes what comes twice, a mesh wants
several copies: pruned by four of ours, js-libp2p made four links again at once."""
MAX_PACKET = 512 * 1024


class GossipListener(Protocol):
    """What a node makes of gossip. Peers and authors are raw peer ids."""

    def is_member(self, peer: bytes) -> bool: ...

    def admit(self, giver: bytes, message: rpc_pb2.Message) -> bool:
        """Whether a new message is worth its signature check."""
        ...

    def accepts(self, topic: str, message: rpc_pb2.Message) -> bool:
        """Whether an authentic message is delivered and handed on."""
        ...

    def deliver(self, topic: str, message: rpc_pb2.Message) -> None: ...

    def fault(self, where: str, error: BaseException) -> None:
        """Told of every error that was caught on a peer's behalf."""
        ...


class Gossip:
    """key: the host's; still_connected: whether a raw peer id has a live connection; is_best: whether no better
    connection leads there than a stream's."""

    def __init__(
        self,
        host: BasicHost,
        key: PrivateKey,
        listener: GossipListener,
        still_connected: Callable[[bytes], bool],
        is_best: Callable[[INetStream], bool],
        boot: int = 0,
    ) -> None:
        self._draw = SystemRandom()
        self.trees = Trees(self._send, time.monotonic, listener.is_member, self._draw)
        self._host = host
        self._key = key
        self._author = host.get_id().to_bytes()
        self._number = max(time.time_ns(), boot * 10**9)  # never below what this key used before a restart
        self._listener = listener
        self._still_connected = still_connected
        self._is_best = is_best
        self._lines: dict[bytes, PeerQueue] = {}
        self._told: dict[PeerQueue, None] = {}
        self._inboxes: dict[bytes, Inbox] = {}
        self._nursery: trio.Nursery | None = None
        for protocol in (KIN, MESHSUB):
            host.set_stream_handler(protocol, self._read)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Tell and hear until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                # Seconds that differ: two that miss the same do not ask at once.
                await every(lambda: TICK * self._draw.uniform(0.8, 1.2), self._tick, at_once=False)
            finally:
                self._nursery = None

    def _tick(self) -> None:
        self.trees.tick()
        self._flush()

    # what the node says

    def subscribe(self, topic: str) -> None:
        self.trees.join(topic)
        self._flush()

    async def publish(self, topic: str, data: bytes) -> None:
        self._number += 1
        self.trees.spread(messages.write(self._key, self._author, topic, data, self._number))
        self._flush()
        await trio.lowlevel.checkpoint()

    # peers

    def arrived(self, peer: bytes) -> None:
        """A connection with it came up, or a stream of its."""
        if peer in self._lines:
            self._lines[peer].turn()  # the new stream opens while the old one goes on: nothing is lost between them
        elif self._nursery is not None:
            line = self._lines[peer] = PeerQueue()
            self._nursery.start_soon(self._keep, peer, line)

    def left(self, peer: bytes) -> None:
        """A connection with it ended; there may be another."""
        line = self._lines.get(peer)
        if line is None:
            return
        if self._still_connected(peer):
            line.look()
        else:
            line.scope.cancel()

    def _send(self, peer: bytes, packet: bytes) -> None:
        """With the next `_flush`, which follows whatever made the trees speak: one write for each peer."""
        line = self._lines.get(peer)
        if line is not None:
            line.send(packet)
            self._told[line] = None

    def _flush(self) -> None:
        told, self._told = self._told, {}
        for line in told:
            line.flush()

    async def _keep(self, peer: bytes, line: PeerQueue, *, first_retry: float = 0.25, last_retry: float = 8.0) -> None:
        """A stream to a peer, opened anew while it is connected."""
        # A stream that is cut is mostly a peer that restarts; one that is refused again and again is a peer without
        # gossip.
        wait = first_retry
        try:
            with line.scope:
                while True:
                    began = trio.current_time()
                    await self._write(peer, line)
                    if not self._still_connected(peer):
                        break
                    # A stream that held for a while has earned a quick return.
                    wait = first_retry if trio.current_time() - began > last_retry else min(2 * wait, last_retry)
                    await trio.sleep(wait)
        finally:
            del self._lines[peer]
            if peer in self._inboxes:
                self._inboxes.pop(peer).close()
            self.trees.gone(peer)
            self._flush()

    async def _write(self, peer: bytes, line: PeerQueue) -> None:
        stream: INetStream | None = None
        try:
            stream = await self._open(peer)
            line.begin(stream_below(stream))
            self._greet(peer, stream)
            while await line.write():
                stream = await self._best(peer, line, stream)
        except Exception as error:  # the library's own are many
            log.debug("network.gossip_cut", peer=str(ID(peer)), error=repr(error))
        finally:
            line.stop()
            self.trees.closed(peer)
            self._flush()
            if stream is not None:
                await self._close(stream)

    async def _open(self, peer: bytes) -> INetStream:
        # As long as a dial: a peer that answers no stream request for so long is as good as gone.
        with trio.fail_after(10.0):
            return await self._host.new_stream(ID(peer), [KIN, MESHSUB])

    def _greet(self, peer: bytes, stream: INetStream) -> None:
        self.trees.opened(peer, kin=stream.get_protocol() == KIN)
        self._flush()

    async def _best(self, peer: bytes, line: PeerQueue, stream: INetStream) -> INetStream:
        """The stream, or another of a better connection. The peer stays a link, and what waits goes the new way; what
        is still on the old one may be overtaken, which the greeting names."""
        if self._is_best(stream):
            return stream
        better = await self._open(peer)
        line.stream = stream_below(better)
        self._greet(peer, better)
        await self._close(stream)
        return better

    async def _close(self, stream: INetStream, *, close_seconds: float = 3.0) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + close_seconds):
            try:
                await stream.reset()
            except Exception as error:
                log.debug("network.stream_close_failed", error=repr(error))

    # what peers say

    async def _read(self, stream: INetStream) -> None:
        """One stream of a peer's: the newest counts, and ends the one before."""
        peer = stream.muxed_conn.peer_id.to_bytes()
        self.arrived(peer)
        inbox = Inbox(stream_below(stream), MAX_PACKET, partial(self._take, peer), self._flush)
        before, self._inboxes[peer] = self._inboxes.get(peer), inbox
        # A peer that reconnects opens a new stream before the old one is known to be dead.
        if before is not None:
            before.close()
        try:
            await inbox.run()
        except MuxedStreamEOF:
            log.debug("network.gossip_ended", peer=str(ID(peer)))
            return
        finally:
            self._forget(peer, inbox)
        await stream.reset()  # the inbox was closed: there is a newer stream, or the peer is gone

    def _forget(self, peer: bytes, inbox: Inbox) -> None:
        if self._inboxes.get(peer) is inbox:
            del self._inboxes[peer]
            self.trees.hushed(peer)
            self._flush()

    def _take(self, peer: bytes, packet: bytes) -> Iterator[None]:
        """One packet, piece by piece; its author's record of addresses is not read: whom we dial, the chain says."""
        rpc = rpc_pb2.RPC.FromString(packet)
        if rpc.subscriptions:
            self.trees.subscribed(peer, rpc.subscriptions)
        for number, message in enumerate(rpc.publish):
            if number:
                yield
            self._hear(peer, message)
        if rpc.HasField("control"):
            self.trees.control(peer, rpc.control)
        yield

    def _hear(self, giver: bytes, message: rpc_pb2.Message) -> None:
        # In the order of cost: topic, copy, budget, and only then the signature.
        if len(message.topicIDs) != 1 or message.topicIDs[0] not in self.trees.links:
            return
        # Our own words come back by the trees' other branches.
        if message.from_id == self._author or self.trees.knows(giver, message):
            return
        if not self._listener.admit(giver, message):
            return
        if not messages.is_authentic(message):
            self._listener.fault("gossip", ValueError("a message that its author has not signed"))
            return
        # Noted before the board decides: a message that it refuses must not be asked for again either.
        self.trees.came(giver, message)
        if self._listener.accepts(message.topicIDs[0], message):
            self.trees.spread(message, giver)
            self._listener.deliver(message.topicIDs[0], message)
