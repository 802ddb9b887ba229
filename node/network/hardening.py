"""py-libp2p 0.8.1, made fit to meet strangers: everything that we change in it, and why.

Each class here cures a measured defect of the library (docs/decisions.md names them):

- any exception in a task that a peer can cause ends the whole host       -> Tasks, HardSwarm, HardPubsub
- an inbound connection keeps its slot after it closed                    -> HardSwarm
- the auto-connector dials whatever identify has heard of                 -> _NoAutoConnector
- yamux copies, locks and polls, and keeps what it is sent                -> yamux.py, our own
- every read costs two system calls, every full frame two messages       -> BufferedSocket
- silent handshakes from many addresses keep every inbound slot            -> HardSwarm
- gossip's control messages are kept for any topic, and answered in full  -> HardRouter
- each gossip packet costs two signatures more than its messages have      -> HardPubsub
- the listener shares its port with any other process (SO_REUSEPORT)      -> port_is_taken

Knows libp2p's internals; knows nothing of members or blobs.
"""

import errno
import logging
import socket
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import structlog
import trio
from libp2p.abc import IMuxedConn, INetStream, IRawConnection, ISecureConn
from libp2p.io.abc import ReadWriteCloser
from libp2p.metrics.swarm import SwarmEvent
from libp2p.network import swarm as swarm_module
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.connection import swarm_connection
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.stream.exceptions import StreamError
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.utils import safe_bytes_from_hex
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.tools.anyio_service.api import InternalManagerAPI, ManagerAPI, ServiceAPI
from libp2p.tools.anyio_service.stats import Stats, TaskStats
from libp2p.transport.tcp.tcp import TCP
from libp2p.utils.varint import encode_uvarint
from multiaddr import Multiaddr

from node.network.budget import Budgets
from node.network.yamux import Session, Stream, stream_below

log = structlog.get_logger(__name__)

MAX_STREAMS_PER_PEER = 128
MAX_HANDSHAKES_PER_IP = 16
MAX_HANDSHAKES = 128
"""Under way at once, from all addresses: of more, the oldest gives way. An honest one takes a fraction of a second."""
CONTROLS = (50.0, 500.0)
"""Gossip control messages of one peer, per second and in a burst: a heartbeat a second says a few for our one topic."""
MAX_SHIFT = 28
"""Of a packet's length: more bytes than this say nothing that a limit allows."""
MAX_NAMED = 1000
"""Message ids that are looked at in one IHAVE or IWANT."""
MAX_WANTED_BYTES = 512 * 1024
"""Of messages sent for one IWANT."""
READ_AHEAD = 256 * 1024

Fault = Callable[[str, BaseException], None]
"""Told of every error that was caught on a peer's behalf: (where, error)."""


class _ToStructlog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        log.debug("network.libp2p", logger=record.name, message=record.getMessage())


# A wait after every dial, in case another address of the peer answers sooner. We dial one address.
swarm_module._HAPPY_EYEBALLS_DELAY = 0.0


def quieten() -> None:
    """libp2p logs at ERROR for everyday events, to stderr, and some of it through the root logger."""
    logger = logging.getLogger("libp2p")
    logger.setLevel(logging.ERROR)
    logger.handlers[:] = [_ToStructlog()]
    logger.propagate = False
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("libp2p."):
            logging.getLogger(name).setLevel(logging.NOTSET)
    swarm_connection.logging = logging.getLogger("libp2p.network.connection")  # type: ignore[attr-defined]


