"""Inverse-CDF sampling that a verifier can replay from its own logits.

Token t is the first, in token-id order, whose cumulative probability reaches u_t; the distribution is
the softmax of fp32 logits / temperature, accumulated in float64. u_t is 53 bits of BLAKE3(seed | t).
One uniform per token and no per-vocabulary noise, so the sampler is the same on every device. The
verifier's statistic is the distance of u_t outside the interval that its own logits give the token:
0 for honest work up to rounding, large for anything sampled by another rule, model or seed.
"""

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


def uniforms(seed: bytes, count: int) -> F64:
    """u: float64[count] in [0, 1), u_t = top 53 bits of the first 8 bytes of BLAKE3(seed | t as u32 LE)."""
    # By token, not as one stream: whoever replays one token needs no random numbers of those before it.
    words = b"".join(blake3(seed + t.to_bytes(4, "little")).digest(8) for t in range(count))
    # 53 bits are what a float64 below 1 can hold exactly, so both sides have the same number, not a rounded one.
    return (np.frombuffer(words, dtype="<u8") >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _cumulative(logits: F32, temperature: float) -> tuple[F64, F64]:
    """(cumulative float64[n, V] ending in 1, log of the normaliser float64[n])."""
    if temperature <= 0:
        raise ValueError("temperature must be > 0")
    scaled = logits.astype(np.float64) / temperature
    # Without it exp overflows at logits of some 700.
    top = scaled.max(axis=1, keepdims=True)
    weights = np.exp(scaled - top)
    # In token order and float64, one way on all machines: another order of sums would move the intervals' borders.
    cumulative = np.cumsum(weights, axis=1)
    total = cumulative[:, -1:]
    return cumulative / total, (top + np.log(total))[:, 0]


def choose(logits: F32, u: F64, temperature: float) -> I64:
    """tokens: int64[n]; logits: float32[n, V]; u: float64[n]."""
    cumulative, _ = _cumulative(logits, temperature)
    tokens = (cumulative < u[:, None]).sum(axis=1)
    # Rounding may leave the last sum a hair below 1, and u above it.
    return np.minimum(tokens, logits.shape[1] - 1).astype(np.int64)


def interval(logits: F32, tokens: I64, temperature: float) -> tuple[F64, F64, F32]:
    """(lo float64[n], hi float64[n], logprob float32[n]) of each token under the verifier's logits."""
    cumulative, normaliser = _cumulative(logits, temperature)
    rows = np.arange(len(tokens))
    hi = cumulative[rows, tokens]
    # For token 0 the index -1 would read the last column; what is read there is thrown away.
    lo = np.where(tokens > 0, cumulative[rows, np.maximum(tokens - 1, 0)], 0.0)
    logprob = logits[rows, tokens].astype(np.float64) / temperature - normaliser
    return lo, hi, logprob.astype(np.float32)


def distance(u: F64, lo: F64, hi: F64) -> F64:
    """How far u lies outside [lo, hi]; 0 inside."""
    return np.maximum(np.maximum(lo - u, u - hi), 0.0)
