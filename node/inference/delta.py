"""Gated delta layers (Yang, Kautz and Hatamizadeh 2024, arXiv 2412.06464): each head remembers keys and values in one
matrix S instead of in a cache that grows. With decay a, rate b, key k and value v of a token

    S <- a S;    S <- S + k (b (v - k S));    out = q S

where keys and queries have length 1, and queries, keys and values have gone through a convolution over the last few
tokens. Engine and learner compute it here: token by token where one token follows what is remembered, otherwise in
chunks, in which what tokens of one chunk do to each other is one triangular system (section 3.3 of the paper). In
float32, whatever the layers compute in. Knows nothing of weights in memory, rows of a cache or packs.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from node.inference.architectures import DeltaShape
from node.inference.room import CHUNK


class DeltaState(NamedTuple):
    """What a layer knows of the tokens before. inputs: [B, channels, kernel - 1], the last that were convolved;
    matrix: float32[B, heads, key_dim, value_dim], S."""

    inputs: Tensor
    matrix: Tensor


Mix = Callable[[DeltaState | None, Tensor | None], tuple[Tensor, DeltaState]]
"""(what is known of before, None: nothing; int64[B], tokens of each row, behind which padding stands, None: all are
tokens) -> (outputs, what is known behind them)."""


class Fed(NamedTuple):
    """What goes into a layer. qkv: [B, T, channels]; gate: [B, T, heads, value_dim], of its output; rate, decay:
    [B, T, heads], before what bounds them."""

    qkv: Tensor
    gate: Tensor
    rate: Tensor
    decay: Tensor


class DeltaWeights(NamedTuple):
    """conv: [channels, 1, kernel]; log_decay, bias: [heads]."""

    conv: Tensor
    log_decay: Tensor
    bias: Tensor


def fed_by(shape: DeltaShape, projected: Sequence[Tensor]) -> Fed:
    """projected: [B, T, ...] by the matrices of a row of the table: queries with keys and values, gates, rates and
    decays by four; by two, where they stand side by side for each key head."""
    if len(projected) == 4:
        qkv, gate, rate, decay = projected
        return Fed(qkv, gate.unflatten(-1, (shape.heads, -1)), rate, decay)
    each = shape.heads // shape.key_heads
    widths = [shape.key_dim, shape.key_dim, each * shape.value_dim, each * shape.value_dim]
    first, second = (one.unflatten(-1, (shape.key_heads, -1)) for one in projected)
    q, k, v, gate = first.split(widths, -1)
    rate, decay = (one.flatten(-2) for one in second.split(each, -1))
    qkv = torch.cat([one.flatten(-2) for one in (q, k, v)], -1)
    return Fed(qkv, gate.flatten(-2).unflatten(-1, (shape.heads, -1)), rate, decay)


def mixed(
    shape: DeltaShape,
    fed: Fed,
    weights: DeltaWeights,
    before: DeltaState | None = None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, DeltaState]:
    """(outputs [B, T, heads, value_dim] of fed's type, what is known behind each row). Of one token the matrix of
    `before` is changed in place."""
    convolved, inputs = _convolved(fed.qkv, weights.conv, before, lengths)
    q, k, v = convolved.split([shape.keys, shape.keys, shape.values], -1)
    times = shape.heads // shape.key_heads
    q, k = (_unit(one.unflatten(-1, (shape.key_heads, -1)).float()) for one in (q, k))
    q = q * shape.key_dim**-0.5
    if times > 1:
        # Expanded and not repeated: the gradient is then a sum in one order.
        q, k = (one[:, :, :, None].expand(-1, -1, -1, times, -1).flatten(2, 3) for one in (q, k))
    v = v.unflatten(-1, (shape.heads, -1)).float()
    rate = fed.rate.sigmoid().float()
    decay = -weights.log_decay.float().exp() * functional.softplus(fed.decay.float() + weights.bias)
    if lengths is not None:
        # Padding neither writes nor forgets.
        unused = (torch.arange(rate.shape[1], device=rate.device) >= lengths[:, None])[..., None]
        rate, decay = rate.masked_fill(unused, 0), decay.masked_fill(unused, 0)
    matrix = None if before is None else before.matrix
    if matrix is not None and rate.shape[1] == 1:
        out = _one_token(q[:, 0], k[:, 0], v[:, 0], rate[:, 0], decay[:, 0], matrix)[:, None]
    else:
        out, matrix = _in_chunks(q, k, v, rate, decay, matrix)
    return out.to(fed.qkv.dtype), DeltaState(inputs, matrix)


def _unit(x: Tensor) -> Tensor:
    length_eps = 1e-6
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + length_eps)


def _convolved(x: Tensor, weight: Tensor, before: DeltaState | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """(silu of each channel's convolution [B, T, channels], the last inputs of each row)."""
    kept = weight.shape[2] - 1
    x = x.transpose(1, 2)
    whole = functional.pad(x, (kept, 0)) if before is None else torch.cat((before.inputs, x), 2)
    found = functional.silu(functional.conv1d(whole, weight, groups=len(weight))).transpose(1, 2)
    if lengths is None:
        return found, whole[:, :, whole.shape[2] - kept :]
    last = lengths[:, None] + torch.arange(kept, device=x.device)
    return found, whole.gather(2, last[:, None].expand(-1, whole.shape[1], -1))


def _one_token(q: Tensor, k: Tensor, v: Tensor, rate: Tensor, decay: Tensor, matrix: Tensor) -> Tensor:
    """[B, heads, value_dim]; matrix is changed in place. q, k: [B, heads, key_dim]; v: [B, heads, value_dim]."""
    matrix.mul_(decay.exp()[..., None, None])
    change = (v - (k[..., None, :] @ matrix)[..., 0, :]) * rate[..., None]
    matrix.add_(k[..., None] * change[..., None, :])
    return (q[..., None, :] @ matrix)[..., 0, :]


def _in_chunks(
    q: Tensor, k: Tensor, v: Tensor, rate: Tensor, decay: Tensor, matrix: Tensor | None
) -> tuple[Tensor, Tensor]:
    """([B, T, heads, value_dim], the matrices behind). All float32[B, T, heads, ...]."""
    length = q.shape[1]
    q, k, v = (_cut(one) for one in (q, k, v))
    rate, decay = (_cut(one[..., None]) for one in (rate, decay))
    earlier = torch.ones(CHUNK, CHUNK, device=q.device).tril()
    # What has been forgotten since a chunk began. A product with ones, as cumsum has no fixed order on a GPU.
    forgotten = earlier @ decay
    between = (forgotten - forgotten.transpose(-1, -2)).masked_fill(earlier == 0, -torch.inf).exp()
    since = forgotten.exp()
    wide = k * rate
    # The diagonal is not read: it counts as 1.
    system = (wide @ k.transpose(-1, -2)) * between
    solved = torch.linalg.solve_triangular(
        system, torch.cat((v * rate, wide * since), -1), upper=False, unitriangular=True
    )
    own, by_matrix = solved.split([v.shape[-1], k.shape[-1]], -1)
    within = (q @ k.transpose(-1, -2)) * between
    left = forgotten[..., -1:, :]
    q, k, left = q * since, (k * (left - forgotten).exp()).transpose(-1, -2), left.exp()
    memory = q.new_zeros(*q.shape[:2], k.shape[-2], v.shape[-1]) if matrix is None else matrix
    outs: list[Tensor] = []
    for at in range(q.shape[2]):
        change = own[:, :, at] - by_matrix[:, :, at] @ memory
        outs.append(q[:, :, at] @ memory + within[:, :, at] @ change)
        memory = memory * left[:, :, at] + k[:, :, at] @ change
    return torch.cat(outs, 2).transpose(1, 2)[:, :length], memory


def _cut(x: Tensor) -> Tensor:
    """[B, heads, chunks, CHUNK, ...] of [B, T, heads, ...], with zeros behind the last token."""
    x = functional.pad(x.transpose(1, 2), (0, 0, 0, -x.shape[1] % CHUNK))
    return x.unflatten(2, (-1, CHUNK))
