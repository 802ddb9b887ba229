import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protocol.sampling import choose, distance, interval, uniforms

SEED = b"\x21" * 32


def logits_of(seed: int, rows: int = 50, vocabulary: int = 40, scale: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, vocabulary)) * scale).astype(np.float32)


@given(st.integers(0, 2**32 - 1), st.floats(0.3, 2.0))
def test_the_verifier_finds_honest_draws_inside_their_intervals(seed: int, temperature: float) -> None:
    logits, u = logits_of(seed), uniforms(SEED, 50)
    tokens = choose(logits, u, temperature)
    lo, hi, logprob = interval(logits, tokens, temperature)
    assert distance(u, lo, hi).max() == 0
    assert np.allclose(np.exp(logprob.astype(np.float64)), hi - lo, rtol=1e-4, atol=1e-7)


def test_another_seed_is_far_outside() -> None:
    logits = logits_of(1)
    tokens = choose(logits, uniforms(b"\x22" * 32, 50), 1.0)
    lo, hi, _ = interval(logits, tokens, 1.0)
    assert distance(uniforms(SEED, 50), lo, hi).mean() > 0.05


def test_greedy_is_not_sampling() -> None:
    logits = logits_of(2, rows=400)
    lo, hi, _ = interval(logits, logits.argmax(axis=1), 1.0)
    assert distance(uniforms(SEED, 400), lo, hi).mean() > 0.02


def test_draws_follow_the_distribution() -> None:
    logits = np.log(np.array([[0.5, 0.25, 0.125, 0.125]], dtype=np.float32)).repeat(20_000, axis=0)
    share = np.bincount(choose(logits, uniforms(SEED, 20_000), 1.0), minlength=4) / 20_000
    assert np.abs(share - [0.5, 0.25, 0.125, 0.125]).max() < 0.02


def test_extreme_logits_give_no_nan() -> None:
    logits = np.array([[1e4, -1e4, 0.0]], dtype=np.float32)
    tokens = choose(logits, np.array([0.999]), 0.01)
    lo, hi, logprob = interval(logits, tokens, 0.01)
    assert tokens.tolist() == [0]
    assert np.isfinite(logprob).all() and lo[0] == 0 and hi[0] == 1


def test_uniforms_lie_in_the_half_open_unit_interval() -> None:
    u = uniforms(SEED, 1000)
    assert u.dtype == np.float64 and u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 0.5) < 0.05
