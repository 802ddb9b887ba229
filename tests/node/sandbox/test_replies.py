"""A guest's reply is a stranger's text."""

import pytest

from node.sandbox import wire
from node.sandbox.base import CallStatus
from node.sandbox.wire import MalformedReply, decode_reply, outcome, replied


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"9" * 5000,
        b'"\xff"',
        b"[" * 101 + b"]" * 101,
        b"[" * 100_000,
        b'{"a":' * 200 + b"1" + b"}" * 200,
    ],
)
def test_what_is_no_bounded_json_is_refused(text: bytes) -> None:
    with pytest.raises(MalformedReply):
        decode_reply(text)


@pytest.mark.parametrize(
    ("text", "value"), [(b"1.5", 1.5), (b'"[[[{{{\\""', '[[[{{{"'), (b"[" * 100 + b"]" * 100, None), (b"1e308", 1e308)]
)
def test_brackets_count_only_outside_of_strings(text: bytes, value: object) -> None:
    decoded = decode_reply(text)
    assert value is None or decoded == value


def test_a_result_that_is_no_json_is_the_functions_own_fault_everywhere() -> None:
    assert outcome(wire.GuestEnding("ok", reply=b"{")).status is CallStatus.RAISED


@pytest.mark.parametrize(
    ("reply", "status", "code"),
    [
        (b"v1", "ok", 0),
        (b"m", "out of memory", 0),
        (b"x7", "exited", 7),
        (b"x-1", "exited", 1),
        (b"r\xff\x1b[31m", "raised", 0),
        (b"?", "raised", 0),
    ],
)
def test_every_reply_has_a_meaning(reply: bytes, status: str, code: int) -> None:
    ending = replied(reply)
    assert (ending.status, ending.code) == (status, code)
    assert outcome(ending).error.isprintable()
