"""The child that multiplies computes what the protocol's reference does, on whatever device."""

import io

import msgspec
import numpy as np
import pytest

from node.hardware.multiplier import Multiplier, MultiplierError
from node.hardware.multiply import Product, serve
from node.hardware.orders import Multiply, Show
from protocol.freivalds import Challenge, check_product, chosen_rows, decode_digests, decode_rows, row_digests, rows_of

CHALLENGE = Challenge(bytes(range(32)), 1088)
"""Of more rows than one stripe."""


def test_the_child_multiplies_as_the_reference_does() -> None:
    keys, places = CHALLENGE.keys, [0, 1, 1023, 1024, 1087]
    made = Product(CHALLENGE, "cpu")
    left = rows_of(keys.a, 1088, np.array(places)).astype(np.int32)
    wanted = left @ rows_of(keys.b, 1088, np.arange(1088)).astype(np.int32)
    assert np.array_equal(made.rows(places), wanted)
    assert np.array_equal(made.digests()[places], row_digests(keys.digest, wanted))


def test_a_session_with_the_child_passes_the_check() -> None:
    asked = chosen_rows(1088, b"r" * 32)
    orders = b"".join(msgspec.json.encode(order) + b"\n" for order in (Multiply(CHALLENGE), Show(asked)))
    said = io.BytesIO()
    serve(io.BytesIO(orders), said, "cpu")
    bodies, data = [], said.getvalue()
    while data:
        size = int.from_bytes(data[:8], "little")
        bodies.append(data[8 : 8 + size])
        data = data[8 + size :]
    ready, digests, rows = bodies
    assert ready == b"y"
    check_product(CHALLENGE, decode_digests(digests, 1088), asked, decode_rows(rows, 1088, len(asked)), b"v" * 32)


@pytest.mark.parametrize(
    ("child", "why"),
    [
        (["true"], "it has ended"),
        (["printf", "\\2\\0\\0\\0\\0\\0\\0\\0xx"], "2 bytes instead of 1"),
        (["printf", "\\1\\0\\0\\0\\0\\0\\0\\0x"], "its first answer"),
    ],
)
async def test_a_child_that_is_none_is_an_error(child: list[str], why: str) -> None:
    with pytest.raises(MultiplierError, match=why):
        await Multiplier(child).warm()
