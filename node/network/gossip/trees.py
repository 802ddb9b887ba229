"""Who is handed each message at once, and who is only told its name. Pure: packets out are calls of `send`.

For each topic a node pushes messages over a few links (the mesh of meshsub), which GRAFT makes and PRUNE ends. Whoever
brings what another link has brought before is pruned, so that the links of all nodes shrink to a tree, and a message
comes once instead of from everybody. What the tree loses, digests (IHAVE) to a few others each second name, and whoever
misses it asks (IWANT) and makes a link to whom it has to thank. The method is that of Plumtree (Leitao, Pereira and
Rodrigues, "Epidemic Broadcast Trees", 2007), in meshsub's words, so that its other implementations take part.

What is added, because a link may be somebody's who forwards what it likes:

- a link that was silent about a message which then had to be asked for has failed, and of two links that bring the same
  the one that failed more is pruned, not the later one;
- links are made with members, and strangers may hold a few at most;
- a link of another program is a link of its own mesh: it brings what others bring too, and is not pruned for that. Nor
  is it told any name before it has said one, since programs differ in how they name messages (`names`). Anybody can
  say that it is one, so there are few such links, and one that brings nothing before others do gives way to whoever
  asks for its place.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from itertools import chain
from random import Random

from google.protobuf.message import Message
from libp2p.pubsub.pb import rpc_pb2

from node.network.budget import TokenBucket
from node.network.gossip.messages import Form, Heard, form_of, formed, name_of, specified
from node.network.packets import packet
from node.recent import Recent

FIRST_LINKS = 3
"""Made with the peers that are met first, and by whoever has fewer than LEAST_LINKS: a start for the tree."""
LEAST_LINKS = 1
MOST_LINKS = 16
MOST_LINKS_OF_STRANGERS = 4
MOST_LINKS_OF_OTHERS = 4
"""Of members that run another program: such links are not pruned for what others bring too, so whoever holds them may
hand on nothing."""
TURN = 60.0
"""Seconds for which such a link is kept, whatever it brings."""
MAX_TURNS = 1024
DIGEST_PEERS = 3
DIGEST_STRANGERS = 1
"""A second. A stranger whose links are gone hears nothing else: 198 of 240 messages were lost without."""
BACKOFF = 2
"""Seconds after a PRUNE before a new GRAFT, unless it is needed: our own nodes take that at any time, or a tree that is
broken would not be mended for two seconds. Who asks for more is of another program, and gets it."""
MOST_BACKOFF = 3600
MAX_TOPICS = 32
"""Of one peer that are remembered."""
MAX_TOPIC_LENGTH = 256
MAX_NAMED = 1000
"""Message ids that are looked at in one IHAVE or IWANT."""
MISSING_BY_MEMBER, MISSING_BY_STRANGER = 512, 32
"""Unknown messages that one peer may name between two ticks."""
CONTROLS = (50.0, 500.0)
"""Control messages and subscriptions of one peer, per second and in a burst."""
ANSWERED_BYTES = (256.0 * 1024, 2.0 * 1024**2)
"""Of messages that one peer asks for, per second and in a burst."""
ASKED_TICKS = 8
"""How long an answer to IWANT is expected."""
ANSWER_BYTES = 256 * 1024
"""Of messages in one answer to IWANT: a packet that everybody takes."""
FORGIVEN = 0.99
"""Of a link's failures and merits, left after each tick: half after 35 s."""

BRINGS = 0.5
"""Merits of a link that is of use: a message in the last 35 s."""

TICK = 0.5
FRESH = 0.2
"""What the last tick counts in the rate of messages."""
CALM = 0.005
"""Other messages, within the time between two copies of one, that let a link be pruned at once."""

Send = Callable[[bytes, bytes], None]
"""(raw peer id, packet): to that peer."""


class Peer:
    """What is known of a connected peer. open: whether it can be sent to; kin: whether it runs our program; form: how
    it names messages, if that is known; backoff: until when it is not grafted without need; barred: until when not at
    all; named: how many unknown messages since the last tick; brought: others' messages that came by it
    first, fading."""

    def __init__(self) -> None:
        self.open = False
        self.kin = False
        self.form: Form | None = None
        self.topics: set[str] = set()
        self.backoff: dict[str, float] = {}
        self.barred: dict[str, float] = {}
        self.failures = self.brought = 0.0
        self.named = 0
        self.controls = TokenBucket(*CONTROLS)
        self.bytes = TokenBucket(*ANSWERED_BYTES)


