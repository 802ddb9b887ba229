"""However an image's tensors come to be hashed, the digests and the blob are the same."""

from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import blobs
from protocol.blobs import choose_piece_size, describe
from protocol.policy import (
    MalformedPolicy,
    describe_blob,
    describe_tensors,
    encode_image,
    image_layout,
    weights_root,
)
from protocol.stretches import ImageHasher, Layout, TensorHasher

PIECE = 64
SIZES = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 200)), min_size=1, max_size=6)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 64 bytes: images of a few hundred have every kind of border."""
    monkeypatch.setattr(blobs, "DEFAULT_PIECE_SIZE", PIECE)
    monkeypatch.setattr(blobs, "MIN_PIECE_SIZE", PIECE)


def image_of(header: int, sizes: list[int]) -> tuple[Layout, bytes, list[bytes]]:
    data = bytes(np.random.default_rng(header + sum(sizes)).integers(0, 256, header + sum(sizes), np.uint8))
    layout = Layout(data[:header], sizes)
    return layout, data, [data[at : at + size] for at, size in zip(layout.offsets, sizes, strict=True)]


def by_the_book(layout: Layout, place: int, data: bytes) -> bytes:
    """The definition, byte by byte: where the next one is another piece's, a stretch ends."""
    stretches: dict[int, bytearray] = {}
    for number, byte in enumerate(data, start=layout.offsets[place]):
        stretches.setdefault(number // layout.piece_size, bytearray()).append(byte)
    hashes = b"".join(blake3(bytes(stretch)).digest() for stretch in stretches.values())
    return blake3(hashes, derive_key_context="intellect-node tensor v1").digest()


@settings(max_examples=100)
@given(header=st.integers(0, 200), sizes=SIZES, data=st.data())
def test_all_at_once_in_parts_and_by_the_pieces_the_digests_and_the_blob_are_one(header, sizes, data) -> None:
    layout, image, tensors = image_of(header, sizes)
    blob, together, in_parts = describe(image), ImageHasher(layout), ImageHasher(layout)
    for place, tensor in enumerate(tensors):
        whole = layout.hashed(place, tensor)
        together.add(whole)
        hasher, at = TensorHasher(layout, place), 0
        while at < len(tensor):
            count = data.draw(st.integers(1, 150))
            hasher.update(tensor[at : at + count])
            at += count
        assert hasher.finish() == whole
        in_parts.add(whole)
        assert whole.digest == layout.digest(place, tensor, blob.pieces) == by_the_book(layout, place, tensor)
        assert b"".join([whole.head, *whole.pieces, whole.tail]) or not tensor
    assert together.blob() == in_parts.blob() == blob


@settings(max_examples=80)
@given(header=st.integers(0, 200), sizes=SIZES, data=st.data())
def test_one_other_byte_is_another_digest_of_the_tensor_that_it_is_in_and_of_no_other(header, sizes, data) -> None:
    layout, _, tensors = image_of(header, sizes)
    honest = [layout.hashed(place, tensor).digest for place, tensor in enumerate(tensors)]
    place = data.draw(st.sampled_from([*range(len(sizes))]))
    if tensors[place]:
        changed = bytearray(tensors[place])
        changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        tensors[place] = bytes(changed)
    found = [layout.hashed(place, tensor).digest for place, tensor in enumerate(tensors)]
    assert [at for at, pair in enumerate(zip(honest, found, strict=True)) if pair[0] != pair[1]] == (
        [place] if sizes[place] else []
    )


def test_only_what_is_shared_is_hashed_beside_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    layout, image, tensors = image_of(10, [30, 6 * PIECE, 5, 0, 2 * PIECE - 15])
    pieces, hashed = describe(image).pieces, []

    def counted(data: bytes = b"", **context: Any) -> blake3:
        hashed.append(0 if context else len(data))
        return blake3(data, **context)

    monkeypatch.setattr("protocol.stretches.blake3", counted)
    for place, tensor in enumerate(tensors):
        layout.digest(place, tensor, pieces)
    assert [size for size in hashed if size] == [30, 24, 40, 5, 19], "of 7 stretches and 8 pieces that are whole"


def test_a_tensor_that_is_too_long_or_too_short_has_no_digest() -> None:
    layout = Layout(b"12345678", [100, 20])
    with pytest.raises(ValueError, match="101 bytes where 100"):
        layout.hashed(0, bytes(101))
    with pytest.raises(ValueError, match="lacks 1 bytes"):
        layout.hashed(0, bytes(99))
    image = ImageHasher(layout)
    image.add(layout.hashed(0, bytes(100)))
    with pytest.raises(ValueError, match="lacks 20 bytes"):
        image.blob()


TENSORS = {
    "a.empty": np.empty((0, 4), np.uint16),
    "b.scalar": np.array(7, np.uint16),
    "c.long": np.arange(700, dtype=np.uint16).reshape(7, 100),
    "d.last": np.arange(33, dtype=np.uint16),
}


def test_an_image_is_described_from_its_pieces_as_it_is_from_its_tensors() -> None:
    image = encode_image(TENSORS)
    assert describe_blob(image, describe(image)) == describe_tensors(TENSORS)
    layout, hasher = image_layout([(name, tensor.shape) for name, tensor in TENSORS.items()]), None
    hasher = ImageHasher(layout)
    for place, tensor in enumerate(TENSORS.values()):
        hasher.add(layout.hashed(place, tensor.tobytes()))
    assert hasher.blob() == describe(image)


def test_pieces_of_another_size_and_headers_in_another_form_describe_nothing() -> None:
    image = encode_image(TENSORS)
    other = image.replace(b'"dtype":"BF16","shape":[33]', b'"shape":[33],"dtype":"BF16"')
    assert len(other) == len(image) and other != image
    for data, blob in ((image, describe(image, 2 * PIECE)), (other, describe(other)), (image, describe(image + b"!"))):
        with pytest.raises(MalformedPolicy, match="canonical form"):
            describe_blob(data, blob)


def test_pieces_that_are_of_other_bytes_describe_another_policy() -> None:
    image = bytearray(encode_image(TENSORS))
    image[-200] ^= 1  # in the middle of c.long, in a piece of its own
    lie = describe(bytes(image))
    assert describe_blob(encode_image(TENSORS), lie) != describe_tensors(TENSORS)


def test_digests_are_these_very_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Golden, at the real size of pieces: 256 KiB, three tensors over three of them. Computed by another program."""
    monkeypatch.undo()
    shapes = {"a": (100_000,), "b": (3, 90_000), "c": (5,)}
    tensors = {name: np.resize(np.arange(65521, dtype=np.uint16), shape) for name, shape in shapes.items()}
    assert choose_piece_size(len(encode_image(tensors))) == 256 * 1024
    infos = describe_tensors(tensors)
    assert [info.digest.hex() for info in infos] == [
        "8524893d538311ce1f33afe67ef276c89a2a92fe1b32e6eddae4d3acd0e0a0a1",
        "fe2b7fd9cefb4520bdec1de52e8e3f439c02d980ad864b935804dc1e8fb60141",
        "21422aaa68e5aac1acd40a0a1b99f88ddab1b388d19f5878192da27f32da529c",
    ]
    assert weights_root(infos).hex() == "c39f88c12421f6e58d62fd3bef50e9e65bcaa668474144cabf8c2fcd5a40e3a2"
