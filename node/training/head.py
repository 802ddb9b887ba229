"""Log-probabilities of sampled tokens without the logits of all: the output head, a chunk of positions at a time.

Two tables of at most `cells` float32 numbers (tokens * vocabulary) exist beside the head's own weights and their
gradient, however many tokens there are. With z the logits divided by the temperature, p = softmax(z), l = log p of the
drawn token and H the entropy (derivatives of the softmax):

    dl/dz = 1[drawn] - p        dH/dz = -p (log p + H)

Whoever knows the loss of a token from its own log-probability tells the gradient ahead (`Slopes`): then a chunk's
logits are used while they are there. Otherwise, and where another gradient comes in the end, they are computed again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from node.training.settings import CPU_LOGIT_CELLS

ARITHMETIC = 3
"""Raised when the same numbers give others in the last bits."""

Slopes = Callable[[slice, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(which tokens, their log-probabilities, their entropies) -> the loss's gradient by these and by those."""


def sampled_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    drawn: Tensor,
    *,
    temperature: float,
    cells: int,
    cap: float | None = None,
    entropy_gradient: bool = False,
    slopes: Slopes | None = None,
) -> tuple[Tensor, Tensor]:
    """(log-probability, entropy), float32[n]. hidden: [n, H], inputs of the head; weight: [V, H]; bias: [V];
    drawn: int64[n]; cap: logits are cap * tanh(logit / cap) before they are scaled. The entropy has no gradient unless
    that is asked for."""
    most = min(cells, CPU_LOGIT_CELLS) if weight.device.type == "cpu" else cells
    how = _How(temperature, max(1, most // weight.shape[0]), entropy_gradient, slopes, cap)
    found = _Head.apply(hidden, weight, bias, drawn, how)
    return found  # type: ignore[return-value] - what `apply` returns is typed as Any


@dataclass(frozen=True, slots=True)
class _How:
    """size: tokens in a chunk."""

    temperature: float
    size: int
    entropy_gradient: bool
    slopes: Slopes | None
    cap: float | None = None

    def cuts(self, count: int) -> Iterator[slice]:
        return (slice(at, min(at + self.size, count)) for at in range(0, count, self.size))


# Autograd over chunks that are computed again would make a whole gradient of the head for each chunk, and four tables
# of logits. This adds the gradient up in place. A fused kernel would need Triton, which CPUs lack.
class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, drawn: Tensor, how: _How
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropy = (torch.empty(len(hidden), device=hidden.device) for _ in range(2))
        table, told = _Table(weight, bias, how, len(hidden)), None
        if how.slopes is not None:
            told = _Told(torch.empty_like(logprobs), torch.empty_like(entropy), _Gradient(ctx, hidden, weight, bias))
        for cut in how.cuts(len(hidden)):
            logprobs[cut], entropy[cut] = table.fill(hidden[cut], drawn[cut])
            if how.slopes is not None and told is not None:
                told.add(cut, how.slopes(cut, logprobs[cut], entropy[cut]), table)
        ctx.save_for_backward(hidden, weight, bias, drawn)
        ctx.how, ctx.told = how, told
        if not how.entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_logprobs: Tensor, by_entropy: Tensor) -> tuple[Tensor | None, ...]:
        told, ctx.told = ctx.told, None
        if told is not None and told.comes_true(by_logprobs, by_entropy, ctx.how.entropy_gradient):
            return *told.gradient.parts, None, None
        # Before another gradient of this size is made beside it.
        del told
        hidden, weight, bias, drawn = ctx.saved_tensors
        gradient, table = _Gradient(ctx, hidden, weight, bias), _Table(weight, bias, ctx.how, len(hidden))
        for cut in ctx.how.cuts(len(hidden)):
            table.fill(hidden[cut], drawn[cut])
            gradient.add(cut, table.slope(by_logprobs[cut], by_entropy[cut]))
        return *gradient.parts, None, None


class _Table:
    """The scaled logits of one chunk and their exponentials, in memory that the next chunk uses again. The logits are
    kept for the entropy's gradient only."""

    def __init__(self, weight: Tensor, bias: Tensor | None, how: _How, count: int) -> None:
        self._weight, self._bias, self._how = weight, bias, how
        size = min(how.size, count), len(weight)
        self._logits, self._powers = (torch.empty(size, device=weight.device) for _ in range(2))

    def fill(self, hidden: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """(log-probability, entropy) of each."""
        self._z, self._e, self._drawn = self._logits[: len(hidden)], self._powers[: len(hidden)], drawn
        self._multiply(hidden.to(self._weight.dtype))
        if self._how.cap is not None:
            self._z.div_(self._how.cap).tanh_()
            self._bend = 1 - self._z * self._z
            self._z.mul_(self._how.cap)
        if self._how.temperature != 1:
            self._z.div_(self._how.temperature)
        self._z.sub_(self._z.amax(-1, keepdim=True))
        torch.exp(self._z, out=self._e)
        self._total = self._e.sum(-1)
        log_total = self._total.log()
        logprobs = self._z.gather(1, drawn[:, None])[:, 0] - log_total
        products = self._z.mul(self._e) if self._how.entropy_gradient else self._z.mul_(self._e)
        self._entropy = log_total - products.sum(-1) / self._total
        return logprobs, self._entropy

    def _multiply(self, hidden: Tensor) -> None:
        if self._weight.dtype != torch.float32:
            self._z.copy_(linear(hidden, self._weight, self._bias))
        elif self._bias is None:
            torch.mm(hidden, self._weight.t(), out=self._z)
        else:
            torch.addmm(self._bias, hidden, self._weight.t(), out=self._z)

    def slope(self, by_logprobs: Tensor, by_entropy: Tensor) -> Tensor:
        """The gradient by the logits, in the place of the exponentials."""
        inverse = 1 / self._how.temperature
        share = inverse / self._total
        if self._how.entropy_gradient:
            self._z.add_((self._entropy - self._total.log())[:, None]).mul_((by_entropy * share)[:, None])
            self._e.mul_(self._z.add_((by_logprobs * share)[:, None]).neg_())
        else:
            self._e.mul_(-(by_logprobs * share)[:, None])
        rows = torch.arange(len(self._drawn), device=self._drawn.device)
        self._e[rows, self._drawn] += by_logprobs * inverse
        if self._how.cap is not None:
            self._e.mul_(self._bend)
        return self._e.to(self._weight.dtype)


class _Gradient:
    """By the head's inputs, its weights and its bias; None for those that need none."""

    def __init__(self, ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self._hidden, self._weight = hidden, weight
        needed = zip((hidden, weight, bias), ctx.needs_input_grad, strict=False)
        self.parts = tuple(torch.zeros_like(one) if need and one is not None else None for one, need in needed)

    def add(self, cut: slice, slope: Tensor) -> None:
        by_hidden, by_weight, by_bias = self.parts
        if by_hidden is not None:
            by_hidden[cut] = (slope @ self._weight).to(by_hidden.dtype)
        if by_weight is not None:
            by_weight.addmm_(slope.t(), self._hidden[cut].to(by_weight.dtype))
        if by_bias is not None:
            by_bias += slope.sum(0)


@dataclass(frozen=True, slots=True)
class _Told:
    """A gradient that was told ahead, and what follows from it."""

    by_logprobs: Tensor
    by_entropy: Tensor
    gradient: _Gradient

    def add(self, cut: slice, slopes: tuple[Tensor, Tensor], table: _Table) -> None:
        self.by_logprobs[cut], self.by_entropy[cut] = slopes
        self.gradient.add(cut, table.slope(*slopes))

    def comes_true(self, by_logprobs: Tensor, by_entropy: Tensor, entropy_gradient: bool) -> bool:
        # So a mistake in `Slopes` costs time, and never a gradient.
        return _same(by_logprobs, self.by_logprobs) and (not entropy_gradient or _same(by_entropy, self.by_entropy))


def _same(found: Tensor, told: Tensor) -> bool:
    # How far, relative to the largest, a gradient may be from what was told ahead: the same formula, cut otherwise.
    return bool((found - told).abs().max() <= 1e-5 * told.abs().max())
