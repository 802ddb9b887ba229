"""Lanes: further connections with a peer, for bulk alone, while the path to it loses packets that no queue drops.

One TCP connection that takes each loss for a full queue carries about 1.2 segments per round trip and root of the loss
(Mathis et al., 1997), whatever the line could. Loss beside a round trip that has grown is a full line, where further
connections would only take from others: it opens none.

The sender sees the loss; whoever has dialled the connection there is can dial again, and is asked to where that is the
other side. Knows connections and what the system says of them; which stream goes where, `links` and `hardening` decide.
"""

import math

import structlog
import trio
from libp2p.abc import INetConn
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from node.changes import every, seen
from node.network.errors import NetworkError
from node.network.interface import TcpPath
from node.network.links import MAX_LANES, Links, close_quietly, session_of
from node.network.requests import Requests
from node.network.sockets import Tcp
from node.network.yamux import YamuxSession
from protocol.identity import Address

log = structlog.get_logger(__name__)

PROTOCOL = "/intellect-node/lanes/1"
LOOK_SECONDS = 0.1
"""Between two looks at the paths, while something goes by them in bulk."""


class PathWatch:
    """What was seen of the path to one peer. Pure."""

    def __init__(self) -> None:
        self.opening = False
        self.dialling = 0
        self.dialled = trio.Event()
        self.retry_at = float("-inf")
        self._seen: list[Tcp] = []
        self._forget(hold=0.0)

    def look(self, found: list[Tcp]) -> bool:
        """Whether the path loses by itself, by all its connections. Each look has the connections in one order."""
        pairs, self._seen = list(zip(self._seen, found, strict=False)), found
        sent = sum(max(now.segments - was.segments, 0) for was, now in pairs)
        again = sum(max(now.sent_again - was.sent_again, 0) for was, now in pairs)
        trip = min((each.least_rtt for each in found), default=0.0)
        self._hold -= LOOK_SECONDS
        self._quiet += LOOK_SECONDS
        fades = 0.98  # what is left of the segments counted when the next look adds its own
        if _queues([now for was, now in pairs if now.segments > was.segments]):
            # After a queue was seen, so long and so many round trips loss counts for nothing: it may be of that queue,
            # as a first overshoot is, and what was lost of one window is sent again over several round trips.
            self._forget(hold=max(2.0, 12 * trip))
        # A queue that has just gone leaves losses of its own behind: these say nothing of the path.
        elif self._hold <= 0:
            self._sent, self._again = fades * self._sent + sent, fades * self._again + again
            # What one window lost is one event, however many looks it takes to be sent again.
            if again and self._quiet >= trip:
                self._fresh, self._quiet = self._fresh + 1, 0.0
        lossy = 0.004  # share of segments that are sent again
        # Looks with new loss, a round trip apart, before lanes are opened. At 5 % and 300 ms there is one in two
        # seconds.
        return self._fresh >= 2 and self._again > lossy * self._sent and not self.is_near

    @property
    def is_near(self) -> bool:
        """Whether no lane is opened whatever is lost, by the last look."""
        # Seconds of a round trip: at that loss one connection carries 200 Mbit/s there, and what is sent again on a
        # loopback is late, for want of a processor, and not lost.
        return min((each.least_rtt for each in self._seen), default=0.0) < 0.001

    @property
    def step(self) -> int:
        """Lanes to open at once."""
        # Lanes opened at once, per second of the round trip, which each carries so much less for; four at least. A
        # queue that they fill is seen before the next are opened, so that the path gets no more of them than it takes
        # to fill it.
        return max(4, round(40.0 * min((each.least_rtt for each in self._seen), default=0.0)))

    def opens(self) -> None:
        """Lanes are being opened: more follow only for loss that these meet."""
        self.opening = True
        self._forget(hold=0.0)

    def _forget(self, hold: float) -> None:
        """hold: seconds in which loss counts for nothing."""
        self._hold, self._quiet, self._fresh, self._sent, self._again = hold, math.inf, 0, 0.0, 0.0


def _queues(active: list[Tcp]) -> bool:
    """Whether something queues on the path. A queue lengthens the round trips of most connections; a lost
    acknowledgement lengthens one connection's for a second, and makes it vary."""
    least = min((each.least_rtt for each in active), default=0.0)
    # How much longer than the shortest a round trip may be while nothing queues.
    longer = sum(each.rtt - each.varies > least * 1.1 + 0.03 for each in active)
    return 2 * longer > len(active)


