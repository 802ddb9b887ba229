"""A network inside one process, for tests of whole swarms under a mock clock.

Keeps the contract of `interface.Network`: authenticated addresses, connections that follow from
contacts, gossip that floods through accepting subscribers, requests with limits and deadlines.
The hub has switches that a real network lacks: `delay`, `drop`, `partition`, `isolate`.
"""

import random
from collections.abc import Iterable, Mapping, Set

import structlog
import trio

from node.network.contacts import AddressSet, Multiaddrs, address_set
from node.network.errors import (
    MessageTooLarge,
    NotRunning,
    PeerMisbehaved,
    PeerUnavailable,
    RequestRefused,
    RequestTimedOut,
)
from node.network.interface import (
    MAX_GOSSIP_BYTES,
    SUBSCRIPTION_BUFFER,
    Accept,
    Handler,
    NetworkCounters,
    NetworkStats,
    SentResponse,
    TcpPath,
)
from protocol.identity import Address, NodeKey, PeerId

log = structlog.get_logger(__name__)
Arriving = tuple[float, str, Address, bytes, set[Address]]
"""(when, topic, publisher, data, who has seen it) of gossip on its way."""


class MemoryHub:
    """The ether between the MemoryNetworks that were made with it.

    delay: seconds that every message, request and response takes; drop: share (0..1) of gossip
    hops that are lost, by a seeded generator so that a test repeats exactly.
    """

    def __init__(self, *, delay: float = 0.0, drop: float = 0.0, seed: int = 0) -> None:
        self.delay = delay
        self.drop = drop
        self._random = random.Random(seed)
        self._networks: dict[Address, list[MemoryNetwork]] = {}
        """Of one address there may be several: daemons with one key. A request goes to the newest."""
        self._islands: dict[Address, int] = {}

    def partition(self, *islands: Iterable[Address]) -> None:
        """Only nodes of the same island reach each other; those not named form one more."""
        self._islands = {node: number for number, island in enumerate(islands, 1) for node in island}

    def isolate(self, node: Address) -> None:
        """Cut one node off from all others."""
        self._islands[node] = -1 - len(self._islands)

    def heal(self) -> None:
        """End every partition."""
        self._islands.clear()

    def attach(self, network: "MemoryNetwork") -> None:
        self._networks.setdefault(network.address, []).append(network)

    def detach(self, network: "MemoryNetwork") -> None:
        left = [one for one in self._networks.get(network.address, ()) if one is not network]
        self._networks[network.address] = left

    def mix(self, due: "list[Arriving]", reader: Address) -> None:
        """Put what comes to a network at one moment in an order of its own."""
        random.shuffle(due)

    def lost(self) -> bool:
        """Whether the next gossip hop is to be lost."""
        return self.drop > 0 and self._random.random() < self.drop

    def peer(self, of: "MemoryNetwork", address: Address) -> "MemoryNetwork | None":
        """The running network at `address` if `of` has a connection with it."""
        others = self._networks.get(address) or [None]
        return self._reached(of, others[-1])

    def _reached(self, of: "MemoryNetwork", other: "MemoryNetwork | None") -> "MemoryNetwork | None":
        # Daemons with one key do not dial each other: to each the other is itself.
        if other is None or other.address == of.address or of not in self._networks.get(of.address, ()):
            return None
        address = other.address
        if self._islands.get(of.address, 0) != self._islands.get(address, 0):
            return None
        return other if of.wants(other) or other.wants(of) else None

    def peers(self, of: "MemoryNetwork", but: Set[Address] = frozenset()) -> "list[MemoryNetwork]":
        """but: whom not to look for."""
        others = (one for address, row in self._networks.items() if address not in but for one in row)
        found = (self._reached(of, one) for one in others)
        return [peer for peer in found if peer is not None]


