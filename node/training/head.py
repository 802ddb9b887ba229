"""Log-probabilities of sampled tokens without the logits of all: the output head, a chunk of positions at a time.

Forward and backward pass hold two tables of at most `cells` float32 numbers each (tokens * vocabulary) beside the
head's own weights and their gradient, however many tokens there are: every chunk's logits are computed again for the
gradient, which is added up in place. A single chunk is kept instead. With z the logits divided by the temperature,
p = softmax(z), l = log p of the drawn token and H the entropy (derivatives of the softmax):

    dl/dz = 1[drawn] - p        dH/dz = -p (log p + H)
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear


def sampled_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    drawn: Tensor,
    *,
    temperature: float,
    cells: int,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """(log-probability, entropy), float32[n]. hidden: [n, H], inputs of the head; weight: [V, H]; bias: [V];
    drawn: int64[n]. The entropy has no gradient unless that is asked for."""
    found = _Head.apply(hidden, weight, bias, drawn, temperature, max(1, cells // weight.shape[0]), entropy_gradient)
    return found  # type: ignore[return-value] - what `apply` returns is typed as Any


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        drawn: Tensor,
        temperature: float,
        size: int,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        kept, parts = None, []
        for at in range(0, len(hidden), size):
            kept = _log_softmax(hidden[at : at + size], weight, bias, temperature)
            drawn_logs = kept.gather(1, drawn[at : at + size, None])[:, 0]
            parts.append((drawn_logs, -torch.exp(kept).mul_(kept).sum(-1)))
        logprobs, entropy = (torch.cat(column) for column in zip(*parts, strict=True))
        ctx.save_for_backward(hidden, weight, bias, drawn, entropy, kept if len(parts) == 1 else None)
        ctx.temperature, ctx.size, ctx.entropy_gradient = temperature, size, entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, drawn, entropy, kept = ctx.saved_tensors
        by_hidden, by_weight, by_bias = (
            torch.zeros_like(tensor) if needed else None
            for tensor, needed in zip((hidden, weight, bias), ctx.needs_input_grad[:3], strict=True)
        )
        for at in range(0, len(hidden), ctx.size):
            cut = slice(at, at + ctx.size)
            logs = _log_softmax(hidden[cut], weight, bias, ctx.temperature) if kept is None else kept
            by_entropy = (gradients[1][cut], entropy[cut]) if ctx.entropy_gradient else None
            found = _by_logits(logs, drawn[cut], gradients[0][cut], by_entropy).div_(ctx.temperature).to(weight.dtype)
            if by_hidden is not None:
                by_hidden[cut] = (found @ weight).to(hidden.dtype)
            if by_weight is not None:
                by_weight.addmm_(found.t(), hidden[cut].to(weight.dtype))
            if by_bias is not None:
                by_bias += found.sum(0)
        return by_hidden, by_weight, by_bias, None, None, None, None


def _log_softmax(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """float32[chunk, V], in the place of the logits."""
    logits = linear(hidden.to(weight.dtype), weight, bias).float().div_(temperature)
    return logits.sub_(torch.logsumexp(logits, -1, keepdim=True))


def _by_logits(logs: Tensor, drawn: Tensor, gradient: Tensor, by_entropy: tuple[Tensor, Tensor] | None) -> Tensor:
    """The gradient by the scaled logits. by_entropy: the gradient by each entropy, and the entropy."""
    slope = torch.exp(logs)
    if by_entropy is None:
        slope.mul_(-gradient[:, None])
    else:
        weight, entropy = by_entropy
        slope.mul_(((logs + entropy[:, None]) * weight[:, None] + gradient[:, None]).neg_())
    rows = torch.arange(len(drawn), device=drawn.device)
    slope[rows, drawn] = slope[rows, drawn] + gradient
    return slope
