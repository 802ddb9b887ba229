"""OpenAI's endpoints over a model and its adapters: /v1/models, /v1/chat/completions, /v1/completions, /tokenize.

What is not served is refused by name, with 400: an answer that was sampled in another way than was asked for would look
like any other. At most MOST answers are under way; whoever comes next is told 429. A client that goes frees its rows.
"""

import hmac
import json
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar

import trio
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from node.inference.answering import AnswerQuestion, Answers, Likelihood, Spelling
from node.web.listener import OwnHosts
from protocol.errors import IntellectError

T = TypeVar("T")

MOST = 64
"""Answers under way, of all clients together."""
MAX_BODY = 4 << 20
"""Bytes of a request."""
MAX_ROWS = 1 << 20
"""Log-probabilities that are told of one request."""
MAX_STOP = 256
MAX_MESSAGES = 1024
DEFAULT_TOKENS = {True: 4096, False: 16}
"""Most tokens of an answer where the request does not say, by whether it is a chat: OpenAI's own for texts."""
ROLES = ("system", "developer", "user", "assistant")
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_p": (1,), "top_k": (-1, 0), "min_p": (0,), "presence_penalty": (0,), "frequency_penalty": (0,),
    "repetition_penalty": (1,), "logit_bias": ({},), "best_of": (1,), "suffix": ("",),
    "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],), "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},), "reasoning_effort": (), "modalities": (["text"],), "audio": (),
    "prediction": (), "web_search_options": (), "guided_json": (), "chat_template": (), "chat_template_kwargs": ({},),
}  # fmt: skip
"""Not served -> the values with which it says nothing; null always does."""
_SILENT = frozenset(
    "user store metadata service_tier parallel_tool_calls safety_identifier prompt_cache_key verbosity".split()
)
"""That say nothing of the answer."""
_COMMON = frozenset(
    "model max_tokens temperature n stop seed stream stream_options return_token_ids logprobs proofs".split()
)
_OF_KIND = {
    True: frozenset({"messages", "max_completion_tokens", "top_logprobs"}),
    False: frozenset({"prompt", "echo"}),
}


def fields_of(*, chat: bool) -> frozenset[str]:
    """What a request may say that counts."""
    return _COMMON | _OF_KIND[chat]


