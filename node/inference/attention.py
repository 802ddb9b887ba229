"""Who attends to what: within sequences of one pass, in a cache chunk by chunk, and one token a row of a cache.

Heads that share keys are not repeated in memory if that can be helped: at one token a row they are laid out as if they
were positions.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention.bias import CausalBias, causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from node.inference.architectures import PLAIN, Attending, DeltaShape
from node.inference.delta import DeltaState, Mix
from node.inference.transformer import TransformerShape

_numbers = count(1)


# Rows in use stand side by side from the first on, so that a pass over them is one view. A row that ends is filled by
# the last one. Room is taken for what sequences reach, not for the longest that a run allows (8,192 tokens allowed, 600
# used). Pages instead of rows have no kernel on CPUs, and gathering pages copies what a pass reads anyway.
class KVCache:
    """keys, values: per layer [rows, kv heads, span or a little more, D], a whole number of blocks of positions; what
    no sequence wrote is arbitrary but finite."""

    def __init__(self, shape: TransformerShape, device: str, dtype: torch.dtype, block: int = 1) -> None:
        self.shape, self._device, self._dtype, self.block = shape, device, dtype, block
        self.captured: dict[tuple[int, ...], Any] = {}
        """Over these tensors, by rows and positions (node.inference.graphs)."""
        self.number = next(_numbers)
        """Of these tensors: others have another."""
        self.rows = self.span = 0
        self.keys = [self._empty(layer, 0, 0) for layer in range(shape.layers)]
        self.values = [self._empty(layer, 0, 0) for layer in range(shape.layers)]
        self.states = self._states(0)
        """Of layers that remember, by their number: of each row, behind its last token."""

    def resize(self, rows: int, span: int, kept_rows: int, kept_span: int) -> None:
        """Make room for rows x span tokens, with what the first rows have in their first positions."""
        # What was captured reads the tensors that go now, so it goes with them.
        self.rows, self.span, self.number = rows, span, next(_numbers)
        self.captured.clear()
        # One tensor after the other, so only a single one exists twice. node.inference.room reckons with that.
        for kept in (self.keys, self.values):
            for layer, old in enumerate(kept):
                new = self._empty(layer, rows, span)
                new[:kept_rows, :, :kept_span] = old[:kept_rows, :, :kept_span]
                kept[layer] = new
        states = self._states(rows)
        for layer, state in states.items():
            for new, old in zip(state, self.states[layer], strict=True):
                new[:kept_rows] = old[:kept_rows]
        self.states = states

    def copy(self, source: int, target: int, length: int) -> None:
        """The first positions of a row, into another. Where layers remember, these must be all that the row has."""
        for kept in (*self.keys, *self.values):
            kept[target, :, :length] = kept[source, :, :length]
        for state in self.states.values():
            for part in state:
                part[target] = part[source]

    def _states(self, rows: int) -> dict[int, DeltaState]:
        kinds = enumerate(self.shape.at(layer).delta for layer in range(self.shape.layers))
        return {layer: self._state(kind, rows) for layer, kind in kinds if kind is not None}

    def _state(self, kind: DeltaShape, rows: int) -> DeltaState:
        inputs = torch.zeros(rows, kind.channels, kind.kernel - 1, dtype=self._dtype, device=self._device)
        return DeltaState(inputs, torch.zeros(rows, kind.heads, kind.key_dim, kind.value_dim, device=self._device))

    def _empty(self, layer: int, rows: int, span: int) -> Tensor:
        """Zeros: a masked position must hold no NaN, which a weight of 0 would not remove."""
        whole = 0 if self.shape.at(layer).delta else -(-span // self.block) * self.block
        return torch.zeros(
            rows, self.shape.kv_heads, whole, self.shape.head_dim, dtype=self._dtype, device=self._device
        )


Mask = Tensor | None
"""[T, S] or [B, 1, 1, S]: bool, true where something is seen, or what is added to the scores; None: all is seen."""


class Kernel(Protocol):
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask = None,
        *,
        causal: bool = False,
        how: Attending = PLAIN,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """q: [B, heads, T, D]; k and v: [B, kv heads, S, D]; causal: each position sees those up to its own, instead of
        a mask; how: scale and cap, its window is the caller's; sinks: [heads, T or 1], scores that have no value, where
        the layer has some. [B, heads, T, D]."""
        ...


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = None,
    *,
    causal: bool = False,
    how: Attending = PLAIN,
    sinks: Tensor | None = None,
) -> Tensor:
    """torch's own kernel; it has no caps and no sinks."""
    if how.cap is not None or sinks is not None:
        return eager(q, k, v, mask, causal=causal, how=how, sinks=sinks)
    # A CausalBias is no table of scores: flash attention takes it, and shared heads beside it.
    k, v = (one_each(part, q, masked=not (mask is None or isinstance(mask, CausalBias))) for part in (k, v))
    shared = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=how.scale, enable_gqa=shared)


