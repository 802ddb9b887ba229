"""Strict decoding of msgpack and JSON from strangers: bound first, then one error type whatever is wrong."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from protocol.errors import UNREADABLE, ProtocolError

T = TypeVar("T")


def decode_msgpack(data: bytes, kind: type[T], *, limit: int, error: type[ProtocolError], what: str) -> T:
    """Parse `data` (at most `limit` bytes) as `kind`; raises `error(what, why)`."""
    return _decode(msgspec.msgpack.decode, data, kind, limit, error, what)


def decode_json(data: bytes, kind: type[T], *, limit: int, error: type[ProtocolError], what: str) -> T:
    """The same for JSON."""
    return _decode(msgspec.json.decode, data, kind, limit, error, what)


def _decode(
    decoder: Callable[..., T], data: bytes, kind: type[T], limit: int, error: type[ProtocolError], what: str
) -> T:
    # Before the decoder sees it: an array of 2^32 entries takes five bytes to announce.
    if len(data) > limit:
        raise error(what, f"{len(data)} bytes is more than {limit}")
    try:
        return decoder(data, type=kind)
    # Deeply nested input ends in RecursionError, which no caller would expect of a parser.
    except UNREADABLE as cause:
        raise error(what, str(cause)[:300]) from cause
