"""What gossip messages are called in digests. Pure.

A message's name is its author's peer id and its number, as the pubsub specification has it, and so do we, go-libp2p and
py-libp2p say it. js-libp2p says the author's public key in place of the peer id: of a secp256k1 key the peer id is that
key behind two bytes, so that its names lack these two. Told a name in the other form it asks for what it has, never
finds what it asked for, and scores the teller down until it listens to nothing.
"""

from collections.abc import Sequence
from enum import Enum

IDENTITY = bytes.fromhex("0025")
"""Before a key, in a peer id that contains it: a multihash of 37 bytes by no hash."""
KEY = bytes.fromhex("08021221")
"""Of a secp256k1 key, before its 33 bytes."""
BARE_LENGTH = len(KEY) + 33 + 8


class Form(Enum):
    """How a peer says names."""

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
