"""A series that stays short however long it is written: old points are merged, evenly over the whole past. Pure."""

from collections.abc import Iterable
from itertools import groupby

import msgspec

Values = tuple[float | None, ...]


class Point(msgspec.Struct, frozen=True):
    """x: a step, or a count of intervals; values: one of each column, None where it is not known."""

    x: int
    values: Values


def thin(points: list[Point], most: int, recent: int) -> list[Point]:
    """At most `most` points, ascending: the newest `recent` as they are, older ones merged by ranges of x whose width
    is the least power of two that suffices. What was merged before is merged no further than now needed."""
    if len(points) <= most:
        return points
    old, new = points[:-recent], points[-recent:]
    width = 2
    while len(merged := _merge(old, width)) > most - recent:
        width *= 2
    return [*merged, *new]


def _merge(points: Iterable[Point], width: int) -> list[Point]:
    return [_mean(list(group)) for _, group in groupby(points, key=lambda point: point.x // width)]


def _mean(points: list[Point]) -> Point:
    if len(points) == 1:
        return points[0]
    return Point(points[-1].x, tuple(_mean_of(column) for column in zip(*(p.values for p in points), strict=True)))


def _mean_of(column: tuple[float | None, ...]) -> float | None:
    known = [value for value in column if value is not None]
    return round(sum(known) / len(known), 4) if known else None
