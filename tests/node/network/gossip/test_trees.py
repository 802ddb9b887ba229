"""Who is handed what: swarms of trees over a wire that is a list, without time and without bytes on a socket."""

from collections import deque
from collections.abc import Callable
from random import Random

import pytest
from libp2p.pubsub.pb import rpc_pb2

from node.network.gossip import mesh
from node.network.gossip.peers import ANSWERED_BYTES, MAX_TOPICS, Send
from node.network.gossip.trees import Trees
from node.network.packets import Cutter

MISSING_BY_STRANGER = 32

TOPIC = "news"


class Swarm:
    """Nodes that are all connected, and hear TOPIC. lost: of packets, which never arrive: (from, to, what) -> bool."""

    def __init__(self, size: int, *, strangers: frozenset[bytes] = frozenset(), seed: int = 0) -> None:
        self.now = 0.0
        self.wire: deque[tuple[bytes, bytes, bytes]] = deque()
        self.lost: Callable[[bytes, bytes, rpc_pb2.RPC], bool] = lambda giver, hearer, rpc: False
        self.copies = 0
        self.heard: dict[bytes, list[bytes]] = {}
        self.nodes: dict[bytes, Trees] = {}
        self.number = 0
        names = [b"node %d" % number for number in range(size)]
        for name in names:
            self.nodes[name] = Trees(
                self.sender(name), lambda: self.now, lambda peer: peer not in strangers, Random(seed)
            )
            self.nodes[name].join(TOPIC)
            self.heard[name] = []
        for name in names:
            for other in names:
                if other != name:
                    self.nodes[name].opened(other)
        self.settle()

    def sender(self, name: bytes) -> Send:
        return lambda peer, packet: self.wire.append((name, peer, packet))

    def settle(self) -> None:
        while self.wire:
            giver, hearer, packet = self.wire.popleft()
            (body,) = Cutter(2**20).cut(packet)
            rpc = rpc_pb2.RPC.FromString(body)
            if hearer in self.nodes and not self.lost(giver, hearer, rpc):
                self.take(giver, hearer, rpc)

    def take(self, giver: bytes, hearer: bytes, rpc: rpc_pb2.RPC) -> None:
        node = self.nodes[hearer]
        node.subscribed(giver, rpc.subscriptions)
        for message in rpc.publish:
            self.copies += 1
            if not node.knows(giver, message):
                node.came(giver, message)
                self.heard[hearer].append(message.data)
                node.spread(message, giver)
        node.control(giver, rpc.control)

    def publish(self, name: bytes, data: bytes) -> None:
        self.number += 1
        message = rpc_pb2.Message(from_id=name, seqno=self.number.to_bytes(8), data=data, topicIDs=[TOPIC])
        self.nodes[name].spread(message)
        self.settle()

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.now += 0.5
            for node in self.nodes.values():  # at times of their own
                node.tick()
                self.settle()

    def links(self, name: bytes) -> set[bytes]:
        return self.nodes[name].links[TOPIC]


def warm(swarm: Swarm, rounds: int = 3) -> None:
    for number in range(rounds):
        for name in list(swarm.nodes):
            swarm.publish(name, b"warm %d" % number)
        swarm.ticks(2 * 2 + 2)


@pytest.mark.parametrize("size", [2, 3, 12, 30])
def test_everybody_hears_everything_and_soon_about_once(size: int) -> None:
    swarm = Swarm(size)
    warm(swarm)
    swarm.copies = 0
    for name in swarm.nodes:
        swarm.publish(name, name)
    assert all(set(swarm.heard[name]) >= swarm.nodes.keys() - {name} for name in swarm.nodes)
    assert swarm.copies <= 1.1 * size * (size - 1)


def test_links_are_mutual_and_join_all_nodes() -> None:
    swarm = Swarm(30)
    warm(swarm, rounds=4)
    for name in swarm.nodes:
        swarm.publish(name, name)
    assert all(name in swarm.links(link) for name in swarm.nodes for link in swarm.links(name))
    reached, todo = set(), [b"node 0"]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo.extend(swarm.links(name))
    assert reached == set(swarm.nodes)


def test_who_misses_a_message_asks_for_it_and_thanks_whom_it_had_it_from() -> None:
    swarm = Swarm(8)
    warm(swarm)
    victim = b"node 5"
    swarm.lost = lambda giver, hearer, rpc: hearer == victim and bool(rpc.publish)
    swarm.publish(b"node 1", b"lost")
    assert b"lost" not in swarm.heard[victim]
    swarm.lost = lambda giver, hearer, rpc: False
    swarm.ticks(12)
    assert swarm.heard[victim].count(b"lost") == 1


