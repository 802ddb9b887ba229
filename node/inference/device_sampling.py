"""`protocol.sampling` where the logits are: the same tokens bit for bit, at a fraction of the time, on any device.

Weights are summed by blocks in float64. Which block and which token a number falls into then takes two short searches
instead of a running sum over the vocabulary. Both ways of adding up are exact to within a bound that follows from the
number of terms; where a number lies closer to an edge than that, the reference itself decides. At a vocabulary of
150,000 that happens about once in 100,000 tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from node.inference.errors import EngineError
from node.inference.transfer import sent
from protocol import sampling
from protocol.sampling import F64, I64

BLOCK = 64
"""Tokens whose weights are added up before they are compared."""
OPEN, BROKEN = -1, -2
"""What stands for a token: the reference is to decide; the logits are not finite."""


def draw(logits: Tensor, u: Tensor, temperature: float) -> Tensor:
    """int64[n]: tokens, those of `protocol.sampling.choose`, or OPEN or BROKEN. logits: float32[n, V]; u: float64[n].
    Does not wait for the device."""
    table = _tabulate(logits, temperature)
    aim = u * table.total
    tokens = table.find(aim)
    lo, hi = table.edges(tokens)
    # Before the first token and behind the last there is no other token to confuse them with.
    near = ((aim - lo < table.doubt) & (tokens > 0)) | ((hi - aim < table.doubt) & (tokens < logits.shape[1] - 1))
    return tokens.masked_fill_(near, OPEN).masked_fill_(~table.finite, BROKEN)


def settle(drawn: I64, logits: Callable[[], Tensor], u: F64, temperature: float) -> I64:
    """Tokens of what was drawn. logits: what it was drawn from, which is seldom asked for.

    Raises EngineError for logits that are not finite.
    """
    if (drawn == BROKEN).any():
        raise not_finite()
    left = np.flatnonzero(drawn == OPEN)
    if not len(left):
        return drawn
    found = logits()
    tokens = drawn.copy()
    tokens[left] = sampling.choose(found[sent(left, found.device)].cpu().numpy(), u[left], temperature)
    return tokens


def interval(logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """(lo float64[n], hi float64[n], logprob float32[n]) as in `protocol.sampling.interval`, up to rounding; for logits
    that are not finite, lo is no number (`check_finite`)."""
    table = _tabulate(logits, temperature)
    lo, hi = table.edges(tokens)
    chosen = logits.gather(1, tokens[:, None]).double()
    logprobs = (chosen / temperature - (table.top / temperature + table.total.log()[:, None]))[:, 0]
    return torch.where(table.finite, lo / table.total, torch.nan), hi / table.total, logprobs.float()


def check_finite(lo: F64) -> None:
    """Raises EngineError if an interval is of logits that are not finite."""
    if np.isnan(lo).any():
        raise not_finite()


@dataclass(frozen=True, slots=True)
class _Table:
    """Sums of weights exp((logit - top) / temperature). before: float64[n, blocks], of all blocks before each; total:
    float64[n], of all tokens; top: float64[n, 1], the largest logit; doubt: float64[n], how far a sum may be from the
    reference's; finite: bool[n], whether all logits are: if not, sums are of any value, and searches find any token."""

    logits: Tensor
    temperature: float
    before: Tensor
    top: Tensor
    total: Tensor
    doubt: Tensor
    finite: Tensor

    def find(self, aim: Tensor) -> Tensor:
        """The first token at which the running sum reaches float64[n]."""
        # A number of 0 lies before every sum, and belongs to the first token.
        block = ((self.before < aim[:, None]).sum(1) - 1).clamp(min=0)
        # Where the two sums disagree at a block's end this is its last token: so near an edge the reference decides.
        inside = ((self._running(block) < aim[:, None]).sum(1)).clamp(max=BLOCK - 1)
        return (block * BLOCK + inside).clamp(max=self.logits.shape[1] - 1)

    def edges(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The running sum before and after each token."""
        block, inside = tokens // BLOCK, (tokens % BLOCK)[:, None]
        running = self._running(block)
        before = running.gather(1, (inside - 1).clamp(min=0))
        first = self.before.gather(1, block[:, None])
        return torch.where(inside > 0, before, first)[:, 0], running.gather(1, inside)[:, 0]

    def _running(self, block: Tensor) -> Tensor:
        """The running sum over the tokens of one block a row: float64[n, BLOCK]."""
        places = block[:, None] * BLOCK + torch.arange(BLOCK, device=block.device)
        logits = self.logits.gather(1, places.clamp(max=self.logits.shape[1] - 1))
        weights = _weights(logits, self.top, self.temperature, torch.empty_like(logits, dtype=torch.float64))
        return (weights * (places < self.logits.shape[1])).cumsum(1) + self.before.gather(1, block[:, None])


def _tabulate(logits: Tensor, temperature: float) -> _Table:
    if temperature <= 0:
        raise ValueError("temperature must be > 0")
    finite = torch.isfinite(logits.sum(1))  # which one infinity or NaN spoils
    top = logits.amax(1, keepdim=True).double()
    sums = _block_sums(logits, top, temperature)
    running = sums.cumsum(1)
    total = running[:, -1]
    doubt = total * 2.0**-50 * (logits.shape[1] + 1024 + top[:, 0].abs() / temperature)
    return _Table(logits, temperature, running - sums, top, total, doubt, finite)


def _block_sums(logits: Tensor, top: Tensor, temperature: float) -> Tensor:
    """float64[n, blocks], a few rows at a time, so that their weights stay in a cache."""
    count, vocabulary = logits.shape
    # Most logits turned into float64 at a time on a CPU: 1 MiB, which its caches hold. The same elsewhere: 64 MiB.
    cells = 1 << 17 if logits.device.type == "cpu" else 1 << 23
    blocks, rows = -(-vocabulary // BLOCK), max(1, cells // vocabulary)
    sums = torch.empty(count, blocks, dtype=torch.float64, device=logits.device)
    # Places behind the vocabulary stay zero: they fill the last block up and weigh nothing.
    room = torch.zeros(min(rows, count), blocks * BLOCK, dtype=torch.float64, device=logits.device)
    for at in range(0, count, rows):
        some = logits[at : at + rows]
        _weights(some, top[at : at + rows], temperature, room[: len(some), :vocabulary])
        torch.sum(room[: len(some)].view(len(some), blocks, BLOCK), 2, out=sums[at : at + rows])
    return sums


def _weights(logits: Tensor, top: Tensor, temperature: float, out: Tensor) -> Tensor:
    """exp((logit - top) / temperature), in `out`."""
    out.copy_(logits).sub_(top)
    return (out if temperature == 1 else out.mul_(1 / temperature)).exp_()


def not_finite() -> EngineError:
    """What is said of weights that give such logits."""
    return EngineError(
        "the model gives no valid probabilities",
        "its logits are not finite with the weights in use",
        "the policy is broken: stop the trainer of this run and resume it from an earlier checkpoint",
    )
