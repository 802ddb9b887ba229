"""MCP's tools (specification 2025-06-18): JSON-RPC messages, one session per rollout. Over Streamable HTTP by POST, or
over stdio to a program of this machine.

An answer that ends with <call>{"name": ..., "arguments": {...}}</call> calls a tool; any other answer is the last one,
and the tool that grades is asked what it is worth. The model cannot call that tool. A run names a program (stdio:NAME)
and never says what it is: which command that is says the member's own environment, and who names none has no word.
"""

import json
import os
import re
import selectors
import shlex
import signal
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from subprocess import DEVNULL, PIPE, Popen
from typing import Any, Protocol

import msgspec

from node.deadline import within
from node.environments.base import JSON_BRACKETS, nested_deeply
from node.environments.server.dial import FAILED, MAX_REPLY_BYTES, PROGRAM, ServerReply, dial, silent, split_url
from node.environments.tools.form import parse_call
from protocol.errors import UNREADABLE

SCHEMES = ("http", "https")
STDIO = re.compile(r"stdio:([a-z][a-z0-9_]{0,40})")
VERSION = "2025-06-18"
_CALL = "call"


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] = {}


class _Block(msgspec.Struct):
    type: str
    text: str = ""


class _Result(msgspec.Struct):
    content: list[_Block] = []
    isError: bool = False

    @property
    def text(self) -> str:
        return "\n".join(block.text for block in self.content if block.type == "text")


class _Reply(msgspec.Struct):
    """result: empty where there is an error instead."""

    id: int | None = None
    result: msgspec.Raw = msgspec.Raw()


class McpLink(Protocol):
    """Where messages go. Raises Undecided."""

    def post(self, message: dict[str, Any]) -> _Reply | None: ...
    def close(self) -> None: ...


