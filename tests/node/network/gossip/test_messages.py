"""Messages that are kept for those who missed them."""

from libp2p.pubsub.pb import rpc_pb2

from node.network.gossip.messages import MAX_BYTES, MessageCache, name_of


def test_a_message_that_comes_again_takes_its_room_once() -> None:
    heard = MessageCache()
    message = rpc_pb2.Message(from_id=b"author", seqno=bytes(8), topicIDs=["news"], data=bytes(MAX_BYTES * 3 // 5))
    for _ in range(3):
        heard.keep(message)
    assert list(heard.wanted([name_of(message)], MAX_BYTES)) == [message]
