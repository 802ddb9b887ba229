"""A py-libp2p node with its own gossipsub as it comes, in the place of the js node (interop_mesh.py)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from libp2p import new_host
from libp2p.crypto.secp256k1 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pubsub import Pubsub
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as Noise
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.stream_muxer.yamux.yamux import Yamux
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr

MESHSUB = TProtocol("/meshsub/1.1.0")


class Stock:
    """A node of the library's."""

    def __init__(self, host: BasicHost, router: GossipSub, pubsub: Pubsub, nursery: trio.Nursery) -> None:
        self._host, self._router, self._pubsub, self._nursery = host, router, pubsub, nursery
        self._heard: list[str] = []
        self._topic = ""
        self.contact = str(host.get_addrs()[0])

    async def dial(self, contact: str) -> None:
        await self._host.connect(info_from_p2p_addr(Multiaddr(contact)))

    async def join(self, topic: str) -> None:
        self._topic = topic
        self._nursery.start_soon(self._hear, await self._pubsub.subscribe(topic))

    async def _hear(self, subscription: Any) -> None:
        while True:
            self._heard.append((await subscription.get()).data.decode())

    async def say(self, text: str) -> None:
        await self._pubsub.publish(self._topic, text.encode())

    async def told(self) -> dict[str, Any]:
        """It keeps no score."""
        return {"heard": self._heard, "mesh": len(self._router.mesh.get(self._topic, ())), "lowest_score": 0}


@asynccontextmanager
async def py_node() -> AsyncIterator[Stock]:
    """It ends with the context."""
    keys = create_new_key_pair()
    noise = Noise(keys, noise_privkey=create_noise_key_pair().private_key)
    host = new_host(key_pair=keys, sec_opt={TProtocol(str(NOISE)): noise}, muxer_opt={TProtocol(YAMUX): Yamux})
    assert isinstance(host, BasicHost)  # noqa: S101 - without a router it is
    router = GossipSub([MESHSUB], degree=6, degree_low=4, degree_high=12, heartbeat_interval=1)
    pubsub = Pubsub(host, router, strict_signing=True)
    async with host.run([Multiaddr("/ip4/127.0.0.1/tcp/0")]), trio.open_nursery() as nursery:
        async with background_trio_service(pubsub), background_trio_service(router):
            yield Stock(host, router, pubsub, nursery)
            nursery.cancel_scope.cancel()
