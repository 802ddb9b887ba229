"""Who said which tokens of a rollout: the lengths of its segments, in turns the policy's and the environment's.

The first and the last are sampled, so their number is odd. A rollout of one turn writes down none: all of it is
sampled. What is paid, proven, drawn with a random number and learnt from are the sampled tokens, counted over turns.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray


def objection(segments: Sequence[int], tokens: int) -> str:
    """Why these are not the segments of a rollout of `tokens` tokens after its prompt; empty if they are."""
    if not segments:
        return ""
    if len(segments) < 3 or not len(segments) % 2:
        return f"{len(segments)} segments"
    if min(segments) < 1:
        return "an empty segment"
    return "" if sum(segments) == tokens else f"segments of {sum(segments)} tokens over {tokens}"


def turns(segments: Sequence[int]) -> int:
    """How many segments are sampled."""
    return len(segments) // 2 + 1


def sampled_count(segments: Sequence[int], tokens: int) -> int:
    """How many of a rollout's `tokens` tokens are sampled."""
    return sum(segments[::2]) if segments else tokens


def pieces(output: Sequence[int], segments: Sequence[int]) -> Iterator[tuple[Sequence[int], bool]]:
    """(tokens, sampled) of each segment."""
    start = 0
    for number, length in enumerate(segments or (len(output),)):
        yield output[start : start + length], number % 2 == 0
        start += length


def sampled_tokens(output: Sequence[int], segments: Sequence[int]) -> Sequence[int]:
    """The sampled tokens, one turn behind the other."""
    if not segments:
        return output
    return [token for piece, sampled in pieces(output, segments) if sampled for token in piece]


def sampled_places(segments: Sequence[int], tokens: int) -> NDArray[np.int64]:
    """Where the sampled tokens stand among the `tokens` behind the prompt, ascending."""
    if not segments:
        return np.arange(tokens)
    return np.flatnonzero(np.repeat(np.arange(len(segments)) % 2 == 0, segments))
