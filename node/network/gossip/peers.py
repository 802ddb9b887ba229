"""What a node's gossip knows of each connected peer, and how it reaches them."""

from collections.abc import Callable, Sequence
from random import Random

from google.protobuf.message import Message
from libp2p.pubsub.pb import rpc_pb2

from node.network.budget import TokenBucket
from node.network.gossip.messages import DigestForm
from node.network.packets import packet

MAX_TOPICS = 32
"""Of one peer that are remembered."""
CONTROLS = (50.0, 500.0)
"""Control messages and subscriptions of one peer, per second and in a burst."""
ANSWERED_BYTES = (256.0 * 1024, 2.0 * 1024**2)
"""Of messages that one peer asks for, per second and in a burst."""

Send = Callable[[bytes, bytes], None]
"""(raw peer id, packet): to that peer."""


class GossipPeer:
    """What is known of a connected peer. open: whether it can be sent to; kin: whether it runs our program; form: how
    it names messages, if that is known; backoff: until when it is not grafted without need; barred: until when not at
    all; named: how many unknown messages since the last tick; brought: others' messages that came by it
    first, fading."""

    def __init__(self) -> None:
        self.open = False
        self.kin = False
        self.form: DigestForm | None = None
        self.topics: set[str] = set()
        self.backoff: dict[str, float] = {}
        self.barred: dict[str, float] = {}
        self.failures = self.brought = 0.0
        self.named = 0
        self.controls = TokenBucket(*CONTROLS)
        self.bytes = TokenBucket(*ANSWERED_BYTES)


class GossipPeers:
    """clock: seconds, monotonic; is_member: whether a raw peer id is a member's; draw: who chooses among peers."""

    def __init__(
        self, send: Send, clock: Callable[[], float], is_member: Callable[[bytes], bool], draw: Random
    ) -> None:
        self.send, self.clock, self.is_member, self.draw = send, clock, is_member, draw
        self.known: dict[bytes, GossipPeer] = {}

    def of(self, peer: bytes) -> GossipPeer:
        """What is known of it: from now on, if nothing was."""
        known = self.known.get(peer)
        if known is None:
            known = self.known[peer] = GossipPeer()
        return known

    def control(self, peer: bytes, **said: Sequence[Message]) -> None:
        """Say something about links and messages: graft, prune, ihave or iwant."""
        self.send(peer, packet(rpc_pb2.RPC(control=rpc_pb2.ControlMessage(**said))))  # type: ignore[arg-type]

    def affords(self, known: GossipPeer) -> bool:
        """Whether a peer may say one thing more."""
        return known.controls.take(1, self.clock())

    def is_open(self, peer: bytes) -> bool:
        known = self.known.get(peer)
        return known is not None and known.open

    def form(self, peer: bytes) -> DigestForm | None:
        known = self.known.get(peer)
        return known.form if known else None

    def failures(self, peer: bytes) -> float:
        return self.known[peer].failures if self.is_open(peer) else float("inf")

    def is_other(self, peer: bytes) -> bool:
        """A member that runs another program."""
        return self.is_member(peer) and not self.of(peer).kin

    def open(self) -> list[bytes]:
        """All that can be sent to."""
        return [peer for peer, known in self.known.items() if known.open]

    def hearers(self, topic: str) -> list[bytes]:
        """Who hears a topic and can be sent to: members, or where there is none, strangers."""
        found = self.all_hearers(topic)
        return [peer for peer in found if self.is_member(peer)] or found

    def all_hearers(self, topic: str) -> list[bytes]:
        return [peer for peer, known in self.known.items() if known.open and topic in known.topics]

    def some(self, peers: Sequence[bytes], most: int) -> list[bytes]:
        return self.draw.sample(peers, min(len(peers), max(most, 0)))

    def tick(self) -> None:
        """Half a second has gone by: what they did counts for less."""
        forgiven = 0.99  # of a link's failures and merits, left after each tick: half after 35 s
        for peer in self.known.values():
            peer.failures *= forgiven
            peer.brought *= forgiven
            peer.named = 0
