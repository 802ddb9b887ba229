"""OpenAI's endpoints, with the payloads that clients send, before a tiny model and an adapter to it."""

import json
import math
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from node.web import openai
from node.web.host import bind
from node.web.listener import HttpListener
from node.web.openai import OpenAi

torch = pytest.importorskip("torch")
KEY = "a key of some length"
TEMPLATE = "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] }}{% endfor %}="


@pytest.fixture(scope="module")
def answerer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from node.inference.answering import opened
    from node.inference.settings import EngineSettings
    from node.inference.torch_engine import TorchEngine, build_model, image_names
    from node.training.evaluator import beside
    from node.training.warmstart import create_model
    from tests.node.inference.test_adapters import adapter

    folder = tmp_path_factory.mktemp("model")
    create_model(folder, "0123456789=usam \u00e9", seed=3, hidden=64, layers=1)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
    weights = image_names(build_model(folder, "cpu"))
    adapters = {"tuned": adapter(weights, 1, 3, size=0.5)}
    engine = TorchEngine(folder, beside(EngineSettings(), adapters.values()))
    made = opened(folder, engine, engine.tokenizer, adapters)
    yield made
    made.close()


@asynccontextmanager
async def serving(answerer: Any, key: str = "") -> AsyncIterator[tuple[httpx.AsyncClient, OpenAi, HttpListener]]:
    api = OpenAi(answerer, {"base": "", "tuned": "tuned"}, key)
    listener = HttpListener(bind("127.0.0.1:0", "a test", "--test"))
    listener.mount(api.routes())
    async with trio.open_nursery() as nursery:
        await nursery.start(listener.run)
        async with httpx.AsyncClient(base_url=f"http://{listener.place}", timeout=60) as client:
            yield client, api, listener
        nursery.cancel_scope.cancel()


