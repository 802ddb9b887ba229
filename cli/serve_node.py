"""`serve --state-dir`: what a running node's newest policy answers, by the node's own engine, asked by its socket.

Texts become tokens here, by the run's tokenizer: the daemon hears and says token ids alone.
"""

import http.client
import json
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.errors import NETWORK, CommandError
from node.errors import NodeError

if TYPE_CHECKING:
    from node.inference.answering import AnswerQuestion, Likelihood
    from node.inference.tokenizer import LocalTokenizer

MAX_LINE = 64 << 20


class NodeAnswers(NodeError):
    """What a node says instead of an answer."""


class CancellableQuestion:
    """A question that may be given up."""

    def __init__(self) -> None:
        self._open: set[socket.socket] = set()
        self.cancelled = False

    def begin(self, way: socket.socket) -> None:
        self._open.add(way)
        if self.cancelled:
            self.cancel()

    def cancel(self) -> None:
        """Whoever reads there hears the end, and the node gives the request up."""
        self.cancelled = True
        for way in list(self._open):
            try:
                way.shutdown(socket.SHUT_RDWR)
            except OSError:
                self._open.discard(way)  # it has ended by itself


class NodeAnswerer:
    """In the place of node.inference.answering.Answerer. control: the node's socket."""

    provable = False

    def __init__(self, control: Path, tokenizer: "LocalTokenizer", positions: int) -> None:
        self._control = control
        self.tokenizer, self.positions = tokenizer, positions
        self._room = threading.BoundedSemaphore(16)  # answers that a node is asked for; the others wait here

    def call(self) -> CancellableQuestion:
        return CancellableQuestion()

    def cancel(self, call: CancellableQuestion) -> None:
        call.cancel()

    def close(self) -> None:
        """The node goes on."""

    def answer(self, question: "AnswerQuestion", call: CancellableQuestion) -> list[list[int]]:
        """Waits for all of them: call from a thread. Raises NodeAnswers, CommandError."""

        def one(number: int) -> list[int]:
            body = {"prompt": list(question.prompt), "most": question.most, "temperature": question.temperature}
            tokens, own = list[int](), CancellableQuestion()
            for line in self._lines(body | {"seed": question.seed, "number": number}, call, own):
                new = [line["token"]] if "token" in line else line["output"][len(tokens) :]
                for token in new:
                    tokens.append(token)
                    if question.on_progress(number, token):
                        own.cancel()  # a stop text: the rest is not wanted
                        return tokens
            return tokens

        with ThreadPoolExecutor(question.count) as pool:
            return list(pool.map(one, range(question.count)))

    def likelihoods(
        self,
        model: str,
        prompt: Sequence[int],
        output: Sequence[int],
        top: int,
        call: CancellableQuestion,
    ) -> "list[Likelihood]":
        from node.inference.answering import Likelihood

        body = {"prompt": list(prompt), "output": list(output), "top": top}
        (line,) = self._lines(body, call, call)
        beside = [{int(token): value for token, value in one.items()} for one in line["top"]]
        return [Likelihood(*pair) for pair in zip(line["logprobs"], beside, strict=True)]

    def _lines(
        self, body: dict[str, Any], call: CancellableQuestion, own: CancellableQuestion, *, seconds: float = 900.0
    ) -> Any:
        """What the node says, line by line, up to its last word."""
        with self._room, socket.socket(socket.AF_UNIX) as way:
            way.settimeout(seconds)
            try:
                way.connect(str(self._control))
                for one in dict.fromkeys((call, own)):
                    one.begin(way)
                request = http.client.HTTPConnection("localhost")
                request.sock = way
                request.request("POST", "/answer", json.dumps(body), {"Content-Type": "application/json"})
                answer = request.getresponse()
                while data := answer.readline(MAX_LINE):
                    line = json.loads(data)
                    if "error" in line:
                        raise NodeAnswers("the node gives no answer", str(line["error"])[:300], "try again later")
                    yield line
                    if "done" in line:
                        return
            except (OSError, ValueError, http.client.HTTPException) as error:
                if call.cancelled or own.cancelled:
                    return
                why = str(error) or type(error).__name__
                raise CommandError(
                    "the node does not answer", why, "intellect-node status --state-dir DIR", NETWORK
                ) from None
        if not (call.cancelled or own.cancelled):
            raise NodeAnswers("the node gives no answer", "it ended in the middle of one", "ask again")


def answerer_of(state_dir: Path) -> tuple[NodeAnswerer, str]:
    """(of a running node, what its model is called). Raises CommandError, StateError, ModelError."""
    from cli.api import get_status, socket_of
    from node.inference.model_files import CONFIG, read_json
    from node.inference.tokenizer import LocalTokenizer
    from node.state.reader import StateFiles

    control = socket_of(state_dir)
    get_status(control)  # says it, where no node runs there
    run, assets = StateFiles(state_dir).run()
    positions = read_json(assets / "model" / CONFIG).get("max_position_embeddings")
    found = NodeAnswerer(control, LocalTokenizer(assets / "model"), positions if isinstance(positions, int) else 2048)
    return found, run.name