def sees_without_a_mask(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether torch has a kernel for queries of the last positions that reads no mask: flash attention alone. With
    masks 32,768 tokens in chunks of 1,024 took most of their time on an H100."""
    return (
        q.is_cuda and q.dtype != torch.float32 and can_use_flash_attention(SDPAParams(q, k, v, None, 0.0, False, True))
    )


def one_each(kept: Tensor, q: Tensor, *, masked: bool) -> Tensor:
    """Keys or values [B, kv heads, S, D], once for every head of q where no kernel takes shared ones that does without
    a table of all scores: on a GPU flash attention alone does, which has no masks and is not for float32."""
    times = q.shape[1] // kept.shape[1]
    if times > 1 and q.is_cuda and (masked or q.dtype == torch.float32):
        return kept.repeat_interleave(times, dim=1)
    return kept


def eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = None,
    *,
    causal: bool = False,
    how: Attending = PLAIN,
    sinks: Tensor | None = None,
) -> Tensor:
    """Written out; the softmax is float32."""
    batch, heads, length, dim = q.shape
    grouped = q.reshape(batch, k.shape[1], -1, length, dim)
    scores = (grouped @ k[:, :, None].transpose(-1, -2)).mul_(dim**-0.5 if how.scale is None else how.scale)
    if how.cap is not None:
        scores = scores.div_(how.cap).tanh_().mul_(how.cap)
    if causal:
        mask = torch.ones(length, k.shape[2], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        wide = mask[:, None] if mask.ndim == 4 else mask
        scores = scores.masked_fill_(~wide, float("-inf")) if wide.dtype == torch.bool else scores.add_(wide)
    if sinks is None:
        shares = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
    else:
        sunk = sinks.view(k.shape[1], -1, sinks.shape[1], 1).expand(*scores.shape[:-1], 1)
        shares = torch.cat((scores, sunk), -1).softmax(-1, dtype=torch.float32)[..., :-1].to(q.dtype)
    return (shares @ v[:, :, None]).view(batch, heads, length, dim)


KERNELS: dict[str, Kernel] = {"sdpa": sdpa, "eager": eager}


class Causal:
    """Whole sequences that begin at position 0, padding on the right. Nothing is kept."""

    by_shape = True

    def __init__(self, kernel: Kernel, shape: TransformerShape) -> None:
        self._kernel, self._shape = kernel, shape
        self._masks = _Masks()

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        how, length, sunk = self._shape.at(layer), q.shape[2], by_head(sinks)
        if how.window is None or how.window >= length:
            return self._kernel(q, k, v, causal=True, how=how, sinks=sunk)
        positions = torch.arange(length, device=q.device)
        return self._kernel(q, k, v, self._masks.of(positions, length, q.dtype, how.window), how=how, sinks=sunk)

    def recall(self, layer: int, mix: Mix) -> Tensor:
        return mix(None, None)[0]


def by_head(sinks: Tensor | None) -> Tensor | None:
    """[heads, 1] of [heads]."""
    return None if sinks is None else sinks[:, None]


class _Masks:
    """Masks of one pass, each made once: a window, or None, has one for all of its layers."""

    def __init__(self) -> None:
        self._made: dict[int | None, Tensor] = {}

    def of(self, positions: Tensor, end: int, dtype: torch.dtype, window: int | None) -> Tensor:
        window = window if window is not None and window < end else None
        if window not in self._made:
            self._made[window] = _added(positions, end, dtype, window)
        return self._made[window]


def _added(positions: Tensor, end: int, dtype: torch.dtype, window: int | None) -> Tensor:
    """The mask of what stands at `positions` and sees up to there, made once: of a bool one torch makes this in every
    layer. window: how many places it sees at most. [len(positions), end]."""
    places = torch.arange(end, device=positions.device)
    unseen = places > positions[:, None]
    if window is not None:
        unseen |= places <= positions[:, None] - window
    return torch.zeros(unseen.shape, dtype=dtype, device=unseen.device).masked_fill_(unseen, -torch.inf)


class Chunk:
    """Positions from `start` of the rows `first`.. of a cache, which holds what stands before them."""

    by_shape = True

    def __init__(self, kernel: Kernel, cache: KVCache, first: int, start: int, lengths: Tensor | None = None) -> None:
        """lengths: int64[B], of each row, behind which padding stands; None: no layer remembers."""
        self._kernel, self._cache, self._first, self._start = kernel, cache, first, start
        self._masks, self._lengths = _Masks(), lengths

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        rows, places = slice(self._first, self._first + len(q)), slice(self._start, self._start + q.shape[2])
        keys, values = self._cache.keys[layer][rows], self._cache.values[layer][rows]
        keys[:, :, places], values[:, :, places] = k, v
        how, end, sunk = self._cache.shape.at(layer), places.stop, by_head(sinks)
        # From position 0 on there is nothing in the cache to see but what the pass brings itself.
        if self._start == 0 and (how.window is None or how.window >= end):
            return self._kernel(q, k, v, causal=True, how=how, sinks=sunk)
        keys, values = keys[:, :, :end], values[:, :, :end]
        return self._kernel(q, keys, values, self._seen(q, keys, values, how), how=how, sinks=sunk)

    def recall(self, layer: int, mix: Mix) -> Tensor:
        assert self._lengths is not None  # of a model whose layers remember
        kept = DeltaState(*(part[self._first :][: len(self._lengths)] for part in self._cache.states[layer]))
        # At position 0 a row begins anew, whatever it held.
        out, behind = mix(kept if self._start else None, self._lengths)
        for part, new in zip(kept, behind, strict=True):
            part.copy_(new)
        return out

    def _seen(self, q: Tensor, keys: Tensor, values: Tensor, how: Attending) -> Tensor:
        end = keys.shape[2]
        if self._kernel is sdpa and how.plain and sees_without_a_mask(q, keys, values):
            return causal_lower_right(q.shape[2], end)
        return self._masks.of(torch.arange(self._start, end, device=q.device), end, q.dtype, how.window)


class DecodeStep:
    """One token of each of the first rows of a cache, at its own position."""

    by_shape = True

    def __init__(self, kernel: Kernel, cache: KVCache, positions: Tensor, end: int, *, level: bool) -> None:
        """positions: int64[rows], all below `end`; level: they are all the same."""
        self._kernel, self._cache, self._end = kernel, cache, end
        self._rows, self._places = torch.arange(len(positions), device=positions.device), positions
        self._masks, self._level = _Masks(), level

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        keys, values = self._put(self._cache.keys[layer], k), self._put(self._cache.values[layer], v)
        rows, heads, _, dim = q.shape
        grouped = q.reshape(rows, k.shape[1], -1, dim)
        how = self._cache.shape.at(layer)
        # Heads that share keys stand where positions do, and so do their sinks.
        sunk = None if sinks is None else sinks.view(k.shape[1], -1)
        found = self._kernel(grouped, keys, values, self._seen(how.window), how=how, sinks=sunk)
        return found.reshape(rows, heads, 1, dim)

    def recall(self, layer: int, mix: Mix) -> Tensor:
        inputs, matrix = (part[: len(self._places)] for part in self._cache.states[layer])
        out, behind = mix(DeltaState(inputs, matrix), None)  # the matrix is changed where it is
        inputs.copy_(behind.inputs)
        return out

    def _seen(self, window: int | None) -> Mask:
        if self._level and (window is None or window >= self._end):
            return None
        return self._masks.of(self._places, self._end, self._cache.keys[0].dtype, window)[:, None, None]

    def _put(self, kept: Tensor, new: Tensor) -> Tensor:
        """Everything up to the new token, which is written down."""
        if self._level:
            kept[: len(new), :, self._end - 1] = new[:, :, 0]
        else:
            kept[self._rows, :, self._places] = new[:, :, 0]
        return kept[: len(new), :, : self._end]


LEAST = -1e30
"""Below every score, and finite: of a part that a row sees nothing of."""


@dataclass(frozen=True, slots=True)
class Beginnings:
    """What rows of a cache begin with, kept once for all that begin so. cache: has a row for each; of: of each row the
    number of its beginning, -1 where all of it is in its own row; lengths: tokens of each beginning."""

    cache: KVCache
    of: Sequence[int]
    lengths: Sequence[int]

    def places(self, slots: int, beginnings: int) -> NDArray[np.int64]:
        """int64[2, rows]: what comes before each row's own part, and where its queries stand among those of so many
        beginnings, `slots` of each; those of none stand behind them."""
        of = np.asarray(self.of)
        before = np.where(of < 0, 0, np.asarray([*self.lengths, 0])[of])
        seen, turn = Counter[int](), []
        for one in self.of:
            turn.append(seen[one])
            seen[one] += 1
        return np.stack((before, np.where(of < 0, beginnings * slots, of * slots + turn)))

    @property
    def slots(self) -> int:
        """Rows that share one beginning, at most."""
        return int(np.bincount(np.asarray(self.of) + 1)[1:].max())


class Branches:
    """`DecodeStep` where rows share what they begin with: each row's query meets its beginning together with those of
    the others that have it, then its own part, and the two are added up by their softmax's sums (Juravsky et al.
    2024)."""

    by_shape = True

    def __init__(
        self,
        cache: KVCache,
        prompts: KVCache,
        numbers: Sequence[Tensor],
        lengths: Tensor,
        *,
        slots: int,
        span: int,
        end: int,
    ) -> None:
        """numbers: int64[rows] each, positions of the new tokens and `Beginnings.places`; lengths: int64[beginnings]
        of those in the first rows of `prompts`, at most `span`; end: behind the last place of the rows' own parts."""
        self._cache, self._prompts, self._lengths, self._span, self._end = cache, prompts, lengths, span, end
        self._positions, self._before, self._slots = numbers
        self._rows = torch.arange(len(self._positions), device=self._positions.device)
        self._most = len(lengths) * slots
        self._unseen: dict[int | None, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        keys, values, how = self._cache.keys[layer], self._cache.values[layer], self._cache.shape.at(layer)
        rows, heads, _, dim = q.shape
        # A row's own part begins at place 0 of its row, wherever that is in the sequence.
        keys[self._rows, :, self._positions - self._before] = k[:, :, 0]
        values[self._rows, :, self._positions - self._before] = v[:, :, 0]
        grouped = q.reshape(rows, k.shape[1], -1, dim)
        first, own = self._masks(how.window)
        end = self._end
        parts = [
            self._of_beginnings(layer, grouped, first, how),
            _weighed(grouped, keys[:rows, :, :end], values[:rows, :, :end], own, how),
        ]
        top = torch.maximum(parts[0][0], parts[1][0])
        if sinks is not None:
            sunk = sinks.view(1, k.shape[1], -1, 1).float()
            top = torch.maximum(top, sunk)
        total = 0.0 if sinks is None else (sunk - top).exp()
        shares = [(one - top).exp() for one, _, _ in parts]
        total = total + parts[0][1] * shares[0] + parts[1][1] * shares[1]
        found = (parts[0][2] * shares[0] + parts[1][2] * shares[1]) / total
        return found.to(q.dtype).reshape(rows, heads, 1, dim)

    def _of_beginnings(self, layer: int, q: Tensor, unseen: Tensor, how: Attending) -> "tuple[Tensor, Tensor, Tensor]":
        """Queries put side by side by their beginning, and what they found given back to their rows."""
        count = len(self._lengths)
        # One line more than slots: all rows that share nothing put their queries there, and nobody reads it.
        placed = q.new_zeros(self._most + 1, *q.shape[1:])
        placed[self._slots] = q
        beside = placed[:-1].unflatten(0, (count, -1)).transpose(1, 2)
        keys, values = (kept[layer][:count, :, : self._span] for kept in (self._prompts.keys, self._prompts.values))
        found = _weighed(beside.flatten(2, 3), keys, values, unseen, how)
        back = [one.unflatten(2, beside.shape[2:4]).transpose(1, 2).flatten(0, 1) for one in found]
        # For those rows the part of the beginning has no weight.
        nothing = (LEAST, 0.0, 0.0)
        whole = [
            torch.cat((one, torch.full_like(one[:1], no)))[self._slots] for one, no in zip(back, nothing, strict=True)
        ]
        return whole[0], whole[1], whole[2]

    def _masks(self, window: int | None) -> tuple[Tensor, Tensor]:
        """(of beginnings [beginnings, 1, slots * heads of each or 1, tokens], of own parts [rows, 1, 1, tokens]): true
        where nothing is seen. Made once for a window."""
        if window not in self._unseen:
            self._unseen[window] = self._first(window), self._own(window)
        return self._unseen[window]

    def _own(self, window: int | None) -> Tensor:
        places, own = torch.arange(self._end, device=self._before.device), self._positions - self._before
        unseen = places > own[:, None]
        if window is not None:
            unseen |= places <= (own - window)[:, None]
        return unseen[:, None, None]

    def _first(self, window: int | None) -> Tensor:
        lengths, places = self._lengths, torch.arange(self._span, device=self._before.device)
        unseen = (places >= lengths[:, None])[:, None, None]
        if window is None:
            return unseen
        # Rows of one beginning are at different positions, and a window hides more of it from those that are farther.
        at = lengths.new_zeros(self._most + 1)
        at[self._slots] = self._positions
        heads = self._cache.shape.heads // self._cache.shape.kv_heads
        far = places <= (at[:-1] - window).view(len(lengths), -1).repeat_interleave(heads, 1)[..., None]
        return unseen | far[:, None]


def _weighed(q: Tensor, k: Tensor, v: Tensor, unseen: Tensor, how: Attending) -> tuple[Tensor, Tensor, Tensor]:
    """(largest score, sum of weights, weighted sum), float32[B, kv heads, T, 1, 1 and D]: weights exp(score - that).
    q: [B, kv heads, T, D]; k, v: [B, kv heads, S, D]; unseen: what broadcasts to [B, kv heads, T, S]."""
    scores = ((q @ k.transpose(-1, -2)) * (q.shape[-1] ** -0.5 if how.scale is None else how.scale)).float()
    if how.cap is not None:
        scores = scores.div_(how.cap).tanh_().mul_(how.cap)
    scores = scores.masked_fill_(unseen, -torch.inf)
    # A row that sees nothing here has only -inf. Less itself that is no number, which would reach the sum.
    top = scores.amax(-1, keepdim=True).clamp(min=LEAST)
    weights = (scores - top).exp_()
    return top, weights.sum(-1, keepdim=True), (weights.to(q.dtype) @ v).float()
