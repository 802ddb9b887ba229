"""Attention over a pack: samples end to end in one row, none of which sees another.

Registered with transformers under a name of its own, so every architecture that uses its attention interface can be
packed. There is no mask to get wrong: each bucket of samples is cut out, attends causally, and is put back. A mask over
the pack would cost its length squared, and kernels for samples end to end need a GPU or a compiler. Everything else in
a decoder works token by token, given positions that begin anew with each sample.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from node.inference.attention import one_each
from node.inference.transfer import sent
from node.training.errors import TrainingError
from node.training.packing import Bucket, buckets

NAME = "intellect_packed"


@dataclass(frozen=True, slots=True)
class _Part:
    """A bucket on the device. gather: int64[samples * width], of its tokens, which of them stand where; scatter:
    int64[tokens], where they stand; unused: bool[samples * width], where none does. None if uniform."""

    bucket: Bucket
    gather: Tensor | None
    scatter: Tensor | None
    unused: Tensor | None


class Pack:
    """The samples of one row: where each begins, and which attend together."""

    def __init__(self, lengths: list[int], device: torch.device | str = "cpu") -> None:
        self.parts = [_part(bucket, device) for bucket in buckets(lengths)]
        self.tokens = sum(lengths)
        self.padded = sum(len(part.bucket.lengths) * part.bucket.width for part in self.parts)


def _part(bucket: Bucket, device: torch.device | str) -> _Part:
    if bucket.uniform:
        return _Part(bucket, None, None, None)
    lengths = np.array(bucket.lengths)
    begins = lengths.cumsum() - lengths
    offsets = np.arange(bucket.width)[None, :]
    inside = offsets < lengths[:, None]
    gather = np.where(inside, begins[:, None] + offsets, begins[:, None]).flatten()
    return _Part(bucket, sent(gather, device), sent(np.flatnonzero(inside), device), sent(~inside.flatten(), device))


# Every token stands once among a bucket's places, so its gradient is fetched from there. As torch's own gradient of a
# choice of rows it would be added up over all places, by atomic additions in any order or behind a sort, once for each
# bucket over the whole pack. Places that no token has are seen by nobody who is used, so their gradient is zero.
class _Cut(torch.autograd.Function):
    """[heads, tokens, d] -> [heads, places, d]"""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, part: _Part) -> Tensor:
        ctx.part = part
        return heads.index_select(1, part.gather)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.index_select(1, ctx.part.scatter), None


class _PutBack(torch.autograd.Function):
    """[places, heads, d] -> [tokens, heads, d]"""

    @staticmethod
    def forward(ctx: Any, found: Tensor, part: _Part) -> Tensor:
        ctx.part = part
        return found.index_select(0, part.scatter)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.index_select(0, ctx.part.gather).masked_fill_(ctx.part.unused[:, None, None], 0), None


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    pack: Pack | None = None,
    s_aux: Tensor | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    """query: [1, heads, tokens, d]; key, value: [1, key heads, tokens, d]; s_aux: [heads], sinks, by transformers' name
    -> [1, tokens, heads, d].

    Raises TrainingError for attention that this cannot express (biases of positions).
    """
    biased = extra.get("position_bias") is not None
    if biased or pack is None or query.shape[0] != 1:
        raise TrainingError(
            "samples of this model cannot be packed",
            f"its attention uses {'position_bias' if biased else 'no packs'}",
            "set trainer.packing to false",
        )
    how = scaling, sliding_window, extra.get("softcap"), s_aux
    spans = [part.bucket.tokens for part in pack.parts]
    each = zip(pack.parts, *(one[0].split(spans, 1) for one in (query, key, value)), strict=True)
    parts = [_attend(*bucket, *how) for bucket in each]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[None], None


def _attend(
    part: _Part,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None,
    window: int | None,
    cap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """[tokens of the bucket, heads, d]. query, key, value: of these tokens, [heads, tokens, d]."""
    bucket = part.bucket
    count, width = len(bucket.lengths), bucket.width

    def cut(heads: Tensor) -> Tensor:
        """[heads, tokens, d] -> [samples, heads, width, d]"""
        chosen = heads if part.gather is None else _Cut.apply(heads, part)
        return chosen.unflatten(1, (count, width)).transpose(0, 1)

    mask = None
    if window is not None and width > window:
        at = torch.arange(width, device=query.device)
        mask = (at[None, :] <= at[:, None]) & (at[None, :] > at[:, None] - window)
    q = cut(query)
    k, v = (one_each(cut(part), q, masked=mask is not None) for part in (key, value))
    if cap is not None or sinks is not None:
        found = _written_out(q, k, v, mask, scale, cap, sinks)
    else:
        found = scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=mask is None and width > 1,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )
    flat = found.transpose(1, 2).flatten(0, 1)
    return flat if part.scatter is None else _PutBack.apply(flat, part)


def _written_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float | None,
    cap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """In an order that a gradient can go through: no kernel of torch has caps or sinks."""
    shared = q.unflatten(1, (k.shape[1], -1))
    scores = (shared @ k[:, :, None].transpose(-1, -2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if cap is not None:
        scores = (scores / cap).tanh() * cap
    width = q.shape[2]
    seen = torch.ones(width, width, dtype=torch.bool, device=q.device).tril() if mask is None else mask
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        sunk = sinks.view(k.shape[1], -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, sunk), -1)
    shares = scores.softmax(-1, dtype=torch.float32)[..., :width].to(q.dtype)
    return (shares @ v[:, :, None]).flatten(1, 2)


AttentionInterface.register(NAME, packed_attention)
