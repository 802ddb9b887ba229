"""What a day of work would come to: units by speed, times the pool's price, in the hours in which the node works. Pure.

    tokens a day = units a second x 86,400 x share of the week that its hours are open x price of a unit

By a machine's speed alone it is the most that there can be: how much of that a pool asks for is not known before. By
what was accepted in the last hour it lies within two standard errors of what so many files show.
"""

import math

import msgspec

from node.units import DAY, TOKEN


class Day(msgspec.Struct, frozen=True):
    """least, most: wei of the pool's tokens a day; gas: wei of coin a day, None if it is not known; share: of the week
    in which it works; by: what it is computed from."""

    least: int
    most: int
    gas: int | None
    share: float
    by: str

    @property
    def text(self) -> str:
        """For people."""
        low, high = (_short(wei / TOKEN) for wei in (self.least, self.most))
        tokens = f"about {high}" if low == high else f"up to {high}" if not self.least else f"{low} to {high}"
        gas = "unknown gas" if self.gas is None else f"{_short(self.gas / TOKEN)} of coin for gas"
        hours = "" if self.share == 1 else f", at {24 * self.share:.3g} hours a day"
        return f"{tokens} tokens and {gas} a day{hours}: {self.by}"


def by_speed(tokens_per_second: float, price: int, share: float, gas: int | None) -> Day:
    """The most: nobody else's work is known."""
    most = round(tokens_per_second * DAY * share) * price
    by = f"{tokens_per_second:.3g} output tokens a second, if the pool always has work for it"
    return Day(0, most, gas, share, by)


def by_accepted(units: int, files: int, seconds: float, price: int, share: float, gas: int | None) -> Day | None:
    """units of so many files that were accepted in so many seconds of work; None where they are too few."""
    if files < 4 or seconds <= 0:  # files below which their rate says nothing
        return None
    spread = min(2 / math.sqrt(files), 1.0)
    day = units / seconds * DAY * share * price
    by = f"{files} files accepted in the last {seconds / 60:.0f} minutes of work"
    return Day(round(day * (1 - spread)), round(day * (1 + spread)), gas, share, by)


def _short(number: float) -> str:
    """Three digits, whatever the size: 1,230, 0.00000127."""
    if number == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(number)))
    return (
        f"{round(number, digits):,.{max(digits, 0)}f}".rstrip("0").rstrip(".")
        if digits > 0
        else f"{round(number, digits):,.0f}"
    )
