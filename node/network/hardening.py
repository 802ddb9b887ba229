"""py-libp2p 0.8.1, made fit to meet strangers: everything that we change in it, and why.

Each class here cures a measured defect of the library:

- any exception in a task that a peer can cause ends the whole host       -> Tasks, HardSwarm
- an inbound connection keeps its slot after it closed                    -> HardSwarm
- each stream is told to three who do not listen, in a task each           -> HardSwarm
- the auto-connector dials whatever identify has heard of                 -> _NoAutoConnector
- yamux copies, locks and polls, and keeps what it is sent                -> yamux.py, our own
- every read and write costs turns of the event loop and system calls    -> sockets.py
- each Noise message is copied three times and read in two steps         -> noise.py, our own
- silent handshakes from many addresses keep every inbound slot            -> HardSwarm
- its pubsub costs many times what it carries                            -> gossip, our own
- the listener shares its port with any other process (SO_REUSEPORT)      -> port_is_taken
- a listener on :: takes IPv4 too, under addresses of IPv6                 -> sockets.py

Knows libp2p's internals; knows nothing of members or blobs.
"""

import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, cast

import structlog
import trio
from libp2p.abc import IMuxedConn, INetConn, INetStream, IRawConnection, ISecureConn
from libp2p.connection_types import ConnectionType
from libp2p.custom_types import TProtocol
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.trio import TrioTCPStream
from libp2p.metrics.swarm import SwarmEvent
from libp2p.network import swarm as swarm_module
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.connection import swarm_connection
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.stream.exceptions import StreamError
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.tools.anyio_service.api import InternalManagerAPI, ManagerAPI, ServiceAPI
from libp2p.tools.anyio_service.stats import Stats, TaskStats
from libp2p.transport.exceptions import OpenConnectionError
from libp2p.transport.tcp import tcp as tcp_module
from libp2p.transport.tcp.tcp import TCP
from libp2p.utils.multiaddr_utils import extract_ip_from_multiaddr
from multiaddr import Multiaddr

from node.addresses import refusal
from node.network import sockets
from node.network.noise import NoiseSession
from node.network.yamux import YamuxSession

log = structlog.get_logger(__name__)

MAX_STREAMS_PER_PEER = 128
MAX_HANDSHAKES_PER_IP = 16
MAX_HANDSHAKES = 128
"""Under way at once, from one address and from all: of more, the oldest gives way. An honest one takes a fraction of a
second."""

FOR_BULK = ContextVar("FOR_BULK", default=False)
"""Whether the stream that this task opens is for bulk."""

Fault = Callable[[str, BaseException], None]
"""Told of every error that was caught on a peer's behalf: (where, error)."""


class _ToStructlog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        log.debug("network.libp2p", logger=record.name, message=record.getMessage())


# A wait after every dial, in case another address of the peer answers sooner. We dial one address.
swarm_module._HAPPY_EYEBALLS_DELAY = 0.0
# A listener on :: that would take the port of 0.0.0.0 as well.
tcp_module._open_reuseport_listeners = sockets.open_listeners
# The library reads names of two parts only, those of IPv4: all peers over IPv6 would share one limit of handshakes.
TrioTCPStream.get_remote_address = sockets.remote_address


def quieten() -> None:
    """libp2p logs at ERROR for everyday events, to stderr, and some of it through the root logger."""
    logger = logging.getLogger("libp2p")
    logger.setLevel(logging.ERROR)
    logger.handlers[:] = [_ToStructlog()]
    logger.propagate = False
    for name in list(logging.root.manager.loggerDict):
        below = logging.getLogger(name) if name.startswith("libp2p.") else None
        if below is not None and below.level != logging.NOTSET:  # each of these looks through all loggers there are
            below.setLevel(logging.NOTSET)
    swarm_connection.logging = logging.getLogger("libp2p.network.connection")  # type: ignore[attr-defined]