def test_a_neighbour_that_hands_on_nothing_is_left_behind() -> None:
    """It says what others say, and grafts whom it can: only messages stop with it."""
    swarm = Swarm(12)
    warm(swarm)
    idle = b"node 3"

    def withheld(giver: bytes, hearer: bytes, rpc: rpc_pb2.RPC) -> bool:
        return giver == idle and any(message.from_id != idle for message in rpc.publish)

    swarm.lost = withheld
    for number in range(20):
        for name in swarm.nodes:
            swarm.publish(name, b"%s says %d" % (name, number))
        swarm.ticks(4)
    swarm.ticks(20)
    others = swarm.nodes.keys() - {idle}
    said = {b"%s says %d" % (name, number) for name in swarm.nodes for number in range(20)}
    assert all(said <= set(swarm.heard[name]) | {s for s in said if s.startswith(name + b" ")} for name in others)
    soon = {b"%s again" % name for name in others}
    for name in others:
        swarm.publish(name, b"%s again" % name)
    missed = sum(len(soon - set(swarm.heard[name])) - 1 for name in others)
    assert missed <= len(others)  # without a wait for digests; a tree through `idle` would miss a half of 110


def test_of_two_links_that_bring_the_same_the_one_that_kept_back_is_pruned() -> None:
    swarm = Swarm(3)
    node, (first, second) = swarm.nodes[b"node 0"], (b"node 1", b"node 2")
    node.links[TOPIC] = {first, second}
    message = rpc_pb2.Message(from_id=b"author", seqno=b"1", topicIDs=[TOPIC])
    node.came(first, message)
    node.peers.known[first].failures = 1.0
    assert node.knows(second, message)
    assert node.links[TOPIC] == {second}


def test_strangers_hold_few_links_and_take_none_from_members() -> None:
    strangers = frozenset(b"node %d" % number for number in range(20, 40))
    swarm = Swarm(40, strangers=strangers)
    node, grafts = swarm.nodes[b"node 0"], rpc_pb2.ControlMessage(graft=[rpc_pb2.ControlGraft(topicID=TOPIC)])
    node.links[TOPIC].clear()
    for peer in sorted(strangers):
        node.control(peer, grafts)
    assert len(node.links[TOPIC]) == mesh.MOST_LINKS_OF_STRANGERS
    for number in range(1, 20):
        node.control(b"node %d" % number, grafts)
    assert len(node.links[TOPIC] - strangers) == 16 - mesh.MOST_LINKS_OF_STRANGERS


def test_who_was_pruned_is_not_linked_again_before_its_time() -> None:
    swarm = Swarm(2)
    node, peer = swarm.nodes[b"node 0"], b"node 1"
    prune = rpc_pb2.ControlPrune(topicID=TOPIC, backoff=60)
    node.control(peer, rpc_pb2.ControlMessage(prune=[prune]))
    swarm.ticks(100)
    assert not node.links[TOPIC]
    swarm.ticks(30)
    assert node.links[TOPIC] == {peer}


def test_topics_of_nobodys_leave_nothing_behind() -> None:
    swarm = Swarm(2)
    node, peer = swarm.nodes[b"node 0"], b"node 1"
    names = [f"nobody's {number}" for number in range(200)]
    control = rpc_pb2.ControlMessage(
        graft=[rpc_pb2.ControlGraft(topicID=name) for name in names],
        prune=[rpc_pb2.ControlPrune(topicID=name, backoff=3600) for name in names],
        ihave=[rpc_pb2.ControlIHave(topicID=name, messageIDs=[b"aa"]) for name in names],
    )
    node.control(peer, control)
    node.subscribed(peer, [rpc_pb2.RPC.SubOpts(subscribe=True, topicid=name) for name in names])
    assert node.links.keys() == {TOPIC} and not node.peers.known[peer].backoff.keys() & set(names)
    assert len(node.peers.known[peer].topics) <= MAX_TOPICS and not node._digests._missing


def test_a_message_wanted_a_thousand_times_is_sent_once_and_only_so_many_bytes_of_all() -> None:
    swarm = Swarm(2)
    node, peer = swarm.nodes[b"node 0"], b"node 1"
    kept = [rpc_pb2.Message(from_id=b"a", seqno=b"%d" % n, data=bytes(60_000), topicIDs=[TOPIC]) for n in range(100)]
    for message in kept:
        node.heard.keep(message)
    sent: list[bytes] = []
    node.peers.send = lambda peer, packet: sent.append(packet)
    one = rpc_pb2.ControlMessage(iwant=[rpc_pb2.ControlIWant(messageIDs=[b"a1"] * 1000)])
    node.control(peer, one)
    assert len(sent) == 1 and len(sent[0]) < 61_000
    everything = [rpc_pb2.ControlIWant(messageIDs=[b"a%d" % n for n in range(100)])] * 40
    node.control(peer, rpc_pb2.ControlMessage(iwant=everything))
    assert sum(map(len, sent)) <= 1.1 * ANSWERED_BYTES[1]


