"""How a curve began and how it ended: means over its two ends, which share no value. Pure."""

from collections.abc import Sequence
from statistics import fmean

import msgspec

MOST = 10
"""Values that the mean of an end is taken over, where there are enough of them."""


class Ends(msgspec.Struct, frozen=True):
    """first, last: means of the `window` values at either end; first is None of fewer than two values."""

    first: float | None
    last: float | None
    window: int

    @property
    def words(self) -> str:
        """'first and last ten evaluations'"""
        number = {1: "", MOST: " ten"}.get(self.window, f" {self.window}")
        return f"first and last{number} evaluation{'s' if self.window > 1 else ''}"


def ends_of(values: Sequence[float]) -> Ends:
    """Of fewer than 20 values the halves are compared: ends that overlap would hide what lies between them."""
    if not values:
        return Ends(None, None, 0)
    if len(values) == 1:
        return Ends(None, values[0], 1)
    window = min(MOST, len(values) // 2)
    return Ends(fmean(values[:window]), fmean(values[-window:]), window)