class Trees:
    """clock: seconds, monotonic; is_member: whether a raw peer id is a member's."""

    def __init__(
        self, send: Send, clock: Callable[[], float], is_member: Callable[[bytes], bool], draw: Random
    ) -> None:
        self.send = send
        self.heard = Heard()
        self.peers: dict[bytes, Peer] = {}
        self.links: dict[str, set[bytes]] = {}
        self._clock = clock
        self._is_member = is_member
        self._draw = draw
        self._missing: dict[bytes, tuple[str, int, list[bytes]]] = {}
        self._asked: dict[bytes, int] = {}
        self._turns: Recent[bytes, float] = Recent(MAX_TURNS)
        """Members that run another program: when the last turn of each as a link began."""
        self._came = 0
        self._rate = 0.0

    # topics and peers

    def join(self, topic: str) -> None:
        """Hear a topic from now on."""
        self.links[topic] = set()
        news = packet(rpc_pb2.RPC(subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid=topic)]))
        for peer in self._open():
            self.send(peer, news)
        self._fill(topic)

    def opened(self, peer: bytes, *, kin: bool = True) -> None:
        """It can be sent to, and was sent nothing yet. kin: whether it runs our program."""
        known = self._peer(peer)
        known.open, known.kin = True, kin
        known.form = Form.SPECIFIED if kin else known.form
        topics = [rpc_pb2.RPC.SubOpts(subscribe=True, topicid=topic) for topic in self.links]
        if topics:
            self.send(peer, packet(rpc_pb2.RPC(subscriptions=topics)))
        for topic in known.topics & self.links.keys():
            self._meets(peer, topic)

    def closed(self, peer: bytes) -> None:
        """It cannot be sent to any more."""
        if peer in self.peers:
            self.peers[peer].open = False
            self._unlink(peer)

    def hushed(self, peer: bytes) -> None:
        """It ended the stream on which it spoke: on the next one it says anew what it hears."""
        if peer in self.peers:
            self.peers[peer].topics.clear()
            self._unlink(peer)

    def gone(self, peer: bytes) -> None:
        self.peers.pop(peer, None)
        self._unlink(peer)

    def subscribed(self, peer: bytes, changes: Iterable[rpc_pb2.RPC.SubOpts]) -> None:
        """What a peer says that it hears, or no longer."""
        known = self._peer(peer)
        for change in changes:
            topic = change.topicid
            if not self._affords(known) or len(topic) > MAX_TOPIC_LENGTH:
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
        self._tell(topic, [peer])
        # A stranger becomes a link only while there is no other: it may forward what it likes.
        if len(self.links[topic]) < FIRST_LINKS and (self._is_member(peer) or not self.links[topic]):
            self._graft(peer, topic)

    def _unlink(self, peer: bytes) -> None:
        for topic, links in self.links.items():
            if peer in links:
                links.discard(peer)
                self._fill(topic)

    def _peer(self, peer: bytes) -> Peer:
        known = self.peers.get(peer)
        if known is None:
            known = self.peers[peer] = Peer()
        return known

    def _open(self) -> list[bytes]:
        return [peer for peer, known in self.peers.items() if known.open]

    # messages

    def knows(self, giver: bytes, message: rpc_pb2.Message) -> bool:
        """Whether it came before. One of two links that bring the same is pruned, and whoever takes us for a link."""
        name, topic = name_of(message), message.topicIDs[0]
        first, links = self.heard.first(name), self.links.get(topic, ())
        if first is None:
            return False
        if giver not in links and self._is_pushed(giver, message) and self._affords(self._peer(giver)):
            self._prune(giver, topic)
        elif self._are_twins(first.giver, giver, links) and self._dares(first.at):
            # By failures, not by time: a link that withholds messages must not survive by being fast with the others.
            worse = self._peer(first.giver).failures > self._peer(giver).failures
            self._prune(first.giver if worse else giver, topic)
        return True

    def _are_twins(self, one: bytes, other: bytes, links: Container[bytes]) -> bool:
        """Two links of our tree."""
        return one != other and one in links and other in links and self._peer(one).kin and self._peer(other).kin

    def _dares(self, first_at: float) -> bool:
        """Two messages that are on their way around one circle of links at once, each in its direction, meet at two
        places: were both cut, the tree would be in two parts. So the more messages come within the time between two
        copies, the more seldom a copy costs a link."""
        others = self._rate * (self._clock() - first_at)
        return self._draw.random() * others < CALM

    def _is_pushed(self, giver: bytes, message: rpc_pb2.Message) -> bool:
        """Neither asked for nor its own: it comes because the giver takes us for a link."""
        return message.from_id != giver and name_of(message) not in self._asked

    def came(self, giver: bytes, message: rpc_pb2.Message) -> None:
        """A message that nobody brought before, and that its author signed."""
        name, topic = name_of(message), message.topicIDs[0]
        links = self.links.get(topic, set())
        if self._is_pushed(giver, message):
            self._peer(giver).brought += 1
            if giver not in links and self._has_room(giver, topic):
                self._link(giver, topic)  # our PRUNE and its GRAFT have crossed
        self._missing.pop(name, None)
        if name in self._asked:
            # It had to be asked for, so every link that should have pushed it has failed once.
            for link in links - {giver}:
                self._peer(link).failures += 1
        self._came += 1
        # A giver that is no link is not remembered: its copy must not count as one of two links' later.
        self.heard.note(name, giver if giver in links else b"", self._clock())

    def spread(self, message: rpc_pb2.Message, giver: bytes = b"") -> None:
        """Hand a message on. giver: raw peer id of whom it came from, empty for a message of our own."""
        if not giver:
            self.heard.note(name_of(message), b"", self._clock())
        self.heard.keep(message)
        data = packet(rpc_pb2.RPC(publish=[message]))
        topic = message.topicIDs[0]
        links = self.links.get(topic) or self._some(self._hearers(topic), FIRST_LINKS)
        # Nothing goes to others beside the tree: copies from two places meet at an edge, and both its ends prune it.
        for peer in links:
            if peer not in (giver, message.from_id):
                self.send(peer, data)

    # control

    def control(self, peer: bytes, control: rpc_pb2.ControlMessage) -> None:
        """What a peer says about links and messages. Once its budget is spent the rest is not looked at; foreign topics
        cost as much, and do nothing."""
        known = self._peer(peer)
        for said in chain(control.graft, control.prune, control.ihave, control.iwant):
            if not self._affords(known):
                return
            if isinstance(said, rpc_pb2.ControlIWant):
                self._asked_for(peer, known, said)
            elif said.topicID in self.links:
                self._heed(peer, known, said)

    def _heed(self, peer: bytes, known: Peer, said: Message) -> None:
        if isinstance(said, rpc_pb2.ControlGraft):
            self._grafted(peer, known, said.topicID)
        elif isinstance(said, rpc_pb2.ControlPrune):
            self._pruned(peer, known, said)
        elif isinstance(said, rpc_pb2.ControlIHave):
            self._told(peer, said)

    def _affords(self, known: Peer) -> bool:
        return known.controls.take(1, self._clock())

    def _grafted(self, peer: bytes, known: Peer, topic: str) -> None:
        links = self.links[topic]
        if peer in links:
            return
        if self._has_room(peer, topic) or self._makes_room(peer, topic):
            self._link(peer, topic)
        else:
            self._prune(peer, topic)

    def _has_room(self, peer: bytes, topic: str) -> bool:
        """Strangers hold few links, other programs some, and our own members are never turned away for them."""
        links = self.links[topic]
        members = [link for link in links if self._is_member(link)]
        if not self._is_member(peer):
            return len(links) - len(members) < MOST_LINKS_OF_STRANGERS and len(links) < MOST_LINKS
        others = sum(map(self._is_other, members))
        may = self._peer(peer).kin or others < MOST_LINKS_OF_OTHERS
        # Strangers' places are never given to members, nor members' to strangers: neither can crowd out the other.
        return may and len(members) < MOST_LINKS - MOST_LINKS_OF_STRANGERS

    def _makes_room(self, peer: bytes, topic: str) -> bool:
        """One of the other programs' links whose turn is over, and which brings nothing, gives way to another."""
        if not self._is_other(peer):
            return False
        others = filter(self._is_other, self.links[topic])
        over = [link for link in others if self._clock() - self._turns.get(link, 0.0) >= TURN]
        least = min(over, key=lambda link: self._peer(link).brought, default=None)
        if least is None or self._peer(least).brought >= BRINGS:
            return False
        self._prune(least, topic)
        return self._has_room(peer, topic)

    def _link(self, peer: bytes, topic: str) -> None:
        """Who leaves its place, or goes, and takes it again begins no new turn."""
        self.links[topic].add(peer)
        now, began = self._clock(), self._turns.get(peer)
        if self._is_other(peer) and (began is None or now - began >= 2 * TURN):
            self._turns[peer] = now

    def _is_other(self, peer: bytes) -> bool:
        """A member that runs another program."""
        return self._is_member(peer) and not self._peer(peer).kin

    def _pruned(self, peer: bytes, known: Peer, prune: rpc_pb2.ControlPrune) -> None:
        """Peers that it names instead are not dialled: whom we dial, the chain says."""
        wait = min(max(prune.backoff, BACKOFF), MOST_BACKOFF)
        known.backoff[prune.topicID] = self._clock() + wait
        # Only a peer that asks for more than the usual pause is barred; ours can be grafted again when needed.
        if wait > BACKOFF:
            known.barred[prune.topicID] = self._clock() + wait
        self.links[prune.topicID].discard(peer)
        self._fill(prune.topicID)

    def _told(self, peer: bytes, have: rpc_pb2.ControlIHave) -> None:
        """Missing messages are asked for at the next tick: until then most come by themselves."""
        known = self._peer(peer)
        most = MISSING_BY_MEMBER if self._is_member(peer) else MISSING_BY_STRANGER
        self._learn_form(peer, known, have)
        for name in specified(have.messageIDs[:MAX_NAMED], known.form):
            if known.named < most and self.heard.first(name) is None:
                known.named += 1
                *_, tellers = self._missing.setdefault(name, (have.topicID, self.heard.now, []))
                # Three tellers at most: whoever lies that it has a message costs one tick, and the next one is asked.
                if peer not in tellers and len(tellers) < DIGEST_PEERS:
                    tellers.append(peer)

    def _learn_form(self, peer: bytes, known: Peer, have: rpc_pb2.ControlIHave) -> None:
        """Its first names: it can be told what it may have missed."""
        if known.form is None and have.messageIDs:
            known.form = form_of(have.messageIDs[0])
            self._tell(have.topicID, [peer])

    def _asked_for(self, peer: bytes, known: Peer, want: rpc_pb2.ControlIWant) -> None:
        found: list[rpc_pb2.Message] = []
        now = self._clock()
        for message in self.heard.wanted(specified(want.messageIDs[:MAX_NAMED], known.form), ANSWER_BYTES):
            # By bytes and not by messages: one IWANT of a thousand names would ask for 80 MB.
            if known.bytes.take(message.ByteSize(), now):
                found.append(message)
        if found:
            self.send(peer, packet(rpc_pb2.RPC(publish=found)))

    # time

    def tick(self) -> None:
        """Every TICK seconds."""
        self.heard.tick()
        self._rate += (self._came / TICK - self._rate) * FRESH
        self._came = 0
        self._ask()
        for peer in self.peers.values():
            peer.failures *= FORGIVEN
            peer.brought *= FORGIVEN
            peer.named = 0
        for topic in self.links:
            self._fill(topic)
            # Every second tick: a digest is half of all the bytes that a quiet swarm sends.
            if self.heard.now % 2 == 0:
                self._tell(topic, self._told_now(topic))

    def _ask(self) -> None:
        """For what was told and did not come, one teller after the other; who has what the links kept back becomes a
        link. A teller that cannot be asked yet, because its stream is opened anew, is waited for."""
        wanted: dict[tuple[bytes, str], list[bytes]] = {}
        self._asked = {name: at for name, at in self._asked.items() if at > self.heard.now - ASKED_TICKS}
        since = self.heard.now - ASKED_TICKS
        self._missing = {name: told for name, told in self._missing.items() if told[-1] and told[1] > since}
        for name, (topic, _, tellers) in self._missing.items():
            teller = min(tellers, key=self._failures)
            if self._is_open(teller):
                tellers.remove(teller)
                wanted.setdefault((teller, topic), []).append(name)
                self._asked[name] = self.heard.now
        for (teller, topic), names in wanted.items():
            want = rpc_pb2.ControlIWant(messageIDs=formed(names, self._form(teller)))
            control = rpc_pb2.ControlMessage(iwant=[want])
            self.send(teller, packet(rpc_pb2.RPC(control=control)))
            if self._is_member(teller):
                self._graft(teller, topic, needed=True)

    def _failures(self, peer: bytes) -> float:
        return self.peers[peer].failures if self._is_open(peer) else float("inf")

    def _is_open(self, peer: bytes) -> bool:
        known = self.peers.get(peer)
        return known is not None and known.open

    def _form(self, peer: bytes) -> Form | None:
        known = self.peers.get(peer)
        return known.form if known else None

    def _fill(self, topic: str) -> None:
        """First links, for whoever has none."""
        links = self.links[topic]
        if len(links) >= LEAST_LINKS:
            return
        now = self._clock()
        free = [peer for peer in self._hearers(topic) if self.peers[peer].backoff.get(topic, 0.0) <= now]
        for peer in self._some(free, FIRST_LINKS - len(links)):
            self._graft(peer, topic)

    def _graft(self, peer: bytes, topic: str, *, needed: bool = False) -> None:
        links, known = self.links[topic], self._peer(peer)
        waits = known.barred if needed else known.backoff
        if peer in links or waits.get(topic, 0.0) > self._clock() or not self._has_room(peer, topic):
            return
        self._link(peer, topic)
        graft = rpc_pb2.ControlGraft(topicID=topic)
        self.send(peer, packet(rpc_pb2.RPC(control=rpc_pb2.ControlMessage(graft=[graft]))))

    def _prune(self, peer: bytes, topic: str) -> None:
        self.links[topic].discard(peer)
        prune = rpc_pb2.ControlPrune(topicID=topic, backoff=BACKOFF)
        self.send(peer, packet(rpc_pb2.RPC(control=rpc_pb2.ControlMessage(prune=[prune]))))

    def _tell(self, topic: str, peers: Sequence[bytes]) -> None:
        names = self.heard.recent(topic, MAX_NAMED) if peers else []
        for form in {self.peers[peer].form for peer in peers if names} - {None}:
            have = rpc_pb2.ControlIHave(topicID=topic, messageIDs=formed(names, form))
            data = packet(rpc_pb2.RPC(control=rpc_pb2.ControlMessage(ihave=[have])))
            for peer in peers:
                if self.peers[peer].form is form:
                    self.send(peer, data)

    def _hearers(self, topic: str) -> list[bytes]:
        """Who hears a topic and can be sent to: members, or where there is none, strangers."""
        found = self._all_hearers(topic)
        return [peer for peer in found if self._is_member(peer)] or found

    def _all_hearers(self, topic: str) -> list[bytes]:
        return [peer for peer, known in self.peers.items() if known.open and topic in known.topics]

    def _told_now(self, topic: str) -> list[bytes]:
        """Whom a digest goes to: some that are no links, strangers among them, whose links may not last."""
        others = [peer for peer in self._all_hearers(topic) if peer not in self.links[topic]]
        members = [peer for peer in others if self._is_member(peer)]
        strangers = [peer for peer in others if not self._is_member(peer)]
        return self._some(members, DIGEST_PEERS) + self._some(strangers, DIGEST_STRANGERS if members else DIGEST_PEERS)

    def _some(self, peers: Sequence[bytes], most: int) -> list[bytes]:
        return self._draw.sample(peers, min(len(peers), max(most, 0)))
