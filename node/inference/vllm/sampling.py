"""protocol.sampling on the device of the logits: the same operations in the same order, in float64."""

import torch
from torch import Tensor


def choose(logits: Tensor, uniforms: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """(tokens int64[n], sound bool[n]: whether the logits give probabilities) of logits
    float32[n, V]; uniforms: float64[n]."""
    cumulative, total, _ = _cumulative(logits, temperature)
    tokens = (cumulative / total < uniforms[:, None]).sum(dim=1)
    return tokens.clamp_(max=logits.shape[1] - 1), torch.isfinite(total[:, 0])


def interval(logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """(lo float64[n], hi float64[n], logprob float32[n]) of each token under these logits."""
    cumulative, total, top = _cumulative(logits, temperature)
    place = tokens[:, None]
    hi = (cumulative.gather(1, place) / total)[:, 0]
    before = (cumulative.gather(1, (place - 1).clamp_(min=0)) / total)[:, 0]
    lo = torch.where(tokens > 0, before, torch.zeros_like(before))
    own = logits.gather(1, place).to(torch.float64) / temperature
    return lo, hi, (own - (top + total.log()))[:, 0].float()


def _cumulative(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """(sums of the weights of all tokens up to each, float64[n, V]; their total [n, 1]; the largest scaled logit)."""
    scaled = logits.to(torch.float64).div_(temperature)
    top = scaled.max(dim=1, keepdim=True).values
    cumulative = scaled.sub_(top).exp_().cumsum_(dim=1)
    return cumulative, cumulative[:, -1:].clone(), top
