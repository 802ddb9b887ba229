"""A model and adapters to it that answer whoever asks, many at a time, in one batch: for a chat and for a server.

One thread owns the engine (`owner.Owner`); whoever asks waits in a thread of its own and hears tokens as they are
drawn. Sampling is the protocol's: from the whole distribution, at one temperature, by a seed. Knows no HTTP.
"""

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from node.inference.answer_proofs import COLDEST, draw_of, model_root, prove
from node.inference.engine import Apart, Completion, Engine, FinishedSequence, GenerationRequest, Prefill, Weights
from node.inference.errors import EngineError
from node.inference.scheduler import EnginePolicy, EngineScheduler, RequestContext
from node.inference.session import EngineSession
from node.inference.tokenizer import LocalTokenizer
from node.inference.wire import AnswerReply, AnswerRequest


@dataclass(frozen=True)
class AnswerQuestion:
    """model: empty for the base, else an adapter's name; prompt: token ids; on_progress: hears (answer, token), and
    ends that answer by True."""

    prompt: Sequence[int]
    most: int
    model: str = ""
    temperature: float = 1.0
    seed: int = 0
    count: int = 1
    on_progress: Callable[[int, int], bool] = lambda answer, token: False


@dataclass(eq=False)
class AnswerCall:
    """A question that may be given up. cancelled by `Answerer.cancel`."""

    ticket: RequestContext = field(default_factory=lambda: RequestContext(0, "task"))


class Likelihood(NamedTuple):
    """logprob: natural logarithm; top: token -> the same."""

    logprob: float
    top: dict[int, float]


class Answers(Protocol):
    """Whoever answers: an engine of one's own, or a node's. All but `call` and `cancel` wait: from threads."""

    tokenizer: LocalTokenizer
    positions: int

    @property
    def provable(self) -> bool: ...
    def call(self) -> Any: ...
    def cancel(self, call: Any) -> None: ...
    def answer(self, question: AnswerQuestion, call: Any) -> list[Any]: ...
    def likelihoods(
        self, model: str, prompt: Sequence[int], output: Sequence[int], top: int, call: Any
    ) -> list[Likelihood]: ...
    def proven(self, question: AnswerQuestion, number: int, completion: Any) -> dict[str, Any]: ...
    def close(self) -> None: ...


class Answerer:
    """engine: with its base's weights loaded; adapters: name -> its weights, for an engine that keeps them apart;
    positions: most tokens of prompt and answer; directory: of the base's files, where they are what is loaded: then
    answers can be proven."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: LocalTokenizer,
        positions: int,
        adapters: Mapping[str, Weights] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.positions = positions
        self.adapters = tuple(adapters or ())
        self._engine = engine
        self._directory = directory
        self._weights = dict(adapters or {})
        self._roots: dict[str, str] = {}
        if adapters:
            if not isinstance(engine, Apart):
                raise EngineError("adapters cannot be served", f"{engine.name} merges them", "leave --adapter out")
            names = [name.encode() for name in adapters]
            for name, weights in adapters.items():
                engine.hold(name.encode(), weights, names)
        self._owner = EngineScheduler()
        self._numbers = itertools.count(1)
        # A daemon: a program that is interrupted does not wait for it.
        self._thread = threading.Thread(target=self._owner.serve, name="engine", daemon=True)
        self._thread.start()

    def call(self) -> AnswerCall:
        return AnswerCall(RequestContext(next(self._numbers), "task"))

    def cancel(self, call: AnswerCall) -> None:
        """Its rows are free at the next step."""
        call.ticket.cancelled = True
        self._owner.wake()

    def answer(self, question: AnswerQuestion, call: AnswerCall) -> list[Completion]:
        """Waits for all of them: call from a thread. Raises EngineError, Cancelled."""
        draws = [draw_of(question.seed, number, question.most) for number in range(question.count)]
        requests = [
            GenerationRequest(question.prompt, numbers, on_progress=_hearing(question, number))
            for number, numbers in enumerate(draws)
        ]
        return self._owner.draw(call.ticket, self._policy(question.model), requests, max(question.temperature, COLDEST))

    def likelihoods(
        self, model: str, prompt: Sequence[int], output: Sequence[int], top: int, call: AnswerCall
    ) -> list[Likelihood]:
        """Of each token of an output, and of the `top` likeliest there; the model's own, at temperature 1. Waits;
        raises EngineError, Cancelled."""
        (found,) = self._owner.look(call.ticket, self._policy(model), [FinishedSequence(prompt, output, top=top)], 1.0)
        return likelihoods_of(found, len(output))

    @property
    def provable(self) -> bool:
        return self._directory is not None

    def proven(self, question: "AnswerQuestion", number: int, completion: Completion) -> dict[str, Any]:
        """An answer's proof, as JSON has it. Computes, and reads the model's files once: call from a thread."""
        assert self._directory is not None  # whoever asks has looked
        if question.model not in self._roots:
            self._roots[question.model] = model_root(self._directory, self._weights.get(question.model))
        proof = prove(
            completion,
            question.prompt,
            model=self._roots[question.model],
            engine=self._engine.name,
            temperature=question.temperature,
            seed=question.seed,
            number=number,
            most=question.most,
        )
        return msgspec.to_builtins(proof)

    def _policy(self, model: str) -> EnginePolicy:
        # All are held beside each other, the base under no name: they share a decoder.
        return EnginePolicy(self._engine, model.encode(), put=lambda: None, beside=True)

    def close(self) -> None:
        """Python ends a thread that comes back from the engine while it ends itself, and C++ ends the program for it:
        one of sixteen `chat` died so after its last answer."""
        self._owner.end()
        self._thread.join(30.0)  # seconds for what the engine is at when it is closed
        self._engine.close()


def likelihoods_of(found: Prefill, count: int) -> list[Likelihood]:
    """Of the tokens of an output, as an engine has looked at it."""
    others = [column.tolist() for column in found.top] if found.top else [[[]] * count] * 2
    pairs = [dict(zip(*row, strict=True)) for row in zip(*others, strict=True)]
    return [Likelihood(*one) for one in zip(found.logprobs.tolist(), pairs, strict=True)]


def asked(session: EngineSession, request: AnswerRequest, said: Callable[[int, int], None]) -> AnswerReply:
    """What a node's engine answers whoever its owner lets ask. said: hears (place, token). Raises EngineError."""
    if request.output:
        sequence = FinishedSequence(request.prompt, request.output, top=request.top)
        (found,) = session.prefill(session.engine, [sequence], 1.0)
        worth = likelihoods_of(found, len(request.output))
        return AnswerReply(id=request.id, logprobs=[one.logprob for one in worth], top=[one.top for one in worth])
    places = itertools.count()

    def told(token: int) -> bool:
        said(next(places), token)
        return False

    drawn = GenerationRequest(request.prompt, draw_of(request.seed, request.number, request.most), on_progress=told)
    (found,) = session.generator()([drawn], max(request.temperature, COLDEST))
    return AnswerReply(id=request.id, output=found.output)


