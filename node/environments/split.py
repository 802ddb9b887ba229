"""Which problems are kept for evaluation and never trained on: it follows from their ids, so every node agrees."""

from collections.abc import Sequence
from typing import TypeVar

from blake3 import blake3

T = TypeVar("T")
_CONTEXT = "intellect-node held-back problems v1"


def is_held_back(problem_id: str, share: float) -> bool:
    """Whether the hash of the id falls into the lowest `share` of all hashes."""
    digest = blake3(problem_id.encode(), derive_key_context=_CONTEXT).digest(8)
    return int.from_bytes(digest, "little") < share * 2**64


def numbered(items: Sequence[T], number: int) -> T:
    """Item `number`; raises IndexError for a number that there is not, negative ones too."""
    if not 0 <= number < len(items):
        raise IndexError(f"problem {number} of {len(items)}")
    return items[number]