class Lanes:
    """Opens lanes, and closes those that it has opened once nothing goes by them."""

    def __init__(self, links: Links, requests: Requests, *, dial_seconds: float = 10.0, pause: float = 30.0) -> None:
        self._dial_seconds = dial_seconds
        self._pause = pause  # after lanes could not be opened
        self._links = links
        self._requests = requests
        self._watched: dict[ID, PathWatch] = {}
        self._bulk: dict[YamuxSession, tuple[int, float]] = {}
        self._opened: dict[INetConn, float] = {}
        self._nursery: trio.Nursery | None = None
        requests.serve(PROTOCOL, self._asked, max_request=1)

    async def run(self) -> None:
        """Look at the paths until cancelled."""
        # Seconds until the next look while nothing goes by the paths in bulk: lanes that nobody uses are to be closed.
        idle_look_seconds = 5.0

        async def watch() -> None:
            # The first piece rings: no path is looked at by which nothing goes.
            await self._links.sends_bulk.wait(idle_look_seconds if self._opened else math.inf)
            await seen(self._is_quiet, LOOK_SECONDS)

        async with trio.open_nursery() as self._nursery:
            await every(1.0, watch)  # seconds between two looks at what goes to near places

    async def _is_quiet(self) -> bool:
        """Look at the paths; whether nothing goes in bulk by one that may want a lane."""
        now, direct = trio.current_time(), self._links.direct()
        busy = [peer for peer, connections in direct.items() if self._sends_bulk(connections, now)]
        for peer in busy:
            self._look(peer, direct[peer], now)
        self._forget(direct)
        await self._close_idle(now)
        return all(self._watched[peer].is_near for peer in busy)

    def paths(self) -> dict[Address, TcpPath]:
        """What the system says of the direct connections with each peer."""
        found: dict[Address, TcpPath] = {}
        for peer, connections in self._links.direct().items():
            member, told = self._links.known.address_of(peer.to_bytes()), _tcp_of(connections)
            if member is not None and told:
                sent = sum(each.segments for each in told)
                found[member] = TcpPath(
                    connections=len(connections),
                    congestion=told[0].congestion,
                    rtt_ms=round(1000 * told[0].rtt, 1),
                    least_rtt_ms=round(1000 * min(each.least_rtt for each in told), 1),
                    loss=round(sum(each.sent_again for each in told) / max(sent, 1), 4),
                )
        return found

    def _sends_bulk(self, connections: list[INetConn], now: float, *, stall_seconds: float = 1.0) -> bool:
        """Now, or a moment ago: a connection that waits to send a lost segment again takes nothing meanwhile."""
        sends = False
        for session in map(session_of, connections):
            said, since = self._bulk.get(session, (0, float("-inf")))
            if session.bulk != said:
                since = now
            self._bulk[session] = (session.bulk, since)
            sends = sends or now - since < stall_seconds
        return sends

    def _look(self, peer: ID, connections: list[INetConn], now: float) -> None:
        watch = self._watched.setdefault(peer, PathWatch())
        lacking = MAX_LANES + 1 - len(connections) - watch.dialling
        if watch.look(_tcp_of(connections)) and lacking > 0 and not watch.opening and now >= watch.retry_at:
            watch.opens()
            self._start(peer, connections, watch)

    def _start(self, peer: ID, connections: list[INetConn], watch: PathWatch) -> None:
        if self._nursery is not None:
            # Only who dialled knows an address at which the other one listens; the other side asks it to.
            if session_of(connections[0]).is_initiator:
                self._nursery.start_soon(self._open, peer, connections, watch)
            else:
                self._nursery.start_soon(self._ask, peer, watch)

    async def _open(self, peer: ID, connections: list[INetConn], watch: PathWatch) -> None:
        """Some more, to the very address that was dialled before.

        Returns once half of them are there. A dial that loses a packet of its own takes one to three seconds longer,
        and what the others meet says meanwhile whether more are of use.
        """
        lacking = MAX_LANES + 1 - len(connections) - watch.dialling
        opened = max(min(watch.step, lacking, self._links.spare() - watch.dialling), 0)
        try:
            place = connections[0].get_transport_addresses()[0]
            if self._nursery is not None:
                watch.dialling += opened
                for _ in range(opened):
                    self._nursery.start_soon(self._dial, peer, place, watch)
            while watch.dialling > opened // 2:
                await watch.dialled.wait()
        finally:
            watch.opening = False

    async def _dial(self, peer: ID, place: Multiaddr, watch: PathWatch) -> None:
        try:
            with trio.fail_after(self._dial_seconds):
                self._opened[await self._links.dial_beside(peer, place)] = trio.current_time()
        except Exception as error:  # the library's own are many
            log.debug("network.no_lane", peer=str(peer), error=repr(error))
            watch.retry_at = trio.current_time() + self._pause
        finally:
            watch.dialling -= 1
            watch.dialled.set()
            watch.dialled = trio.Event()

    async def _ask(self, peer: ID, watch: PathWatch) -> None:
        """The other side to do that. It answers once half of them are there."""
        member = self._links.known.address_of(peer.to_bytes())
        before = len(self._links.direct().get(peer, ()))
        try:
            if member is not None:
                with trio.move_on_after(self._dial_seconds):
                    await self._requests.ask(member, PROTOCOL, b"", 1)
        except NetworkError as error:
            log.debug("network.no_lane", peer=member, error=repr(error))
        finally:
            if len(self._links.direct().get(peer, ())) <= before:
                watch.retry_at = trio.current_time() + self._pause / 10
            watch.opening = False

    async def _asked(self, asker: Address, request: bytes) -> bytes:
        """A member that sends us much says that the path is lossy."""
        # Checked against our own table: a stranger's question must not make this node dial anybody.
        connections = self._links.direct_with(asker)
        if not connections or not self._links.known.is_member(asker):
            return b""
        peer, now = connections[0].muxed_conn.peer_id, trio.current_time()
        watch = self._watched.setdefault(peer, PathWatch())
        ours = session_of(connections[0]).is_initiator
        if ours and len(connections) <= MAX_LANES and not watch.opening and now >= watch.retry_at:
            watch.opens()
            await self._open(peer, connections, watch)
        return b""

    async def _close_idle(self, now: float, *, idle_seconds: float = 60.0) -> None:
        for lane in list(self._opened):
            if lane.is_closed:
                del self._opened[lane]
            # Kept streams count as use: a lane that is closed under one would cost it a request.
            elif session_of(lane).streams:
                self._opened[lane] = now
            elif now - self._opened[lane] > idle_seconds:
                del self._opened[lane]
                await close_quietly(lane)

    def _forget(self, direct: dict[ID, list[INetConn]]) -> None:
        for peer in self._watched.keys() - direct.keys():
            del self._watched[peer]
        for session in [each for each in self._bulk if each.is_closed]:
            del self._bulk[session]


def _tcp_of(connections: list[INetConn]) -> list[Tcp]:
    return [told for each in connections if (told := session_of(each).tcp()) is not None]
