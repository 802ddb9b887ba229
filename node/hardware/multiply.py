"""The child that multiplies matrices for a challenge (protocol.freivalds), on the fastest device that torch finds.

`python -m node.hardware.multiply` reads orders and answers them (node.hardware.orders); it ends when its input does.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from node.hardware.orders import HEADER_BYTES, ORDERS, READY, Multiply
from protocol.freivalds import FIRST, GAMMA, NIBBLES, SECOND, Challenge, Row, Words


class Product:
    """A B, a stripe at a time: memory holds B, and never all of the product."""

    def __init__(self, challenge: Challenge, device: str) -> None:
        self._challenge, self._device = challenge, device
        self._keys = challenge.keys
        self._right = torch.empty(challenge.size, challenge.size, device=device)
        for piece in self._pieces():
            self._right[piece] = self._expand(self._keys.b, piece)

    def digests(self) -> Words:
        """uint64[size], as protocol.freivalds.row_digests."""
        parts = [self._digest(self._expand(self._keys.a, piece) @ self._right) for piece in self._pieces()]
        return torch.cat(parts).cpu().numpy().view(np.uint64)

    def rows(self, places: Sequence[int]) -> Row:
        """int32[len(places), size]. Raises IndexError."""
        if not all(0 <= place < self._challenge.size for place in places):
            raise IndexError(f"rows {places} of {self._challenge.size}")
        # Made again, not kept: the product is size squared, and only a few rows are ever asked for.
        left = self._expand(self._keys.a, torch.tensor(places, device=self._device))
        return (left @ self._right).round().to(torch.int32).cpu().numpy()

    def _pieces(self) -> Iterator[Tensor]:
        # Wide enough for a GPU to be busy; of the largest matrices (16,384 columns) a stripe takes 64 MiB. Rows that
        # are multiplied at a time.
        return iter(torch.arange(self._challenge.size, device=self._device).split(1024))

    def _expand(self, key: int, rows: Tensor) -> Tensor:
        """float32[len(rows), size], as protocol.freivalds.rows_of."""
        per_row = self._challenge.size // NIBBLES
        places = rows[:, None] * per_row + torch.arange(per_row, device=self._device)
        words = _mixed(_signed(key) + (places + 1) * _signed(GAMMA))
        shifts = 4 * torch.arange(NIBBLES, device=self._device)
        return (((words[..., None] >> shifts) & 15) - 8).flatten(1).to(torch.float32)

    def _digest(self, rows: Tensor) -> Tensor:
        places = (torch.arange(self._challenge.size, device=self._device) + 1) * _signed(GAMMA)
        return _mixed((rows.round().to(torch.int64) + places) ^ _signed(self._keys.digest)).sum(dim=1)


def _signed(word: int) -> int:
    """The same 64 bits as torch has them: it multiplies and adds int64 modulo 2^64."""
    return word - (1 << 64) if word >> 63 else word


def _mixed(words: Tensor) -> Tensor:
    """protocol.freivalds.mixed."""
    words = (words ^ _shifted(words, 30)) * _signed(FIRST)
    words = (words ^ _shifted(words, 27)) * _signed(SECOND)
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, bits: int) -> Tensor:
    """To the right, with zeros from the left."""
    # torch shifts int64 with its sign, which the mask takes away.
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def serve(source: BinaryIO, sink: BinaryIO, device: str) -> None:
    """Answer until the input ends."""
    _say(sink, READY)
    product: Product | None = None
    while line := source.readline():
        order = ORDERS.decode(line)
        if isinstance(order, Multiply):
            product = Product(order.challenge, device)
            _say(sink, product.digests().astype("<u8").tobytes())
        elif product is not None:
            _say(sink, product.rows(order.rows).astype("<i4").tobytes())


def _say(sink: BinaryIO, body: bytes) -> None:
    sink.write(len(body).to_bytes(HEADER_BYTES, "little") + body)
    sink.flush()


def main() -> None:
    torch.set_float32_matmul_precision("high")  # tensor cores: exact for entries this small
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.mm(torch.zeros(8, 8, device=device), torch.zeros(8, 8, device=device))  # what starts late starts now
    with torch.inference_mode():
        serve(sys.stdin.buffer, sys.stdout.buffer, device)


if __name__ == "__main__":
    main()
