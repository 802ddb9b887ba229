"""Batch-invariant arithmetic: what a token's row comes to does not depend on what is computed beside it.

A matrix product of 7 rows is not summed as one of 64 is, nor is a prompt's pass as a single token's. So here there is
one pass only: TILE tokens, each at its place of its own row of the cache, whatever they belong to. Too few are filled
up. Every operation then meets one shape, and so one kernel that sums in one order. Attention goes through a token's
cache in blocks of BLOCK places from the first on, in float32; a block that a token does not see changes nothing of it,
to the bit. A layer that remembers takes the tokens of one row one after the other. Of a layer with experts all of
them compute the whole tile, since how many tokens one has depends on the others. Decoding and verifying are the same
computation, and honest work is equal, not alike (docs/calibration.md).

That a kernel treats all slots of a tile alike is its maker's doing: it is tried with the weights in use after each
load, and an engine for which it is not so has no weights.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from node.inference.architectures import Attending
from node.inference.attention import LEAST, Beginnings, KVCache
from node.inference.delta import DeltaState, Mix
from node.inference.errors import EngineError
from node.inference.experts import Routes
from node.inference.language_model import I64, LanguageModel
from protocol.engines import FIXED

TILE, CPU_TILE = 128, 16
"""Tokens of one pass: on a GPU so many cost about what one does, since weights are read once for all; a CPU works for
each."""
BLOCK, CPU_BLOCK = 512, 64
"""Places of the cache that attention looks at together."""
TABLE = 4096
"""Tables of positions grow by so many, so that no entry is ever a remainder of a vector."""


def model_for(model: Any, device: str, dtype: torch.dtype, attention: str, **limits: int) -> LanguageModel:
    """The `LanguageModel` that computes as `attention`, a kernel of the torch engine, stands for."""
    if attention == FIXED:
        return FixedModel(model, device, dtype, **limits)
    return LanguageModel(model, device, dtype, attention, **limits)


class FixedModel(LanguageModel):
    """`LanguageModel` by passes of one shape."""

    def __init__(self, model: Any, device: str, dtype: torch.dtype, **limits: int) -> None:
        super().__init__(model, device, dtype, "eager", **limits)  # a kernel that is not called
        small = torch.device(device).type == "cpu"
        self.shares = False  # a block has to hold the same places in every pass
        self.tile, self.block = (CPU_TILE, CPU_BLOCK) if small else (TILE, BLOCK)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Raises EngineError where this device's kernels make a difference between the slots of a tile."""
        super().load(weights)
        tokens = np.random.default_rng(0).integers(self.vocabulary, size=(2, self.tile))
        first, turned = self._tried(tokens), self._tried(np.roll(tokens, 1, axis=1))
        if not torch.equal(first.roll(1, 0).view(torch.int32), turned.view(torch.int32)):
            raise EngineError(
                "this device does not compute alike for every row of a batch",
                "the same tokens in another order gave other bits, so its kernels are not batch-invariant",
                "use --attention sdpa; if the weights are not finite, the policy is broken",
            )

    @torch.inference_mode()
    def _tried(self, tokens: I64) -> Tensor:
        """Last hidden states and logits of as many sequences of two tokens as a tile has slots, each in its own."""
        cache = self.cache()
        cache.resize(self.tile, 2, 0, 0)
        for place, some in enumerate(tokens):
            hidden = self.step(cache, some.tolist(), [place] * self.tile)
        return torch.cat((hidden.float(), self._logits(hidden)), 1)

    def cache(self) -> KVCache:
        return KVCache(self._transformer.shape, self._device, self._transformer.dtype, self.block)

    def sequences(self, batch: Sequence[Sequence[int]], routes: Routes | None = None) -> Tensor:
        cache = self.cache()
        cache.resize(len(batch), max(map(len, batch)), 0, 0)
        return self.chunk(cache, 0, 0, batch, routes)

    def chunk(
        self, cache: KVCache, first: int, start: int, batch: Sequence[Sequence[int]], routes: Routes | None = None
    ) -> Tensor:
        lengths = [len(one) for one in batch]
        rows = np.repeat(np.arange(len(batch)), lengths)
        places = np.concatenate([np.arange(length) for length in lengths])
        tokens, lines = np.concatenate([*map(np.asarray, batch)]), rows * max(lengths) + places
        routes = routes or self.routes(batch)
        whole = len(batch) * max(lengths)
        found = self._computed(cache, tokens, rows + first, places + start, routes, lines, whole)
        hidden = found.new_zeros(whole, self.hidden)
        hidden[self.numbers(lines)] = found
        return hidden.unflatten(0, (len(batch), -1))

    def step(
        self,
        cache: KVCache,
        tokens: Sequence[int],
        places: Sequence[int],
        routes: Routes | None = None,
        shared: Beginnings | None = None,
    ) -> Tensor:
        # Not left to the transformer: only a tile's routes let all experts compute all tokens.
        rows, routes = np.arange(len(tokens)), routes or self.routes([[one] for one in tokens])
        return self._computed(cache, np.asarray(tokens), rows, np.asarray(places), routes, rows, len(rows))

    def _computed(
        self, cache: KVCache, tokens: I64, rows: I64, places: I64, routes: Routes | None, lines: I64, whole: int
    ) -> Tensor:
        """[n, hidden] of tokens at their places of their rows; of one row, in order. lines: theirs of the `whole` ones
        of `routes`."""
        cuts = [slice(at, at + self.tile) for at in range(0, len(tokens), self.tile)]
        tiles = [routes.tile(self.numbers(lines[cut]), self.tile) if routes else None for cut in cuts]
        found = [
            self._pass(cache, tokens[cut], rows[cut], places[cut], tile) for cut, tile in zip(cuts, tiles, strict=True)
        ]
        if routes is not None:
            routes.join([tile for tile in tiles if tile], self.numbers(lines), whole)
        return torch.cat(found)

    def _pass(self, cache: KVCache, tokens: I64, rows: I64, places: I64, routes: Routes | None) -> Tensor:
        used = len(tokens)
        # Slots that are filled up read place 0 of row 0, and what they compute is written nowhere.
        whole = np.zeros((3, self.tile), dtype=np.int64)
        whole[:, :used] = tokens, rows, places
        fed, at_rows, at_places = self.numbers(whole)
        farthest = int(places.max())
        attend = AttentionBlocks(cache, at_rows, at_places, used, farthest // self.block + 1)
        if self.remembers:
            attend.turns = [self.numbers(slots) for slots in _turns(rows)]
        end = -(-(farthest + 1) // TABLE) * TABLE
        return self._transformer(fed[:, None], at_places[:, None], end, attend, routes)[:used, 0]

    def _logits(self, hidden: Tensor) -> Tensor:
        parts = [_filled(some, self.tile) for some in hidden.split(self.tile)]
        return torch.cat([super(FixedModel, self)._logits(some) for some in parts])[: len(hidden)]


def _turns(rows: I64) -> Sequence[I64]:
    """Places of the tokens that are the first of their rows, then of those that are the second, and so on."""
    seen: Counter[int] = Counter()
    turn = np.empty(len(rows), dtype=np.int64)
    for place, row in enumerate(rows.tolist()):
        turn[place], seen[row] = seen[row], seen[row] + 1
    return [np.flatnonzero(turn == number) for number in range(int(turn.max()) + 1)]


def _filled(rows: Tensor, count: int) -> Tensor:
    """[count, ...]: zeros behind what is there."""
    if len(rows) == count:
        return rows
    whole = rows.new_zeros(count, *rows.shape[1:])
    whole[: len(rows)] = rows
    return whole


class AttentionBlocks:
    """`Attend` of one tile. rows, places: int64[tile], of which the first `used` are tokens; blocks: that the farthest
    of them sees."""

    by_shape = True

    def __init__(self, cache: KVCache, rows: Tensor, places: Tensor, used: int, blocks: int) -> None:
        self._cache, self._rows, self._places, self._used = cache, rows, places, used
        self._own = rows[:used], places[:used]
        self._all = torch.arange(blocks * cache.block, device=rows.device)
        self._masks: dict[int | None, Sequence[Tensor]] = {}
        self.turns: Sequence[Tensor] = ()
        """Which of the tokens are computed together where layers remember: of each row one."""

    def recall(self, layer: int, mix: Mix) -> Tensor:
        """All slots are computed in every turn, so that each turn is of one shape."""
        states, found = self._cache.states[layer], None
        first = self._places == 0
        for slots in self.turns:
            inputs, matrix = (part[self._rows].mul_(~first.view(-1, *[1] * (part.ndim - 1))) for part in states)
            out, behind = mix(DeltaState(inputs, matrix), None)
            found = torch.zeros_like(out) if found is None else found
            found[slots] = out[slots]
            for part, new in zip(states, behind, strict=True):
                part[self._rows[slots]] = new[slots]
        assert found is not None  # a pass has a token
        return found

    def _unseen(self, window: int | None) -> Sequence[Tensor]:
        """Of each block, made once for all layers with this window."""
        if window not in self._masks:
            unseen = self._all > self._places[:, None]
            if window is not None:
                unseen |= self._all <= self._places[:, None] - window
            self._masks[window] = unseen[:, None, None].split(self._cache.block, dim=3)
        return self._masks[window]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        rows, places = self._own
        keys[rows, :, places], values[rows, :, places] = k[: self._used, :, 0], v[: self._used, :, 0]
        tile, heads, _, dim = q.shape
        how = self._cache.shape.at(layer)
        grouped = q.reshape(tile, k.shape[1], -1, dim).float() * (dim**-0.5 if how.scale is None else how.scale)
        sunk = None if sinks is None else sinks.view(1, k.shape[1], -1, 1).float()
        return self._seen(grouped, keys, values, how, sunk).reshape(tile, heads, 1, dim).to(q.dtype)

    def _seen(self, q: Tensor, keys: Tensor, values: Tensor, how: Attending, sinks: Tensor | None) -> Tensor:
        """Softmax over what each token sees, block by block (Milakov and Gimelshein 2018). q: float32[tile, kv heads,
        heads of each, D]; sinks: of each head, what the sums begin with."""
        top = q.new_full((*q.shape[:3], 1), LEAST) if sinks is None else sinks.expand(len(q), -1, -1, -1)
        total = torch.zeros_like(top) if sinks is None else torch.ones_like(top)
        summed = torch.zeros_like(q)
        for number, unseen in enumerate(self._unseen(how.window)):
            part = slice(number * unseen.shape[3], (number + 1) * unseen.shape[3])
            some_keys, some_values = (kept[self._rows, :, part].float() for kept in (keys, values))
            scores = q @ some_keys.transpose(-1, -2)
            if how.cap is not None:
                scores = scores.div_(how.cap).tanh_().mul_(how.cap)
            scores = scores.masked_fill_(unseen, -torch.inf)
            higher = torch.maximum(top, scores.amax(-1, keepdim=True))
            weights, shrunk = (scores - higher).exp_(), (top - higher).exp_()
            total = total * shrunk + weights.sum(-1, keepdim=True)
            summed = summed * shrunk + weights @ some_values
            top = higher
        return summed / total
