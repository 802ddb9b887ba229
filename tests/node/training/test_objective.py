"""The gradient of a few tokens, before the others have a log-probability: that of the whole, or none is given."""

import pytest
import torch

from node.training.functions import functions_of
from node.training.objective import TokenSignals, loss_of, slopes_of
from protocol.recipe import PRESETS, preset

N = 24


def known() -> tuple[TokenSignals, torch.Tensor, torch.Tensor]:
    """Three samples of eight tokens, one without advantage, and what the learner says of them."""
    random = torch.Generator().manual_seed(1)
    sampler = -torch.rand(N, generator=random) * 3 - 0.05
    samples = torch.arange(3).repeat_interleave(8)
    ages, reference = torch.full((N,), 1.5), sampler + 0.1 * torch.randn(N, generator=random)
    weights = torch.full((N,), 1 / N, dtype=torch.float64)
    facts = TokenSignals(sampler, torch.tensor([1.0, -0.7, 0.0])[samples], samples, weights, ages, None, reference)
    logprobs = (sampler + 0.3 * torch.randn(N, generator=random)).clamp(max=-0.01)
    return facts, logprobs.requires_grad_(), torch.rand(N, generator=random).requires_grad_()


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_presets_gradient_is_known_a_few_tokens_at_a_time(name: str) -> None:
    objective = preset(name, reference_kl=0.01, entropy_bonus=0.02).objective()
    functions = functions_of(objective)
    facts, logprobs, entropy = known()
    slopes = slopes_of(functions, objective, facts, 2.0)
    if objective.loss == "gspo" or objective.sample_mask != "none":
        assert slopes is None
        return
    assert slopes is not None
    whole = torch.autograd.grad(2 * loss_of(functions, objective, facts, logprobs, entropy).total, (logprobs, entropy))
    with torch.no_grad():
        parts = [slopes(cut, logprobs[cut], entropy[cut]) for cut in (slice(0, 5), slice(5, 6), slice(6, N))]
    for found, expected in zip(map(torch.cat, zip(*parts, strict=True)), whole, strict=True):
        assert expected.any() and torch.allclose(found, expected, rtol=1e-5, atol=0)
