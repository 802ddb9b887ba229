"""What the tree loses: digests (IHAVE) to a few peers each second name it, and whoever misses it asks (IWANT).

Who has what the links kept back becomes a link. Programs differ in how they name messages (`names`): a peer of another
program is told no name before it has said one.
"""

from collections.abc import Sequence

from libp2p.pubsub.pb import rpc_pb2

from node.network.gossip.mesh import Mesh
from node.network.gossip.messages import MessageCache, form_of, formed, specified
from node.network.gossip.peers import GossipPeer, GossipPeers
from node.network.packets import packet

DIGEST_PEERS = 3
MAX_NAMED = 1000
"""Message ids that are looked at in one IHAVE or IWANT."""


class Digests:
    """asked: messages that were asked for, and at which tick."""

    def __init__(self, peers: GossipPeers, mesh: Mesh, heard: MessageCache) -> None:
        self.asked: dict[bytes, int] = {}
        self._peers, self._mesh, self._heard = peers, mesh, heard
        self._missing: dict[bytes, tuple[str, int, list[bytes]]] = {}

    def came(self, name: bytes) -> bool:
        """It is missing no more. Whether it had to be asked for."""
        self._missing.pop(name, None)
        return name in self.asked

    def told(self, peer: bytes, have: rpc_pb2.ControlIHave) -> None:
        """Missing messages are asked for at the next tick: until then most come by themselves."""
        known = self._peers.of(peer)
        most = 512 if self._peers.is_member(peer) else 32  # unknown messages that one peer may name between two ticks
        self._learn_form(peer, known, have)
        for name in specified(have.messageIDs[:MAX_NAMED], known.form):
            if known.named < most and self._heard.first(name) is None:
                known.named += 1
                *_, tellers = self._missing.setdefault(name, (have.topicID, self._heard.now, []))
                # Three tellers at most: whoever lies that it has a message costs one tick, and the next one is asked.
                if peer not in tellers and len(tellers) < DIGEST_PEERS:
                    tellers.append(peer)

    def _learn_form(self, peer: bytes, known: GossipPeer, have: rpc_pb2.ControlIHave) -> None:
        """Its first names: it can be told what it may have missed."""
        if known.form is None and have.messageIDs:
            known.form = form_of(have.messageIDs[0])
            self.tell(have.topicID, [peer])

    def asked_for(self, peer: bytes, want: rpc_pb2.ControlIWant) -> None:
        """What it missed, as far as its budget goes."""
        known = self._peers.of(peer)
        found: list[rpc_pb2.Message] = []
        now = self._peers.clock()
        # Of messages in one answer to IWANT: a packet that everybody takes.
        for message in self._heard.wanted(specified(want.messageIDs[:MAX_NAMED], known.form), 256 * 1024):
            # By bytes and not by messages: one IWANT of a thousand names would ask for 80 MB.
            if known.bytes.take(message.ByteSize(), now):
                found.append(message)
        if found:
            self._peers.send(peer, packet(rpc_pb2.RPC(publish=found)))

    def ask(self) -> None:
        """For what was told and did not come, one teller after the other; who has what the links kept back becomes a
        link. A teller that cannot be asked yet, because its stream is opened anew, is waited for."""
        wanted: dict[tuple[bytes, str], list[bytes]] = {}
        asked_ticks = 8  # how long an answer to IWANT is expected
        self.asked = {name: at for name, at in self.asked.items() if at > self._heard.now - asked_ticks}
        since = self._heard.now - asked_ticks
        self._missing = {name: told for name, told in self._missing.items() if told[-1] and told[1] > since}
        for name, (topic, _, tellers) in self._missing.items():
            teller = min(tellers, key=self._peers.failures)
            if self._peers.is_open(teller):
                tellers.remove(teller)
                wanted.setdefault((teller, topic), []).append(name)
                self.asked[name] = self._heard.now
        for (teller, topic), names in wanted.items():
            want = rpc_pb2.ControlIWant(messageIDs=formed(names, self._peers.form(teller)))
            self._peers.control(teller, iwant=[want])
            if self._peers.is_member(teller):
                self._mesh.graft(teller, topic, needed=True)

    def tell(self, topic: str, peers: Sequence[bytes]) -> None:
        """Name the last messages to those peers whose way of naming is known."""
        names = self._heard.recent(topic, MAX_NAMED) if peers else []
        for form in {self._peers.known[peer].form for peer in peers if names} - {None}:
            have = rpc_pb2.ControlIHave(topicID=topic, messageIDs=formed(names, form))
            data = packet(rpc_pb2.RPC(control=rpc_pb2.ControlMessage(ihave=[have])))
            for peer in peers:
                if self._peers.known[peer].form is form:
                    self._peers.send(peer, data)

    def digest(self, topic: str) -> None:
        """Tell some that are no links, strangers among them, whose links may not last."""
        others = [peer for peer in self._peers.all_hearers(topic) if peer not in self._mesh.links[topic]]
        members = [peer for peer in others if self._peers.is_member(peer)]
        strangers = [peer for peer in others if not self._peers.is_member(peer)]
        # A second. A stranger whose links are gone hears nothing else: 198 of 240 messages were lost without.
        some, few = self._peers.some(members, DIGEST_PEERS), 1 if members else DIGEST_PEERS
        self.tell(topic, some + self._peers.some(strangers, few))