def port_is_taken(host: str, port: int) -> bool:
    """Whether another socket listens there. The library's own bind would succeed beside it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
            raise
    return False


class SupervisedTasks(InternalManagerAPI):
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
        child = SupervisedTasks(service, self._fault)
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


class HardTcp(TCP):
    """Dials with a buffer, and only what a stranger may have it dial: each connection of the library's comes by here,
    after names are resolved. private: whether networks of one's own are permitted."""

    def __init__(self, *, private: bool) -> None:
        super().__init__()
        self._private = private

    async def _dial_resolved(self, maddr: Multiaddr, source: tuple[str, int] | None = None) -> IRawConnection:
        host = extract_ip_from_multiaddr(maddr) or str(maddr)
        if why := refusal(host, private=self._private):
            raise OpenConnectionError(f"{maddr} is not dialled: {why}")
        return await super()._dial_resolved(maddr, source)

    async def dial(self, maddr: Multiaddr) -> IRawConnection:
        raw = await super().dial(maddr)
        if isinstance(raw, RawConnection):
            raw.stream = sockets.lean(raw.stream)
        return raw


class HardMuxer(MuxerMultistream):
    """Offers yamux alone, and our own. on_bulk: told of each piece that a connection sends."""

    def __init__(self, muxers: Mapping[TProtocol, type[IMuxedConn]], on_bulk: Callable[[], object]) -> None:
        super().__init__(muxers)
        self._on_bulk = on_bulk

    async def new_conn(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        protocol, _ = await self._selector.select(conn, conn.is_initiator, self.negotiate_timeout)

        session = YamuxSession(cast(NoiseSession, conn), peer_id, on_bulk=self._on_bulk)
        return self._annotate_connection(session, conn, protocol)


class _NoAutoConnector(AutoConnector):
    """We redial members ourselves, and nobody else."""

    async def run_background_task(self, nursery: trio.Nursery) -> None:
        return None

    async def maybe_connect(self) -> None:
        return None


class HardSwarm(Swarm):
    """A swarm whose inbound slots are returned and whose stream handlers cannot end it."""

    fault: Fault = staticmethod(lambda where, error: None)
    _upgrading: dict[trio.CancelScope, str]
    """Handshakes under way, the oldest first, and from which address each is."""
    _streams: dict[ID, int]

    def _init_connection_management(self) -> None:
        super()._init_connection_management()
        self.auto_connector = _NoAutoConnector(swarm=self)
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

    async def _notify(self, method: str, *args: Any) -> None:
        # A nursery and a task for each who could be told, twice a stream and on both sides: nobody does anything then.
        if method not in ("opened_stream", "closed_stream"):
            await super()._notify(method, *args)

    def _select_connection(self, connections: list[INetConn], peer_id: ID) -> INetConn:
        """The oldest direct one is for news; bulk goes by another if there is one, where the fewest streams are."""
        direct = [each for each in connections if each.get_connection_type() != ConnectionType.RELAYED]
        if FOR_BULK.get() and len(direct) > 1:
            return min(direct[1:], key=lambda each: len(cast(YamuxSession, each.muxed_conn).streams))
        return (direct or connections)[0]

    async def _do_handle_inbound_connection(
        self, read_write_closer: ReadWriteCloser, maddr: Multiaddr, failure_event: SwarmEvent
    ) -> None:
        """Upgrade, then hold the inbound slot for as long as the connection lives (the library: forever)."""
        remote = read_write_closer.get_remote_address()
        ip = remote[0] if remote else ""
        raw = RawConnection(sockets.lean(read_write_closer), False)
        scope = trio.CancelScope()
        self._upgrading[scope] = ip
        # The oldest, not the newest: many honest peers may be behind one address, and so may one that says nothing.
        beside = [one for one, other in self._upgrading.items() if other == ip]
        if len(beside) > MAX_HANDSHAKES_PER_IP or len(self._upgrading) > MAX_HANDSHAKES:
            oldest = beside[0] if len(beside) > MAX_HANDSHAKES_PER_IP else next(iter(self._upgrading))
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
        if isinstance(muxed, YamuxSession):
            await muxed.event_closed.wait()
        else:
            await raw.close()
