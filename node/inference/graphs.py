"""Decoding steps as CUDA graphs: one launch instead of some nine hundred, which a GPU waits for a process to make.

A graph is of one shape. So a step is filled up to a bucket of rows and to one of positions; rows that are filled up
write into rows of the cache that nobody has, and positions that no row has reached are masked. What was captured over a
cache's tensors is forgotten with them. A capture that fails, or whose first replay is not what the same step gave
without it, ends the use of graphs, and decoding goes on without.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import structlog
import torch
from torch import Tensor

from node.inference.attention import Kernel, KVCache, Step
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
    """One step of `rows` rows with positions below `end`, computed by `compute(tokens, places)`, int64[rows] each."""

    def __init__(self, compute: Callable[[Tensor, Tensor], Tensor], rows: int, device: str, kept: object) -> None:
        self._compute, self._kept = compute, kept  # a graph does not keep what it reads
        self._fed = torch.zeros(2, rows, dtype=torch.int64, device=device)
        self._graph = torch.cuda.CUDAGraph()
        self._hidden = torch.empty(0)

    def feed(self, tokens: Sequence[int], places: Sequence[int]) -> None:
        numbers = np.zeros(tuple(self._fed.shape), dtype=np.int64)
        numbers[:, : len(tokens)] = tokens, places
        self._fed.copy_(sent(numbers, self._fed.device))

    def capture(self, pool: Any) -> None:
        """What was fed is computed twice. Raises RuntimeError where a device cannot, or does it wrongly."""
        expected = self._warm_up()
        with torch.cuda.graph(self._graph, pool=pool):
            self._hidden = self._compute(*self._fed)
        if not torch.equal(expected, self.replay()):
            raise RuntimeError("the first replay gave other numbers than the step itself")

    def _warm_up(self) -> Tensor:
        """On another stream, as torch asks for: libraries find their workspaces before they are captured."""
        aside, own = torch.cuda.Stream(), torch.cuda.current_stream()
        aside.wait_stream(own)
        with torch.cuda.stream(aside):
            hidden = self._compute(*self._fed)
        own.wait_stream(aside)
        return hidden

    def replay(self) -> Tensor:
        """[rows, hidden], overwritten by the next one."""
        self._graph.replay()
        return self._hidden


class Graphs:
    """works: whether there are any: on a GPU, until a capture fails."""

    def __init__(self, transformer: Transformer, kernel: Kernel, device: str) -> None:
        self._transformer, self._kernel, self._device = transformer, kernel, device
        self._pool: Any = None
        self.works = torch.device(device).type == "cuda"

    def step(self, cache: KVCache, tokens: Sequence[int], places: Sequence[int]) -> Tensor | None:
        """`LanguageModel.step`; None where there are no graphs."""
        key = row_bucket(len(tokens), cache.rows), span_bucket(max(places) + 1, cache.span)
        captured = cache.captured.get(key)
        if captured is None:
            captured = self._capture(cache, *key, tokens, places)
        else:
            captured.feed(tokens, places)
        return None if captured is None else captured.replay()[: len(tokens)]

    def _capture(
        self, cache: KVCache, rows: int, end: int, tokens: Sequence[int], places: Sequence[int]
    ) -> Captured | None:
        step = Captured(self._computing(cache, end), rows, self._device, self._transformer.tables(end))
        step.feed(tokens, places)
        try:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            step.capture(self._pool)
        except RuntimeError as error:
            self.works = False
            cache.captured.clear()
            _log.warning("engine.no_graphs", rows=rows, end=end, reason=str(error)[:300])
            return None
        if len(cache.captured) >= MOST_CAPTURED:
            del cache.captured[next(iter(cache.captured))]
        cache.captured[rows, end] = step
        return step

    def _computing(self, cache: KVCache, end: int) -> Callable[[Tensor, Tensor], Tensor]:
        def compute(tokens: Tensor, places: Tensor) -> Tensor:
            attend = Step(self._kernel, cache, places, end, level=False)
            return self._transformer(tokens[:, None], places[:, None], end, attend)[:, 0]

        return compute
