"""`protocol.sampling` where the logits are: the same tokens bit for bit, at a fraction of the time, on any device.

Weights are summed by blocks in float64. Which block and which token a number falls into then takes two short searches
instead of a running sum over the vocabulary. Both ways of adding up are exact to within a bound that follows from the
number of terms; where a number lies closer to an edge than that, the reference itself decides. At a vocabulary of
150,000 that happens about once in 100,000 tokens.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from node.inference.errors import EngineError
from protocol import sampling

BLOCK = 64
"""Tokens whose weights are added up before they are compared."""
CACHED_CELLS = 1 << 17
"""Most logits turned into float64 at a time on a CPU: 1 MiB, which its caches hold."""
DEVICE_CELLS = 1 << 23
"""The same elsewhere: 64 MiB."""


def choose(logits: Tensor, u: Tensor, temperature: float) -> Tensor:
    """tokens: int64[n], those of `protocol.sampling.choose`; logits: float32[n, V]; u: float64[n].

    Raises EngineError for logits that are not finite.
    """
    rows = rows_at_once(logits)
    parts = zip(logits.split(rows), u.split(rows), strict=True)
    return torch.cat([_choose(some, numbers, temperature) for some, numbers in parts])


def interval(logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """(lo float64[n], hi float64[n], logprob float32[n]) as in `protocol.sampling.interval`, up to rounding.

    Raises EngineError for logits that are not finite.
    """
    rows = rows_at_once(logits)
    parts = zip(logits.split(rows), tokens.split(rows), strict=True)
    columns = zip(*(_interval(some, drawn, temperature) for some, drawn in parts), strict=True)
    lo, hi, logprobs = map(torch.cat, columns)
    return lo, hi, logprobs


def rows_at_once(logits: Tensor) -> int:
    """How many rows of such logits are worth a pass of float64."""
    cells = CACHED_CELLS if logits.device.type == "cpu" else DEVICE_CELLS
    return max(1, cells // logits.shape[1])


def _choose(logits: Tensor, u: Tensor, temperature: float) -> Tensor:
    table = _tabulate(logits, temperature)
    aim = u * table.total
    tokens = table.find(aim)
    lo, hi = table.edges(tokens)
    near = ((aim - lo < table.doubt) & (tokens > 0)) | ((hi - aim < table.doubt) & (tokens < logits.shape[1] - 1))
    for row in near.nonzero()[:, 0].tolist():
        tokens[row] = _reference(logits[row], u[row], temperature)
    return tokens


def _reference(logits: Tensor, u: Tensor, temperature: float) -> int:
    return int(sampling.choose(logits[None].cpu().numpy(), np.array([u.item()]), temperature)[0])


def _interval(logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    table = _tabulate(logits, temperature)
    lo, hi = table.edges(tokens)
    chosen = logits.gather(1, tokens[:, None])[:, 0].double()
    logprobs = chosen / temperature - (table.top / temperature + table.total.log())
    return lo / table.total, hi / table.total, logprobs.float()


@dataclass(frozen=True, slots=True)
class _Table:
    """weights: float64[n, blocks, BLOCK], exp((logit - top) / temperature); before: float64[n, blocks], the sum of the
    blocks before each; top, total: float64[n], the largest logit and the sum of all weights; doubt: float64[n], how far
    a sum may be from the reference's."""

    weights: Tensor
    before: Tensor
    top: Tensor
    total: Tensor
    doubt: Tensor
    vocabulary: int

    def find(self, aim: Tensor) -> Tensor:
        """The first token at which the running sum reaches float64[n]."""
        block = ((self.before < aim[:, None]).sum(1) - 1).clamp(min=0)
        inside = ((self._running(block) < aim[:, None]).sum(1)).clamp(max=BLOCK - 1)
        return (block * BLOCK + inside).clamp(max=self.vocabulary - 1)

    def edges(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The running sum before and after each token."""
        block, inside = tokens // BLOCK, (tokens % BLOCK)[:, None]
        running = self._running(block)
        before = running.gather(1, (inside - 1).clamp(min=0))
        first = self.before.gather(1, block[:, None])
        return torch.where(inside > 0, before, first)[:, 0], running.gather(1, inside)[:, 0]

    def _running(self, block: Tensor) -> Tensor:
        """The running sum over the tokens of one block a row: float64[n, BLOCK]."""
        rows = torch.arange(len(block), device=block.device)
        return self.weights[rows, block].cumsum(1) + self.before.gather(1, block[:, None])


def _tabulate(logits: Tensor, temperature: float) -> _Table:
    if temperature <= 0:
        raise ValueError("temperature must be > 0")
    count, vocabulary = logits.shape
    top, least = logits.amax(1).double(), logits.amin(1)  # several times quicker than aminmax
    if not (torch.isfinite(top) & torch.isfinite(least)).all():
        raise _not_finite()
    padded = torch.empty(count, -(-vocabulary // BLOCK) * BLOCK, dtype=torch.float64, device=logits.device)
    padded[:, vocabulary:] = 0
    padded[:, :vocabulary].copy_(logits).sub_(top[:, None]).mul_(1 / temperature).exp_()
    weights = padded.view(count, -1, BLOCK)
    sums = weights.sum(2)
    running = sums.cumsum(1)
    doubt = running[:, -1] * 2.0**-50 * (vocabulary + 1024 + top.abs() / temperature)
    return _Table(weights, running - sums, top, running[:, -1], doubt, vocabulary)


def _not_finite() -> EngineError:
    return EngineError(
        "the model gives no valid probabilities",
        "its logits are not finite with the weights in use",
        "the policy is broken: stop the trainer of this run and resume it from an earlier checkpoint",
    )
