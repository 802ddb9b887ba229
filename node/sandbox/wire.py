"""What a node and the process around a sandbox say to each other: length-prefixed msgpack over two pipes.

Knows frames and deadlines. Both ends are this program; what the guest made stands inside as bytes that nobody trusts.
"""

import json
import os
import re
import select
import time
from typing import Any, NoReturn, TypeVar

import msgspec

from node.sandbox.base import CallOutcome, CallStatus
from protocol.errors import UNREADABLE

MAX_FRAME = 128 << 20
_T = TypeVar("_T")


class LoadOrder(msgspec.Struct, frozen=True):
    """The first frame to a host: what to load, with which limits (`base.Limits`).

    runtime: the compiled interpreter, empty where none is needed.
    """

    files: dict[str, bytes]
    entry: str
    fuel: int
    load_fuel: int
    memory_mib: int
    output_bytes: int
    seconds: float
    runtime: str = ""
    disk_bytes: int = 0


class SandboxRequest(msgspec.Struct, frozen=True):
    """One call. body: JSON of [function, arguments], empty: the session ends; fuel: what it may use; session: the
    number of a machine that stays, 0: one for this call only; goes_on: that machine must be there already."""

    body: bytes
    stdin: bytes
    fuel: int
    session: int = 0
    goes_on: bool = False


class GuestEnding(msgspec.Struct, frozen=True):
    """How the guest ended, or what it replied. status: a `base.Status`, or empty for Undecided, which `error` explains.

    reply: the JSON text of the value where the status is OK; code: of an exit; state: hash of a session's machine.
    """

    status: str
    reply: bytes = b""
    error: str = ""
    code: int = 0
    fuel: int = 0
    printed: bytes = b""
    complained: bytes = b""
    state: bytes = b""


READY = GuestEnding("ready")
"""What a host says when the entry module was loaded."""


class Closed(Exception):
    """The other end is gone."""


def encode(value: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(value)
    return len(body).to_bytes(4, "little") + body


def decode(body: bytes, kind: type[_T]) -> _T:
    """Raises Closed where the other end says something else, since nothing can be made of it."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except UNREADABLE as error:
        raise Closed(f"a malformed frame: {error}") from None


def write(descriptor: int, data: bytes, seconds: float | None = None) -> None:
    """Raises Closed; TimeoutError where the other end does not take it in time."""
    until = _until(seconds)
    view = memoryview(data)
    chunk = 1 << 16
    while view:
        _wait(descriptor, select.POLLOUT, until)
        try:
            view = view[os.write(descriptor, view[:chunk]) :]
        except BlockingIOError:
            continue
        except OSError as error:
            raise Closed(str(error)) from None


def read(descriptor: int, seconds: float | None = None) -> bytes:
    """One frame's body. Raises Closed, TimeoutError."""
    until = _until(seconds)
    size = int.from_bytes(_exactly(descriptor, 4, until), "little")
    if size > MAX_FRAME:
        raise Closed("a frame that is too long")
    return _exactly(descriptor, size, until)


def _exactly(descriptor: int, size: int, until: float | None) -> bytes:
    parts: list[bytes] = []
    while size:
        _wait(descriptor, select.POLLIN, until)
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            raise Closed("end of the pipe")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _until(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def _wait(descriptor: int, event: int, until: float | None) -> None:
    if until is None:
        return
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(until - time.monotonic(), 0) * 1000):
        raise TimeoutError


# From what a host says of a call to its outcome.
# A guest's reply is a stranger's text: strict JSON of bounded depth.
MAX_DEPTH = 100
MAX_DIGITS = 4000
MAX_ERROR = 400
_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|([\[{])|([\]}])', re.DOTALL)


class MalformedReply(ValueError):
    """A reply that is not the JSON of a value."""


def outcome(ending: GuestEnding) -> CallOutcome:
    """The outcome that every machine finds. ending: not Undecided."""
    status, value, error = CallStatus(ending.status), None, printable(ending.error)
    if status is CallStatus.OK:
        try:
            value = decode_reply(ending.reply)
        except MalformedReply as fault:
            status, error = CallStatus.RAISED, f"its result is not JSON: {fault}"
    elif status is CallStatus.EXITED:
        value, error = ending.code, f"exit code {ending.code}"
    return CallOutcome(status, value, error, ending.fuel, ending.printed, ending.complained, ending.state)


def replied(reply: bytes) -> GuestEnding:
    """What the loop inside said (`guest/loop.py`)."""
    kind, text = reply[:1], reply[1:]
    match kind:
        case b"v":
            return GuestEnding(CallStatus.OK, reply=text)
        case b"m":
            return GuestEnding(CallStatus.OUT_OF_MEMORY, error="MemoryError")
        case b"x":
            return GuestEnding(CallStatus.EXITED, code=int(text[:3]) if text[:3].isdigit() else 1)
        case _:
            return GuestEnding(CallStatus.RAISED, error=text[:2000].decode("utf-8", "replace"))


def decode_reply(text: bytes) -> Any:
    """Raises MalformedReply: no JSON, no UTF-8, NaN or infinity, too deep, integers without end."""
    # Counted before it is parsed: how deep json goes depends on the Python that reads it.
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
    # It is shown in terminals, which obey control characters.
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_ERROR])


def _no_number(name: str) -> NoReturn:
    raise MalformedReply(f"{name} is no number of JSON")


def _integer(digits: str) -> int:
    # Below Python's own limit, which an environment variable moves.
    if len(digits) > MAX_DIGITS:
        raise MalformedReply(f"an integer of {len(digits)} digits")
    return int(digits)


def _float(digits: str) -> float:
    # 1e999 is a number to json, and infinity to Python.
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise MalformedReply("a number beyond all floats")
    return number
