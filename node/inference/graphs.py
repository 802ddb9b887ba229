"""Decoding steps as CUDA graphs: one launch instead of some nine hundred, which a GPU waits for a process to make.

A graph is of one shape. So a step is filled up to a bucket of rows and to one of positions; rows that are filled up
write into rows of the cache that nobody has, and positions that no row has reached are masked. What was captured over a
cache's tensors is forgotten with them. A capture that fails, or whose first replay is not what the same step gave
without it, ends the use of graphs, and decoding goes on without.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.inference.adapters import NOBODY, Adapters
from node.inference.attention import Beginnings, Branches, DecodeStep, Kernel, KVCache
from node.inference.transfer import sent
from node.inference.transformer import Transformer

LEAST_SPAN = 128
MOST_CAPTURED = 64
"""Of one cache; the oldest is forgotten."""
_log = structlog.get_logger(__name__)


def row_bucket(rows: int, most: int) -> int:
    """The next power of two, or all rows that there are."""
    return min(1 << (rows - 1).bit_length(), most)


def span_bucket(span: int, most: int) -> int:
    """The next quarter of a power of two, so that at most a fifth is read in vain; or all positions."""
    quarter = max(LEAST_SPAN, 1 << (span - 1).bit_length()) // 8
    return min(max(LEAST_SPAN, -(-span // quarter) * quarter), most)


class Captured:
    """One step of `rows` rows, computed by `compute` of int64[rows] for each number of `fill`, what rows have that are
    filled up, and of int64[lengths], if there are any."""

    def __init__(
        self,
        compute: Callable[..., Tensor],
        rows: int,
        device: str,
        kept: object,
        fill: Sequence[int] = (0, 0),
        lengths: int = 0,
    ) -> None:
        self._compute, self._kept, self._fill = compute, kept, np.array(fill)[:, None]  # a graph keeps nothing it reads
        self.pool: Any = None
        self._fed = torch.zeros(len(fill), rows, dtype=torch.int64, device=device)
        self._lengths = [torch.zeros(lengths, dtype=torch.int64, device=device)] if lengths else []
        self._graph = torch.cuda.CUDAGraph()
        self._hidden = torch.empty(0)

    def feed(self, numbers: NDArray[np.int64], lengths: Sequence[int] = ()) -> None:
        whole = np.repeat(self._fill, self._fed.shape[1], 1)
        whole[:, : numbers.shape[1]] = numbers
        # Into the tensors that were captured: a replay reads no others.
        self._fed.copy_(sent(whole, self._fed.device))
        for kept in self._lengths:
            padded = np.zeros(len(kept), dtype=np.int64)
            padded[: len(lengths)] = lengths
            kept.copy_(sent(padded, kept.device))

    def capture(self, pool: Any) -> None:
        """What was fed is computed twice. Raises RuntimeError where a device cannot, or does it wrongly."""
        expected = self._warm_up()
        with torch.cuda.graph(self._graph, pool=pool):
            self._hidden = self._compute(*self._fed, *self._lengths)
        self.pool = pool
        del self._compute  # it holds the cache, which holds this: their memory would wait for the garbage collector
        # A replay that computes something else would give wrong tokens without a word: equal to the bit, or no graphs.
        if not torch.equal(expected, self.replay()):
            raise RuntimeError("the first replay gave other numbers than the step itself")

    def _warm_up(self) -> Tensor:
        """On another stream, as torch asks for: libraries find their workspaces before they are captured."""
        aside, own = torch.cuda.Stream(), torch.cuda.current_stream()
        aside.wait_stream(own)
        with torch.cuda.stream(aside):
            hidden = self._compute(*self._fed, *self._lengths)
        own.wait_stream(aside)
        return hidden

    def replay(self) -> Tensor:
        """[rows, hidden], overwritten by the next one."""
        self._graph.replay()
        return self._hidden


class Graphs:
    """works: whether there are any: on a GPU, until a capture fails."""

    def __init__(self, transformer: Transformer, kernel: Kernel, device: str, adapters: Adapters | None = None) -> None:
        self._transformer, self._kernel, self._device, self._adapters = transformer, kernel, device, adapters
        # Weak: a captured step goes with the cache that it reads.
        self._alive = WeakSet[Captured]()
        self.works = torch.device(device).type == "cuda"

    def step(
        self, cache: KVCache, tokens: Sequence[int], places: Sequence[int], shared: Beginnings | None = None
    ) -> Tensor | None:
        """`LanguageModel.step`; None where there are no graphs."""
        rows = row_bucket(len(tokens), cache.rows)
        if shared is None:
            end = span_bucket(max(places) + 1, cache.span)
            compute = partial(self._compute, cache, end)
            return self._replayed(cache, (rows, end), compute, end, np.array((tokens, places)))
        count, slots = row_bucket(len(shared.lengths), shared.cache.rows), row_bucket(shared.slots, rows)
        numbers = np.stack((tokens, places, *shared.places(slots, count)))
        end = span_bucket(int((numbers[1] - numbers[2]).max()) + 1, cache.span)
        span = span_bucket(max(shared.lengths), shared.cache.span)
        compute = partial(self._compute_branches, cache, shared.cache, slots, span, end)
        # Kept with the beginnings' cache, it reads the rows' cache, too: the number says whether that is still the
        # same.
        key = rows, end, count, slots, span, cache.number
        # Rows that are filled up stand behind all slots: they share no beginning.
        fill, kept = (0, 0, 0, count * slots), shared.cache
        return self._replayed(kept, key, compute, span + end, numbers, fill=fill, lengths=shared.lengths, count=count)

    def _replayed(
        self,
        kept: KVCache,
        key: tuple[int, ...],
        compute: Callable[..., Tensor],
        end: int,
        numbers: NDArray[np.int64],
        *,
        fill: Sequence[int] = (0, 0),
        lengths: Sequence[int] = (),
        count: int = 0,
    ) -> Tensor | None:
        """The step of this key, which `kept` keeps, of positions below `end`; captured if it was not yet."""
        if self._adapters is not None:
            # Adapters that were made anew are other tensors, so the step is captured again.
            key, fill = (*key, self._adapters.version), (NOBODY, *fill)
            compute, numbers = partial(self._adapted, compute), np.stack((self._adapters.chosen, *numbers))
        captured = kept.captured.get(key)
        if captured is None:
            captured = Captured(compute, key[0], self._device, self._transformer.tables(end), fill, count)
        captured.feed(numbers, lengths)
        if key not in kept.captured and not self._capture(captured, kept, key):
            return None
        return captured.replay()[: numbers.shape[1]]

    def _capture(self, step: Captured, kept: KVCache, key: tuple[int, ...]) -> bool:
        try:
            # torch takes no captures into a pool again whose graphs are all gone, as when a cache grew.
            shared = next((one.pool for one in self._alive), None)
            step.capture(shared or torch.cuda.graph_pool_handle())
        except RuntimeError as error:
            # Memory that runs out is such an error, too: the same step may fit without a graph.
            self.works = False
            kept.captured.clear()
            _log.warning("engine.no_graphs", rows=key[0], end=key[1], reason=str(error)[:300])
            return False
        if len(kept.captured) >= MOST_CAPTURED:
            del kept.captured[next(iter(kept.captured))]
        kept.captured[key] = step
        self._alive.add(step)
        return True

    def _adapted(self, compute: Callable[..., Tensor], slots: Tensor, *numbers: Tensor) -> Tensor:
        assert self._adapters is not None  # whoever calls has seen it
        self._adapters.use(slots)
        return compute(*numbers)

    def _compute(self, cache: KVCache, end: int, tokens: Tensor, places: Tensor) -> Tensor:
        # A graph is replayed for other places, so it never knows that all rows are at the same one.
        attend = DecodeStep(self._kernel, cache, places, end, level=False)
        return self._transformer(tokens[:, None], places[:, None], end, attend)[:, 0]

    def _compute_branches(
        self, cache: KVCache, prompts: KVCache, slots: int, span: int, end: int, tokens: Tensor, *numbers: Tensor
    ) -> Tensor:
        attend = Branches(cache, prompts, numbers[:3], numbers[3], slots=slots, span=span, end=end)
        return self._transformer(tokens[:, None], numbers[0][:, None], span + end, attend)[:, 0]
