"""A gossip message on the wire: its name, its signature. Formats of libp2p's pubsub specification."""

from functools import lru_cache

from libp2p.crypto.keys import PrivateKey, PublicKey
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2

SIGNED = b"libp2p-pubsub:"
"""Before the bytes of a message that its author signs."""
KNOWN_KEYS = 4096


def name_of(message: rpc_pb2.Message) -> bytes:
    """What it is called in digests."""
    return message.from_id + message.seqno


def write(key: PrivateKey, author: bytes, topic: str, data: bytes, number: int) -> rpc_pb2.Message:
    """A signed message. author: raw peer id of the key; number: never used before by that key."""
    message = rpc_pb2.Message(from_id=author, data=data, seqno=number.to_bytes(8), topicIDs=[topic])
    message.signature = key.sign(SIGNED + message.SerializeToString())
    message.key = key.get_public_key().serialize()
    return message


def is_authentic(message: rpc_pb2.Message) -> bool:
    """Whether its author signed it. The key is that within the author's peer id, whatever `key` says."""
    public = _key_of(message.from_id)
    if public is None:
        return False
    bare = rpc_pb2.Message(from_id=message.from_id, data=message.data, seqno=message.seqno, topicIDs=message.topicIDs)
    try:
        return public.verify(SIGNED + bare.SerializeToString(), message.signature)
    except Exception:  # of a signature that is none, the library's curves raise what they like
        return False


@lru_cache(maxsize=KNOWN_KEYS)
def _key_of(author: bytes) -> PublicKey | None:
    try:
        return ID(author).extract_public_key()
    except Exception:  # as above, of peer ids
        return None
