"""The library's parts of one node, put together, and how they live and end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from libp2p.abc import INetConn, INetStream, INetwork, INotifee
from libp2p.crypto.secp256k1 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.transport.upgrader import TransportUpgrader
from multiaddr import Multiaddr

from node.limits import open_files
from node.network import yamux
from node.network.dialling import DIAL_SECONDS
from node.network.gossip.gossip import Gossip
from node.network.hardening import Fault, HardMuxer, HardSwarm, HardTcp, SupervisedTasks
from node.network.links import Links, close_quietly
from node.network.noise import LeanNoise
from node.network.screening import GossipScreen
from protocol.identity import NodeKey

# A pool may have more members than this; a node dials a part of them, and news reaches the rest by gossip.
MAX_CONNECTIONS = 512


class Stack:
    """`host`, `swarm` and `gossip` of one start."""

    def __init__(
        self, key: NodeKey, links: Links, screen: GossipScreen, fault: Fault, *, private: bool, boot: int
    ) -> None:
        self._fault = fault
        keys = create_new_key_pair(key.secret)
        own = ID.from_pubkey(keys.public_key)
        # Contacts, lots and stakes hang on the id that the address gives: another one would be another node.
        if own.to_base58() != key.peer_id:
            raise AssertionError("libp2p derives another peer id than protocol.identity")
        peerstore = PeerStore()
        peerstore.add_key_pair(own, keys)
        # A new static key at each start: it is signed by the node's key, and a stolen one is worth nothing after.
        noise = LeanNoise(keys, noise_privkey=create_noise_key_pair().private_key)
        upgrader = TransportUpgrader({TProtocol(str(NOISE)): noise}, {})
        upgrader.muxer_multistream = HardMuxer({TProtocol(YAMUX): yamux.YamuxSession}, links.sends_bulk.ring)
        # Half of the files that may be open: blobs, the journal and children need the others.
        most = min(MAX_CONNECTIONS, open_files() // 2)
        self.swarm = HardSwarm(
            own,
            peerstore,
            upgrader,
            [HardTcp(private=private)],
            # Whom to dial again, and when, is the redialler's to say (`redial.py`).
            retry_config=RetryConfig(max_retries=0),
            connection_config=ConnectionConfig(
                max_connections=most,
                high_watermark=most,
                # 0: the library keeps no number of connections up by itself; the redialler does.
                low_watermark=0,
                min_connections=0,
                dial_timeout=DIAL_SECONDS,
            ),
        )
        self.swarm.fault = fault
        # What a peer says of its addresses by identify is nobody's signed word (peerbook has that).
        self.host = BasicHost(self.swarm, disable_identify_address_discovery=True)
        self.gossip = Gossip(self.host, keys.private_key, screen, links.still_connected, links.is_best, boot)
        self.swarm.register_notifee(_Arrivals(links, self.gossip))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run libp2p's parts; they outlive a cancellation until we have said goodbye."""
        async with trio.open_nursery() as nursery:
            scope = await nursery.start(self._run)
            try:
                yield
            finally:
                # A peer that has gone does not answer a goodbye, and a daemon that ends must not wait for it.
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 3.0):
                    await self._say_goodbye()
                scope.cancel()

    async def _run(self, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope(shield=True) as scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(SupervisedTasks(self.swarm, self._fault).run)
                await nursery.start(self.gossip.run)
                task_status.started(scope)

    async def _say_goodbye(self) -> None:
        async with trio.open_nursery() as nursery:
            for connection in self.swarm.get_connections():
                nursery.start_soon(close_quietly, connection)
        await self.host.close()


class _Arrivals(INotifee):
    """Tells of connections that come and go."""

    def __init__(self, links: Links, gossip: Gossip) -> None:
        self._links = links
        self._gossip = gossip

    async def connected(self, network: INetwork, conn: INetConn) -> None:
        self._links.arrived(conn)
        self._gossip.arrived(conn.muxed_conn.peer_id.to_bytes())

    async def disconnected(self, network: INetwork, conn: INetConn) -> None:
        self._links.left(conn)
        self._gossip.left(conn.muxed_conn.peer_id.to_bytes())

    async def opened_stream(self, network: INetwork, stream: INetStream) -> None:
        return None

    async def closed_stream(self, network: INetwork, stream: INetStream) -> None:
        return None

    async def listen(self, network: INetwork, multiaddr: Multiaddr) -> None:
        return None

    async def listen_close(self, network: INetwork, multiaddr: Multiaddr) -> None:
        return None
