"""What a liar may make of an honest word: one field changed, generated from the fields of its struct.

A message that is added tomorrow has its deviations tomorrow. Names are made from types alone, so that cells can be
listed without a run. Knows nothing of what a field means; signatures are made anew by whoever speaks (`world.py`).
"""

import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from blake3 import blake3

UNCHANGED, FRESH, BARE, MANY = "unchanged", "fresh", "bare", "many"
"""The honest word as one's own; all roots new; without what it may leave out; forty at once."""
HOW_MANY = 40
OF_ROUNDS = ("rushed", "two-faced", "withheld from one", "withheld from all but one", "nothing, closed")
"""Of words on what a round comes to: before anybody is there; another list to half of them; own words to some only; no
contribution at all."""
NUMBERS: dict[str, Callable[[int], int]] = {
    "=0": lambda _: 0,
    "-1": lambda now: now - 1,
    "+1": lambda now: now + 1,
    "+999": lambda now: now + 999,
    "=2^40": lambda _: 2**40,
    "=2^63-1": lambda _: 2**63 - 1,
}
PLACES = {"step", "round", "window", "sequence", "count", "index", "epoch", "until", "ballot"}
"""Fields that number what an author says one after the other."""
WITH_FRESH = ("-1", "+1", "+999", "=2^40")
"""Numbers that are also said with new roots: the same root twice is evidence, another one is a claim."""
SECONDS = {"=0.1": 0.1, "=3600": 3600.0}


def deviations(kind: type[Any]) -> list[str]:
    """Names of all deviations of a struct, in a fixed order."""
    fields = list(fields_of(kind))
    found = [UNCHANGED, FRESH, MANY] if any(type_ is bytes for _, type_ in fields) else [UNCHANGED]
    if any(not one.required for one in msgspec.structs.fields(kind)):
        found.append(BARE)
    for path, type_ in fields:
        found += [f"{path}{change}" for change in _changes(type_)]
    return found


def fields_of(kind: type[Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, type) of all fields, those of structs within it included."""
    for one in msgspec.structs.fields(kind):
        type_ = _plain(one.type)
        if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
            yield from fields_of(type_, f"{before}{one.name}.")
        else:
            yield before + one.name, type_


def _plain(type_: Any) -> Any:
    """Without a new type's name, and without None."""
    while isinstance(type_, typing.NewType):
        type_ = type_.__supertype__
    if isinstance(type_, types.UnionType) or typing.get_origin(type_) is typing.Union:
        rest = [one for one in typing.get_args(type_) if one is not type(None)]
        return _plain(rest[0])
    return tuple if typing.get_origin(type_) is tuple else type_


def _changes(type_: Any) -> list[str]:
    if type_ is bool:
        return [" flipped"]
    if type_ is int:
        return [*NUMBERS, *(f"{change} fresh" for change in WITH_FRESH)]
    if type_ is float:
        return list(SECONDS)
    if type_ is tuple:
        return [" none", " less", " doubled"]
    return [" other", " none"] if type_ in (bytes, str) else []


def deviated(word: Any, name: str, salt: int = 0) -> list[Any]:
    """The words of a deviation; none where it makes no other word than the honest one. salt: tells new roots apart."""
    if name == UNCHANGED:
        return [word]
    if name == FRESH:
        return [refreshed(word, salt)]
    if name == MANY:
        return [numbered(refreshed(word, salt * HOW_MANY + number), number) for number in range(HOW_MANY)]
    if name == BARE:
        optional = {one.name: one.default for one in msgspec.structs.fields(type(word)) if not one.required}
        kept = {name: default for name, default in optional.items() if default is not msgspec.NODEFAULT}
        return [msgspec.structs.replace(word, **kept)]
    fresh = name.endswith(" fresh")
    path, change = _split(word, name.removesuffix(" fresh"))
    made = _changed(word, path.split("."), change, salt)
    if made == word:
        return []
    return [refreshed(made, salt)] if fresh else [made]


def _split(word: Any, name: str) -> tuple[str, str]:
    found = [path for path, _ in fields_of(type(word)) if name.startswith(path)]
    path = max(found, key=len)
    return path, name.removeprefix(path)


def _changed(word: Any, path: list[str], change: str, salt: int) -> Any:
    now = word
    for name in path:
        now = getattr(now, name)
    return put(word, path, _value(now, change, salt))


def put(word: Any, path: list[str], value: Any) -> Any:
    """The same with another value in one place."""
    new = put(getattr(word, path[0]), path[1:], value) if len(path) > 1 else value
    return msgspec.structs.replace(word, **{path[0]: new})


def _value(now: Any, change: str, salt: int) -> Any:
    match now, change:
        case bool(), _:
            return not now
        case (float(), _) | (None, "=0.1" | "=3600"):
            return SECONDS[change]
        case int(), _:
            return NUMBERS[change](now)
        case tuple(), " less":
            return now[1:]
        case tuple(), " doubled":
            return (*now, *now[-1:])
        case ((tuple() | bytes() | str()), " none"):
            return type(now)()
        case bytes(), _:
            return _root(now, salt) if len(now) in (0, 32) else bytes([now[0] ^ 1]) + now[1:]
        case str(), _:
            return now[:-1] + ("0" if now[-1:] != "0" else "1")
        case _:
            return now


def _root(now: bytes, salt: int) -> bytes:
    return blake3(now + b"another one %d" % salt).digest()


def numbered(word: Any, number: int) -> Any:
    """The same some places further on: of one place boards keep a few words only."""
    now = {one.name: getattr(word, one.name) for one in msgspec.structs.fields(type(word))}
    further = {name: one + number for name, one in now.items() if name in PLACES and isinstance(one, int)}
    within = {name: numbered(one, number) for name, one in now.items() if isinstance(one, msgspec.Struct)}
    return msgspec.structs.replace(word, **further, **within)


def refreshed(word: Any, salt: int = 0) -> Any:
    """The same with every root another one."""
    if isinstance(word, msgspec.Struct):
        now = {one.name: getattr(word, one.name) for one in msgspec.structs.fields(type(word))}
        return msgspec.structs.replace(word, **{name: refreshed(one, salt) for name, one in now.items()})
    if isinstance(word, tuple):
        found = tuple(refreshed(one, salt) for one in word)
        return tuple(sorted(found)) if found and isinstance(found[0], bytes) else found
    return _root(word, salt) if isinstance(word, bytes) and len(word) == 32 else word
