"""How contributions write numbers: lengths, losses of precision, and what a stranger may not write."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.exchange import (
    LARGEST,
    BlockQuantized,
    ContributionError,
    ExchangeForm,
    PlainForm,
    Sparse,
    bits_per_number,
    form_of,
)
from protocol.pretraining import Diloco

FORMS: dict[str, ExchangeForm] = {
    "float32": PlainForm(),
    "int8": BlockQuantized(8, 256),
    "int4": BlockQuantized(4, 128),
    "sparse": Sparse(4096, 64),
}


def numbers(count: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_t(4, count) * 1e-3).astype(np.float32)


@pytest.mark.parametrize(("name", "bits"), [("float32", 32), ("int8", 8.0625), ("int4", 4.125), ("sparse", 0.2265625)])
def test_a_number_takes_the_bits_that_its_form_promises(name: str, bits: float) -> None:
    count = 64 * 4096
    assert 8 * len(FORMS[name].encode(numbers(count))) / count == bits
    assert bits_per_number(form_of(Diloco(exchange=name)), {"a": (64, 4096)}) == bits  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("count", [0, 1, 2, 63, 127, 129, 257, 4095, 4096, 4097, 9001])
def test_every_count_has_one_length_and_comes_back(name: str, count: int) -> None:
    form, values = FORMS[name], numbers(count)
    data = form.encode(values)
    assert len(data) == form.size(count)
    found = form.decode(data, count)
    assert found.dtype == np.float32 and found.shape == (count,)
    again = form.decode(form.encode(found), count)
    assert np.abs(again - found).max(initial=0) <= 0.02 * np.abs(found).max(initial=0)
    for wrong in (data[:-1], data + b"\0"):
        if count:
            with pytest.raises(ContributionError, match="bytes for"):
                form.decode(wrong, count)


def test_a_level_bounds_the_error_of_its_block_however_small_the_numbers() -> None:
    """float16 levels would be 0 here: the differences of a learning rate at its warm-up."""
    values = numbers(256 * 40) * np.float32(1e-9)
    for name, most in (("int8", 127), ("int4", 7)):
        found = FORMS[name].decode(FORMS[name].encode(values), values.size)
        largest = np.abs(values.reshape(-1, 128)).max(axis=1).repeat(128).reshape(-1)
        if name == "int8":
            largest = np.abs(values.reshape(-1, 256)).max(axis=1).repeat(256).reshape(-1)
        assert (np.abs(found - values) <= largest / most * 0.51).all()


def test_sparse_keeps_the_largest_of_each_chunk_in_two_sizes() -> None:
    form, values = Sparse(4096, 64), numbers(3 * 4096 + 100)
    found = form.decode(form.encode(values), values.size)
    for start in (0, 4096, 8192):
        chunk, kept = values[start : start + 4096], found[start : start + 4096]
        largest = set(np.argsort(-np.abs(chunk), kind="stable")[:64].tolist())
        assert set(np.flatnonzero(kept).tolist()) == largest
        assert len(np.unique(np.abs(kept[kept != 0]))) <= 2
        assert (np.sign(kept[kept != 0]) == np.sign(chunk[kept != 0])).all()
    assert np.count_nonzero(found[12288:]) == 2  # the same share of a short chunk, rounded up


def test_of_equal_numbers_the_first_are_kept() -> None:
    form = Sparse(16, 2)
    found = form.decode(form.encode(np.ones(40, np.float32)), 40)
    assert np.flatnonzero(found).tolist() == [0, 1, 16, 17, 32]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2 * LARGEST])
def test_numbers_that_no_mean_survives_are_not_written(name: str, bad: float) -> None:
    values = numbers(5000)
    values[17] = bad
    with pytest.raises(ContributionError, match="not finite"):
        FORMS[name].encode(values)


@pytest.mark.parametrize(
    ("name", "at", "data", "words"),
    [
        ("float32", 0, b"\0\0\xc0\x7f", "not finite"),
        ("int8", 0, b"\x80\x7f", "level"),  # infinite
        ("int8", 0, b"\xc0\x7f", "level"),  # NaN
        ("int8", 0, b"\x80\xbf", "level"),  # negative
        ("int8", 0, b"\x00\x7f", "level"),  # 2^127
        ("int8", -1, b"\x80", "below -127"),
        ("int4", -1, b"\xf0", "below -7"),
        ("sparse", 0, b"\x80\x7f", "level"),
        ("sparse", 4, b"\xff\xff\xff", "ascend"),
        ("sparse", 4, b"\0\0\0", "ascend"),
    ],
)
def test_what_a_stranger_may_not_write_is_refused(name: str, at: int, data: bytes, words: str) -> None:
    form, count = FORMS[name], 4096
    honest = bytearray(form.encode(numbers(count)))
    at %= len(honest)
    honest[at : at + len(data)] = data
    with pytest.raises(ContributionError, match=words):
        form.decode(bytes(honest), count)


def test_padding_bits_mean_nothing_and_are_zero() -> None:
    for form, count in ((BlockQuantized(4, 128), 3), (Sparse(4096, 64), 70)):
        honest = bytearray(form.encode(numbers(count)))
        honest[-1] |= 0xF0
        with pytest.raises(ContributionError, match="mean nothing"):
            form.decode(bytes(honest), count)


@settings(max_examples=200)
@given(st.sampled_from(list(FORMS)), st.integers(0, 300), st.binary(max_size=700), st.integers(0, 2**32))
def test_any_bytes_are_finite_numbers_or_the_one_error(name: str, count: int, junk: bytes, seed: int) -> None:
    form = FORMS[name]
    data = bytearray(form.encode(numbers(count, seed)))
    data[: len(junk)] = junk[: len(data)]
    try:
        values = form.decode(bytes(data), count)
    except ContributionError:
        return
    assert values.shape == (count,) and np.isfinite(values * np.float32(1 << 40)).all()
