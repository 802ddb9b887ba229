"""The fast arithmetic against plain Python integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import polynomials
from protocol.polynomials import MAX_POINTS, PRIME, evaluate, interpolate


def horner(coefficients: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * x + coefficient) % PRIME
    return value


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 140), st.booleans())
def test_each_polynomial_goes_through_its_own_points(seed: int, count: int, k: int, high: bool) -> None:
    """k points and k coefficients: there is only one such polynomial. high: near p, where sums are largest."""
    random = np.random.default_rng(seed)
    lowest = PRIME - 200 if high else 0
    x = np.stack([random.choice(np.arange(lowest, PRIME), k, replace=False) for _ in range(count)])
    y = random.integers(lowest, PRIME, (count, k))
    found = interpolate(x.astype(np.uint32), y.astype(np.uint32))
    assert found.shape == (count, k) and found.max() < PRIME
    for row, at, values in zip(found.tolist(), x.tolist(), y.tolist(), strict=True):
        assert [horner(row, place) for place in at] == values


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 300), st.integers(1, 60))
def test_each_polynomial_is_evaluated_at_its_own_places(seed: int, count: int, k: int, places: int) -> None:
    random = np.random.default_rng(seed)
    coefficients, x = random.integers(0, PRIME, (count, k)), random.integers(0, PRIME, (count, places))
    found = evaluate(coefficients.astype(np.float64), x.astype(np.uint32))
    assert found.tolist() == [
        [horner(row, place) for place in at] for row, at in zip(coefficients.tolist(), x.tolist(), strict=True)
    ]


@pytest.mark.parametrize("k", [1, 2, 127, 128, 1000, MAX_POINTS])
@pytest.mark.parametrize("lowest", [0, PRIME - 1])
def test_a_product_is_exact_up_to_the_most_points(k: int, lowest: int) -> None:
    both = np.random.default_rng(k).integers(lowest, PRIME, (1, 2, k))
    product = polynomials._products(both.astype(np.float64))[0, 0, : 2 * k - 1]
    assert product.astype(np.int64).tolist() == np.convolve(both[0, 0], both[0, 1]).tolist()


@given(st.lists(st.integers(0, (2**45 - 2) // PRIME), min_size=1, max_size=40))
def test_multiples_of_p_and_their_neighbours_are_reduced_exactly(multiples: list[int]) -> None:
    exact = [PRIME * multiple + near for multiple in multiples for near in (0, 1, PRIME - 1)]
    assert polynomials._reduce(np.array(exact, dtype=np.float64)).tolist() == [value % PRIME for value in exact]


def test_too_many_points_are_refused() -> None:
    points = np.zeros((1, MAX_POINTS + 1), dtype=np.uint32)
    with pytest.raises(ValueError, match="at most 4096"):
        interpolate(points, points)


def test_what_one_call_leaves_in_memory_does_not_change_the_next() -> None:
    """Intermediate numbers live in memory that is used again, by calls of other sizes, too."""
    random = np.random.default_rng(0)
    inputs = [
        (np.stack([random.choice(PRIME, k, replace=False) for _ in range(n)]).astype(np.uint32), n, k)
        for n, k in [(64, 128), (3, 128), (40, 100), (1, 1), (64, 128), (70, 64)]
    ]
    first = [interpolate(x, x[:, ::-1] % 1000) for x, _, _ in inputs]
    again = [
        np.concatenate([interpolate(x[i : i + 1], x[i : i + 1, ::-1] % 1000) for i in range(n)]) for x, n, _ in inputs
    ]
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