async def asked(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def parts_of(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


async def test_models_are_listed_and_a_seed_says_the_same_again(answerer: Any) -> None:
    async with serving(answerer) as (client, _, _):
        listed = (await client.get("/v1/models")).json()
        assert [one["id"] for one in listed["data"]] == ["base", "tuned"] and listed["data"][0]["max_model_len"] == 512
        same = {"prompt": "12=", "max_tokens": 12, "seed": 7, "n": 3, "return_token_ids": True}
        first, again = [await asked(client, model="base", **same) for _ in range(2)]
        assert first["choices"] == again["choices"]
        assert len({choice["text"] for choice in first["choices"]}) > 1  # each answer of a question has its own draws
        assert first["prompt_token_ids"] == answerer.tokenizer.encode("12=")
        given = sum(len(choice["token_ids"]) for choice in first["choices"])
        assert first["usage"] == {"prompt_tokens": 3, "completion_tokens": given, "total_tokens": 3 + given}
        tuned = await asked(client, model="tuned", **same)
        assert tuned["choices"] != first["choices"]


async def test_a_chat_is_put_into_the_template_and_streamed(answerer: Any) -> None:
    messages = [
        {"role": "developer", "content": "1"},
        {"role": "user", "content": [{"type": "text", "text": "2"}, {"type": "text", "text": "3"}]},
    ]
    body = {"model": "tuned", "messages": messages, "seed": 3, "max_completion_tokens": 9, "n": 2}
    async with serving(answerer) as (client, _, _):
        told = (await client.post("/tokenize", json={"messages": messages})).json()
        assert told["tokens"] == answerer.tokenizer.encode("s1u2\n3=") and told["count"] == len(told["tokens"])
        whole = await asked(client, **body)
        answer = await client.post(
            "/v1/chat/completions", json=body | {"stream": True, "stream_options": {"include_usage": True}}
        )
        assert answer.headers["content-type"] == "text/event-stream"
        parts = parts_of(answer.text)
        assert parts[-1]["choices"] == [] and parts[-1]["usage"] == whole["usage"]
        for choice in whole["choices"]:
            own = [one["choices"][0] for one in parts[:-1] if one["choices"][0]["index"] == choice["index"]]
            assert own[0]["delta"] == {"role": "assistant", "content": ""}
            assert "".join(one["delta"].get("content", "") for one in own) == choice["message"]["content"]
            assert own[-1]["finish_reason"] == choice["finish_reason"]


async def test_logprobs_are_those_of_what_was_sampled(answerer: Any) -> None:
    async with serving(answerer) as (client, _, _):
        echoed = await asked(client, model="base", prompt="12=", max_tokens=4, seed=1, echo=True, logprobs=0)
        told = echoed["choices"][0]["logprobs"]
        assert told["token_logprobs"][0] is None and all(value < 0 for value in told["token_logprobs"][1:])
        assert len(told["tokens"]) == len(told["token_logprobs"]) == len(told["text_offset"])
        alone = await asked(client, model="base", prompt="12=", max_tokens=0, echo=True, logprobs=0)
        assert alone["choices"][0]["logprobs"]["token_logprobs"][1:] == pytest.approx(told["token_logprobs"][1:3])
        chat = await asked(
            client, model="base", messages=[{"role": "user", "content": "1"}], logprobs=True, max_tokens=3
        )
        assert all(one["logprob"] < 0 for one in chat["choices"][0]["logprobs"]["content"])
        cold = await asked(client, model="base", prompt="12=", max_tokens=6, temperature=0, n=4)
        assert len({choice["text"] for choice in cold["choices"]}) == 1


async def test_alternatives_are_the_likeliest_and_their_chances_make_one(answerer: Any) -> None:
    size = len(answerer.tokenizer._tokenizer.get_vocab())
    assert size <= 20
    async with serving(answerer) as (client, _, _):
        for model in ("base", "tuned"):
            found = await asked(client, model=model, prompt="12=", max_tokens=5, seed=2, echo=True, logprobs=20)
            told = found["choices"][0]["logprobs"]
            assert told["top_logprobs"][0] is None
            for own, top in zip(told["token_logprobs"][1:], told["top_logprobs"][1:], strict=True):
                assert own in top.values() and own <= max(top.values())
            chat = [{"role": "user", "content": "1"}]
            body = {"messages": chat, "logprobs": True, "max_tokens": 3, "seed": 5, "temperature": 0.5}
            rows = (await asked(client, model=model, **body, top_logprobs=20))["choices"][0]["logprobs"]["content"]
            for row in rows:
                chances = [math.exp(one["logprob"]) for one in row["top_logprobs"]]
                assert sum(chances) == pytest.approx(1, abs=1e-4) and chances == sorted(chances, reverse=True)
            few = (await asked(client, model=model, **body, top_logprobs=2))["choices"][0]["logprobs"]["content"]
            assert [one["top_logprobs"] for one in few] == [one["top_logprobs"][:2] for one in rows]


async def test_an_evaluation_program_finds_likelihoods_and_what_is_greedy(answerer: Any) -> None:
    """The payload of lm-evaluation-harness (local-completions), and what it reads of the answer."""
    tokens = answerer.tokenizer.encode
    async with serving(answerer) as (client, _, _):
        greedy = await asked(client, model="base", prompt="12=", max_tokens=1, temperature=0, return_token_ids=True)
        best = greedy["choices"][0]["token_ids"][0]
        other = next(token for token in tokens("0123456789") if token != best)
        prompts = [[*tokens("12="), best], [*tokens("12="), other]]
        payload = {"model": "base", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234}
        found = await asked(client, **payload, echo=True)
        read = []
        for choice in sorted(found["choices"], key=lambda one: one["index"]):
            own = choice["logprobs"]["token_logprobs"][3:-1]
            tops = choice["logprobs"]["top_logprobs"][3:-1]
            assert len(own) == len(tops) == 1
            read.append((sum(own), all(one == max(top.values()) for one, top in zip(own, tops, strict=True))))
        assert [one[1] for one in read] == [True, False] and read[0][0] > read[1][0]
        # The model's own chances, whatever temperature they are asked at.
        (likely,) = answerer.likelihoods("", tokens("12="), [best], 0, answerer.call())
        assert read[0][0] == pytest.approx(likely.logprob, abs=1e-5)
        until = {
            "model": "base",
            "prompt": ["12="],
            "max_tokens": 8,
            "temperature": 0,
            "stop": ["\n\n", "="],
            "seed": 1234,
        }
        assert "=" not in (await asked(client, **until))["choices"][0]["text"]
        talk = [{"role": "system", "content": "1"}, {"role": "user", "content": "2", "type": "text"}]
        chat = {"model": "base", "messages": talk, "max_tokens": 8, "temperature": 0, "stop": ["="], "seed": 1234}
        assert (await asked(client, **chat))["choices"][0]["message"]["role"] == "assistant"


async def test_what_lighteval_sends_by_litellm_is_answered(answerer: Any) -> None:
    talk = [{"role": "user", "content": "12="}]
    body = {"model": "base", "messages": talk, "response_format": {"type": "text"}, "max_tokens": 6, "n": 1}
    body |= {"max_completion_tokens": 6, "temperature": 0, "seed": 42, "stop": ["="], "logprobs": None, "top_p": None}
    async with serving(answerer) as (client, _, _):
        (choice,) = (await asked(client, **body))["choices"]
        assert isinstance(choice["message"]["content"], str) and choice["finish_reason"] in ("stop", "length")
        # It samples several answers by a temperature; what would be another sampling it hears by name.
        several = await asked(client, **body | {"n": 3, "temperature": 1.0})
        assert len(several["choices"]) == 3
        assert (await client.post("/v1/chat/completions", json=body | {"top_p": 0.9})).status_code == 400


async def test_a_stop_text_ends_an_answer_and_is_not_said(answerer: Any) -> None:
    async with serving(answerer) as (client, _, _):
        body = {"model": "base", "prompt": "12=", "max_tokens": 60, "seed": 5, "return_token_ids": True}
        whole = (await asked(client, **body))["choices"][0]
        stop = whole["text"][3:6]  # three tokens
        found = (await asked(client, **body, stop=["never", stop]))["choices"][0]
        assert found["text"] == whole["text"].partition(stop)[0] and found["finish_reason"] == "stop"
        assert len(found["token_ids"]) < len(whole["token_ids"])
        streamed = parts_of((await client.post("/v1/completions", json=body | {"stop": stop, "stream": True})).text)
        assert "".join(one["choices"][0]["text"] for one in streamed) == found["text"]


def test_text_comes_in_whole_characters_and_what_may_be_a_stop_is_held_back() -> None:
    from node.inference.answering import Spelling

    class Bytes:
        eos = frozenset({0})

        def decode(self, tokens: list[int]) -> str:
            return bytes(tokens).decode("utf-8", "replace")

    def spelt(text: str, *stops: str) -> tuple[list[str], bool]:
        spelling = Spelling(Bytes(), stops)  # type: ignore[arg-type]
        parts = [spelling.add(byte) for byte in text.encode()]
        return [*parts, spelling.end()], spelling.stopped

    assert spelt("a\u00e9b")[0] == ["a", "", "\u00e9", "b", ""]
    assert spelt("abcd", "bcx") == (["a", "", "", "bcd", ""], False)
    assert spelt("abcd", "cd", "x") == (["a", "b", "", "", ""], True)
    assert spelt("abc", "bcd") == (["a", "", "", "bc"], False)
    assert "".join(spelt("aab", "ab")[0]) == "a"


@pytest.mark.parametrize(
    ("more", "status", "param"),
    [
        ({"top_p": 0.9}, 400, "top_p"),
        ({"tools": [{"type": "function"}]}, 400, "tools"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format"),
        ({"presence_penalty": 1}, 400, "presence_penalty"),
        ({"max_token": 3}, 400, "max_token"),
        ({"n": 1000}, 400, "n"),
        ({"n": 33, "prompt": ["1", "2"]}, 400, "n"),
        ({"model": "other"}, 404, "model"),
        ({"max_tokens": 600}, 400, "max_tokens"),
        ({"prompt": "1" * 600}, 400, "max_tokens"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": [99999]}, 400, "prompt"),
        ({"prompt": [True]}, 400, "prompt"),
        ({"temperature": 3}, 400, "temperature"),
        ({"temperature": "1"}, 400, "temperature"),
        ({"stop": [""]}, 400, "stop"),
        ({"logprobs": 21}, 400, "logprobs"),
        ({"stream": True, "echo": True}, 400, "stream"),
        ({"stream_options": "x"}, 400, "stream_options"),
        ({"seed": 1.5}, 400, "seed"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages[0].content"),
    ],
)
async def test_what_is_not_served_is_refused_by_name(
    answerer: Any, more: dict[str, Any], status: int, param: str
) -> None:
    async with serving(answerer) as (client, _, _):
        chat = "messages" in more
        body = {"model": "base", "max_tokens": 4} | ({} if chat else {"prompt": "1="}) | more
        answer = await client.post("/v1/chat/completions" if chat else "/v1/completions", json=body)
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]["param"] == param
        # The control: what says nothing is no reason to refuse.
        silent = {"top_p": 1, "tools": None, "presence_penalty": 0, "user": "x", "response_format": {"type": "text"}}
        await asked(client, model="base", prompt="1=", max_tokens=1, **silent)


STRANGE = (
    True, 0, -1, 1, 1 << 63, -(1 << 63), (1 << 63) - 1, 1 << 70, 1.5, "", "x", "\ud800", [], [[]], [[], "1"], [None],
    [1 << 70], ["\ud800"], ["1", "2"], [{}], [{"role": "user", "content": "\ud800"}], [{"role": [], "content": {}}],
    {}, {"x": []},
)  # fmt: skip


@pytest.mark.parametrize("chat", [True, False])
async def test_no_value_of_any_field_is_more_than_refused(answerer: Any, chat: bool) -> None:
    """Each field that is known, with each kind of value: answered, or an error that says why. None is a fault here."""
    path = "/v1/chat/completions" if chat else "/v1/completions"
    base = {"model": "base", "max_tokens": 1} | (
        {"messages": [{"role": "user", "content": "1"}]} if chat else {"prompt": "1="}
    )
    async with serving(answerer) as (client, _, _):
        for name in sorted(openai.fields_of(chat=chat) | set(openai._NEUTRAL) | openai._SILENT):
            for value in STRANGE:
                for where in (path, "/tokenize"):
                    data = json.dumps(base | {name: value}).encode()
                    answer = await client.post(where, content=data)
                    assert answer.status_code in (200, 400, 404), (where, name, value, answer.text)
                    assert answer.status_code == 200 or answer.json()["error"]["message"], (where, name, value)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model": "base"', b"[" * 100_000])
async def test_half_a_body_is_no_request(answerer: Any, body: bytes) -> None:
    async with serving(answerer) as (client, _, _):
        assert (await client.post("/v1/completions", content=body)).status_code == 400


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://elsewhere.example"}, {"Host": "rebound.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
async def test_another_sites_page_cannot_have_this_machine_compute(answerer: Any, headers: dict[str, str]) -> None:
    async with serving(answerer) as (client, _, _):
        body = {"model": "base", "prompt": "1=", "max_tokens": 1}
        assert (await client.post("/v1/completions", json=body, headers=headers)).status_code == 403
        assert (await client.post("/v1/completions", json=body)).status_code == 200


async def test_a_key_is_asked_for_and_a_body_has_bounds(answerer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "MAX_BODY", 100)
    async with serving(answerer, KEY) as (client, _, _):
        for shown in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {KEY}x"}):
            assert (await client.get("/v1/models", headers=shown)).status_code == 401
        right = {"Authorization": f"Bearer {KEY}"}
        assert (await client.get("/v1/models", headers=right)).status_code == 200
        assert (await client.post("/v1/completions", content=b" " * 200, headers=right)).status_code == 413


async def test_log_probabilities_have_a_bound_as_a_body_has(answerer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "MAX_ROWS", 2 * (3 + 2) * 3)
    async with serving(answerer) as (client, _, _):
        body = {"model": "base", "prompt": "12=", "max_tokens": 2, "echo": True, "logprobs": 2}
        assert len((await asked(client, **body, n=2))["choices"]) == 2
        for more in ({"n": 3}, {"max_tokens": 3, "n": 2}, {"logprobs": 3, "n": 2}):
            answer = await client.post("/v1/completions", json=body | more)
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "logprobs"


async def test_what_is_looked_at_counts_as_under_way_too(answerer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An echo without a new token is work for the engine as well."""
    entered, go = threading.Event(), threading.Event()
    look = answerer.likelihoods

    def slowly(*arguments: Any) -> Any:
        entered.set()
        assert go.wait(60)
        return look(*arguments)

    monkeypatch.setattr(answerer, "likelihoods", slowly)
    body = {"model": "base", "prompt": ["1="] * 64, "max_tokens": 0, "echo": True, "logprobs": 0}
    async with serving(answerer) as (client, _, _), trio.open_nursery() as nursery:
        nursery.start_soon(partial(asked, client, **body))
        await trio.to_thread.run_sync(entered.wait)
        assert (await client.post("/v1/completions", json=body)).status_code == 429
        go.set()


async def test_a_client_that_goes_frees_its_row_and_too_many_are_told_to_wait(answerer: Any) -> None:
    async with serving(answerer) as (client, api, listener):
        body = {"model": "base", "prompt": "12=", "max_tokens": 500, "n": 60, "stream": True, "temperature": 2}
        stream = await trio.open_tcp_stream("127.0.0.1", int(listener.place.rpartition(":")[2]))
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        await stream.send_all(head.encode() + data)
        with trio.fail_after(30):
            while api.under_way < 60:
                await trio.sleep(0.01)
        refused = await client.post("/v1/completions", json=body | {"n": 10})
        assert refused.status_code == 429 and refused.json()["error"]["code"] == "rate_limit_exceeded"
        await stream.aclose()
        with trio.fail_after(30):
            while api.under_way:
                await trio.sleep(0.02)
        assert (await asked(client, model="base", prompt="1=", max_tokens=2))["choices"]


def test_an_address_for_others_needs_a_key(tmp_path: Path) -> None:
    from cli.main import main

    assert main(["serve", "nothing", "--listen", "0.0.0.0:0"]) == 2
    key = tmp_path / "key"
    key.write_text("short")
    key.chmod(0o600)
    assert main(["serve", "nothing", "--listen", "0.0.0.0:0", "--key", str(key)]) == 2


@pytest.mark.parametrize("words", [[], ["nothing/here"], ["--state-dir", "nothing/here"]])
def test_a_server_that_does_not_come_up_leaves_no_socket_open(
    monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    from cli.main import main
    from node.web import host

    bound: list[socket.socket] = []
    bind = host.bind
    monkeypatch.setattr(host, "bind", lambda *given: bound.append(bind(*given)) or bound[-1])
    assert main(["serve", *words, "--listen", "127.0.0.1:0"]) != 0
    assert [one.fileno() for one in bound] == [-1]


def test_a_key_that_others_of_this_machine_may_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from cli.errors import CONFIGURATION
    from cli.main import main
    from cli.serve import _secret

    key = tmp_path / "key"
    key.write_text("long enough for a key")
    key.chmod(0o640)
    assert main(["serve", "nothing", "--listen", "127.0.0.1:0", "--key", str(key)]) == CONFIGURATION
    assert f"chmod 600 {key}" in capsys.readouterr().err
    key.chmod(0o600)
    assert _secret(key, "127.0.0.1:0") == "long enough for a key", "the control"


async def test_an_answer_comes_with_its_proof_where_the_caller_chose_the_seed(answerer: Any) -> None:
    from node.inference.answer_proofs import look_again, read_proofs

    async with serving(answerer) as (client, _, _):
        body = {"model": "tuned", "prompt": ["12=", "3="], "max_tokens": 40, "n": 2, "proofs": True}
        for more in ({}, {"seed": 4, "stream": True}, {"seed": 4, "max_tokens": 0, "echo": True}):
            assert (await client.post("/v1/completions", json=body | more)).status_code == 400
        proofs = read_proofs(await asked(client, **body, seed=4))
    assert [(one.seed, one.number) for one in proofs] == [(4, 0), (4, 1), (5, 0), (5, 1)]
    looked = [look_again(one, answerer._engine, one.model, b"tuned") for one in proofs]
    assert all(one.accepted for one in looked) and len({one.model for one in proofs}) == 1
