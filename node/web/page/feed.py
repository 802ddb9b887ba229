"""What all viewers see, and what has changed since one of them looked. Pure.

Every change has a number. A viewer is a number too: the newest change that it has. So nothing waits in a queue for a
slow one; when it is ready again it gets the newest state, each section once, each row of a table once.
"""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import msgspec

Row = tuple[Any, ...]


class _Table:
    """rows: (change, content), in the order of change; floor: the change since which no row went away."""

    def __init__(self) -> None:
        self.rows: dict[Hashable, tuple[int, Row]] = {}
        self.version = self.floor = 0


class Feed:
    """Sections by name, and tables of rows by name."""

    def __init__(self) -> None:
        self.version = 0
        self._sections: dict[str, tuple[int, bytes]] = {}
        self._tables: dict[str, _Table] = {}
        self._made: dict[int, list[tuple[str, bytes]]] = {}

    def put(self, name: str, content: Any) -> None:
        """Set a section; nothing changes if it was that before."""
        encoded = msgspec.json.encode(content)
        if name not in self._sections or self._sections[name][1] != encoded:
            self._sections[name] = (self._next(), encoded)

    def put_rows(self, name: str, rows: Mapping[Any, Row]) -> None:
        """Set a table; only rows that are new or different count as changed."""
        table = self._tables.setdefault(name, _Table())
        changed = [key for key, row in rows.items() if key not in table.rows or table.rows[key][1] != row]
        gone = [key for key in table.rows if key not in rows]
        if not changed and not gone:
            return
        table.version = self._next()
        for key in gone:
            del table.rows[key]
        if gone:
            # From rows that changed nobody can learn that one is gone: who is behind this gets the whole table.
            table.floor = table.version
        for key in changed:
            # Taken out first: a dictionary keeps the place of a key that is set again, and the newest must be last.
            table.rows.pop(key, None)
            table.rows[key] = (table.version, rows[key])

    def since(self, version: int) -> list[tuple[str, bytes]]:
        """(name, JSON) of everything that has changed after that change; all of it for 0.

        A table is {"whole": bool, "rows": [...]}: its changed rows, or all of them.
        """
        if version not in self._made:
            # Kept until the next change: viewers that are up to date all ask for the same, and it is encoded once.
            self._made[version] = [*self._sections_since(version), *self._tables_since(version)]
        return self._made[version]

    def _next(self) -> int:
        self._made.clear()
        self.version += 1
        return self.version

    def _sections_since(self, version: int) -> Iterator[tuple[str, bytes]]:
        for name, (changed, encoded) in self._sections.items():
            if changed > version:
                yield name, encoded

    def _tables_since(self, version: int) -> Iterator[tuple[str, bytes]]:
        for name, table in self._tables.items():
            if table.version > version:
                whole = version < table.floor or version == 0
                rows = _newer(table, 0 if whole else version)
                yield name, msgspec.json.encode({"whole": whole, "rows": rows})


def _newer(table: _Table, version: int) -> list[Row]:
    """The newest are last: only they are looked at."""
    rows: list[Row] = []
    for changed, row in reversed(table.rows.values()):
        if changed <= version:
            break
        rows.append(row)
    rows.reverse()
    return rows