def _hearing(question: AnswerQuestion, number: int) -> Callable[[int], bool]:
    return lambda token: question.on_progress(number, token)


class Spelling:
    """Tokens as they come, as text that is whole characters, up to the first of some stop texts."""

    def __init__(self, tokenizer: LocalTokenizer, stops: Sequence[str] = ()) -> None:
        self._decode = tokenizer.decode
        self._eos = tokenizer.eos
        self._stops = [stop for stop in stops if stop]
        self._tokens: list[int] = []
        self._from = self._read = 0
        self._held = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """The text that is certain by now. Nothing behind a stop text."""
        if self.stopped or token in self._eos:
            return ""
        self._tokens.append(token)
        # A window: what a token is depends on the one before it, and the whole text would be spelt anew each time.
        before = self._decode(self._tokens[self._from : self._read])
        now = self._decode(self._tokens[self._from :])
        if len(now) <= len(before) or now.endswith("\ufffd"):
            return ""  # half a character
        self._from, self._read = self._read, len(self._tokens)
        return self._certain(now[len(before) :])

    def end(self) -> str:
        """What was held back, where nothing more comes."""
        rest = "" if self.stopped else self._decode(self._tokens[self._from :])
        rest = rest[len(self._decode(self._tokens[self._from : self._read])) :] if rest else ""
        text, self._held = ("", "") if self.stopped else (self._held + rest, "")
        return text

    def _certain(self, text: str) -> str:
        held = self._held + text
        places = [place for stop in self._stops if (place := held.find(stop)) >= 0]
        if places:
            self.stopped, self._held = True, ""
            return held[: min(places)]
        # The longest end that may be the beginning of a stop text.
        keep = max((_overlap(held, stop) for stop in self._stops), default=0)
        self._held = held[len(held) - keep :] if keep else ""
        return held[: len(held) - keep]


def _overlap(text: str, stop: str) -> int:
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


def opened(
    model: Path, engine: Engine, tokenizer: LocalTokenizer, adapters: Mapping[str, Weights], image: Path | None = None
) -> Answerer:
    """image: a policy's weights instead of the model's own. Raises ModelError, EngineError."""
    from node.inference.engines import load_start
    from node.inference.model_files import CONFIG, language_config, read_json

    if image is not None:
        engine.load(engine.read(str(image)))
    elif not adapters:
        load_start(engine, model)
    told = language_config(read_json(model / CONFIG))
    positions = told.get("max_position_embeddings")
    whole = positions if isinstance(positions, int) else 2048
    return Answerer(engine, tokenizer, whole, adapters, None if image else model)