def test_made_up_names_displace_nobody_elses() -> None:
    strangers = frozenset({b"node 1"})
    swarm = Swarm(3, strangers=strangers)
    node, asked = swarm.nodes[b"node 0"], []

    def told(peer: bytes, names: list[bytes]) -> None:
        have = rpc_pb2.ControlIHave(topicID=TOPIC, messageIDs=names)
        node.control(peer, rpc_pb2.ControlMessage(ihave=[have]))

    for start in range(0, 20_000, 1000):
        told(b"node 1", [b"made up %d" % n for n in range(start, start + 1000)])
    assert len(node._digests._missing) == MISSING_BY_STRANGER
    told(b"node 2", [b"true"])
    node.peers.send = lambda peer, packet: asked.append((peer, packet))
    node.tick()
    assert any(peer == b"node 2" and b"true" in packet for peer, packet in asked)
    for _ in range(2):
        node.tick()
    assert not node._digests._missing


def test_a_peer_that_says_too_much_is_not_heeded() -> None:
    swarm = Swarm(2)
    node, peer = swarm.nodes[b"node 0"], b"node 1"
    prunes = [rpc_pb2.ControlPrune(topicID=TOPIC)] * 2000
    node.control(peer, rpc_pb2.ControlMessage(prune=prunes))
    node.peers.known[peer].backoff.clear()
    node.control(peer, rpc_pb2.ControlMessage(graft=[rpc_pb2.ControlGraft(topicID=TOPIC)]))
    assert not node.links[TOPIC]


def test_what_is_told_by_whom_cannot_be_asked_yet_is_asked_for_as_soon_as_it_can() -> None:
    """Both streams between two nodes were cut, and only one is opened anew."""
    swarm = Swarm(2)
    one, two = swarm.nodes
    for name, other in ((one, two), (two, one)):
        swarm.nodes[name].closed(other)
        swarm.nodes[name].hushed(other)
    swarm.publish(one, b"meanwhile")
    swarm.nodes[two].subscribed(one, [rpc_pb2.RPC.SubOpts(subscribe=True, topicid=TOPIC)])
    swarm.nodes[one].subscribed(two, [rpc_pb2.RPC.SubOpts(subscribe=True, topicid=TOPIC)])
    swarm.nodes[one].opened(two)
    swarm.settle()
    swarm.ticks(2)
    assert swarm.heard[two] == []
    swarm.nodes[two].opened(one)
    swarm.settle()
    swarm.ticks(2)
    assert swarm.heard[two] == [b"meanwhile"]


GRAFT = rpc_pb2.ControlMessage(graft=[rpc_pb2.ControlGraft(topicID=TOPIC)])


class Mixed:
    """A node of ours among members that run another program; the first of them took all places for such."""

    def __init__(self, others: int) -> None:
        self.now = 1000.0
        self.node = Trees(lambda peer, packet: None, lambda: self.now, lambda peer: True, Random(0))
        self.node.join(TOPIC)
        self.others = [b"other %d" % number for number in range(others)]
        for peer in self.others:
            self.node.opened(peer, kin=False)
            self.node.control(peer, GRAFT)

    @property
    def links(self) -> set[bytes]:
        return self.node.links[TOPIC]

    def wait(self, seconds: float) -> None:
        for _ in range(int(2 * seconds)):
            self.now += 0.5
            self.node.tick()

    def brings(self, peer: bytes, number: int) -> None:
        self.node.came(peer, rpc_pb2.Message(from_id=b"author", seqno=number.to_bytes(8), topicIDs=[TOPIC]))


def test_of_another_programs_links_one_that_brings_nothing_gives_way_and_one_that_does_stays() -> None:
    swarm = Mixed(others=5)
    *silent, honest = swarm.others
    assert swarm.links == set(silent)
    swarm.wait(60.0)
    swarm.node.control(honest, GRAFT)
    assert honest in swarm.links and len(swarm.links) == len(silent)
    waiting = (set(silent) - swarm.links).pop()
    for number in range(3):
        swarm.wait(60.0 / 2)
        swarm.brings(honest, number)
    for peer in (waiting, *silent):
        swarm.node.control(peer, GRAFT)
    assert honest in swarm.links and waiting in swarm.links


def test_who_leaves_its_place_and_takes_it_again_begins_no_new_turn() -> None:
    swarm = Mixed(others=5)
    *silent, honest = swarm.others
    swarm.wait(60.0 - 1)
    for peer in silent:
        swarm.node.gone(peer)
        swarm.node.opened(peer, kin=False)
        swarm.node.control(peer, GRAFT)
    assert swarm.links == set(silent)
    swarm.wait(2)
    swarm.node.control(honest, GRAFT)
    assert honest in swarm.links
