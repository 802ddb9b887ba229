"""Pieces of one blob: which are here, which were asked for, and how rare each is."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from node.blobs.scheduling.bitfield import Flags


class PieceTable:
    """have: bool[pieces], what is here; open: missing, and not asked for; opens, missing: how many of them; copies:
    requests in flight per piece; rarity: holders, with a tie-break in [0, 1)."""

    def __init__(self, have: Flags, seed: int) -> None:
        self.have = have.copy()
        self.copies = np.zeros(len(have), np.uint8)
        self.open = ~have
        self.opens = self.missing = int(self.open.sum())
        self.rarity = np.random.default_rng(seed).random(len(have), np.float32)

    def took(self, pieces: Iterable[int]) -> list[int]:
        """They are here now, by whatever way; returns those that are new."""
        new = [piece for piece in pieces if not self.have[piece]]
        for piece in new:
            if self.open[piece]:
                self.open[piece] = False
                self.opens -= 1
            self.have[piece] = True
        self.missing -= len(new)
        return new

    def asked(self, pieces: NDArray[np.int64]) -> None:
        """In one request more."""
        self.copies[pieces] += 1
        opened = int(self.open[pieces].sum())
        self.open[pieces] = False
        self.opens -= opened

    def unasked(self, pieces: NDArray[np.int64]) -> None:
        """The request is over."""
        self.copies[pieces] -= 1
        free = pieces[(self.copies[pieces] == 0) & ~self.have[pieces]]
        self.open[free] = True
        self.opens += len(free)

    def rarest(self, candidates: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
        """At most `limit` of these, in their order."""
        if len(candidates) > limit:
            order = np.argpartition(self.rarity[candidates], limit - 1)[:limit]
            candidates = candidates[order]
        return np.sort(candidates)
