import struct
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protocol import delta, packed
from protocol.delta import (
    PatchError,
    apply_patch,
    encode_patch,
    max_patch_bytes,
    patch_in_place,
    patched,
    patched_part,
    unchanged,
)
from protocol.policy import bf16_bits

HEADER_BYTES = 4 + 8 + 1

PATTERNS = st.integers(0, 0xFFFF)
RANDOM = np.random.default_rng(7)


def weights(count: int, spread: float = 0.02) -> np.ndarray:
    return (RANDOM.standard_normal(count) * spread).astype(np.float32)


def after_a_step(values: np.ndarray, lr: float) -> np.ndarray:
    return bf16_bits(values + (RANDOM.standard_normal(values.size) * lr / 2).astype(np.float32))


def make(chunk: bytes, base: np.ndarray) -> bytes:
    """A patch with a chunk of our own making, for `base`."""
    return struct.pack("<4sQB", b"IND\x03", base.size, 1) + chunk


@settings(max_examples=50)
@given(hnp.arrays(np.uint16, st.integers(0, 300), elements=PATTERNS), st.data())
def test_any_tensor_becomes_any_other(base: np.ndarray, data: st.DataObject) -> None:
    target = data.draw(hnp.arrays(np.uint16, base.size, elements=PATTERNS))
    patch = encode_patch(base, target)
    assert len(patch) <= max_patch_bytes(base.size)
    assert np.array_equal(apply_patch(base, patch), target)


@settings(max_examples=60)
@given(
    st.integers(1, 3000),
    st.lists(st.tuples(st.integers(0, 2999), PATTERNS), max_size=40),
    st.sampled_from([0, 0x3F80, 0x8000, 0x7F80, 0xFFC1]),
)
def test_a_few_changes_anywhere_survive_the_journey(size: int, changes: list[tuple[int, int]], bits: int) -> None:
    base = np.full(size, bits, np.uint16)
    target = base.copy()
    for place, pattern in changes:
        target[place % size] = pattern
    assert np.array_equal(apply_patch(base, encode_patch(base, target)), target)


def test_every_bit_pattern_survives_nan_infinity_and_minus_zero_among_them() -> None:
    base = np.arange(65536, dtype=np.uint16)
    for shift in (1, 7, 8, 255, 32768, 65535):
        target = np.roll(base, shift)
        assert np.array_equal(apply_patch(base, encode_patch(base, target)), target)


@pytest.mark.parametrize("lr", [2e-8, 1e-6, 1e-5, 1e-4, 1e-2])
def test_training_steps_survive_in_chunks_of_every_form(lr: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "CHUNK", 20_000)
    values = weights(70_001)
    base, target = bf16_bits(values), after_a_step(values, lr)
    patch = encode_patch(base, target)
    assert np.array_equal(apply_patch(base, patch), target)
    assert len(patch) < 1.6 * target.nbytes


def test_a_step_at_1e6_costs_little_more_than_its_entropy() -> None:
    values = weights(1_000_000)
    base, target = bf16_bits(values), after_a_step(values, 1e-6)
    changed = base != target
    share = changed.mean()
    bound = -(share * np.log2(share) + (1 - share) * np.log2(1 - share)) + 1.1 * share  # sign and rare larger steps
    assert len(encode_patch(base, target)) < 1.3 * bound / 8 * base.size


def test_equal_tensors_cost_a_header() -> None:
    base = bf16_bits(weights(5000))
    patch = encode_patch(base, base.copy())
    assert patch == unchanged(5000) and len(patch) == HEADER_BYTES
    assert np.array_equal(apply_patch(base, patch), base)


FORMS = st.sampled_from(["same", "sparse", "dense", "raw"])


