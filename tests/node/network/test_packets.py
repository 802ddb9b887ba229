"""Packets cut out of a stream that ends anywhere."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libp2p.utils.varint import encode_uvarint

from node.network.packets import Cutter


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(0, 2500), max_size=12))
def test_packets_come_out_as_they_went_in_wherever_the_stream_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(encode_uvarint(len(body)) + body for body in bodies)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    cutter = Cutter(300)
    parts = [stream[start:end] for start, end in zip(edges, edges[1:], strict=False)]
    assert [packet for part in parts for packet in cutter.cut(part)] == bodies


@pytest.mark.parametrize("head", [encode_uvarint(301), b"\xff" * 5, b"\xff\xff\xff\xff\xff\x01"])
def test_a_packet_beyond_the_limit_is_refused_by_its_head(head: bytes) -> None:
    with pytest.raises(ValueError, match="limit"):
        list(Cutter(300).cut(head))
