"""Strict decoding of msgpack and JSON from strangers: bound first, then one error type whatever is wrong."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from protocol.errors import UNREADABLE, ProtocolError

T = TypeVar("T")


def decode_msgpack(data: bytes, kind: type[T], *, limit: int, error: type[ProtocolError], what: str) -> T:
    """Parse `data` (at most `limit` bytes) as `kind`; raises `error(what, why)`."""
    return _decode(_decoder(msgspec.msgpack.Decoder, kind).decode, data, limit, error, what)


def decode_json(data: bytes, kind: type[T], *, limit: int, error: type[ProtocolError], what: str) -> T:
    """The same for JSON."""
    return _decode(_decoder(msgspec.json.Decoder, kind).decode, data, limit, error, what)


@lru_cache(maxsize=512)
def _decoder(of: Callable[[Any], Any], kind: Any) -> Any:
    """Kept: of a union `msgspec.msgpack.decode` would look at all its kinds again at each call, which took 30 us."""
    return of(kind)


def _decode(decode: Callable[[bytes], T], data: bytes, limit: int, error: type[ProtocolError], what: str) -> T:
    # Before the decoder sees it: an array of 2^32 entries takes five bytes to announce.
    if len(data) > limit:
        raise error(what, f"{len(data)} bytes is more than {limit}")
    try:
        return decode(data)
    # Deeply nested input ends in RecursionError, which no caller would expect of a parser.
    except UNREADABLE as cause:
        raise error(what, str(cause)[:300]) from cause
