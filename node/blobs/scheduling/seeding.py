"""Super-seeding: how the only holder of a blob gives it away fastest.

While some piece has left the origin never, askers do not choose: each gets pieces that nobody was given yet. Who keeps
to itself what it was given comes after those whose pieces have been seen elsewhere. Once every piece is out, askers
choose for themselves.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from node.blobs.scheduling.bitfield import Flags

Peer = TypeVar("Peer", bound=Hashable)
MAX_PEERS = 2048
ALLOWANCE = 8
"""Pieces that a peer may hold alone before others come first."""


class SuperSeed(Generic[Peer]):
    """What the origin of a blob of `count` pieces has given to whom."""

    def __init__(self, count: int, seed: int) -> None:
        self._out = np.zeros(count, np.bool_)
        self._order = np.random.default_rng(seed).permutation(count)
        self._left = count
        self._numbers: dict[Peer, int] = {}
        self._holder = np.full(count, -1, np.int32)  # who alone was given a piece; -1: nobody, or not alone
        self._alone = np.zeros(MAX_PEERS, np.int64)  # pieces that each peer holds alone

    @property
    def active(self) -> bool:
        """Whether some piece was never given away."""
        return self._left > 0

    def choose(self, peer: Peer, skip: Flags, count: int) -> NDArray[np.int64]:
        """Up to `count` pieces for `peer` outside `skip` (bool[pieces]) that nobody was given; they count as given."""
        pieces = np.sort(self._order[~(self._out | skip)[self._order]][:count])
        self.given(peer, pieces)
        return pieces

    def given(self, peer: Peer, pieces: NDArray[np.int64]) -> None:
        """Pieces sent to `peer`, by our choice or its own."""
        fresh = pieces[~self._out[pieces]]
        self._out[fresh] = True
        self._left -= len(fresh)
        number = self._number(peer)
        self._holder[fresh] = number
        if number >= 0:
            self._alone[number] += len(fresh)

    def lost(self, peer: Peer, pieces: NDArray[np.int64]) -> None:
        """Pieces that did not reach `peer` after all: they are given to somebody else."""
        number = self._number(peer)
        back = pieces[self._holder[pieces] == number] if number >= 0 else pieces[:0]
        self._forget(back)
        self._out[back] = False
        self._left += len(back)

    def seen(self, peer: Peer, have: Flags) -> None:
        """What `peer` says it has (bool[pieces]): pieces given to others have spread if it has them."""
        self._forget(np.flatnonzero(have & (self._holder >= 0) & (self._holder != self._number(peer))))

    def burden(self, peer: Peer) -> float:
        """0 for a peer that may have more; above that, how many pieces it holds alone."""
        number = self._numbers.get(peer, -1)
        alone = int(self._alone[number]) if number >= 0 else 0
        return float(alone) if alone > ALLOWANCE else 0.0

    def _number(self, peer: Peer) -> int:
        if peer not in self._numbers and len(self._numbers) < MAX_PEERS:
            self._numbers[peer] = len(self._numbers)
        return self._numbers.get(peer, -1)

    def _forget(self, pieces: NDArray[np.int64]) -> None:
        np.subtract.at(self._alone, self._holder[pieces], 1)
        self._holder[pieces] = -1
