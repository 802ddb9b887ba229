"""The matrix challenge: what is no product is found, whoever made it and however it is packed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.freivalds import (
    MOST_SIZE,
    ROWS,
    BadProduct,
    Challenge,
    Row,
    Words,
    check_product,
    chosen_rows,
    decode_digests,
    decode_rows,
    row_digests,
    rows_of,
)

CHALLENGE = Challenge(b"s" * 32, 64)
ASKED = chosen_rows(64, b"r" * 32)
SECRET = b"v" * 32


def product(challenge: Challenge = CHALLENGE) -> Row:
    every, keys = np.arange(challenge.size), challenge.keys
    left, right = (rows_of(key, challenge.size, every).astype(np.int32) for key in (keys.a, keys.b))
    return left @ right


def told(rows: Row) -> Words:
    return row_digests(CHALLENGE.keys.digest, rows)


def test_a_product_is_one() -> None:
    rows = product()
    check_product(CHALLENGE, told(rows), ASKED, rows[list(ASKED)], SECRET)


@pytest.mark.parametrize("change", [1, -1, 1 << 20, -(1 << 29)])
def test_one_wrong_entry_of_a_row_that_is_shown_is_found_even_if_its_digest_agrees(change: int) -> None:
    rows = product()
    rows[ASKED[3], 17] += change
    with pytest.raises(BadProduct):
        check_product(CHALLENGE, told(rows), ASKED, rows[list(ASKED)], SECRET)


def test_who_computes_a_row_only_once_it_is_asked_for_has_told_another_digest() -> None:
    late = product()
    early = late.copy()
    early[ASKED[0]] = 0
    with pytest.raises(BadProduct, match="before it was asked for"):
        check_product(CHALLENGE, told(early), ASKED, late[list(ASKED)], SECRET)


def test_rows_of_another_seed_are_found() -> None:
    rows = product(Challenge(b"t" * 32, 64))
    with pytest.raises(BadProduct, match="not that of the product"):
        check_product(CHALLENGE, told(rows), ASKED, rows[list(ASKED)], SECRET)


@settings(max_examples=20)
@given(st.binary(min_size=32, max_size=32))
def test_entries_are_small_and_no_two_rows_alike(seed: bytes) -> None:
    keys = Challenge(seed, 64).keys
    rows = rows_of(keys.a, 64, np.arange(64))
    assert rows.min() == -8 and rows.max() == 7
    assert len(np.unique(rows, axis=0)) == 64
    assert not np.array_equal(rows, rows_of(keys.b, 64, np.arange(64)))


@pytest.mark.parametrize(
    ("seed", "size"), [(b"s" * 31, 64), (b"s" * 32, 72), (b"s" * 32, 48), (b"s" * 32, MOST_SIZE * 2)]
)
def test_nobody_need_multiply_what_is_no_challenge(seed: bytes, size: int) -> None:
    with pytest.raises(BadProduct, match="malformed"):
        Challenge(seed, size).check()


def test_answers_have_just_the_length_that_was_asked_for() -> None:
    assert len(decode_digests(bytes(8 * 64), 64)) == 64
    assert decode_rows(bytes(4 * 64 * ROWS), 64, ROWS).shape == (ROWS, 64)
    for wrong in (b"", bytes(8 * 64 - 1), bytes(8 * 64 + 8)):
        with pytest.raises(BadProduct):
            decode_digests(wrong, 64)
        with pytest.raises(BadProduct):
            decode_rows(wrong, 64, ROWS)
