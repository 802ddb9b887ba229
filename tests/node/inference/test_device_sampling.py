"""The sampler in torch: the reference's tokens, bit for bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from node.inference import device_sampling
from node.inference.errors import EngineError
from protocol import sampling

SHAPES = st.tuples(st.integers(1, 9), st.sampled_from([1, 2, 63, 64, 65, 1000]))


def chosen_by_torch(logits: torch.Tensor, u: torch.Tensor, temperature: float) -> np.ndarray:
    """The tokens, drawn and settled."""
    drawn = device_sampling.draw(logits, u, temperature).cpu().numpy()
    return device_sampling.settle(drawn, lambda: logits, u.cpu().numpy(), temperature)


def logits_of(seed: int, rows: int, vocabulary: int, scale: float) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, vocabulary)) * scale).astype(np.float32)


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), SHAPES, st.floats(0.05, 2.0), st.sampled_from([0.0, 1.0, 8.0, 1e4]))
def test_tokens_and_intervals_are_those_of_the_reference(
    seed: int, shape: tuple[int, int], temperature: float, scale: float
) -> None:
    logits = logits_of(seed, *shape, scale)
    u = np.random.default_rng(seed).random(shape[0])
    expected = sampling.choose(logits, u, temperature)
    tokens = chosen_by_torch(torch.from_numpy(logits), torch.from_numpy(u), temperature)
    assert tokens.tolist() == expected.tolist()
    found = device_sampling.interval(torch.from_numpy(logits), torch.from_numpy(tokens), temperature)
    for ours, theirs in zip(found, sampling.interval(logits, expected, temperature), strict=True):
        assert np.allclose(ours.numpy(), theirs, rtol=1e-6, atol=1e-11)


def test_numbers_on_an_edge_fall_where_the_reference_puts_them() -> None:
    """Every edge of the reference's running sum, and the numbers on either side of it."""
    logits = logits_of(1, 1, 200, 2.0)
    tokens = np.arange(200)
    _, edges, _ = sampling.interval(logits.repeat(200, 0), tokens, 1.0)
    u = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 2)]).clip(0, np.nextafter(1, 0))
    many = logits.repeat(len(u), 0)
    chosen = chosen_by_torch(torch.from_numpy(many), torch.from_numpy(u), 1.0)
    assert chosen.tolist() == sampling.choose(many, u, 1.0).tolist()


def test_tokens_without_weight_are_passed_over_as_in_the_reference() -> None:
    logits = np.full((3, 130), -1e5, dtype=np.float32)
    logits[:, 70] = 0.0
    u = np.array([0.0, 0.5, np.nextafter(1, 0)])
    chosen = chosen_by_torch(torch.from_numpy(logits), torch.from_numpy(u), 1.0)
    assert chosen.tolist() == sampling.choose(logits, u, 1.0).tolist()


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_not_finite_are_an_error(broken: float) -> None:
    logits = torch.zeros(4, 100)
    logits[2, 7] = broken
    with pytest.raises(EngineError, match="not finite"):
        chosen_by_torch(logits, torch.rand(4, dtype=torch.float64), 1.0)
