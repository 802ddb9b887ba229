import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.blobs import (
    MAX_BLOB_SIZE,
    MAX_PIECE_SIZE,
    MIN_PIECE_SIZE,
    BlobInfo,
    choose_piece_size,
    decode_info,
    describe,
    describe_pieces,
    encode_info,
    piece_count,
    verify_piece,
)
from protocol.errors import ProtocolError


@given(st.integers(0, 5 * MIN_PIECE_SIZE), st.integers(0, 255))
def test_every_piece_of_a_blob_verifies_and_no_other(size: int, fill: int) -> None:
    data = bytes([fill]) * size
    info = describe(data, MIN_PIECE_SIZE)
    info.check()
    for index in range(len(info.pieces)):
        offset, length = info.span(index)
        assert verify_piece(info, index, data[offset : offset + length])
        assert not verify_piece(info, index, data[offset : offset + length] + b"x")
        assert not verify_piece(info, index, bytes([fill ^ 1]) * length)
    assert not verify_piece(info, len(info.pieces), b"")
    assert decode_info(encode_info(info), info.root) == info


def test_the_root_depends_on_size_and_piece_size() -> None:
    data = b"a" * (3 * MIN_PIECE_SIZE)
    assert describe(data, MIN_PIECE_SIZE).root != describe(data, 2 * MIN_PIECE_SIZE).root


@pytest.mark.parametrize(
    "change",
    [
        {"size": 10**18},
        {"size": -1},
        {"piece_size": 1},
        {"piece_size": 0},
        {"pieces": ()},
        {"pieces": (b"short",)},
        {"pieces": (bytes(32),)},
        {"root": bytes(32)},
    ],
)
def test_a_doctored_piece_list_is_refused(change: dict) -> None:
    info = describe(b"hello")
    doctored = msgspec.structs.replace(info, **change)
    with pytest.raises(ProtocolError):
        decode_info(encode_info(doctored), info.root)


@given(st.binary(max_size=300))
def test_garbage_is_no_piece_list(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_info(data, bytes(32))


def test_an_empty_blob_has_a_name() -> None:
    info = describe(b"")
    assert isinstance(info, BlobInfo)
    assert info.pieces == ()


def test_an_image_of_seventy_billion_parameters_is_one_blob_of_few_pieces() -> None:
    size = 70_553_706_496 * 2
    piece = choose_piece_size(size)
    info = describe_pieces(size, piece, (bytes([number % 251]) * 32 for number in range(piece_count(size, piece))))
    assert decode_info(encode_info(info), info.root) == info
    assert piece == 4 * 1024**2 and len(info.pieces) < 34_000
    beyond = describe_pieces(MAX_BLOB_SIZE + 1, MAX_PIECE_SIZE, [bytes(32)] * (MAX_BLOB_SIZE // MAX_PIECE_SIZE + 1))
    with pytest.raises(ProtocolError, match="out of bounds"):
        beyond.check()