class OpenAIRefused(Exception):
    """param: the field that is to blame. The client is told all of it."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param, self.status, self.code = message, param, status, code

    def response(self) -> Response:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        told = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return JSONResponse({"error": told}, self.status)


@dataclass(frozen=True)
class CompletionRequest:
    """prompts: tokens of each; adapter: empty for the base; most: tokens of an answer; count: answers to each prompt;
    usage: in a stream, too; logprobs: with how many alternatives, None: not told; ids: token ids beside texts; proofs:
    of each answer."""

    chat: bool
    model: str
    adapter: str
    prompts: list[list[int]]
    most: int
    temperature: float
    seed: int
    count: int = 1
    stops: tuple[str, ...] = ()
    stream: bool = False
    usage: bool = False
    logprobs: int | None = None
    echo: bool = False
    ids: bool = False
    proofs: bool = False

    @property
    def answers(self) -> int:
        return len(self.prompts) * self.count

    @property
    def rows(self) -> int:
        """Of log-probabilities, at most: a token and its alternatives."""
        echoed = max(map(len, self.prompts)) if self.echo else 0
        return self.answers * (echoed + self.most) * (1 + (self.logprobs or 0))


@dataclass
class _Said:
    """An answer as it comes. ended: 'stop' or 'length', once it has; proof: if it was asked for."""

    spelling: Spelling
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    ended: str | None = None
    proof: dict[str, Any] | None = None


class OpenAi:
    """The routes. names: served name -> adapter, empty for the base; key: that clients must show, if there is one."""

    def __init__(self, answerer: Answers, names: Mapping[str, str], key: str = "") -> None:
        self._answerer = answerer
        self._names = dict(names)
        self._key = key
        self._since = int(time.time())
        self.under_way = 0
        # Threads that wait for an engine must not keep others of this program waiting.
        self._threads = trio.CapacityLimiter(MOST)
        # Requests that are read, and answers that are written, at one time.
        self._reading = trio.CapacityLimiter(2)

    def routes(self) -> list[Route]:
        found = (
            ("/v1/models", self._models, "GET"),
            ("/v1/chat/completions", partial(self._complete, chat=True), "POST"),
            ("/v1/completions", partial(self._complete, chat=False), "POST"),
            ("/tokenize", self._tokenize, "POST"),
        )
        # Without a key any page in a browser here could have this machine compute: only pages of this address may.
        guard = [] if self._key else [Middleware(OwnHosts, names=())]
        return [Route(path, self._guarded(answer), methods=[how], middleware=guard) for path, answer, how in found]

    def _guarded(self, answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            try:
                self._check_key(request)
                return await answer(request)
            except OpenAIRefused as refused:
                return refused.response()
            except IntellectError as error:  # a chat template that takes no such messages, an engine that ended
                return OpenAIRefused(f"{error.what}: {error.why}").response()

        return guarded

    def _check_key(self, request: Request) -> None:
        shown = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if self._key and not hmac.compare_digest(shown.encode(), self._key.encode()):
            raise OpenAIRefused(
                "the key is missing or wrong: Authorization: Bearer KEY", status=401, code="invalid_api_key"
            )

    async def _models(self, request: Request) -> Response:
        about = {"object": "model", "created": self._since, "owned_by": "intellect-node"}
        about["max_model_len"] = self._answerer.positions
        return JSONResponse({"object": "list", "data": [{"id": name, **about} for name in self._names]})

    async def _tokenize(self, request: Request) -> Response:
        data = await _body(request)

        def read() -> list[int]:
            body = _read_body(data)
            return self._prompts(body, chat="messages" in body)[0]

        tokens = await self.in_a_thread(read)
        return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": self._answerer.positions})

    async def _complete(self, request: Request, *, chat: bool) -> Response:
        data = await _body(request)
        return _Answering(self, await self.in_a_thread(lambda: self._read(_read_body(data), chat=chat)))

    async def in_a_thread(self, compute: Callable[[], T]) -> T:
        """Four megabytes are made tokens of, or a million rows text: seconds, in which the loop answers others."""
        return await trio.to_thread.run_sync(compute, limiter=self._reading)

    @contextmanager
    def place(self, asked: CompletionRequest) -> Iterator[None]:
        """For all that is computed for a request. Raises OpenAIRefused where there is none."""
        if self.under_way + asked.answers > MOST:
            why = f"{self.under_way} answers are under way, and {MOST} are at most"
            raise OpenAIRefused(f"too many requests: {why}; try again later", status=429, code="rate_limit_exceeded")
        self.under_way += asked.answers
        try:
            yield
        finally:
            self.under_way -= asked.answers

    # what is asked

    def _read(self, body: dict[str, Any], *, chat: bool) -> CompletionRequest:
        _refuse_unserved(body, chat=chat)
        model = _of(body, "model", str, next(iter(self._names)))
        if model not in self._names:
            known = ", ".join(self._names)
            raise OpenAIRefused(
                f"there is no model {model[:200]!r} here; there are {known}", "model", 404, "model_not_found"
            )
        prompts = self._prompts(body, chat=chat)
        room = self._answerer.positions - max(map(len, prompts))
        most = _whole(body, "max_completion_tokens" if chat else "max_tokens", 0, 1 << 20)
        most = _whole(body, "max_tokens", 0, 1 << 20) if most is None else most
        if room < 1 or (most is not None and most > room):
            raise OpenAIRefused(
                f"the model has {self._answerer.positions} positions: the prompt has {max(map(len, prompts))} tokens, "
                f"{most if most is not None else 1} are asked for",
                "max_tokens",
                code="context_length_exceeded",
            )
        asked = CompletionRequest(
            chat=chat,
            model=model,
            adapter=self._names[model],
            prompts=prompts,
            most=min(room, DEFAULT_TOKENS[chat]) if most is None else most,
            temperature=_number(body, "temperature", 0.0, 2.0, 1.0),
            seed=secrets.randbits(62) if body.get("seed") is None else _whole(body, "seed", -(1 << 63), (1 << 63)) or 0,
            count=_whole(body, "n", 1, MOST) or 1,
            stops=_stops(body.get("stop")),
            stream=_of(body, "stream", bool, False),
            usage=_of(_of(body, "stream_options", dict, {}), "include_usage", bool, False),
            logprobs=_logprobs(body, chat=chat),
            echo=not chat and _of(body, "echo", bool, False),
            ids=_of(body, "return_token_ids", bool, False),
            proofs=_of(body, "proofs", bool, False),
        )
        self._check_provable(asked, body)
        if asked.answers > MOST:
            raise OpenAIRefused(f"{asked.answers} answers are asked for, and {MOST} are at most", "n")
        if asked.logprobs is not None and asked.rows > MAX_ROWS:
            why = f"logprobs of these answers may have {asked.rows} rows, and {MAX_ROWS} are at most"
            raise OpenAIRefused(f"{why}: ask for fewer answers, tokens or alternatives", "logprobs")
        if asked.most == 0 and not asked.echo:
            raise OpenAIRefused("max_tokens is 0, which only an echo of the prompt has", "max_tokens")
        if asked.stream and (asked.echo or asked.logprobs is not None):
            raise OpenAIRefused("echo and logprobs are not served in a stream", "stream")
        return asked

    def _check_provable(self, asked: CompletionRequest, body: dict[str, Any]) -> None:
        if not asked.proofs:
            return
        # A seed of the server's own choice would let it draw until it likes an answer.
        if body.get("seed") is None:
            raise OpenAIRefused("proofs need a seed of the caller's", "seed")
        if asked.stream or asked.most == 0:
            raise OpenAIRefused("proofs come with whole answers: no stream, and max_tokens above 0", "proofs")
        if not self._answerer.provable:
            raise OpenAIRefused(
                "this policy is no model directory that others have, so that nobody could look", "proofs"
            )

    def _prompts(self, body: dict[str, Any], *, chat: bool) -> list[list[int]]:
        tokenizer = self._answerer.tokenizer
        if chat:
            return [tokenizer.encode_messages(_messages(body.get("messages")))]
        given = body.get("prompt")
        several = given if isinstance(given, list) and given and isinstance(given[0], str | list) else [given]
        if len(several) > MOST:
            raise OpenAIRefused(f"{len(several)} prompts, and {MOST} are at most", "prompt")
        prompts: list[Any] = [tokenizer.encode(one) if isinstance(one, str) else one for one in several]
        for one in prompts:
            if not isinstance(one, list) or not one or not all(type(token) is int for token in one):
                raise OpenAIRefused("it must be text or token ids, at least one", "prompt")
            if not all(0 <= token < tokenizer.vocabulary for token in one):
                raise OpenAIRefused("it has tokens outside the vocabulary", "prompt")
        return prompts

    # what is answered

    async def speak(
        self, asked: CompletionRequest, tell: Callable[[int, str, list[int], str | None], None]
    ) -> list[_Said]:
        """All answers. tell: hears (answer, text, tokens, why it ended) as they come, in the loop's thread."""
        said = [_Said(Spelling(self._answerer.tokenizer, asked.stops)) for _ in range(asked.answers)]
        loop = trio.lowlevel.current_trio_token()

        def heard(place: int, token: int) -> bool:
            """In the engine's thread, which must not wait."""
            one = said[place]
            text = one.spelling.add(token)
            one.tokens.append(token)
            one.text += text
            loop.run_sync_soon(tell, place, text, [token], None)
            return one.spelling.stopped

        async def one_prompt(number: int, call: Any, first: int) -> None:
            proofs = await self._ask(asked, number, call, lambda place, token: heard(first + place, token))
            for place, proof in enumerate(proofs):
                said[first + place].proof = proof

        calls = [self._answerer.call() for _ in asked.prompts]
        failed: list[IntellectError] = []
        try:
            if asked.most:
                async with trio.open_nursery() as nursery:
                    for number, call in enumerate(calls):
                        nursery.start_soon(one_prompt, number, call, number * asked.count)
        except* IntellectError as group:
            failed += [error for error in group.exceptions if isinstance(error, IntellectError)]
        finally:
            # Whatever ended it: a client that has gone, or an answer to another prompt that failed.
            for call in calls:
                self._answerer.cancel(call)
        if failed:
            raise failed[0]
        for place, one in enumerate(said):
            stopped = one.spelling.stopped or (one.tokens and one.tokens[-1] in self._answerer.tokenizer.eos)
            rest, one.ended = one.spelling.end(), "stop" if stopped else "length"
            one.text += rest
            tell(place, rest, [], one.ended)
        return said

    async def _ask(
        self, asked: CompletionRequest, number: int, call: Any, on_progress: Callable[[int, int], bool]
    ) -> list[dict[str, Any]]:
        """The answers' proofs, if they are asked for."""
        question = AnswerQuestion(
            asked.prompts[number],
            asked.most,
            asked.adapter,
            asked.temperature,
            asked.seed + number,
            asked.count,
            on_progress,
        )

        def answer() -> list[dict[str, Any]]:
            given = self._answerer.answer(question, call)
            if not asked.proofs:
                return []
            return [self._answerer.proven(question, place, one) for place, one in enumerate(given)]

        return await trio.to_thread.run_sync(answer, abandon_on_cancel=True, limiter=self._threads)

    async def likelihoods(
        self, asked: CompletionRequest, prompt: Sequence[int], output: Sequence[int]
    ) -> list[Likelihood]:
        if asked.logprobs is None or not output:
            return []
        call = self._answerer.call()
        look = partial(self._answerer.likelihoods, asked.adapter, prompt, output, asked.logprobs, call)
        try:
            return await trio.to_thread.run_sync(look, abandon_on_cancel=True, limiter=self._threads)
        finally:
            self._answerer.cancel(call)

    def spell(self, token: int) -> str:
        return self._answerer.tokenizer.spell([token])


