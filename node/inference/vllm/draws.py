"""What a request brings along for its draws, and the rows that follow from them. Knows torch, and no vLLM.

vLLM carries `SamplingParams.extra_args` to wherever tokens are sampled: in them stand the request's number, the
temperature and its uniforms as bytes, which no copy on the way duplicates or rounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from node.inference.engine import F64

KEY = "intellect"


@dataclass(frozen=True, slots=True)
class RequestDraw:
    """number: of the request; temperature > 0; uniforms: float64[most output tokens]; output: the tokens so far, a list
    that grows while the request runs; form: of proofs (`Rows`), None to keep its rows whole."""

    number: int
    temperature: float
    uniforms: F64
    output: Sequence[int]
    form: tuple[int, int] | None = None


def extra_args(number: int, temperature: float, uniforms: F64, form: tuple[int, int] | None = None) -> dict[str, Any]:
    """For vLLM's SamplingParams."""
    return {KEY: (number, temperature, np.ascontiguousarray(uniforms, dtype=np.float64).tobytes(), form)}


def draw_of(extra: Mapping[str, Any] | None, output: Sequence[int] = ()) -> RequestDraw | None:
    """What `extra_args` gave; None for a request that brought nothing."""
    if not extra or KEY not in extra:
        return None
    number, temperature, uniforms, form = extra[KEY]
    return RequestDraw(
        number, temperature, np.frombuffer(uniforms, dtype=np.float64), output, form and (form[0], form[1])
    )


def force(logits: Tensor, rows: Tensor, tokens: Tensor) -> None:
    """Make `tokens` (int64[n]) the only choice of a greedy sampler in these rows of logits [m, V]: no other is touched,
    so that nothing as large as the logits is written."""
    logits[rows, tokens] = torch.inf
