"""One byte range of an HTTP request (RFC 9110, section 14). Pure.

Only a single range is honoured: several in one request may be answered with the whole file, and are.
"""

import re

_RANGE = re.compile(r"bytes=([0-9]{0,20})-([0-9]{0,20})")


class Unsatisfiable(Exception):
    """The range lies outside the file: 416."""


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """(offset, length) of the range asked for; None when the whole file is to be sent. Raises Unsatisfiable."""
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        length = min(int(last), size)
        if length == 0:
            raise Unsatisfiable
        return size - length, length
    start = int(first)
    end = min(int(last), size - 1) if last else size - 1
    if last and int(last) < start:
        return None  # malformed, not unsatisfiable: ignored
    if start >= size:
        raise Unsatisfiable
    return start, end - start + 1
