"""The two-sided clip: golden numbers, and which tokens get a gradient."""

import math

import pytest
import torch

from node.training.losses import intellect2

LOW, HIGH, CAP = 0.2, 0.2, 4.0


def evaluate(ratio: float, advantage: float) -> tuple[float, float]:
    """(loss, derivative by the ratio's logarithm)."""
    logprob = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    zero, a = torch.zeros(1, dtype=torch.float64), torch.tensor([advantage], dtype=torch.float64)
    loss = intellect2(logprob, zero, a, low=LOW, high=HIGH, cap=CAP)
    loss.loss.sum().backward()
    assert bool(loss.metrics["clip_share"]) == (float(logprob.grad) == 0.0)
    return float(loss.loss.detach()), float(logprob.grad)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 1.0, -1.0, -1.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.3, 1.0, -1.2, 0.0),  # A > 0 above the clip: nothing more to gain
        (0.5, 1.0, -0.5, -0.5),  # A > 0 below the clip: pulled back up
        (0.7, -1.0, 0.8, 0.0),  # A < 0 below the clip: nothing more to gain
        (1.0, -1.0, 1.0, 1.0),
        (3.0, -1.0, 3.0, 3.0),  # A < 0 between clip and cap: full importance weight
        (5.0, -1.0, 4.0, 0.0),  # A < 0 above the cap: bounded, and dropped from the gradient
    ],
)
def test_loss_and_gradient(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    assert evaluate(ratio, advantage) == (pytest.approx(loss), pytest.approx(gradient))
