"""A curve drawn with braille dots: two by four dots in every character cell."""

from collections.abc import Iterable, Sequence

from rich.text import Text

Point = tuple[float, float]

# Unicode numbers the dots of the upper three rows by column; those of the fourth row came later.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
LABEL_WIDTH = 5


def running_mean(points: Sequence[Point], window: int = 10) -> list[Point]:
    """Mean of each point and up to `window` - 1 before it."""
    values = [y for _, y in points]
    return [(x, sum(values[max(0, i + 1 - window) : i + 1]) / min(window, i + 1)) for i, (x, _) in enumerate(points)]


def plot(
    layers: Iterable[tuple[Sequence[Point], str, bool]],
    *,
    width: int,
    height: int,
    x_range: tuple[float, float],
    level: float | None = None,
) -> list[Text]:
    """Lines of text, `height` of them plus the x axis, `width` columns wide in all.

    layers: (points, style, joined) from back to front; joined points are connected, and y is 0 to 1. level: a dashed
    horizontal line, for a goal.
    """
    columns = max(width - LABEL_WIDTH - 1, 4)
    canvas = _Canvas(columns, height, x_range)
    if level is not None:
        canvas.dashes(level, "yellow")
    for points, style, joined in layers:
        canvas.draw(points, style, joined)
    lines = [_labelled(row, height, line) for row, line in enumerate(canvas.lines())]
    return [*lines, _x_axis(columns, x_range)]


class _Canvas:
    """Dots and the style of each cell; the layer drawn last gives a cell its style."""

    def __init__(self, columns: int, rows: int, x_range: tuple[float, float]) -> None:
        self._columns, self._rows = columns, rows
        self._x = x_range
        self._bits = [[0] * columns for _ in range(rows)]
        self._styles = [[""] * columns for _ in range(rows)]

    def draw(self, points: Sequence[Point], style: str, joined: bool) -> None:
        dots = [self._dot(point) for point in points]
        for i, dot in enumerate(dots):
            if joined and i:
                self._line(dots[i - 1], dot, style)
            else:
                self._set(*dot, style)

    def dashes(self, y: float, style: str) -> None:
        _, row = self._dot((self._x[0], y))
        for column in range(0, self._columns * 2, 4):
            self._set(column, row, style)

    def lines(self) -> list[Text]:
        rows = []
        blank = 0x2800
        for bits, styles in zip(self._bits, self._styles, strict=True):
            line = Text()
            for value, style in zip(bits, styles, strict=True):
                line.append(chr(blank + value) if value else " ", style=style)
            rows.append(line)
        return rows

    def _dot(self, point: Point) -> tuple[int, int]:
        across = _share(point[0], self._x) * (self._columns * 2 - 1)
        down = (1 - _share(point[1], (0.0, 1.0))) * (self._rows * 4 - 1)
        return round(across), round(down)

    def _line(self, start: tuple[int, int], end: tuple[int, int], style: str) -> None:
        steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
        for i in range(steps + 1):
            self._set(
                round(start[0] + (end[0] - start[0]) * i / steps),
                round(start[1] + (end[1] - start[1]) * i / steps),
                style,
            )

    def _set(self, across: int, down: int, style: str) -> None:
        row, column = down // 4, across // 2
        self._bits[row][column] |= _DOTS[down % 4][across % 2]
        self._styles[row][column] = style


def _share(value: float, bounds: tuple[float, float]) -> float:
    low, high = bounds
    return min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.0


def _labelled(row: int, height: int, line: Text) -> Text:
    label = {0: "1.0", (height - 1) // 2: "0.5", height - 1: "0.0"}.get(row, "")
    return Text.assemble((f"{label:>{LABEL_WIDTH - 1}} ", "dim"), ("│" if not label else "┤", "dim"), line)


def _x_axis(columns: int, x_range: tuple[float, float]) -> Text:
    left, right = f"{x_range[0]:.0f}", f"step {x_range[1]:.0f}"
    gap = max(columns - len(left) - len(right), 1)
    return Text(" " * LABEL_WIDTH + "└" + left + " " * gap + right, style="dim")
