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
class _Places:
    """Where the tokens of a bucket stand, sample by sample as wide as the widest. gather: int64[places], which token
    stands at each; scatter: int64[tokens], the place of each; unused: bool[places], where none does."""

    gather: Tensor
    scatter: Tensor
    unused: Tensor


@dataclass(frozen=True, slots=True)
class _Part:
    """A bucket on the device. places: None if its samples are of one length."""

    bucket: Bucket
    places: _Places | None

    def samples(self, tokens: Tensor) -> Tensor:
        """[samples, width, ...] of [tokens of the bucket, ...]."""
        at = self.places
        chosen: Any = tokens if at is None else _Chosen.apply(tokens, 0, at.gather, at.scatter, None)
        return chosen.unflatten(0, (len(self.bucket.lengths), self.bucket.width))

    def tokens(self, samples: Tensor) -> Tensor:
        """The way back."""
        at, flat = self.places, samples.flatten(0, 1)
        if at is None:
            return flat
        unused = at.unused.view(-1, *(1 for _ in flat.shape[1:]))
        back: Any = _Chosen.apply(flat, 0, at.scatter, at.gather, unused)
        return back


class Pack:
    """The samples of one row: where each begins, and which attend together."""

    def __init__(self, lengths: list[int], device: torch.device | str = "cpu") -> None:
        self.parts = [_part(bucket, device) for bucket in buckets(lengths)]
        self.tokens = sum(lengths)
        self.padded = sum(len(part.bucket.lengths) * part.bucket.width for part in self.parts)


def _part(bucket: Bucket, device: torch.device | str) -> _Part:
    if bucket.uniform:
        return _Part(bucket, None)
    lengths = np.array(bucket.lengths)
    begins = lengths.cumsum() - lengths
    offsets = np.arange(bucket.width)[None, :]
    inside = offsets < lengths[:, None]
    # Places without a token stand behind their sample, where causal attention hides them.
    # They repeat its first token, so all numbers there are finite, and a gradient of zero stays zero.
    gather = np.where(inside, begins[:, None] + offsets, begins[:, None]).flatten()
    places = (sent(one, device) for one in (gather, np.flatnonzero(inside), ~inside.flatten()))
    return _Part(bucket, _Places(*places))


# Every token stands once among a bucket's places, so its gradient is fetched from there. As torch's own gradient of a
# choice of rows it would be added up over all places, by atomic additions in any order or behind a sort, once for each
# bucket over the whole pack. Places that no token has are seen by nobody who is used, so their gradient is zero.
class _Chosen(torch.autograd.Function):
    """x.index_select(dim, there), whose gradient is chosen by `back` in the same way; where `unused`, it is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, there: Tensor, back: Tensor, unused: Tensor | None) -> Tensor:
        ctx.how = dim, back, unused
        return x.index_select(dim, there)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_chosen: Tensor) -> tuple[Tensor | None, ...]:
        dim, back, unused = ctx.how
        by_x = by_chosen.index_select(dim, back)
        return by_x if unused is None else by_x.masked_fill_(unused, 0), None, None, None, None


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
    q, k, v = (one[0].split(spans, 1) for one in (query, key, value))
    parts = [_attend(part, q[i], k[i], v[i], *how) for i, part in enumerate(pack.parts)]
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
    bucket, at = part.bucket, part.places
    count, width = len(bucket.lengths), bucket.width

    def cut(heads: Tensor) -> Tensor:
        """[heads, tokens, d] -> [samples, heads, width, d]"""
        chosen: Any = heads if at is None else _Chosen.apply(heads, 1, at.gather, at.scatter, None)
        return chosen.unflatten(1, (count, width)).transpose(0, 1)

    mask = None
    # A window that hides nothing gets no mask: with one, a GPU could not use flash attention.
    if window is not None and width > window:
        seen = torch.arange(width, device=query.device)
        mask = (seen[None, :] <= seen[:, None]) & (seen[None, :] > seen[:, None] - window)
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
    return part.tokens(found.transpose(1, 2))


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
    # Query heads that share a key head stand in a dimension of their own. So no key is copied.
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
    # A sink takes its share of the softmax and has no value: its column is cut off behind it.
    shares = scores.softmax(-1, dtype=torch.float32)[..., :width].to(q.dtype)
    return (shares @ v[:, :, None]).flatten(1, 2)


AttentionInterface.register(NAME, packed_attention)
