import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.segments import objection, pieces, sampled_count, sampled_places, sampled_tokens, turns


@given(st.lists(st.integers(1, 9), min_size=3, max_size=9).filter(lambda lengths: len(lengths) % 2))
def test_pieces_places_and_counts_tell_the_same(segments: list[int]) -> None:
    output = list(range(100, 100 + sum(segments)))
    cut = list(pieces(output, segments))
    assert objection(segments, len(output)) == "" and turns(segments) == sum(sampled for _, sampled in cut)
    assert [token for piece, _ in cut for token in piece] == output
    sampled = list(sampled_tokens(output, segments))
    assert sampled == [token for piece, own in cut if own for token in piece]
    assert np.array(output)[sampled_places(segments, len(output))].tolist() == sampled
    assert sampled_count(segments, len(output)) == len(sampled)


def test_without_segments_all_is_sampled() -> None:
    assert (list(pieces([7, 8], [])), turns([]), sampled_count([], 2)) == ([([7, 8], True)], 1, 2)
    assert sampled_tokens([7, 8], []) == [7, 8] and sampled_places([], 2).tolist() == [0, 1]


@pytest.mark.parametrize("segments", [[2], [1, 1], [1, 0, 1], [1, 1, 1], [3, -2, 1], [1, 1, 1, 1]])
def test_lengths_that_are_no_rollouts_are_refused(segments: list[int]) -> None:
    assert objection(segments, 2)
