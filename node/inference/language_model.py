"""What decoding and verification have in common: passes over tokens, and what the output head says of the results.

Logits of a few rows exist at a time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.inference import device_sampling
from node.inference.adapters import Adapters
from node.inference.architectures import logit_cap, logit_divisor
from node.inference.attention import KERNELS, Beginnings, Branches, Causal, Chunk, DecodeStep, KVCache
from node.inference.errors import EngineError
from node.inference.experts import Routes
from node.inference.graphs import Graphs
from node.inference.head import OutputHead
from node.inference.room import CPU_CELLS, CPU_PASS_TOKENS
from node.inference.transfer import fetched, sent
from node.inference.transformer import Transformer
from protocol.engines import LORA

T = TypeVar("T")
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
U16 = NDArray[np.uint16]
U8 = NDArray[np.uint8]


class LanguageModel:
    """model: as for Transformer; attention: one of attention.KERNELS, or LORA; logit_cells: most logits (rows *
    vocabulary) at a time; pass_tokens: most tokens in one pass without a cache; row_tokens: of a cache, whose memory
    is what a row remembers. adapters: None but for LORA."""

    def __init__(
        self,
        model: Any,
        device: str,
        dtype: torch.dtype,
        attention: str,
        logit_cells: int = CPU_CELLS,
        pass_tokens: int = CPU_PASS_TOKENS,
        row_tokens: int = 0,
    ) -> None:
        self.adapters = Adapters(device, dtype) if attention == LORA else None
        self._transformer = Transformer(model, device, dtype, self.adapters)
        # That kernel's name says how adapters are added; attention is what it is under sdpa.
        self._kernel = KERNELS["sdpa" if attention == LORA else attention]
        self._head = OutputHead(self._transformer.head)
        self._divisor, self._cap = logit_divisor(model.config), logit_cap(model.config)
        self._device = device
        self.logit_cells, self.pass_tokens, self.row_tokens = logit_cells, pass_tokens, row_tokens
        self.routing = self._transformer.routing
        self.graphs = Graphs(self._transformer, self._kernel, device, self.adapters)
        self.remembers = self._transformer.shape.remembers
        # How many tokens an expert has is known while a step runs; a capture computes its step twice, and what layers
        # remember would have its token twice.
        self.graphs.works &= self.routing is None and not self.remembers
        # What a row remembers at the end of a beginning is its own from then on.
        self.shares = not self.remembers
        self.vocabulary, self.hidden = self._head.vocabulary, self._head.hidden

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Compute with these from now on. weights: name -> values of each parameter, asked for once each."""
        self._transformer.load(weights)
        self._head.load()

    def of(self, policies: Sequence[bytes]) -> None:
        """The next passes are of rows that compute with these adapters. Raises EngineError."""
        if self.adapters is not None:
            self.adapters.choose(policies)
        elif any(policies):
            raise EngineError("a request cannot be served", "its adapter is merged into the weights", "report this")

    def cache(self) -> KVCache:
        return KVCache(self._transformer.shape, self._device, self._transformer.dtype)

    def routes(self, batch: Sequence[Sequence[int]], known: Sequence[U8 | None] = ()) -> Routes | None:
        """For a pass over `batch`, padded: its experts are in there afterwards. known: of each row those of its first
        tokens, to be computed with. None of a model that has none."""
        if self.routing is None:
            return None
        if all(one is None or not len(one) for one in known):
            return Routes(self.routing)
        given = np.full((len(batch), max(map(len, batch)), self.routing.width), -1, dtype=np.int16)
        for line, one in zip(given, known, strict=True):
            if one is not None:
                # A record may reach beyond the tokens of this pass.
                line[: len(one)] = one[: len(line)]
        return Routes(self.routing, sent(given.reshape(-1, self.routing.width), self._device))

    def sequences(self, batch: Sequence[Sequence[int]], routes: Routes | None = None) -> Tensor:
        """Whole sequences, padded on the right, where a causal model cannot see it: [B, T, hidden]."""
        tokens = self.padded(batch)
        end, attend = tokens.shape[1], Causal(self._kernel, self._transformer.shape)
        return self._transformer(tokens, torch.arange(end, device=self._device), end, attend, routes)

    def chunk(
        self, cache: KVCache, first: int, start: int, batch: Sequence[Sequence[int]], routes: Routes | None = None
    ) -> Tensor:
        """Tokens at `start` and after it of the cache's rows from `first` on, padded on the right: [B, T, hidden]."""
        tokens = self.padded(batch)
        end = start + tokens.shape[1]
        lengths = self.numbers([len(one) for one in batch]) if self.remembers else None
        attend = Chunk(self._kernel, cache, first, start, lengths)
        return self._transformer(tokens, torch.arange(start, end, device=self._device), end, attend, routes)

    def step(
        self,
        cache: KVCache,
        tokens: Sequence[int],
        places: Sequence[int],
        routes: Routes | None = None,
        shared: Beginnings | None = None,
    ) -> Tensor:
        """One token of each of the cache's first rows, at its place: [rows, hidden]. shared: what the rows begin with,
        where that is in a cache of its own."""
        if self.graphs.works and (found := self.graphs.step(cache, tokens, places, shared)) is not None:
            return found
        if shared is not None:
            return self._branched(cache, tokens, places, routes, shared)
        (fed, positions), end = self.numbers([tokens, places]), max(places) + 1
        # Told from the numbers here: asked of the tensor, it would be one more wait for a GPU in each step.
        attend = DecodeStep(self._kernel, cache, positions, end, level=end == min(places) + 1)
        return self._transformer(fed[:, None], positions[:, None], end, attend, routes)[:, 0]

    def _branched(
        self, cache: KVCache, tokens: Sequence[int], places: Sequence[int], routes: Routes | None, shared: Beginnings
    ) -> Tensor:
        slots, lengths = shared.slots, self.numbers(shared.lengths)
        numbers = np.stack((tokens, places, *shared.places(slots, len(lengths))))
        fed, *others = self.numbers(numbers)
        end, span = int((numbers[1] - numbers[2]).max()) + 1, max(shared.lengths)
        attend = Branches(cache, shared.cache, others, lengths, slots=slots, span=span, end=end)
        return self._transformer(fed[:, None], others[0][:, None], max(places) + 1, attend, routes)[:, 0]

    def choose(self, hidden: Tensor, u: F64, temperature: float) -> tuple[I64, U16]:
        """(the sampled token, bf16 bits) of each row of `hidden`, after one wait for the device. Raises EngineError."""
        rows = self.logit_rows
        parts = hidden.split(rows)
        numbers = sent(u, self._device).split(rows)
        drawn = [
            device_sampling.draw(self._logits(some), of, temperature) for some, of in zip(parts, numbers, strict=True)
        ]
        bits, tokens = fetched(as_bf16(hidden), torch.cat(drawn))
        for number, some in enumerate(parts):
            cut = slice(number * rows, (number + 1) * rows)
            # The reference seldom decides. Its logits are computed again then: kept ones would be those of all rows.
            tokens[cut] = device_sampling.settle(tokens[cut], partial(self._logits, some), u[cut], temperature)
        return tokens, bits.view(np.uint16)

    def intervals(self, hidden: Tensor, drawn: I64, temperature: float) -> tuple[F64, F64, NDArray[np.float32], U16]:
        """(lo, hi, logprob) of device_sampling.interval and the bf16 bits of each row of `hidden`, after one wait for
        the device. Raises EngineError."""
        rows = self.logit_rows
        parts = zip(hidden.split(rows), self.numbers(drawn).split(rows), strict=True)
        columns = zip(
            *(device_sampling.interval(self._logits(some), of, temperature) for some, of in parts), strict=True
        )
        bits, lo, hi, logprobs = fetched(as_bf16(hidden), *map(torch.cat, columns))
        device_sampling.check_finite(lo)
        return lo, hi, logprobs, bits.view(np.uint16)

    def likeliest(self, hidden: Tensor, count: int, temperature: float) -> tuple[I64, NDArray[np.float32]]:
        """(tokens, logprobs), both [n, count], of each row of `hidden`, the likeliest first."""
        found = [
            (self._logits(some).double() / temperature).log_softmax(1).topk(min(count, self.vocabulary), 1)
            for some in hidden.split(self.logit_rows)
        ]
        logprobs, tokens = fetched(*(torch.cat(column) for column in zip(*found, strict=True)))
        return tokens, logprobs.astype(np.float32)

    @property
    def logit_rows(self) -> int:
        return max(1, self.logit_cells // self.vocabulary)

    def padded(self, batch: Sequence[Sequence[int]]) -> Tensor:
        """int64[B, longest]."""
        tokens = np.zeros((len(batch), max(map(len, batch))), dtype=np.int64)
        for row, sequence in zip(tokens, batch, strict=True):
            row[: len(sequence)] = sequence
        return sent(tokens, self._device)

    def numbers(self, values: Sequence[int] | Sequence[Sequence[int]] | I64) -> Tensor:
        return sent(np.asarray(values, dtype=np.int64), self._device)

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self._head(hidden)
        if self._divisor != 1:
            logits = logits / self._divisor
        return logits if self._cap is None else (logits / self._cap).tanh_().mul_(self._cap)


def bf16_bits(values: Tensor) -> U16:
    """The bf16 bit patterns of float `values`, on the CPU."""
    return as_bf16(values).cpu().numpy().view(np.uint16)


def as_bf16(values: Tensor) -> Tensor:
    """The same where they are: int16, for want of another type that all devices have."""
    return values.to(torch.bfloat16).view(torch.int16)


def batches(items: Sequence[T], most: int, width: Callable[[T], int]) -> Iterator[list[T]]:
    """Consecutive runs of `items` of at most `most` padded tokens (or one item, if it alone is larger)."""
    batch: list[T] = []
    widest = 0
    for item in items:
        widest = max(widest, width(item))
        if batch and widest * (len(batch) + 1) > most:
            yield batch
            batch, widest = [], width(item)
        batch.append(item)
    if batch:
        yield batch
