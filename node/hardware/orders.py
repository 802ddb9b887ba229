"""What the daemon asks its multiplying child for: an order a line, as JSON. Each answer: 8 bytes of length, a body."""

import msgspec

from protocol.freivalds import Challenge

HEADER_BYTES = 8
READY = b"y"
"""The child's first answer, before any order: torch and the device are up."""


class _Order(msgspec.Struct, frozen=True, tag=True):
    pass


class Multiply(_Order, frozen=True):
    """The digest of each row of the product."""

    challenge: Challenge


class Show(_Order, frozen=True):
    """Rows of the last product."""

    rows: tuple[int, ...]


Order = Multiply | Show
ORDERS: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
