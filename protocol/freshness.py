"""Freshness: a worker shows that it held the policy it names, down to randomly chosen bytes.

Activations of two neighbouring policies can hardly be told apart, their bytes can. The samples of a file key a random
choice of leaves (1 KiB each) of the policy's tensors, and the file's header carries the hash over those leaves under
that key. It can be computed only with the policy at hand, only after the samples are fixed, and it serves no
other node, index or file. A validator repeats it from its own verified copy.
"""

import struct
from collections.abc import Callable, Sequence

from blake3 import blake3

from protocol.identity import Address, address_bytes
from protocol.rollout import SampleRow

LEAF_BYTES = 1024
_PLACE = struct.Struct("<II?")
_CONTENT = "intellect-node rollout content v1"
_CONTENT_OF_TURNS = "intellect-node rollout content of several turns v1"
_CONTENT_OF_EXPERTS = "intellect-node rollout content of experts v1"
_CHALLENGE = "intellect-node freshness challenge v1"
_LEAVES = "intellect-node freshness leaves v1"
_ANSWER = "intellect-node freshness answer v1"

ReadBody = Callable[[int, int], bytes]
"""(offset, length) -> bytes of the policy's tensors, concatenated in name order (an image without its header)."""


def content_digest(rows: Sequence[SampleRow]) -> bytes:
    """32 bytes over every sample: place, problem, tokens and proofs; who said them, where a rollout took turns; which
    experts computed them, where there are some."""
    experts = any(row.experts for row in rows)
    turns = experts or any(row.segments for row in rows)
    context = _CONTENT_OF_EXPERTS if experts else _CONTENT_OF_TURNS if turns else _CONTENT
    hasher = blake3(derive_key_context=context)
    for row in rows:
        name = row.problem_id.encode()
        parts = [_PLACE.pack(row.group, row.sample, row.finished)]
        said = [*([_words(row.segments)] if turns else []), *([row.experts] if experts else [])]
        for part in (name, _words(row.prompt), _words(row.output), row.proofs, *said):
            parts += (len(part).to_bytes(8, "little"), part)
        hasher.update(b"".join(parts))
    return hasher.digest()


def challenge(policy_root: bytes, node: Address, index: int, content: bytes) -> bytes:
    """The 32-byte key that chooses the leaves for this submission."""
    place = policy_root + address_bytes(node) + index.to_bytes(8, "little")
    return blake3(place + content, derive_key_context=_CHALLENGE).digest()


def leaf_numbers(key: bytes, body_size: int, count: int = 32) -> tuple[int, ...]:
    """`count` leaf numbers in a body of `body_size` bytes, possibly repeating."""
    leaves = max(1, -(-body_size // LEAF_BYTES))
    words = blake3(key, derive_key_context=_LEAVES).digest(8 * count)
    return tuple(int.from_bytes(words[8 * i : 8 * i + 8], "little") % leaves for i in range(count))


def answer(key: bytes, body_size: int, read: ReadBody) -> str:
    """The 64 hex digits that the header of an honest file carries."""
    hasher = blake3(key, derive_key_context=_ANSWER)
    for number in leaf_numbers(key, body_size):
        start = number * LEAF_BYTES
        hasher.update(read(start, min(LEAF_BYTES, body_size - start)))
    return hasher.hexdigest()


def _words(tokens: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)
