"""OpenEnv (meta-pytorch/OpenEnv at 685de411): one episode over the server's WebSocket, `/ws`.

Its POST /reset and /step make a new environment for every request, so an episode of several turns needs the socket.
Messages are {"type": "reset" | "step", "data": ...}; replies {"type": "observation", "data": {"observation", "reward",
"done"}} or {"type": "error", "data": {"message", "code"}}. Of an observation the model sees one field and nothing else:
what else stands there may be the grader's.
"""

import json
from contextlib import ExitStack
from typing import Any

import msgspec
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from node.deadline import within
from node.environments.server.dial import FAILED, MAX_REPLY_BYTES, ServerReply, dial, silent, split_url
from protocol.errors import UNREADABLE

SCHEMES = ("ws", "wss")
# No answer causes these, so they leave the rollout undecided. Any other error is the answer's doing.
_ITS_OWN_TROUBLE = frozenset({"CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR"})


class _Told(msgspec.Struct):
    observation: dict[str, Any]
    reward: float | None = None
    done: bool = False


class _Trouble(msgspec.Struct):
    code: str = ""


class _Reply(msgspec.Struct):
    type: str
    data: msgspec.Raw


class OpenEnvEpisode:
    """action: field of the action that holds an answer; shown: field of the observation that is told."""

    def __init__(self, url: str, seconds: float, action: str, shown: str) -> None:
        """Raises Undecided."""
        self._seconds, self._action, self._shown = seconds, action, shown
        self._opened = ExitStack()
        try:
            plain = self._opened.enter_context(dial(split_url(url, SCHEMES), seconds))
            # It encrypts that of wss for the name in the URL, and `open_timeout` bounds all that opening takes.
            self._link = self._opened.enter_context(
                connect(
                    url,
                    # The connection whose address was compared: without it the name would be resolved again.
                    sock=plain,
                    proxy=None,
                    compression=None,
                    open_timeout=seconds,
                    close_timeout=1,
                    ping_interval=None,
                    max_size=MAX_REPLY_BYTES,
                    max_queue=2,
                )
            )
        # A ValueError: the server sends us elsewhere, and websockets would need a connection of its own for that.
        except (OSError, WebSocketException, ValueError) as error:
            self._opened.close()
            raise silent(str(error)) from error

    def begin(self, reset: dict[str, Any]) -> None:
        """Raises Undecided."""
        if self._ask("reset", reset) is FAILED:
            raise silent("it refuses to begin the episode")

    def say(self, answer: str) -> ServerReply:
        """Raises Undecided."""
        return self._ask("step", {self._action: answer})

    def close(self) -> None:
        """Waits a second at most for the server's farewell."""
        self._opened.close()

    def _ask(self, kind: str, data: dict[str, Any]) -> ServerReply:
        try:
            # Not the socket that was dialled: encryption takes its descriptor over, and cutting it would cut nothing.
            with within(self._link.socket, self._seconds):
                self._link.send(json.dumps({"type": kind, "data": data}))
                return self._read(self._link.recv(self._seconds))
        # An answer that does not come is a TimeoutError, which is an OSError.
        except (OSError, WebSocketException, *UNREADABLE) as error:
            raise silent(str(error)) from error

    def _read(self, message: str | bytes) -> ServerReply:
        reply = msgspec.json.decode(message, type=_Reply)
        if reply.type == "error":
            code = msgspec.json.decode(reply.data, type=_Trouble).code
            if code in _ITS_OWN_TROUBLE:
                raise silent(f"it says {code}")
            return FAILED
        if reply.type != "observation":
            raise silent(f"it answers with {reply.type[:40]!r}")
        told = msgspec.json.decode(reply.data, type=_Told)
        shown = told.observation.get(self._shown, "")
        # Members compare words. Without an order of keys, equal objects could become different ones.
        text = shown if isinstance(shown, str) else json.dumps(shown, sort_keys=True)
        return ServerReply(text, told.done, told.reward)
