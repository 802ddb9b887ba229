"""Peers of other programs, who name messages their own way and keep meshes of their own."""

from random import Random

import base58
from libp2p.pubsub.pb import rpc_pb2

from node.network.gossip import mesh
from node.network.gossip.trees import Trees
from node.network.packets import Cutter
from protocol.identity import NodeKey
from tests.node.network.gossip.test_trees import TOPIC

KIN, OTHER, STRANGER = b"kin", b"another program", b"stranger"


class Node:
    """Trees whose packets are kept: what each peer was sent."""

    def __init__(self) -> None:
        self.sent: dict[bytes, list[rpc_pb2.RPC]] = {KIN: [], OTHER: [], STRANGER: []}
        self.trees = Trees(self._send, lambda: 0.0, lambda peer: peer != STRANGER, Random(0))
        self.trees.join(TOPIC)

    def _send(self, peer: bytes, packet: bytes) -> None:
        self.sent.setdefault(peer, []).extend(rpc_pb2.RPC.FromString(body) for body in Cutter(2**20).cut(packet))

    def meet(self, peer: bytes, *, kin: bool) -> None:
        self.trees.opened(peer, kin=kin)
        self.trees.subscribed(peer, [rpc_pb2.RPC.SubOpts(subscribe=True, topicid=TOPIC)])

    def told(self, peer: bytes) -> list[bytes]:
        return [name for rpc in self.sent[peer] for have in rpc.control.ihave for name in have.messageIDs]

    def asked(self, peer: bytes) -> list[bytes]:
        return [name for rpc in self.sent[peer] for want in rpc.control.iwant for name in want.messageIDs]

    def hears_names(self, peer: bytes, *names: bytes) -> None:
        have = rpc_pb2.ControlIHave(topicID=TOPIC, messageIDs=names)
        self.trees.control(peer, rpc_pb2.ControlMessage(ihave=[have]))


def message(number: int) -> rpc_pb2.Message:
    author = base58.b58decode(NodeKey.generate().peer_id)
    return rpc_pb2.Message(from_id=author, seqno=number.to_bytes(8), topicIDs=[TOPIC])


def name_in_js(said: rpc_pb2.Message) -> bytes:
    return said.from_id[2:] + said.seqno


def test_who_names_messages_by_their_authors_keys_is_told_and_asked_so() -> None:
    node, missed, known = Node(), message(1), message(2)
    node.meet(OTHER, kin=False)
    node.trees.spread(known)
    node.hears_names(OTHER, name_in_js(missed), name_in_js(known))
    assert node.told(OTHER) == [name_in_js(known)]
    node.trees.tick()
    assert node.asked(OTHER) == [name_in_js(missed)]
    assert node.trees._digests.asked.keys() == {missed.from_id + missed.seqno}
    node.sent[OTHER].clear()
    want = rpc_pb2.ControlIWant(messageIDs=[name_in_js(known)])
    node.trees.control(OTHER, rpc_pb2.ControlMessage(iwant=[want]))
    assert [each.seqno for rpc in node.sent[OTHER] for each in rpc.publish] == [known.seqno]


def test_another_program_is_told_no_names_before_it_has_said_one() -> None:
    """It would ask for all of those that are said in a form that is not its own, and hold the answer for none."""
    node, said = Node(), message(1)
    node.trees.spread(said)
    node.meet(OTHER, kin=False)
    node.trees.links[TOPIC].clear()
    node.trees.tick()
    node.trees.tick()
    assert node.told(OTHER) == []
    node.hears_names(OTHER, b"a name as the specification has it")
    assert node.told(OTHER) == [said.from_id + said.seqno]
    node.meet(KIN, kin=True)
    assert node.told(KIN) == [said.from_id + said.seqno]


def test_a_link_of_another_program_is_not_pruned_for_what_others_bring_too() -> None:
    node = Node()
    node.meet(KIN, kin=True)
    node.meet(OTHER, kin=False)
    node.trees.links[TOPIC] = {KIN, OTHER}
    for number, (first, second) in enumerate([(KIN, OTHER), (OTHER, KIN)]):
        node.trees.came(first, message(number))
        said = message(10 + number)
        node.trees.came(first, said)
        assert node.trees.knows(second, said)
    assert node.trees.links[TOPIC] == {KIN, OTHER}


def test_a_stranger_is_told_names_while_members_are_there() -> None:
    node, said = Node(), message(1)
    node.meet(KIN, kin=True)
    node.meet(STRANGER, kin=True)
    node.trees.links[TOPIC] = {KIN}
    node.trees.spread(said)
    node.trees.tick()
    node.trees.tick()
    assert node.told(STRANGER) == [said.from_id + said.seqno]


def test_members_that_say_they_run_another_program_leave_room_for_our_own() -> None:
    node = Node()
    others, own = ([b"%s %d" % (what, number) for number in range(12)] for what in (b"other", b"own"))
    for peer in [*others, *own]:
        node.meet(peer, kin=peer in own)
    node.trees.links[TOPIC].clear()
    for peer in [*others, *own]:
        node.trees.control(peer, rpc_pb2.ControlMessage(graft=[rpc_pb2.ControlGraft(topicID=TOPIC)]))
    links = node.trees.links[TOPIC]
    assert len(links & set(others)) == 4
    assert len(links & set(own)) == 16 - mesh.MOST_LINKS_OF_STRANGERS - 4