def port_is_taken(host: str, port: int) -> bool:
    """Whether another socket listens there. The library's own bind would succeed beside it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
            raise
    return False


class Tasks(InternalManagerAPI):
    """Runs a libp2p service in a nursery; an error in one of its tasks ends that task alone.

    Replaces the library's manager, in which it ends the service and with it the host. A daemon
    task (a loop that the service cannot live without) is restarted after a second.
    """

    def __init__(self, service: ServiceAPI, fault: Fault) -> None:
        self._service = service
        self._fault = fault
        self._started = trio.Event()
        self._finished = trio.Event()
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._count = 0
        self._done = 0
        service._manager = self

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled or stopped. The service's own failure is raised."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    self._started.set()
                    task_status.started()
                    await self._service.run()
                    nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            self._finished.set()

    def run_task(
        self, async_fn: Callable[..., Awaitable[Any]], *args: Any, daemon: bool = False, name: str | None = None
    ) -> None:
        if self._nursery is None or self._scope.cancel_called:
            return  # stopping: the library would raise here, in the middle of its own clean-up
        self._count += 1
        self._nursery.start_soon(self._guard, async_fn, args, daemon, name=name or repr(async_fn))

    def run_daemon_task(self, async_fn: Callable[..., Awaitable[Any]], *args: Any, name: str | None = None) -> None:
        self.run_task(async_fn, *args, daemon=True, name=name)

    async def _guard(self, async_fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...], daemon: bool) -> None:
        try:
            while True:
                try:
                    await async_fn(*args)
                except Exception as error:
                    self._fault(getattr(async_fn, "__qualname__", repr(async_fn)), error)
                if not daemon or self._scope.cancel_called:
                    return
                await trio.sleep(1.0)
        finally:
            self._done += 1

    def run_child_service(self, service: ServiceAPI, daemon: bool = False, name: str | None = None) -> ManagerAPI:
        child = Tasks(service, self._fault)
        self.run_task(child.run, daemon=daemon, name=name)
        return child

    def run_daemon_child_service(self, service: ServiceAPI, name: str | None = None) -> ManagerAPI:
        return self.run_child_service(service, daemon=True, name=name)

    @property
    def is_started(self) -> bool:
        return self._started.is_set()

    @property
    def is_running(self) -> bool:
        return self.is_started and not self.is_finished

    @property
    def is_cancelled(self) -> bool:
        return self._scope.cancel_called

    @property
    def is_finished(self) -> bool:
        return self._finished.is_set()

    @property
    def did_error(self) -> bool:
        return False

    @property
    def stats(self) -> Stats:
        return Stats(tasks=TaskStats(total_count=self._count, finished_count=self._done))

    async def wait_started(self) -> None:
        await self._started.wait()

    async def wait_finished(self) -> None:
        await self._finished.wait()

    def cancel(self) -> None:
        self._scope.cancel()

    async def stop(self) -> None:
        self.cancel()
        if self.is_started:
            await self._finished.wait()


class BufferedSocket(ReadWriteCloser):
    """Reads ahead. The library asks the kernel for two bytes, then for a message, and so on."""

    def __init__(self, inner: ReadWriteCloser) -> None:
        self._inner = inner
        self._ahead = memoryview(b"")

    async def read(self, n: int | None = None) -> bytes:
        if not self._ahead:
            fresh = await self._inner.read(READ_AHEAD)
            if n is None or n >= len(fresh):
                return fresh
            self._ahead = memoryview(fresh)
        data = bytes(self._ahead[:n])
        self._ahead = self._ahead[len(data) :]
        return data

    async def write(self, data: bytes) -> None:
        await self._inner.write(data)

    async def close(self) -> None:
        await self._inner.close()

    def get_remote_address(self) -> tuple[str, int] | None:
        return self._inner.get_remote_address()


class HardTcp(TCP):
    """Dials with a buffer."""

    async def dial(self, maddr: Multiaddr) -> IRawConnection:
        raw = await super().dial(maddr)
        if isinstance(raw, RawConnection):
            raw.stream = BufferedSocket(raw.stream)
        return raw


class HardMuxer(MuxerMultistream):
    """Offers yamux alone, and our own."""

    async def new_conn(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        protocol, _ = await self._selector.select(conn, conn.is_initiator, self.negotiate_timeout)

        return self._annotate_connection(Session(conn, peer_id), conn, protocol)


class _NoAutoConnector(AutoConnector):
    """We redial members ourselves, and nobody else."""

    async def run_background_task(self, nursery: trio.Nursery) -> None:
        return None

    async def maybe_connect(self) -> None:
        return None


class HardSwarm(Swarm):
    """A swarm whose inbound slots are returned and whose stream handlers cannot end it."""

    fault: Fault = staticmethod(lambda where, error: None)
    _handshakes: dict[str, int]
    _upgrading: dict[trio.CancelScope, None]
    """Handshakes under way, the oldest first."""
    _streams: dict[ID, int]

    def _init_connection_management(self) -> None:
        super()._init_connection_management()
        self.auto_connector = _NoAutoConnector(swarm=self)
        self._handshakes = {}
        self._upgrading = {}
        self._streams = {}

    def set_stream_handler(self, stream_handler: Callable[[INetStream], Awaitable[None]]) -> None:
        async def guarded(stream: INetStream) -> None:
            peer = stream.muxed_conn.peer_id
            if self._streams.get(peer, 0) >= MAX_STREAMS_PER_PEER:
                await stream.reset()
                return
            self._streams[peer] = self._streams.get(peer, 0) + 1
            try:
                await stream_handler(stream)
            except (StreamError, MuxedStreamError):
                await stream.reset()  # the peer thought better of it
            except Exception as error:
                self.fault("stream", error)
                await stream.reset()
            finally:
                self._streams[peer] -= 1
                if not self._streams[peer]:
                    del self._streams[peer]

        super().set_stream_handler(guarded)

    async def _do_handle_inbound_connection(
        self, read_write_closer: ReadWriteCloser, maddr: Multiaddr, failure_event: SwarmEvent
    ) -> None:
        """Upgrade, then hold the inbound slot for as long as the connection lives (the library: forever)."""
        remote = read_write_closer.get_remote_address()
        ip = remote[0] if remote else ""
        if self._handshakes.get(ip, 0) >= MAX_HANDSHAKES_PER_IP:
            await read_write_closer.close()
            return
        self._handshakes[ip] = self._handshakes.get(ip, 0) + 1
        raw = RawConnection(BufferedSocket(read_write_closer), False)
        scope = trio.CancelScope()
        self._upgrading[scope] = None
        if len(self._upgrading) > MAX_HANDSHAKES:
            oldest = next(iter(self._upgrading))
            del self._upgrading[oldest]
            oldest.cancel()
        muxed = None
        try:
            with scope:
                muxed = await self.upgrade_inbound_raw_conn(raw, maddr)
        except Exception as error:
            log.debug("network.handshake_failed", ip=ip, error=repr(error))
            await raw.close()
            return
        finally:
            self._upgrading.pop(scope, None)
            self._handshakes[ip] -= 1
            if not self._handshakes[ip]:
                del self._handshakes[ip]
        if isinstance(muxed, Session):
            await muxed.event_closed.wait()
        else:
            await raw.close()


class HardRouter(GossipSub):
    """Gossipsub that heeds control messages about our own topics alone, so many of each peer, and dials nobody."""

    _budgets: Budgets

    def attach(self, pubsub: Pubsub) -> None:
        super().attach(pubsub)
        self._budgets = Budgets(*CONTROLS)

    def _heeds(self, topic: str, sender: ID) -> bool:
        known = self.pubsub is not None and topic in self.pubsub.topic_ids
        return known and self._affords(sender)

    def _affords(self, sender: ID) -> bool:
        return self._budgets.take(sender.to_bytes(), 1, trio.current_time())

    async def handle_graft(self, graft_msg: rpc_pb2.ControlGraft, sender_peer_id: ID) -> None:
        if self._heeds(graft_msg.topicID, sender_peer_id):
            await super().handle_graft(graft_msg, sender_peer_id)

    async def handle_prune(self, prune_msg: rpc_pb2.ControlPrune, sender_peer_id: ID) -> None:
        if self._heeds(prune_msg.topicID, sender_peer_id):
            await super().handle_prune(prune_msg, sender_peer_id)

    async def handle_ihave(self, ihave_msg: rpc_pb2.ControlIHave, sender_peer_id: ID) -> None:
        if self._heeds(ihave_msg.topicID, sender_peer_id):
            del ihave_msg.messageIDs[MAX_NAMED:]
            await super().handle_ihave(ihave_msg, sender_peer_id)

    async def handle_iwant(self, iwant_msg: rpc_pb2.ControlIWant, sender_peer_id: ID) -> None:
        """Each message once, and not more bytes of them than a little: the library would send all that is named."""
        if not self._affords(sender_peer_id):
            return
        wanted, room = list(dict.fromkeys(iwant_msg.messageIDs[:MAX_NAMED])), MAX_WANTED_BYTES
        for number, name in enumerate(wanted):
            id = safe_bytes_from_hex(name)
            message = self.mcache.get(id) if id is not None else None
            room -= message.ByteSize() if message is not None else 0
            if room < 0:
                del wanted[number:]
                break
        await super().handle_iwant(rpc_pb2.ControlIWant(messageIDs=wanted), sender_peer_id)

    async def handle_idontwant(self, idontwant_msg: rpc_pb2.ControlIDontWant, sender_peer_id: ID) -> None:
        """Of gossipsub 1.2, which we do not speak."""

    async def publish(self, msg_forwarder: ID, pubsub_msg: rpc_pb2.Message) -> None:
        """To the mesh. The library's also looks for what we do not speak, counts what `admit` has counted, and copies
        the message for every peer."""
        pubsub = self.pubsub
        if pubsub is None:
            return
        self.mcache.put(pubsub_msg)
        packet = rpc_pb2.RPC(publish=[pubsub_msg])
        for peer in self._receivers(pubsub_msg.topicIDs[0], msg_forwarder, ID(pubsub_msg.from_id)):
            queue = pubsub.peer_queues.get(peer)
            if queue is not None:
                queue.push(packet, priority=False)  # a queue that is full drops it: the board catches up

    def _receivers(self, topic: str, forwarder: ID, author: ID) -> Iterable[ID]:
        """The mesh; for a topic that we only publish on, some who subscribed to it."""
        if topic in self.mesh:
            return self.mesh[topic] - {forwarder, author}
        return self._get_peers_to_send([topic], forwarder, author)

    def _perform_opportunistic_grafting(self, topic: str, peers_to_graft: defaultdict[ID, list[str]]) -> int:
        """Among peers that all have one score this would add some at every heartbeat until everybody is in the mesh,
        and every message came from everybody."""
        return 0

    async def _do_px(self, px_peers: list[rpc_pb2.PeerInfo]) -> None:
        """A peer that leaves our mesh may name others: whom we dial, the chain says."""


async def packet(stream: Stream, limit: int) -> bytes | None:
    """The next one, after its length as a varint; None at the end. Raises ValueError for one beyond the limit."""
    length = shift = 0
    while True:
        byte = await stream.read_exactly(1)
        if not byte:
            return None
        length |= (byte[0] & 0x7F) << shift
        if length > limit or shift > MAX_SHIFT:
            raise ValueError("the packet is longer than the limit")
        if byte[0] < 0x80:
            break
        shift += 7
    packet = await stream.read_exactly(length)
    return packet if len(packet) == length else None


class HardPubsub(Pubsub):
    """Pubsub that survives malformed input and hands messages over without a second small buffer.

    deliver: called with every accepted message of another publisher; admit: whether a peer may still make us
    look at a message, and this one is worth it (asked before the costly signature check).
    """

    fault: Fault = staticmethod(lambda where, error: None)
    deliver: Callable[[str, rpc_pb2.Message], None] = staticmethod(lambda topic, message: None)
    admit: Callable[[ID, rpc_pb2.Message], bool] = staticmethod(lambda peer, message: True)

    async def continuously_read_stream(self, stream: INetStream) -> None:
        """The library verifies a signed record of the peer's addresses with each packet, twice, reads lengths byte by
        byte through four locks, and starts a task for each message."""
        peer = stream.muxed_conn.peer_id
        try:
            while (data := await packet(stream_below(stream), self.max_inbound_rpc_size)) is not None:
                await self._take(rpc_pb2.RPC.FromString(data), peer)
        except MuxedStreamError as error:
            log.debug("network.pubsub_ended", peer=str(peer), error=repr(error))
        except Exception as error:
            self.fault("pubsub", error)
            await stream.reset()
            self._handle_dead_peer(peer)

    async def _take(self, rpc: rpc_pb2.RPC, peer: ID) -> None:
        """One packet: messages, then subscriptions, then control, with a checkpoint for each message."""
        for message in rpc.publish:
            await trio.lowlevel.checkpoint()
            if self._is_subscribed_to_msg(message):
                await self.push_msg(peer, message)
        if len(rpc.subscriptions) <= self.max_subscriptions_per_rpc:
            for subscription in rpc.subscriptions:
                self.handle_subscription(peer, subscription)
        if rpc.HasField("control"):
            rpc.ClearField("senderRecord")  # whom we dial, the chain says
            await self.router.handle_rpc(rpc, peer)
        await trio.lowlevel.checkpoint()

    async def write_msg(self, stream: INetStream, rpc_msg: rpc_pb2.RPC) -> bool:
        """Whether it was written; without a record of our addresses, which nobody asked for."""
        rpc_msg.ClearField("senderRecord")
        data = rpc_msg.SerializeToString()
        try:
            await stream_below(stream).write(data, head=encode_uvarint(len(data)))
        except MuxedStreamError:
            self._handle_dead_peer(stream.muxed_conn.peer_id)
            return False
        return True

    async def _handle_new_peer(self, peer_id: ID) -> None:
        """As in the library, and tell the peer what we subscribed to while the greeting was on its way.

        The greeting lists our topics, and only after it is written does the peer count as one to be told of new
        ones: a subscription in between would never reach it.
        """
        before = set(self.topic_ids)
        await super()._handle_new_peer(peer_id)
        queue = self.peer_queues.get(peer_id)
        if queue is None:
            return
        for topic in set(self.topic_ids) - before:
            packet, announce = self._build_announce_rpc(topic, subscribe=True)
            self._enqueue_or_retry_announce(peer_id, queue, packet, announce)

    async def push_msg(self, msg_forwarder: ID, msg: rpc_pb2.Message) -> None:
        if msg_forwarder == self.my_id:
            await super().push_msg(msg_forwarder, msg)
            return
        if len(msg.topicIDs) != 1 or self._is_msg_seen(msg) or not self.admit(msg_forwarder, msg):
            return
        try:
            await super().push_msg(msg_forwarder, msg)
        except Exception as error:
            self.fault("pubsub", error)

    def notify_subscriptions(self, publish_message: rpc_pb2.Message) -> None:
        if publish_message.from_id == self.my_id.to_bytes():
            return
        for topic in publish_message.topicIDs:
            if topic in self.topic_ids:
                self.deliver(topic, publish_message)
