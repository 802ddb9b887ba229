"""Who is handed each message at once, and who is only told its name. Pure: packets out are calls of `send`.

For each topic a node pushes messages over a few links (the mesh of meshsub; `mesh`). Whoever brings what another link
has brought before is pruned, so that the links of all nodes shrink to a tree, and a message comes once instead of from
everybody. What the tree loses is asked for (`digests`). The method is that of Plumtree (Leitao, Pereira and Rodrigues,
"Epidemic Broadcast Trees", 2007), in meshsub's words, so that its other implementations take part.

What is added, because a link may be somebody's who forwards what it likes: a link that was silent about a message which
then had to be asked for has failed, and of two links that bring the same the one that failed more is pruned, not the
later one.
"""

from collections.abc import Callable, Container, Iterable
from itertools import chain
from random import Random

from google.protobuf.message import Message
from libp2p.pubsub.pb import rpc_pb2

from node.network.gossip.digests import Digests
from node.network.gossip.mesh import FIRST_LINKS, Mesh
from node.network.gossip.messages import DigestForm, MessageCache, name_of
from node.network.gossip.peers import MAX_TOPICS, GossipPeers, Send
from node.network.packets import packet

MAX_TOPIC_LENGTH = 256
TICK = 0.5


class Trees:
    """As of `GossipPeers`. links: by topic, of those that we hear."""

    def __init__(
        self, send: Send, clock: Callable[[], float], is_member: Callable[[bytes], bool], draw: Random
    ) -> None:
        self.heard = MessageCache()
        self.peers = GossipPeers(send, clock, is_member, draw)
        self._mesh = Mesh(self.peers)
        self._digests = Digests(self.peers, self._mesh, self.heard)
        self.links = self._mesh.links
        self._came = 0
        self._rate = 0.0

    # topics and peers

    def join(self, topic: str) -> None:
        """Hear a topic from now on."""
        self.links[topic] = set()
        news = packet(rpc_pb2.RPC(subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid=topic)]))
        for peer in self.peers.open():
            self.peers.send(peer, news)
        self._mesh.fill(topic)

    def opened(self, peer: bytes, *, kin: bool = True) -> None:
        """It can be sent to, and was sent nothing yet. kin: whether it runs our program."""
        known = self.peers.of(peer)
        known.open, known.kin = True, kin
        known.form = DigestForm.SPECIFIED if kin else known.form
        topics = [rpc_pb2.RPC.SubOpts(subscribe=True, topicid=topic) for topic in self.links]
        if topics:
            self.peers.send(peer, packet(rpc_pb2.RPC(subscriptions=topics)))
        for topic in known.topics & self.links.keys():
            self._meets(peer, topic)

    def closed(self, peer: bytes) -> None:
        """It cannot be sent to any more."""
        if peer in self.peers.known:
            self.peers.known[peer].open = False
            self._mesh.unlink(peer)

    def hushed(self, peer: bytes) -> None:
        """It ended the stream on which it spoke: on the next one it says anew what it hears."""
        if peer in self.peers.known:
            self.peers.known[peer].topics.clear()
            self._mesh.unlink(peer)

    def gone(self, peer: bytes) -> None:
        self.peers.known.pop(peer, None)
        self._mesh.unlink(peer)

    def subscribed(self, peer: bytes, changes: Iterable[rpc_pb2.RPC.SubOpts]) -> None:
        """What a peer says that it hears, or no longer."""
        known = self.peers.of(peer)
        for change in changes:
            topic = change.topicid
            if not self.peers.affords(known) or len(topic) > MAX_TOPIC_LENGTH:
                return
            if not change.subscribe:
                known.topics.discard(topic)
                self.links.get(topic, set()).discard(peer)
            elif topic not in known.topics and len(known.topics) < MAX_TOPICS:
                known.topics.add(topic)
                if topic in self.links and known.open:
                    self._meets(peer, topic)

    def _meets(self, peer: bytes, topic: str) -> None:
        """It hears the topic that we hear: it is told the last messages, and may become a link."""
        self._digests.tell(topic, [peer])
        # A stranger becomes a link only while there is no other: it may forward what it likes.
        if len(self.links[topic]) < FIRST_LINKS and (self.peers.is_member(peer) or not self.links[topic]):
            self._mesh.graft(peer, topic)

    # messages

    def knows(self, giver: bytes, message: rpc_pb2.Message) -> bool:
        """Whether it came before. One of two links that bring the same is pruned, and whoever takes us for a link."""
        name, topic = name_of(message), message.topicIDs[0]
        first, links = self.heard.first(name), self.links.get(topic, ())
        if first is None:
            return False
        if giver not in links and self._is_pushed(giver, message) and self.peers.affords(self.peers.of(giver)):
            self._mesh.prune(giver, topic)
        elif self._are_twins(first.giver, giver, links) and self._dares(first.at):
            # By failures, not by time: a link that withholds messages must not survive by being fast with the others.
            worse = self.peers.of(first.giver).failures > self.peers.of(giver).failures
            self._mesh.prune(first.giver if worse else giver, topic)
        return True

    def _are_twins(self, one: bytes, other: bytes, links: Container[bytes]) -> bool:
        """Two links of our tree."""
        return one != other and one in links and other in links and self.peers.of(one).kin and self.peers.of(other).kin

    def _dares(self, first_at: float) -> bool:
        """Two messages that are on their way around one circle of links at once, each in its direction, meet at two
        places: were both cut, the tree would be in two parts. So the more messages come within the time between two
        copies, the more seldom a copy costs a link."""
        others = self._rate * (self.peers.clock() - first_at)
        # Other messages, within the time between two copies of one, that let a link be pruned at once.
        return self.peers.draw.random() * others < 0.005

    def _is_pushed(self, giver: bytes, message: rpc_pb2.Message) -> bool:
        """Neither asked for nor its own: it comes because the giver takes us for a link."""
        return message.from_id != giver and name_of(message) not in self._digests.asked

    def came(self, giver: bytes, message: rpc_pb2.Message) -> None:
        """A message that nobody brought before, and that its author signed."""
        name, topic = name_of(message), message.topicIDs[0]
        links = self.links.get(topic, set())
        if self._is_pushed(giver, message):
            self.peers.of(giver).brought += 1
            if giver not in links and self._mesh.has_room(giver, topic):
                self._mesh.link(giver, topic)  # our PRUNE and its GRAFT have crossed
        if self._digests.came(name):
            # It had to be asked for, so every link that should have pushed it has failed once.
            for link in links - {giver}:
                self.peers.of(link).failures += 1
        self._came += 1
        # A giver that is no link is not remembered: its copy must not count as one of two links' later.
        self.heard.note(name, giver if giver in links else b"", self.peers.clock())

    def spread(self, message: rpc_pb2.Message, giver: bytes = b"") -> None:
        """Hand a message on. giver: raw peer id of whom it came from, empty for a message of our own."""
        if not giver:
            self.heard.note(name_of(message), b"", self.peers.clock())
        self.heard.keep(message)
        data = packet(rpc_pb2.RPC(publish=[message]))
        topic = message.topicIDs[0]
        links = self.links.get(topic) or self.peers.some(self.peers.hearers(topic), FIRST_LINKS)
        # Nothing goes to others beside the tree: copies from two places meet at an edge, and both its ends prune it.
        for peer in links:
            if peer not in (giver, message.from_id):
                self.peers.send(peer, data)

    # control

    def control(self, peer: bytes, control: rpc_pb2.ControlMessage) -> None:
        """What a peer says about links and messages. Once its budget is spent the rest is not looked at; foreign topics
        cost as much, and do nothing."""
        known = self.peers.of(peer)
        for said in chain(control.graft, control.prune, control.ihave, control.iwant):
            if not self.peers.affords(known):
                return
            if isinstance(said, rpc_pb2.ControlIWant):
                self._digests.asked_for(peer, said)
            elif said.topicID in self.links:
                self._handle(peer, said)

    def _handle(self, peer: bytes, said: Message) -> None:
        if isinstance(said, rpc_pb2.ControlGraft):
            self._mesh.grafted(peer, said.topicID)
        elif isinstance(said, rpc_pb2.ControlPrune):
            self._mesh.pruned(peer, said)
        elif isinstance(said, rpc_pb2.ControlIHave):
            self._digests.told(peer, said)

    # time

    def tick(self) -> None:
        """Every TICK seconds."""
        self.heard.tick()
        self._rate += (self._came / TICK - self._rate) * 0.2  # what the last tick counts in the rate of messages
        self._came = 0
        self._digests.ask()
        self.peers.tick()
        for topic in self.links:
            self._mesh.fill(topic)
            # Every second tick: a digest is half of all the bytes that a quiet swarm sends.
            if self.heard.now % 2 == 0:
                self._digests.digest(topic)