class _Answering(Response):
    """What is sent while it is made, and given up when the client goes."""

    def __init__(self, api: OpenAi, asked: CompletionRequest) -> None:
        self._api, self._asked = api, asked
        self._id = f"{'chatcmpl' if asked.chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._created = int(time.time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_gone, receive, nursery.cancel_scope)
            try:
                with self._api.place(self._asked):
                    response = await self._stream(send) if self._asked.stream else await self._whole()
            except OpenAIRefused as refused:
                response = refused.response()
            if response is not None:
                await response(scope, receive, send)
            nursery.cancel_scope.cancel()

    async def _whole(self) -> Response:
        asked = self._asked
        try:
            said = await self._api.speak(asked, lambda *heard: None)
            values = [await self._likelihoods(place, one) for place, one in enumerate(said)]
        except IntellectError as error:
            return OpenAIRefused(f"{error.what}: {error.why}", status=500).response()
        return await self._api.in_a_thread(partial(self._written, said, values))

    async def _likelihoods(self, place: int, one: _Said) -> list[Likelihood]:
        asked, prompt = self._asked, self._asked.prompts[place // self._asked.count]
        if not asked.echo:
            return await self._api.likelihoods(asked, prompt, one.tokens)
        # Of an echo all but the first, in one look; what stands before the first nobody knows.
        return await self._api.likelihoods(asked, prompt[:1], [*prompt[1:], *one.tokens])

    def _written(self, said: list[_Said], values: list[list[Likelihood]]) -> Response:
        asked = self._asked
        choices = [self._choice(place, *one) for place, one in enumerate(zip(said, values, strict=True))]
        more = {"prompt_token_ids": asked.prompts[0]} if asked.ids else {}
        kind = "chat.completion" if asked.chat else "text_completion"
        return JSONResponse({**self._head(kind), "choices": choices, "usage": self._usage(said), **more})

    def _choice(self, place: int, one: _Said, values: list[Likelihood]) -> dict[str, Any]:
        asked, prompt = self._asked, self._asked.prompts[place // self._asked.count]
        found: dict[str, Any] = {"index": place, "finish_reason": one.ended, "logprobs": None}
        if asked.ids:
            found["token_ids"] = one.tokens
        if one.proof is not None:
            found["proof"] = one.proof
        if asked.chat:
            rows = [
                self._row(token, value.logprob) | {"top_logprobs": [self._row(*pair) for pair in value.top.items()]}
                for token, value in zip(one.tokens, values, strict=False)
            ]
            found["logprobs"] = None if asked.logprobs is None else {"content": rows, "refusal": None}
            return found | {"message": {"role": "assistant", "content": one.text, "refusal": None}}
        tokens = [*prompt, *one.tokens] if asked.echo else one.tokens
        texts = [self._api.spell(token) for token in tokens]
        if asked.logprobs is not None:
            blank = [None] * (len(tokens) - len(values))
            found["logprobs"] = {
                "tokens": texts,
                "token_logprobs": [*blank, *(value.logprob for value in values)],
                "top_logprobs": [*blank, *map(self._alternatives, tokens[len(blank) :], values)]
                if asked.logprobs
                else None,
                "text_offset": [0, *_sums(map(len, texts))][: len(texts)],
            }
        echoed = "".join(texts[: len(prompt)]) if asked.echo else ""
        return found | {"text": echoed + one.text}

    def _row(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._api.spell(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    def _alternatives(self, token: int, value: Likelihood) -> dict[str, float]:
        """By their texts, the token itself among them; of two that are written alike the likelier."""
        found: dict[str, float] = {}
        for one, logprob in {**value.top, token: value.logprob}.items():
            text = self._api.spell(one)
            found[text] = max(logprob, found.get(text, logprob))
        return found

    async def _stream(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        out, parts = trio.open_memory_channel[dict[str, Any] | None](math.inf)  # bounded by the answers' lengths

        def tell(place: int, text: str, tokens: list[int], ended: str | None) -> None:
            if text or ended or (tokens and self._asked.ids):
                out.send_nowait(self._part(place, text, tokens, ended))

        async def speak() -> None:
            try:
                said = await self._api.speak(self._asked, tell)
            except IntellectError as error:
                told = f"{error.what}: {error.why}"
                out.send_nowait({"error": {"message": told, "type": "server_error", "param": None, "code": None}})
            else:
                if self._asked.usage:
                    out.send_nowait({**self._head(self._kind), "choices": [], "usage": self._usage(said)})
            out.send_nowait(None)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(speak)
            if self._asked.chat:
                for place in range(self._asked.answers):
                    await _event(send, self._part(place, "", [], None, role=True))
            while (part := await parts.receive()) is not None:
                await _event(send, part)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self._asked.chat else "text_completion"

    def _part(
        self, place: int, text: str, tokens: list[int], ended: str | None, *, role: bool = False
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": place, "finish_reason": ended, "logprobs": None}
        if self._asked.ids:
            choice["token_ids"] = tokens
        if self._asked.chat:
            choice["delta"] = ({"role": "assistant"} if role else {}) | ({"content": text} if text or role else {})
        else:
            choice["text"] = text
        return {**self._head(self._kind), "choices": [choice]}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._asked.model}

    def _usage(self, said: Sequence[_Said]) -> dict[str, int]:
        asked, given = sum(map(len, self._asked.prompts)), sum(len(one.tokens) for one in said)
        return {"prompt_tokens": asked, "completion_tokens": given, "total_tokens": asked + given}


async def _event(send: Send, part: dict[str, Any]) -> None:
    line = f"data: {json.dumps(part, ensure_ascii=False)}\n\n"
    await send({"type": "http.response.body", "body": line.encode("utf-8", "replace"), "more_body": True})


async def _until_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


# --- the fields of a request ---------------------------------------------------------------------


async def _body(request: Request, *, body_seconds: float = 30.0) -> bytes:
    """Raises OpenAIRefused for one that is too long or comes too slowly."""
    data = bytearray()
    with trio.move_on_after(body_seconds) as late:  # that a client may take to send one
        async with aclosing(request.stream()) as parts:
            async for part in parts:
                data += part
                if len(data) > MAX_BODY:
                    raise OpenAIRefused(f"the request is longer than {MAX_BODY} bytes", status=413)
    if late.cancelled_caught:
        raise OpenAIRefused(f"the request did not come whole within {body_seconds:g} seconds", status=408)
    return bytes(data)


def _read_body(data: bytes) -> dict[str, Any]:
    """Raises OpenAIRefused for what is no JSON object."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise OpenAIRefused(f"the request is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise OpenAIRefused("the request is no JSON object")
    return found


def _refuse_unserved(body: dict[str, Any], *, chat: bool) -> None:
    known = fields_of(chat=chat)
    for name, value in body.items():
        if name in known or name in _SILENT or value is None:
            continue
        if name in _NEUTRAL and any(value == neutral and type(value) is not bool for neutral in _NEUTRAL[name]):
            continue
        if name in _NEUTRAL:
            raise OpenAIRefused(
                f"{name} is not served: answers are sampled from the whole distribution, at one temperature, by a seed",
                name,
            )
        near = get_close_matches(name, known, 1)
        raise OpenAIRefused(f"{name[:80]!r} is not known" + (f"; did you mean {near[0]!r}?" if near else ""), name[:80])


_KINDS = {str: "text", bool: "true or false", dict: "an object"}


def _of(body: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise OpenAIRefused(f"{name} must be {_KINDS[kind]}", name)
    return value


def _whole(body: dict[str, Any], name: str, least: int, most: int) -> int | None:
    value = body.get(name)
    if value is not None and (type(value) is not int or not least <= value <= most):
        raise OpenAIRefused(f"{name} must be a whole number from {least} to {most}", name)
    return value


def _number(body: dict[str, Any], name: str, least: float, most: float, default: float) -> float:
    value = body.get(name, default)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise OpenAIRefused(f"{name} must be a number from {least:g} to {most:g}", name)
    return float(value)


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    most_stops = 16
    good = isinstance(stops, list) and len(stops) <= most_stops
    if not good or not all(isinstance(one, str) and 0 < len(one) <= MAX_STOP for one in stops):
        raise OpenAIRefused(f"stop must be up to {most_stops} texts of 1 to {MAX_STOP} characters", "stop")
    return tuple(stops)


def _logprobs(body: dict[str, Any], *, chat: bool) -> int | None:
    """How many alternatives are told beside each token; None: not even its own."""
    most_top = 20  # alternatives to a token
    if not chat:  # their number; some programs say false or true
        value = body.get("logprobs")
        return None if value is False else 1 if value is True else _whole(body, "logprobs", 0, most_top)
    top = _whole(body, "top_logprobs", 0, most_top)
    if not _of(body, "logprobs", bool, False):
        if top:
            raise OpenAIRefused("top_logprobs is told with logprobs = true", "top_logprobs")
        return None
    return top or 0


def _messages(value: Any) -> list[tuple[str, str]]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_MESSAGES:
        raise OpenAIRefused(f"messages must be a list of 1 to {MAX_MESSAGES}", "messages")
    found: list[tuple[str, str]] = []
    for number, one in enumerate(value):
        role, content = (one.get("role"), one.get("content")) if isinstance(one, dict) else (None, None)
        if role not in ROLES:
            raise OpenAIRefused(f"role must be one of {', '.join(ROLES)}", f"messages[{number}].role")
        if isinstance(content, list):
            content = _text_of(content, number)
        if not isinstance(content, str):
            raise OpenAIRefused("content must be text", f"messages[{number}].content")
        found.append(("system" if role == "developer" else str(role), content))
    return found


def _text_of(parts: list[Any], number: int) -> str:
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) < len(parts) or not all(isinstance(text, str) for text in texts):
        raise OpenAIRefused("only parts of text are served", f"messages[{number}].content")
    return "\n".join(map(str, texts))


def _sums(lengths: Any) -> list[int]:
    total, found = 0, list[int]()
    for length in lengths:
        found.append(total := total + length)
    return found