class McpEpisode:
    """score_tool: called as {"problem_id", "answer"}; its text is the reward. Raises Undecided."""

    def __init__(self, url: str, seconds: float, problem_id: str, score_tool: str) -> None:
        self._problem_id, self._score_tool = problem_id, score_tool
        program = STDIO.fullmatch(url)
        self._link: McpLink = _Program(program[1], seconds) if program else _Http(url, seconds)
        self._number = 0

    def begin(self, reset: dict[str, Any]) -> None:
        """reset: the client's `_meta` of the session. Raises Undecided."""
        client = {"name": "intellect-node", "version": "1"}
        asked = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": client}
        self._ask("initialize", asked | ({"_meta": reset} if reset else {}))
        # The specification wants this before any other request.
        self._link.post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def say(self, answer: str) -> ServerReply:
        """Raises Undecided."""
        call = parse_call(answer, (_CALL,))
        if call is None:
            graded = self._tool(self._score_tool, {"problem_id": self._problem_id, "answer": answer})
            return FAILED if graded.isError else ServerReply("", True, _number(graded.text))
        # Counted before it is decoded: how deep a decoder reads differs between machines, and the model is told.
        if nested_deeply(call.text, JSON_BRACKETS):
            return ServerReply("the call is nested too deeply", False, None)
        try:
            wanted = msgspec.json.decode(call.text, type=_Call)
        # The decoder encodes text first, and half of a surrogate pair cannot be encoded.
        except (*UNREADABLE, UnicodeEncodeError):
            return ServerReply("the call is no JSON object with name and arguments", False, None)
        # A model that could call the grader would know its reward before it answers.
        if wanted.name == self._score_tool:
            return ServerReply(f"there is no tool {wanted.name!r}", False, None)
        return ServerReply(self._tool(wanted.name, wanted.arguments).text, False, None)

    def close(self) -> None:
        self._link.close()

    def _tool(self, name: str, arguments: dict[str, Any]) -> _Result:
        reply = self._ask("tools/call", {"name": name, "arguments": arguments})
        if not reply.result:  # an unknown tool, or arguments that it does not take
            return _Result([_Block("text", "the tool cannot be called so")], isError=True)
        try:
            return msgspec.json.decode(reply.result, type=_Result)
        except UNREADABLE as error:
            raise silent(str(error)) from error

    def _ask(self, method: str, params: dict[str, Any]) -> _Reply:
        self._number += 1
        reply = self._link.post({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        if reply is None or (not reply.result and method == "initialize"):
            raise silent(f"it gives no result to {method}")
        return reply


class _Http:
    def __init__(self, url: str, seconds: float) -> None:
        self._parts, self._seconds, self._session, self._asked = split_url(url, SCHEMES), seconds, "", 0

    def close(self) -> None:
        """Servers forget sessions by themselves."""

    def post(self, message: dict[str, Any]) -> _Reply | None:
        parts = self._parts
        self._asked += 1
        link = HTTPConnection(str(parts.hostname), parts.port)
        try:
            # With a socket in place HTTPConnection opens none. Its own would go wherever the name leads.
            link.sock = dial(parts, self._seconds)
            with within(link.sock, self._seconds):
                path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
                link.request("POST", path, json.dumps(message).encode(), self._headers())
                return self._read(link.getresponse(), message.get("id"))
        except (OSError, HTTPException, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise silent(str(error)) from error
        finally:
            link.close()

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if self._session:
            headers |= {"Mcp-Session-Id": self._session}
        # Before the answer to initialize there is no version that both know.
        return headers | ({"MCP-Protocol-Version": VERSION} if self._asked > 1 else {})

    def _read(self, response: HTTPResponse, number: int | None) -> _Reply | None:
        if not 200 <= response.status < 300:
            raise silent(f"it answers {response.status}")
        # Sent back with each request: a server must not choose how long our headers are.
        self._session = self._session or response.getheader("Mcp-Session-Id", "")[:1024]
        if number is None:
            return None
        if response.getheader("Content-Type", "").startswith("text/event-stream"):
            return _from_events(response, number)
        data = response.read(MAX_REPLY_BYTES + 1)
        if len(data) > MAX_REPLY_BYTES:
            raise silent("its answer is too long")
        reply = msgspec.json.decode(data, type=_Reply)
        if reply.id != number:
            raise silent("its answer is to another request")
        return reply


class _Program:
    """A message a line. It runs as long as the episode, in a process group of its own, and ends with it."""

    def __init__(self, name: str, seconds: float) -> None:
        self._seconds, self._rest = seconds, b""
        command = shlex.split(os.environ.get(f"{PROGRAM}{name.upper()}", ""))
        if not command:
            raise silent(f"{PROGRAM}{name.upper()} names no program here")
        try:
            self._process = Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, bufsize=0, start_new_session=True)
        except OSError as error:
            raise silent(str(error)) from error
        # A program that does not read would hold a write up for ever; `_wait` has a deadline.
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)

    @property
    def _input(self) -> int:
        assert self._process.stdin is not None  # it is a pipe
        return self._process.stdin.fileno()

    @property
    def _output(self) -> int:
        assert self._process.stdout is not None  # it is a pipe
        return self._process.stdout.fileno()

    def post(self, message: dict[str, Any]) -> _Reply | None:
        until = time.monotonic() + self._seconds
        try:
            left = memoryview(json.dumps(message).encode() + b"\n")
            while left:
                self._wait(self._input, until, writes=True)
                left = left[os.write(self._input, left) :]
            return self._read(message["id"], until) if "id" in message else None
        except (OSError, *UNREADABLE) as error:
            raise silent(str(error)) from error

    def _read(self, number: int, until: float) -> _Reply:
        """The reply among its lines; others are notifications."""
        # For all lines up to the reply: a program that sends notifications without end is refused as well.
        room = MAX_REPLY_BYTES
        while True:
            while (end := self._rest.find(b"\n")) < 0:
                self._wait(self._output, until)
                data = os.read(self._output, 1 << 16)
                room -= len(data)
                if not data or room < 0:
                    raise silent("the program ended" if not data else "its answer is too long")
                self._rest += data
            line, self._rest = self._rest[:end], self._rest[end + 1 :]
            reply = msgspec.json.decode(line, type=_Reply)
            if reply.id == number:
                return reply

    def _wait(self, descriptor: int, until: float, *, writes: bool = False) -> None:
        # select() takes no descriptor from 1024 on, and a node with many links has those.
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_WRITE if writes else selectors.EVENT_READ)
            if not selector.select(max(0.0, until - time.monotonic())):
                raise silent("it does not answer in time")

    def close(self) -> None:
        with suppress(ProcessLookupError):
            # The whole group: the command may be a wrapper that has the server as its child.
            os.killpg(self._process.pid, signal.SIGKILL)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()  # not for the end of its output: a child that left the group may hold that for ever


def _from_events(response: HTTPResponse, number: int) -> _Reply:
    """The reply among server-sent events; others are notifications."""
    # For all events up to the reply, notifications among them.
    room, data = MAX_REPLY_BYTES, b""
    while room > 0:
        line = response.readline(room)
        room -= len(line)
        if line.startswith(b"data:"):
            # An event's lines belong together with line breaks between them, which mean nothing to JSON.
            data += line[5:].strip()
        elif not line.strip() and data:
            reply = msgspec.json.decode(data, type=_Reply)
            if reply.id == number:
                return reply
            data = b""
        if not line:
            break
    raise silent("its events hold no answer")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
