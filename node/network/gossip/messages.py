"""A gossip message on the wire: its name, its signature. Formats of libp2p's pubsub specification."""

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache

from libp2p.crypto.keys import PrivateKey, PublicKey
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2

IDENTITY = bytes.fromhex("0025")
"""Before a key, in a peer id that contains it: a multihash of 37 bytes by no hash."""
KEY = bytes.fromhex("08021221")
"""Of a secp256k1 key, before its 33 bytes."""
BARE_LENGTH = len(KEY) + 33 + 8


class Form(Enum):
    """How a peer says names in digests.

    js-libp2p names the author's public key in place of its peer id, which is that key behind two bytes. Told a name in
    the other form it never finds what it asked for, and scores the teller down until it listens to nothing.
    """

    SPECIFIED = "author, number"
    BARE = "author's key, number"


def form_of(name: bytes) -> Form:
    return Form.BARE if len(name) == BARE_LENGTH and name.startswith(KEY) else Form.SPECIFIED


def specified(names: Sequence[bytes], form: Form | None) -> Sequence[bytes]:
    """Names that a peer says, as we say them."""
    return [IDENTITY + name for name in names] if form is Form.BARE else names


def formed(names: Sequence[bytes], form: Form | None) -> Sequence[bytes]:
    """Our names, as a peer says them."""
    return [name.removeprefix(IDENTITY) for name in names] if form is Form.BARE else names


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
