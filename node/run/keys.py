"""Keys of a run file: every unknown one with its place and the nearest right name. Pure; knows structs, not files."""

import difflib
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

Known = dict[str, list[str]]
"""key -> the tables that have it."""


def unknown_keys(data: Mapping[str, Any], kind: type[msgspec.Struct]) -> list[str]:
    """One sentence per key of `data`, at any depth, that `kind` does not have."""
    known: Known = {}
    for table, key in _keys(kind, ""):
        known.setdefault(key, []).append(table)
    return [_sentence(table, key, fields, known) for table, key, fields in _strangers(data, kind, "")]


def _keys(kind: type[msgspec.Struct], table: str) -> Iterator[tuple[str, str]]:
    for field in msgspec.structs.fields(kind):
        yield table, field.encode_name
        inner = _struct_of(field.type)
        if inner is not None:
            yield from _keys(inner, _below(table, field.encode_name))


def _strangers(
    data: Mapping[str, Any], kind: type[msgspec.Struct], table: str
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(table, key, the table's own keys)."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for key, value in data.items():
        if key not in fields:
            yield table, str(key), tuple(fields)
            continue
        inner, below = _struct_of(fields[key].type), _below(table, key)
        for name, one in _tables(value, fields[key].type):
            if inner is not None and isinstance(one, Mapping):
                yield from _strangers(one, inner, _below(below, name) if name else below)


def _tables(value: Any, annotation: Any) -> list[tuple[str, Any]]:
    """(name, table) of each table in a value: named ones in a `dict[str, T]`, nameless ones in a list or alone."""
    if typing.get_origin(annotation) is dict and isinstance(value, Mapping):
        return [(str(name), one) for name, one in value.items()]
    return [("", one) for one in (value if isinstance(value, list) else [value])]


def _sentence(table: str, key: str, fields: tuple[str, ...], known: Known) -> str:
    where = f"[{table}] " if table else ""
    close = difflib.get_close_matches(key, fields, 1, 0.7)
    if close:
        return f"{where}{key!r} is not a setting; did you mean {where}{close[0]!r}?"
    elsewhere = difflib.get_close_matches(key, known, 1, 0.8)
    if elsewhere:
        place = known[elsewhere[0]][0]
        return f"{where}{key!r} is not a setting; did you mean {f'[{place}] ' if place else ''}{elsewhere[0]!r}?"
    return f"{where}{key!r} is not a setting; known there: {', '.join(fields)}"


def _struct_of(annotation: Any) -> type[msgspec.Struct] | None:
    """The struct in `T`, `T | None`, `tuple[T, ...]` or `dict[str, T]`, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    for part in typing.get_args(annotation):
        found = _struct_of(part)
        if found is not None:
            return found
    return None


def _below(table: str, key: str) -> str:
    return f"{table}.{key}" if table else key
