import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from node.training.packing import buckets, plan, plan_padded

ATTENTION_PADDING = 1.125

lengths_ = st.lists(st.integers(1, 300), min_size=1, max_size=80)


@given(lengths_, st.integers(1, 600), st.integers(1, 5))
def test_every_sample_is_planned_once_and_no_bin_overflows(lengths: list[int], budget: int, ranks: int) -> None:
    array = np.array(lengths)
    for rounds in (plan(array, budget, ranks), plan_padded(array, budget, ranks)):
        assert all(len(members) == ranks for members in rounds)
        bins = [samples for members in rounds for samples in members]
        assert sorted(int(i) for samples in bins for i in samples) == list(range(len(lengths)))
        for samples in bins:
            found = array[samples]
            assert found.tolist() == sorted(found.tolist())
            assert found.sum() <= budget or len(samples) == 1


@settings(max_examples=40)  # of so many samples one costs as much as ten of the others here
@given(st.lists(st.integers(20, 60), min_size=64, max_size=160), st.integers(2, 4))
def test_ranks_get_about_the_same_work(lengths: list[int], ranks: int) -> None:
    array = np.array(lengths)
    work = np.zeros(ranks)
    for members in plan(array, 1000, ranks):
        tokens = np.array([array[samples].sum() for samples in members])
        assert tokens.max() - tokens.min() <= 2 * array.max(), "in each round, since all wait for the slowest"
        work += tokens
    assert work.min() >= 0.8 * work.max()


def test_nothing_is_planned_for_nothing() -> None:
    assert plan(np.zeros(0, dtype=np.int64), 10, 2) == []


@given(lengths_)
def test_buckets_cover_a_pack_with_little_padding(lengths: list[int]) -> None:
    ordered = sorted(lengths)
    found = buckets(ordered)
    assert [length for bucket in found for length in bucket.lengths] == ordered
    for bucket in found:
        assert len(bucket.lengths) * bucket.width <= ATTENTION_PADDING * bucket.tokens


def test_equal_lengths_need_one_bucket_without_padding() -> None:
    (bucket,) = buckets([7] * 9)
    assert bucket.uniform and bucket.tokens == 63
