"""Losses that a run brings as formulas (protocol.expression), computed with torch.

A formula has, per token: logp, sampler (log-probabilities of learner and sampler), r = exp(logp - sampler), log_r,
p = exp(logp), q = exp(sampler), and A. exp, log and sqrt stay within finite numbers. `stop` lets no gradient through;
`sample_mean` and `sample_sum` are over the tokens of a sample. Advantages by formula: node.training.advantages.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from node.training.losses import LONGEST_LOG_RATIO, LossInputs, TokenLoss, log_ratio, of_samples
from protocol.expression import compute, parse_loss, uses

_parsed = lru_cache(16)(parse_loss)


def formula_loss(text: str, inputs: LossInputs) -> TokenLoss:
    """Raises ExpressionError."""
    logs = log_ratio(inputs.logprobs, inputs.sampler_logprobs)
    names = {
        "logp": inputs.logprobs,
        "sampler": inputs.sampler_logprobs,
        "log_r": logs,
        "r": torch.exp(logs),
        "p": torch.exp(inputs.logprobs),
        "q": torch.exp(inputs.sampler_logprobs),
        "A": inputs.advantages,
    }
    found: Tensor = compute(_parsed(text), names, _of_torch(inputs))
    return TokenLoss(found.expand(inputs.logprobs.shape).to(inputs.logprobs.dtype))


def is_per_token(text: str) -> bool:
    """Whether a token's loss depends on no other token. Raises ExpressionError."""
    return not uses(_parsed(text)) & {"sample_mean", "sample_sum"}


def _of_torch(inputs: LossInputs) -> Mapping[str, Callable[..., Any]]:
    def of_sample(values: Tensor, *, mean: bool) -> Tensor:
        sums, lengths = of_samples(values.expand(inputs.samples.shape), inputs.samples)
        return sums / lengths if mean else sums

    least = 1e-12
    return {
        "number": lambda value: inputs.logprobs.new_tensor(value),
        "where": torch.where,
        "exp": lambda x: torch.exp(torch.clamp(x, -LONGEST_LOG_RATIO, LONGEST_LOG_RATIO)),
        "log": lambda x: torch.log(torch.clamp(x, min=least)),
        "sqrt": lambda x: torch.sqrt(torch.clamp(x, min=least)),
        "abs": torch.abs,
        "min": torch.minimum,
        "max": torch.maximum,
        "clip": lambda x, low, high: torch.maximum(torch.minimum(x, high), low),
        "stop": lambda x: x.detach(),
        "sample_mean": lambda x: of_sample(x, mean=True),
        "sample_sum": lambda x: of_sample(x, mean=False),
    }
