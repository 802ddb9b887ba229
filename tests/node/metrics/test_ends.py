import pytest

from node.metrics.journal import Ends, ends_of


def test_the_ends_of_a_short_curve_do_not_overlap_and_a_fall_is_a_fall() -> None:
    fall = ends_of([0.467, 0.467, 0.467, 0.133, 0.133, 0.133])
    assert (fall.first, fall.last, fall.window) == (pytest.approx(0.467), pytest.approx(0.133), 3)


@pytest.mark.parametrize(("count", "window"), [(2, 1), (3, 1), (11, 5), (19, 9), (20, 10), (400, 10)])
def test_each_end_is_at_most_ten_values_and_at_most_half(count: int, window: int) -> None:
    values = [float(i) for i in range(count)]
    ends = ends_of(values)
    assert ends.window == window
    assert ends.first == pytest.approx(sum(values[:window]) / window)
    assert ends.last == pytest.approx(sum(values[-window:]) / window)


def test_one_value_has_nothing_to_be_compared_with() -> None:
    assert ends_of([]) == Ends(None, None, 0)
    assert ends_of([0.5]) == Ends(None, 0.5, 1)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (2, "first and last evaluation"),
        (8, "first and last 4 evaluations"),
        (50, "first and last ten evaluations"),
    ],
)
def test_the_words_say_what_was_averaged(count: int, words: str) -> None:
    assert ends_of([0.1] * count).words == words
