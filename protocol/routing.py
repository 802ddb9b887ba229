"""Which experts computed which token of a rollout, written down so that everybody else computes with the same ones.

A router chooses by numbers that differ a little from one engine to the next, and where two experts are about equally
likely a little is enough: another expert is another function, so nothing behind it would agree. Whoever looks again
therefore computes with the experts on record, and sees by its own router how far each choice was from its own.

A record has one line per token that went through the model (prompt and output without the last), in it the experts of
each layer that has any, ascending within a layer: so one choice has one spelling. An expert is a byte, or two, the
lower one first, where a layer has more than a byte can name.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_EXPERTS = 1024
"""Of one layer; twice of what is published."""


@dataclass(frozen=True, slots=True)
class Routing:
    """What a model's routers do. layers: those with experts; experts: of each; chosen: of these for one token."""

    layers: int
    experts: int
    chosen: int

    @property
    def width(self) -> int:
        """Experts of a token's line."""
        return self.layers * self.chosen

    @property
    def entry(self) -> int:
        """Bytes of an expert."""
        return 1 if self.experts <= 256 else 2

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of an expert in a record."""
        return np.dtype(f"<u{self.entry}")


def table_of(record: bytes, routing: Routing) -> NDArray[Any]:
    """uint8[tokens, width], or uint16, a view of a record whose length fits."""
    return np.frombuffer(record, dtype=routing.dtype).reshape(-1, routing.width)


def objection(record: bytes, tokens: int, routing: Routing | None) -> str:
    """Why this is no record of `tokens` tokens of a model; empty if it is one. routing: None of a model without."""
    width = routing.width * routing.entry if routing else 0
    if len(record) != tokens * width:
        return f"{len(record)} bytes of experts where {tokens} tokens of this model have {tokens * width}"
    if routing is None:
        return ""
    lines = table_of(record, routing).reshape(-1, routing.chosen)
    if lines.size and int(lines.max()) >= routing.experts:
        return f"expert {int(lines.max())} of {routing.experts}"
    return "" if (lines[:, 1:] > lines[:, :-1]).all() else "experts of a token that do not ascend"


def load_of(record: bytes, routing: Routing) -> NDArray[np.int64]:
    """int64[layers, experts]: how many of the record's tokens each expert computed."""
    chosen = table_of(record, routing).reshape(-1, routing.layers, routing.chosen)
    places = chosen + np.arange(routing.layers)[:, None] * routing.experts
    counts = np.bincount(places.reshape(-1), minlength=routing.layers * routing.experts)
    return counts.reshape(routing.layers, routing.experts)
