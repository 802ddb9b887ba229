"""What a day would come to: the formula, the range, and nothing where nobody can say."""

import pytest

from node.guest.earning import by_accepted, by_speed

PRICE = 10**15  # wei of a unit: a thousandth of a token
GAS = 635 * 10**9


def test_by_speed_it_is_the_most_that_there_can_be() -> None:
    day = by_speed(100.0, PRICE, share=1.0, gas=GAS)
    assert (day.least, day.most) == (0, 8_640_000 * PRICE)
    assert day.text.startswith("up to 8,640 tokens and 0.000000635 of coin for gas a day: 100 output tokens a second")
    night = by_speed(100.0, PRICE, share=9 / 24, gas=None)
    assert night.most == 3_240_000 * PRICE
    assert "3,240 tokens and unknown gas a day, at 9 hours a day" in night.text


def test_by_accepted_files_it_lies_within_what_so_many_files_show() -> None:
    day = by_accepted(units=3600, files=16, seconds=3600.0, price=PRICE, share=1.0, gas=GAS)
    assert day is not None and (day.least, day.most) == (43_200 * PRICE, 129_600 * PRICE)
    assert day.text.startswith("43.2 to 130 tokens") and "16 files accepted in the last 60 minutes of work" in day.text
    many = by_accepted(units=3600, files=1600, seconds=3600.0, price=PRICE, share=1.0, gas=GAS)
    assert many is not None and many.most - many.least < (day.most - day.least) / 9


@pytest.mark.parametrize(("files", "seconds"), [(0, 60.0), (3, 60.0), (10, 0.0)])
def test_of_too_few_files_nothing_is_said(files: int, seconds: float) -> None:
    assert by_accepted(100, files, seconds, PRICE, 1.0, GAS) is None
