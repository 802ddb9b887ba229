"""Which problems a worker must solve, and with which random numbers.

Everything follows from (policy root, node, submission index): it cannot be known before the policy
exists, nor chosen by the worker, nor replayed for another policy, node or index.
"""

from blake3 import blake3

from protocol.identity import Address, address_bytes

_PROBLEMS = "intellect-node problem draw v1"
_SEED = "intellect-node sample seed v1"


def _slot(policy_root: bytes, node: Address, index: int) -> bytes:
    return policy_root + address_bytes(node) + index.to_bytes(8, "little")


def draw_problems(policy_root: bytes, node: Address, index: int, count: int, size: int) -> tuple[int, ...]:
    """`count` problem numbers in [0, size), uniform and independent.

    Words of 64 bits from a BLAKE3 stream; a word in the last incomplete multiple of `size` is
    skipped, so no number is favoured.
    """
    if size < 1 or count < 0:
        raise ValueError("draw_problems needs size >= 1 and count >= 0")
    stream = blake3(_slot(policy_root, node, index), derive_key_context=_PROBLEMS)
    limit = 2**64 - 2**64 % size
    drawn: list[int] = []
    position = 0
    while len(drawn) < count:
        word = int.from_bytes(stream.digest(8, seek=position), "little")
        position += 8
        if word < limit:
            drawn.append(word % size)
    return tuple(drawn)


def sample_seed(policy_root: bytes, node: Address, index: int, group: int, sample: int) -> bytes:
    """The 32-byte seed of one completion's random numbers."""
    place = group.to_bytes(4, "little") + sample.to_bytes(4, "little")
    return blake3(_slot(policy_root, node, index) + place, derive_key_context=_SEED).digest()
