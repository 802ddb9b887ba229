"""What fits into a device's memory besides a model's weights: the cache, passes, logits. Pure.

Counted from the model's shape for what an engine holds at its peak. What is left once weights, a pass and a table of
logits have their room is the cache: it decides how many sequences of which length are decoded together.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

from node.inference.architectures import DELTA, DeltaShape, delta_shape, expert_width, routing_of, shared_width
from node.inference.errors import EngineError
from node.units import GIB

CHUNK = 64
"""Tokens of a pass that gated delta layers take together (node.inference.delta)."""
SIZES = {"float32": 4, "bfloat16": 2}
"""Bytes of a number, by type."""
CONTEXT = GIB // 2
"""Bytes that CUDA's libraries take once they compute, and the sampler's blocks of weights in float64."""
MOST_TOKENS = 1 << 22
"""In a cache: 256 sequences of 16,384; a CPU is full long before."""
LEAST_TOKENS = 1 << 11
"""A cache of fewer is no engine: one sequence of common length must fit."""
FULL_TOKENS = 1 << 15
"""A cache of fewer is told of: 32 sequences of a thousand tokens."""
PASS_TOKENS, CPU_PASS_TOKENS, CHUNK_TOKENS = 8192, 1024, 1024
"""Most and fewest tokens in one pass without a cache. More take memory, and a CPU gets slower: 4096 cost a sixth."""
ROWS = 256
"""Rows of logits at a time that no more of makes anything faster."""
CPU_CELLS = 1 << 23
"""Most logits at a time on a CPU: 32 MiB, of which its caches see much."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Numbers, not bytes. layers: with a cache; cached: of one token in the cache of all layers; widest: that a layer
    holds of each token at once in a pass; remembered: of one row, in float32, whatever its length."""

    parameters: int
    layers: int
    cached: int
    widest: int
    hidden: int
    vocabulary: int
    remembered: int = 0

    @classmethod
    def of(cls, config: Any, parameters: int) -> Self:
        """config: of transformers, of a decoder."""
        routing = routing_of(config)
        intermediate = getattr(config, "intermediate_size", 0) or 0  # no layer may have it where all have experts
        if routing:  # those of a token, and the token once for each
            of_experts = routing.chosen * (expert_width(config) + config.hidden_size)
            intermediate = max(intermediate, of_experts + shared_width(config))
        heads = config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        delta = delta_shape(config)
        recalling = config.layer_types.count(DELTA) if delta else 0
        return cls.counted(
            parameters=parameters,
            layers=config.num_hidden_layers - recalling,
            delta=delta,
            recalling=recalling,
            queries=heads * dim,
            keys=(getattr(config, "num_key_value_heads", None) or heads) * dim,
            hidden=config.hidden_size,
            intermediate=intermediate,
            vocabulary=config.vocab_size,
        )

    @classmethod
    def counted(
        cls,
        *,
        parameters: int,
        layers: int,
        queries: int,
        keys: int,
        hidden: int,
        intermediate: int,
        vocabulary: int,
        delta: DeltaShape | None = None,
        recalling: int = 0,
    ) -> Self:
        """layers: that attend; recalling: that remember instead, as `delta` says; queries, keys: widths of all heads
        together."""
        wide, remembered = 4 * queries + 4 * keys, 0
        if delta is not None:
            # In float32, and of each chunk what its tokens do to each other: counted in numbers of two bytes.
            wide = max(wide, 8 * delta.channels + 2 * delta.heads * (6 * CHUNK + 4 * delta.value_dim))
            remembered = recalling * (delta.remembered + delta.channels * (delta.kernel - 1))
        widest = 3 * hidden + max(3 * intermediate, wide)
        return cls(parameters, layers, 2 * layers * keys, widest, hidden, vocabulary, remembered)

    def row_tokens(self, dtype: str) -> int:
        """Tokens of a cache that take as much memory as what one row remembers."""
        return math.ceil(SIZES["float32"] * self.remembered / (SIZES[dtype] * self.cached))


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """weights, passes, logits, cache: bytes; batch_tokens: in the cache; pass_tokens: in one pass without a cache;
    logit_cells: logits (rows * vocabulary) at a time; row_tokens: of the cache, that each row takes besides its own."""

    weights: int
    passes: int
    logits: int
    cache: int
    batch_tokens: int
    pass_tokens: int
    logit_cells: int
    row_tokens: int = 0

    @property
    def small(self) -> bool:
        """Whether there is less room than an engine makes good use of."""
        return self.batch_tokens < FULL_TOKENS

    @property
    def text(self) -> str:
        """For people."""
        told = f"room for {self.batch_tokens:,} tokens"
        return f"{told}, fewer than the {FULL_TOKENS:,} that it could use" if self.small else told


def plan(
    model: ModelSize, free: int, dtype: str, *, leave: int = 0, gpu: bool = True, wide_head: bool = False
) -> MemoryPlan:
    """How an engine divides up `free` bytes of a device, of which others will take `leave`.

    wide_head: the output head is there a second time, in float32. Raises NoRoom where the model does not fit, or
    leaves no room for a cache.
    """
    size = SIZES[dtype]
    # Of what is free: allocators lose a tenth, and on a CPU several engines share a machine.
    usable = int((0.9 if gpu else 0.8) * max(0, free - leave)) - (CONTEXT if gpu else 0)
    weights = size * model.parameters + (4 * model.vocabulary * model.hidden if wide_head else 0)
    left = usable - weights
    # A pass takes an eighth of what the weights leave, or as little as a chunk does.
    fitting = max(CHUNK_TOKENS, min(PASS_TOKENS, left // 8 // (model.widest * size)))
    pass_tokens = fitting if gpu else CPU_PASS_TOKENS
    # Of four bytes each: a table of logits takes at most a sixteenth of what the weights leave, or one row.
    cells = max(model.vocabulary, min(ROWS * model.vocabulary, left // 64) if gpu else CPU_CELLS)
    passes, logits = pass_tokens * model.widest * size, 4 * cells
    of_token = size * model.cached
    growing = size * model.cached // model.layers  # a layer's cache is there twice while it grows
    cpu_tokens = 1 << 15  # tokens in a CPU's cache: it is full long before
    tokens = min(MOST_TOKENS if gpu else cpu_tokens, (left - passes - logits) // (of_token + growing))
    row = model.row_tokens(dtype)
    if tokens < LEAST_TOKENS + row:
        raise _too_little(weights + passes + logits + (LEAST_TOKENS + row) * of_token, free, leave, usable)
    return MemoryPlan(weights, passes, logits, tokens * of_token, tokens, pass_tokens, cells, row)


@lru_cache(1024)
def needed(model: ModelSize, tokens: int, dtype: str) -> int:
    """Fewest free bytes of a GPU (to a MiB) of which an engine has a cache of so many tokens, at most MOST_TOKENS."""
    low, high = 0, 1 << 50
    while high - low > 1 << 20:
        middle = (low + high) // 2
        try:
            enough = plan(model, middle, dtype).batch_tokens >= min(tokens, MOST_TOKENS)
        except NoRoom:
            enough = False
        low, high = (low, middle) if enough else (middle, high)
    return high


def room_for(files: int, dtype: str) -> int:
    """Bytes that another model needs which only reads: weights (files: bytes of them, in bf16) and its passes."""
    return files * SIZES[dtype] // SIZES["bfloat16"] + GIB


def has_room_for_copy(image: int, free: int, dtype: str, *, gpu: bool) -> bool:
    """Whether a machine with so many free bytes keeps a copy of the policy in its memory: an image of so many bytes."""
    # On a CPU the engine's own weights may not have been touched yet, and are to fit as well.
    weights = 0 if gpu else image * SIZES[dtype] // SIZES["bfloat16"]
    return free - weights - image >= max(GIB, image // 2)


def adapter_columns(count: int, rank: int) -> int:
    """Rows of lora_a of one layer where so many adapters of a rank are kept apart, each in a slot: these are a power of
    two (node.inference.adapters)."""
    return rank << (count - 1).bit_length() if count else 0


def room_for_adapters(shapes: Iterable[Sequence[int]], columns: int, dtype: str) -> int:
    """Bytes that these take at most, beside weights of these shapes, of which matrices are [out, in]."""
    return SIZES[dtype] * columns * sum(sum(shape) for shape in shapes if len(shape) == 2)


class NoRoom(EngineError):
    """A device has too little memory for a model."""


def _too_little(needed: int, free: int, leave: int, usable: int) -> NoRoom:
    others = f", {leave / GIB:.1f} of it for learner, evaluator or adapters" if leave else ""
    return NoRoom(
        "the model does not fit into the device's memory",
        f"the engine needs {needed / GIB:.1f} GiB, and may use {max(0, usable) / GIB:.1f} of the {free / GIB:.1f} GiB "
        f"that are free{others}",
        "use bfloat16, a smaller model or a device with more memory, or end what else is on it",
    )
