"""Runs a piece of code that a model wrote, and returns what it printed."""

import io
import sys


class _Shown(io.TextIOBase):
    """Keeps the first `most` characters."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._parts: list[str] = []

    def write(self, text: str) -> int:
        self._parts.append(text[: self._left])
        self._left -= len(self._parts[-1])
        return len(text)

    def whole(self) -> str:
        return "".join(self._parts)


def run(source: str, most: int) -> str:
    """What it printed, and what it raised, in up to `most` characters."""
    shown = _Shown(most)
    sys.stdout = sys.stderr = shown
    try:
        exec(compile(source, "call.py", "exec"), {"__name__": "__main__"})  # noqa: S102 - this is what the sandbox is for
    except SystemExit:
        return shown.whole()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the model is told
        shown.write(f"{type(error).__name__}: {error}")
    return shown.whole()
