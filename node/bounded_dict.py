"""A mapping that forgets what was set first: no table that others fill may grow for ever.

A table that is emptied when full would forgive everybody at once, and whoever fills it would choose when.
"""

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """At most `limit` entries, iterated oldest first. refresh: setting an entry again makes it the newest."""

    def __init__(self, limit: int, *, refresh: bool = False) -> None:
        super().__init__()
        self._limit = limit
        self._refresh = refresh

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if self._refresh:
            self.move_to_end(key)
        while len(self) > self._limit:
            self.popitem(last=False)
