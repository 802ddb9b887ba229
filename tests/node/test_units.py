"""Sizes as people read them."""

import pytest

from node.units import size_of


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (12_345_678, "12.3 MB"),
        (999_999_999, "1 GB"),
        (1_190_000_000, "1.19 GB"),
        (5_678_000_000_000, "5.68 TB"),
        (1_234_567_000_000_000, "1230 TB"),
    ],
)
def test_a_size_has_three_digits_and_no_exponent(count: int, text: str) -> None:
    assert size_of(count) == text