class MemoryNetwork:
    """`interface.Network` over a MemoryHub."""

    private = True

    def __init__(self, key: NodeKey, hub: MemoryHub) -> None:
        self.address: Address = key.address
        self.peer_id: PeerId = key.peer_id
        self._hub = hub
        self._tally = NetworkCounters()
        self._contacts: dict[Address, AddressSet | None] = {}
        self._muted: dict[Address, float] = {}
        self._accepts: dict[str, Accept] = {}
        self._queues: dict[str, trio.MemorySendChannel[tuple[Address, bytes]]] = {}
        self._handlers: dict[str, tuple[Handler, int]] = {}
        self._runs = False
        self._arriving: list[Arriving] = []
        self._arrives = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be on the hub until cancelled."""
        self._hub.attach(self)
        self._runs = True
        try:
            task_status.started()
            await self._receive_always()
        finally:
            self._hub.detach(self)
            self._runs = False
            self._arriving.clear()

    def contacts(self) -> tuple[str, ...]:
        return (f"/ip4/127.0.0.1/tcp/1/p2p/{self.peer_id}",) if self._runs else ()

    def listening(self) -> tuple[str, ...]:
        return ("/ip4/127.0.0.1/tcp/1",) if self._runs else ()

    def set_contact(self, member: Address, told: Multiaddrs | None) -> None:
        """A member whose contact cannot be read is not dialled; if it was before, it stays connected."""
        if told is None:
            self._contacts.pop(member, None)
        elif member != self.address:
            self._contacts[member] = address_set(member, told) or self._contacts.get(member)

    def stay_with(self, members: Set[Address]) -> None:
        """On a hub everybody is connected with everybody it knows."""

    def failures(self) -> Mapping[Address, int]:
        return {}

    def mute(self, member: Address, seconds: float) -> None:
        self._muted[member] = trio.current_time() + seconds

    def wants(self, other: "MemoryNetwork") -> bool:
        """Whether we dial `other`."""
        return self._contacts.get(other.address) is not None

    def connected(self) -> frozenset[Address]:
        return frozenset(peer.address for peer in self._hub.peers(self))

    def relayed(self) -> frozenset[Address]:
        return frozenset()

    def punched(self) -> frozenset[Address]:
        return frozenset()

    def unpunched(self) -> frozenset[Address]:
        return frozenset()

    def lanes(self, peer: Address) -> int:
        return 0

    def paths(self) -> dict[Address, TcpPath]:
        return {}

    def told_host(self, host: str) -> None:
        """Nobody on a hub is hidden."""

    def seen_at(self, peer: Address) -> str | None:
        return "/ip4/127.0.0.1/tcp/1" if peer in self.connected() else None

    def offer_relay(self, offered: bool) -> None:
        """Everybody on a hub reaches everybody."""

    async def reserve(self, relay: Address) -> float:
        raise RequestRefused(relay, "it is no relay for us: everybody on a hub reaches everybody")

    def release(self) -> None:
        """Nothing is ever reserved."""

    def stats(self) -> NetworkStats:
        return self._tally.snapshot(len(self.connected()))

    # -- gossip ------------------------------------------------------------------------------------

    async def publish(self, topic: str, data: bytes) -> None:
        if len(data) > MAX_GOSSIP_BYTES:
            raise MessageTooLarge(len(data), MAX_GOSSIP_BYTES)
        if not self._runs:
            raise NotRunning
        self._tally.add(messages_out=1, bytes_out=len(data))
        self._spread(topic, self.address, data, {self.address})
        await trio.lowlevel.checkpoint()

    def subscribe(self, topic: str, accept: Accept) -> trio.MemoryReceiveChannel[tuple[Address, bytes]]:
        if topic in self._accepts:
            raise ValueError(f"already subscribed to {topic}")
        send, receive = trio.open_memory_channel[tuple[Address, bytes]](SUBSCRIPTION_BUFFER)
        self._accepts[topic], self._queues[topic] = accept, send
        return receive

    def _spread(self, topic: str, publisher: Address, data: bytes, seen: set[Address]) -> None:
        """Hand the message to every neighbour that has not seen it."""
        for peer in self._hub.peers(self, but=seen):
            if not self._hub.lost() and peer._runs:
                seen.add(peer.address)
                peer.hand(topic, publisher, data, seen)

    def hand(self, topic: str, publisher: Address, data: bytes, seen: set[Address]) -> None:
        """A neighbour sends it this."""
        self._arriving.append((trio.current_time() + self._hub.delay, topic, publisher, data, seen))
        self._arrives.set()

    async def _receive_always(self) -> None:
        """By one task, not one for each message: those were most of what a swarm in memory computed."""
        while True:
            if not self._arriving:
                self._arrives = trio.Event()
                await self._arrives.wait()
            await trio.sleep_until(min(when for when, *_ in self._arriving))
            now = trio.current_time()
            due = [one for one in self._arriving if one[0] <= now]
            self._arriving = [one for one in self._arriving if one[0] > now]
            if self._hub.delay:
                self._hub.mix(due, self.address)  # what is under way at the same time comes in any order
            for _, topic, publisher, data, seen in due:
                self._receive(topic, publisher, data, seen)

    def _receive(self, topic: str, publisher: Address, data: bytes, seen: set[Address]) -> None:
        if topic not in self._accepts:
            return
        if self._muted.get(publisher, 0.0) > trio.current_time():
            self._tally.add(dropped=1)
            return
        try:
            accepted = bool(self._accepts[topic](publisher, data))
        except Exception as error:
            log.debug("network.fault", where="accept", error=repr(error))
            self._tally.add(faults=1)
            accepted = False
        if not accepted:
            self._tally.add(rejected=1)
            return
        try:
            self._queues[topic].send_nowait((publisher, data))
            self._tally.add(messages_in=1, bytes_in=len(data))
        except (trio.WouldBlock, trio.BrokenResourceError):
            self._tally.add(dropped=1)
        self._spread(topic, publisher, data, seen)

    # -- requests ----------------------------------------------------------------------------------

    def serve(self, protocol: str, handler: Handler, *, max_request: int) -> None:
        self._handlers[protocol] = (handler, max_request)

    async def request(self, peer: Address, protocol: str, data: bytes, *, max_response: int, timeout: float) -> bytes:
        if not self._runs:
            raise NotRunning
        self._tally.add(requests_out=1)
        with trio.move_on_after(timeout):
            body = await self._exchange(peer, protocol, data)
            if len(body) > max_response:
                raise PeerMisbehaved(peer, f"{len(body)} bytes announced, at most {max_response} allowed")
            self._tally.add(bytes_out=len(data), bytes_in=len(body))
            return body
        raise RequestTimedOut(peer, timeout)

    async def _exchange(self, peer: Address, protocol: str, data: bytes) -> bytes:
        await trio.sleep(self._hub.delay)
        other = self._hub.peer(self, peer)
        if other is None:
            raise PeerUnavailable(peer, "it is not connected")
        answer = await other._answer(self.address, protocol, data)
        delivered = False
        try:
            body = answer.body if isinstance(answer, SentResponse) else answer
            await trio.sleep(self._hub.delay)
            if self._hub.peer(self, peer) is not other:
                raise PeerUnavailable(peer, "the stream was cut")
            delivered = True
            return body
        finally:
            if isinstance(answer, SentResponse):
                answer.sent(delivered)

    async def _answer(self, asker: Address, protocol: str, data: bytes) -> bytes | SentResponse:
        if protocol not in self._handlers:
            raise PeerUnavailable(self.address, f"it does not serve {protocol}")
        handler, max_request = self._handlers[protocol]
        if len(data) > max_request:
            raise RequestRefused(self.address, "the request is larger than it accepts")
        self._tally.add(requests_in=1, bytes_in=len(data))
        try:
            answer = await handler(asker, data)
        except Exception as error:
            log.debug("network.fault", where=protocol, error=repr(error))
            self._tally.add(faults=1)
            raise PeerUnavailable(self.address, "the stream was cut") from None
        self._tally.add(bytes_out=len(answer.body if isinstance(answer, SentResponse) else answer))
        return answer