@example(size=1, before=0, steps=[["dense", "same", "same"]], seed=0)
@settings(max_examples=60)
@given(
    size=st.integers(0, 1000),
    before=st.integers(0, 300),
    steps=st.lists(st.lists(FORMS, min_size=3, max_size=3), max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
def test_windows_are_what_patches_make_one_after_another_and_keep_to_their_grid(size, before, steps, seed) -> None:
    random, tensors = np.random.default_rng(seed), [np.random.default_rng(seed).integers(0, 65536, size, np.uint16)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta, "CHUNK", 400)
        patch.setattr(delta, "WINDOW", 128)
        for forms in steps:
            now = tensors[-1].copy()
            for part, form in zip((now[at : at + 400] for at in (0, 400, 800)), forms, strict=True):
                changed = random.random(part.size) < {"same": 0, "sparse": 0.05, "dense": 0.9, "raw": 1}[form]
                by = random.integers(0, 65536, part.size) if form == "raw" else random.integers(1, 5, part.size)
                part[changed] += by.astype(np.uint16)[changed]
            tensors.append(now)
        patches = [encode_patch(old, new) for old, new in zip(tensors, tensors[1:], strict=False)]
        at = 0
        for window in patched(tensors[0], patches, before=before):
            assert 0 < window.size <= 128 and np.array_equal(window, tensors[-1][at : at + window.size])
            assert (before + at) // 128 == (before + at + window.size - 1) // 128
            at += window.size
        assert at == size
        tensor = tensors[0].copy()
        windows = [window.copy() for window in patch_in_place(tensor, patches, before=before)]
        assert np.array_equal(tensor, tensors[-1]) and np.array_equal(np.concatenate([*windows, tensor[:0]]), tensor)
        try:
            for window in patch_in_place(tensor, patches[::-1], before=before, back=True):
                assert np.shares_memory(window, tensor)
            assert np.array_equal(tensor, tensors[0])
        except PatchError as error:
            # Few elements are sent as they are where that is shorter.
            assert "new bits" in error.why and (any("raw" in forms for forms in steps) or 0 < size % 400 < 64)


def test_steps_of_any_size_are_taken_back_and_new_bits_are_not() -> None:
    values = weights(5000)
    before, after = bf16_bits(values), bf16_bits(-values * 3)
    few = before.copy()
    few[::7] = after[::7]  # each of them changes its sign
    tensor = few.copy()
    for _ in patch_in_place(tensor, [encode_patch(before, few)], back=True):
        pass
    assert np.array_equal(tensor, before)
    with pytest.raises(PatchError, match="nobody knows the old ones"):
        list(patch_in_place(after, [encode_patch(before, after)], back=True))


def test_a_part_of_what_many_patches_make_is_read_by_itself() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta, "CHUNK", 400)
        values = weights(1500)
        tensors = [bf16_bits(values)]
        for lr in (1e-4, 1e-5, 1e-2, 1.0):
            tensors.append(after_a_step(values, lr))
        patches = [encode_patch(old, new) for old, new in zip(tensors, tensors[1:], strict=False)]
        for start, stop in ((0, 1), (399, 401), (800, 1500), (0, 1500), (7, 7)):
            assert np.array_equal(patched_part(tensors[0], patches, start, stop), tensors[-1][start:stop])


def test_shapes_do_not_matter_and_the_result_may_be_written_elsewhere() -> None:
    base = np.arange(12, dtype=np.uint16).reshape(3, 4)
    target = base * 3
    room = np.zeros(12, np.uint16)
    assert apply_patch(base, encode_patch(base, target), out=room) is room
    assert np.array_equal(room, target.reshape(-1))


def test_a_patch_for_a_base_of_another_length_is_refused() -> None:
    values = weights(4000)
    base, target = bf16_bits(values), after_a_step(values, 1e-5)
    patch = encode_patch(base, target)
    with pytest.raises(PatchError, match="elements"):
        apply_patch(base[:-1], patch)
    with pytest.raises(PatchError, match="elements"):
        encode_patch(base, target[:-1])


def test_every_cut_and_every_extra_byte_is_refused() -> None:
    values = weights(3000)
    base = bf16_bits(values)
    for target in (after_a_step(values, 1e-5), after_a_step(values, 1e-3), np.arange(3000, dtype=np.uint16) * 19):
        patch = encode_patch(base, target)
        for cut in {0, 3, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 3, len(patch) // 2, len(patch) - 1}:
            with pytest.raises(PatchError):
                apply_patch(base, patch[:cut])
        with pytest.raises(PatchError):
            apply_patch(base, patch + b"\0")


def test_no_flipped_byte_goes_unnoticed() -> None:
    values = weights(400)
    base, target = bf16_bits(values), after_a_step(values, 1e-4)
    patch = bytearray(encode_patch(base, target))
    for place in range(len(patch)):
        patch[place] ^= 0x55
        with suppress(PatchError):  # where it can still be read, it leads to something else
            assert not np.array_equal(apply_patch(base, bytes(patch)), target)
        patch[place] ^= 0x55


@settings(max_examples=150)
@given(st.binary(max_size=120))
def test_garbage_is_refused_and_behind_an_honest_header_nothing_but_an_error_comes_of_it(garbage: bytes) -> None:
    base = np.zeros(600, np.uint16)
    with suppress(PatchError):  # a byte or two may be a chunk
        assert apply_patch(base, make(garbage, base)).shape == base.shape
    with pytest.raises(PatchError):
        apply_patch(base, garbage)


def sparse(changes: int, gaps: bytes, nibbles: bytes, *, form: int = 1) -> bytes:
    steps = packed.pack(nibbles) + packed.pack(b"") + packed.pack(b"")
    return bytes([form]) + struct.pack("<I", changes) + packed.pack(gaps) + steps


@pytest.mark.parametrize(
    "chunk",
    [
        sparse(2, b"\x05\x0a", b"\x88"),  # the second lies one beyond the end
        sparse(1, b"\x05\xff", b"\x08"),  # a skip with no change after it
        sparse(1, b"\x05\x01", b"\x08"),  # more changes than it says
        sparse(2, b"\x05", b"\x88"),  # fewer
        sparse(0, b"", b""),  # none at all
        sparse(17, b"\0" * 17, b"\x88" * 9),  # more than there are elements
        sparse(1, b"\x05", b"\x88"),  # a step too many
        sparse(1, b"\x05", b"\x0f"),  # a far step that is not there
        sparse(1, b"\xff" * 4000 + b"\0", b"\x08"),  # a flood of skips
        b"\x07",
        b"",
        b"\0\0",
    ],
)
def test_positions_outside_the_tensor_and_miscounted_steps_are_refused(chunk: bytes) -> None:
    base = np.zeros(16, np.uint16)
    with pytest.raises(PatchError):
        apply_patch(base, make(chunk, base))


def test_an_honest_chunk_of_our_own_making_is_accepted() -> None:
    base, target = np.zeros(16, np.uint16), np.zeros(16, np.uint16)
    target[5] = 1
    patch = make(sparse(1, b"\x05", b"\x08"), base)
    assert np.array_equal(apply_patch(base, patch), target)


def test_a_compression_bomb_is_refused_before_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    import zstandard

    base = np.zeros(16, np.uint16)
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    monkeypatch.setattr(zstandard, "ZstdDecompressor", lambda **_: pytest.fail("it was opened"))
    for claimed in (1 << 26, 17, 1 << 31):
        section = struct.pack("<II", claimed, len(bomb)) + bomb
        with pytest.raises(PatchError):
            apply_patch(base, make(b"\x01" + struct.pack("<I", 1) + section, base))
    honest_length = struct.pack("<II", 17, 15) + bomb[:15]
    with pytest.raises(packed.PackedError):
        packed.PackedReader(honest_length).section(17, 17)


def test_the_format_stays_what_it_is() -> None:
    base = np.zeros(1000, np.uint16)
    target = base.copy()
    target[[3, 500, 999]] = [1, 0x3F80, 0x8001]
    patch = encode_patch(base, target)
    assert unchanged(1000).hex() == "494e4403e80300000000000000"
    assert patch.hex() == (
        "494e4403" "e803000000000000" "01"
        "01" "03000000" "05000000" "05000000" "03fff1fff3"
        "02000000" "02000000" "f805" "01000000" "01000000" "00" "01000000" "01000000" "7f"
    )  # fmt: skip


def test_numbers_that_are_no_bit_patterns_are_refused_rather_than_cut_off() -> None:
    base = np.arange(9, dtype=np.uint16)
    for other in (np.arange(9), np.zeros(9, np.float32), np.zeros(9, np.int16)):
        with pytest.raises(PatchError, match="uint16"):
            encode_patch(base, other)
        with pytest.raises(PatchError, match="uint16"):
            apply_patch(other, encode_patch(base, base + np.uint16(1)))
