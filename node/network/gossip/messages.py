"""A gossip message on the wire (formats of libp2p's pubsub specification), and which messages were heard."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import lru_cache

import msgspec
from libp2p.crypto.keys import PrivateKey, PublicKey
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2

from node.bounded_dict import BoundedDict

IDENTITY = bytes.fromhex("0025")
"""Before a key, in a peer id that contains it: a multihash of 37 bytes by no hash."""
KEY = bytes.fromhex("08021221")
"""Of a secp256k1 key, before its 33 bytes."""
BARE_LENGTH = len(KEY) + 33 + 8


class DigestForm(Enum):
    """How a peer says names in digests.

    js-libp2p names the author's public key in place of its peer id, which is that key behind two bytes. Told a name in
    the other form it never finds what it asked for, and scores the teller down until it listens to nothing.
    """

    SPECIFIED = "author, number"
    BARE = "author's key, number"


def form_of(name: bytes) -> DigestForm:
    return DigestForm.BARE if len(name) == BARE_LENGTH and name.startswith(KEY) else DigestForm.SPECIFIED


def specified(names: Sequence[bytes], form: DigestForm | None) -> Sequence[bytes]:
    """Names that a peer says, as we say them."""
    return [IDENTITY + name for name in names] if form is DigestForm.BARE else names


def formed(names: Sequence[bytes], form: DigestForm | None) -> Sequence[bytes]:
    """Our names, as a peer says them."""
    return [name.removeprefix(IDENTITY) for name in names] if form is DigestForm.BARE else names


SIGNED = b"libp2p-pubsub:"
"""Before the bytes of a message that its author signs."""


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


@lru_cache(maxsize=4096)
def _key_of(author: bytes) -> PublicKey | None:
    try:
        return ID(author).extract_public_key()
    except Exception:  # as above, of peer ids
        return None


MAX_NAMES = 32_768
"""Of messages that are not looked at again."""
MAX_BYTES = 8 * 1024**2
"""Of messages that are kept for those who missed them."""
TOLD_TICKS = 6
"""How long digests name a message: to three draws of peers, at one a second."""


class First(msgspec.Struct, frozen=True, gc=False):
    """giver: the link that brought it, as a raw peer id, empty for nobody's merit; at: when, seconds."""

    giver: bytes
    at: float


class MessageCache:
    """Which messages were heard, from whom first, and the last ones themselves. Its clock counts ticks."""

    def __init__(self) -> None:
        self.now = 0
        self._firsts: BoundedDict[bytes, First] = BoundedDict(MAX_NAMES)
        self._kept: OrderedDict[bytes, tuple[int, rpc_pb2.Message]] = OrderedDict()
        self._bytes = 0

    def first(self, name: bytes) -> First | None:
        """How a message came first; None for one not heard yet."""
        return self._firsts.get(name)

    def note(self, name: bytes, giver: bytes, at: float) -> None:
        self._firsts[name] = First(giver, at)

    def keep(self, message: rpc_pb2.Message) -> None:
        """For those who missed it; once, also where its name was forgotten and it came again."""
        name = name_of(message)
        if (known := self._kept.pop(name, None)) is not None:
            self._bytes -= known[1].ByteSize()
        self._kept[name] = self.now, message
        self._bytes += message.ByteSize()
        while self._bytes > MAX_BYTES:
            self._drop_oldest()

    def tick(self) -> None:
        """Half a second has gone by: what is old is dropped."""
        self.now += 1
        kept_ticks = 20
        while self._kept and next(iter(self._kept.values()))[0] <= self.now - kept_ticks:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, (_, message) = self._kept.popitem(last=False)
        self._bytes -= message.ByteSize()

    def recent(self, topic: str, most: int) -> list[bytes]:
        """Names of the newest messages of a topic that a digest tells, newest first."""
        found: list[bytes] = []
        # Newest first: `keep` puts a message at the end, also one that came again.
        for name in reversed(self._kept):
            at, message = self._kept[name]
            if at <= self.now - TOLD_TICKS or len(found) == most:
                break
            if message.topicIDs[0] == topic:
                found.append(name)
        return found

    def wanted(self, names: Iterable[bytes], room: int) -> Iterator[rpc_pb2.Message]:
        """The kept ones of these, each once, of at most `room` bytes in all."""
        for name in dict.fromkeys(names):
            _, message = self._kept.get(name, (0, None))
            if message is not None:
                room -= message.ByteSize()
                if room < 0:
                    return
                yield message
