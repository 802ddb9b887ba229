"""The links of a node: over which it pushes the messages of each topic, and who may hold one.

A link is made by GRAFT and ended by PRUNE. It may be somebody's who forwards what it likes:

- links are made with members, and strangers may hold a few at most;
- a link of another program is a link of its own mesh: it brings what others bring too, and is not pruned for that.
  Anybody can say that it is one, so there are few such links, and one that brings nothing before others do gives way to
  whoever asks for its place.
"""

from libp2p.pubsub.pb import rpc_pb2

from node.bounded_dict import BoundedDict
from node.network.gossip.peers import GossipPeers

FIRST_LINKS = 3
"""Made with the peers that are met first, and by whoever has none: a start for the tree."""
MOST_LINKS_OF_STRANGERS = 4
MAX_TURNS = 1024


class Mesh:
    """links: by topic, of those that we hear."""

    def __init__(self, peers: GossipPeers, *, turn: float = 60.0, backoff: int = 2) -> None:
        self._turn = turn  # seconds for which such a link is kept, whatever it brings
        # Seconds after a PRUNE before a new GRAFT, unless it is needed: our own nodes take that at any time, or a tree
        # that is broken would not be mended for two seconds. Who asks for more is of another program, and gets it.
        self._backoff = backoff
        self.links: dict[str, set[bytes]] = {}
        self._peers = peers
        self._turns: BoundedDict[bytes, float] = BoundedDict(MAX_TURNS)
        """Members that run another program: when the last turn of each as a link began."""

    def has_room(self, peer: bytes, topic: str) -> bool:
        """Strangers hold few links, other programs some, and our own members are never turned away for them."""
        links = self.links[topic]
        members = [link for link in links if self._peers.is_member(link)]
        most_links = 16
        if not self._peers.is_member(peer):
            return len(links) - len(members) < MOST_LINKS_OF_STRANGERS and len(links) < most_links
        others = sum(map(self._peers.is_other, members))
        # Of members that run another program: such links are not pruned for what others bring too, so whoever holds
        # them may hand on nothing.
        may = self._peers.of(peer).kin or others < 4
        # Strangers' places are never given to members, nor members' to strangers: neither can crowd out the other.
        return may and len(members) < most_links - MOST_LINKS_OF_STRANGERS

    def _makes_room(self, peer: bytes, topic: str) -> bool:
        """One of the other programs' links whose turn is over, and which brings nothing, gives way to another."""
        if not self._peers.is_other(peer):
            return False
        others = filter(self._peers.is_other, self.links[topic])
        over = [link for link in others if self._peers.clock() - self._turns.get(link, 0.0) >= self._turn]
        least = min(over, key=lambda link: self._peers.of(link).brought, default=None)
        # Merits of a link that is of use: a message in the last 35 s.
        if least is None or self._peers.of(least).brought >= 0.5:
            return False
        self.prune(least, topic)
        return self.has_room(peer, topic)

    def link(self, peer: bytes, topic: str) -> None:
        """Who leaves its place, or goes, and takes it again begins no new turn."""
        self.links[topic].add(peer)
        now, began = self._peers.clock(), self._turns.get(peer)
        if self._peers.is_other(peer) and (began is None or now - began >= 2 * self._turn):
            self._turns[peer] = now

    def unlink(self, peer: bytes) -> None:
        for topic, links in self.links.items():
            if peer in links:
                links.discard(peer)
                self.fill(topic)

    def grafted(self, peer: bytes, topic: str) -> None:
        links = self.links[topic]
        if peer in links:
            return
        if self.has_room(peer, topic) or self._makes_room(peer, topic):
            self.link(peer, topic)
        else:
            self.prune(peer, topic)

    def pruned(self, peer: bytes, prune: rpc_pb2.ControlPrune) -> None:
        """Peers that it names instead are not dialled: whom we dial, the chain says."""
        known = self._peers.of(peer)
        most_backoff = 3600
        wait = min(max(prune.backoff, self._backoff), most_backoff)
        known.backoff[prune.topicID] = self._peers.clock() + wait
        # Only a peer that asks for more than the usual pause is barred; ours can be grafted again when needed.
        if wait > self._backoff:
            known.barred[prune.topicID] = self._peers.clock() + wait
        self.links[prune.topicID].discard(peer)
        self.fill(prune.topicID)

    def fill(self, topic: str) -> None:
        """First links, for whoever has none."""
        links = self.links[topic]
        if links:
            return
        now = self._peers.clock()
        free = [peer for peer in self._peers.hearers(topic) if self._peers.known[peer].backoff.get(topic, 0.0) <= now]
        for peer in self._peers.some(free, FIRST_LINKS - len(links)):
            self.graft(peer, topic)

    def graft(self, peer: bytes, topic: str, *, needed: bool = False) -> None:
        links, known = self.links[topic], self._peers.of(peer)
        waits = known.barred if needed else known.backoff
        if peer in links or waits.get(topic, 0.0) > self._peers.clock() or not self.has_room(peer, topic):
            return
        self.link(peer, topic)
        graft = rpc_pb2.ControlGraft(topicID=topic)
        self._peers.control(peer, graft=[graft])

    def prune(self, peer: bytes, topic: str) -> None:
        self.links[topic].discard(peer)
        prune = rpc_pb2.ControlPrune(topicID=topic, backoff=self._backoff)
        self._peers.control(peer, prune=[prune])
