"""From what a host says of a call to its outcome.

A guest's reply is a stranger's text: strict JSON of bounded depth.
"""

import json
import re
from typing import Any, NoReturn

from node.sandbox import wire
from node.sandbox.base import Outcome, Status

MAX_DEPTH = 100
MAX_DIGITS = 4000
MAX_ERROR = 400
_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|([\[{])|([\]}])', re.DOTALL)


class MalformedReply(ValueError):
    """A reply that is not the JSON of a value."""


def outcome(ending: wire.Ending) -> Outcome:
    """The outcome that every machine finds. ending: not Undecided."""
    status, value, error = Status(ending.status), None, printable(ending.error)
    if status is Status.OK:
        try:
            value = decode_reply(ending.reply)
        except MalformedReply as fault:
            status, error = Status.RAISED, f"its result is not JSON: {fault}"
    elif status is Status.EXITED:
        value, error = ending.code, f"exit code {ending.code}"
    return Outcome(status, value, error, ending.fuel, ending.printed, ending.complained, ending.state)


def replied(reply: bytes) -> wire.Ending:
    """What the loop inside said (`guest/loop.py`)."""
    kind, text = reply[:1], reply[1:]
    match kind:
        case b"v":
            return wire.Ending(Status.OK, reply=text)
        case b"m":
            return wire.Ending(Status.OUT_OF_MEMORY, error="MemoryError")
        case b"x":
            return wire.Ending(Status.EXITED, code=int(text[:3]) if text[:3].isdigit() else 1)
        case _:
            return wire.Ending(Status.RAISED, error=text[:2000].decode("utf-8", "replace"))


def decode_reply(text: bytes) -> Any:
    """Raises MalformedReply: no JSON, no UTF-8, NaN or infinity, too deep, integers without end."""
    depth = deepest = 0
    for found in _BRACKET.finditer(text):
        depth += (found.group(1) is not None) - (found.group(2) is not None)
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise MalformedReply(f"nested more than {MAX_DEPTH} deep")
    try:
        return json.loads(text.decode(), parse_constant=_no_number, parse_int=_integer, parse_float=_float)
    except (UnicodeError, json.JSONDecodeError):
        raise MalformedReply("malformed text") from None


def printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_ERROR])


def _no_number(name: str) -> NoReturn:
    raise MalformedReply(f"{name} is no number of JSON")


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise MalformedReply(f"an integer of {len(digits)} digits")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise MalformedReply("a number beyond all floats")
    return number
