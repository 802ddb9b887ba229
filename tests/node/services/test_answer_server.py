"""`serve --state-dir`: OpenAI's endpoints over a node's control socket, with a real engine child behind it."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
import trio

pytest.importorskip("torch")
from cli.serve_node import NodeAnswerer
from node.guest.rest import GuestRest
from node.inference.answer_proofs import draw_of
from node.inference.client import EngineProcess
from node.inference.engine import GenerationRequest, generate
from node.inference.tokenizer import LocalTokenizer
from node.inference.torch_engine import TorchEngine
from node.services.answer_server import AnswerOrder, AnswerServer
from node.web.front import ApiServer
from node.web.host import bind
from node.web.listener import HttpListener
from node.web.openai import OpenAi
from node.weights.policy_cache import HeldPolicy
from protocol.policy import PolicyManifest
from protocol.run import RunSpec, encode_run
from tests.node.training.forks import Forking


class Place:
    def __init__(self, answering: AnswerServer, client: httpx.AsyncClient, control: Path) -> None:
        self.answering, self.client, self.control = answering, client, control


@asynccontextmanager
async def node(run: RunSpec, assets: Path, folder: Path) -> AsyncIterator[Place]:
    root = b"\x01" * 32
    held = HeldPolicy(3, root, assets / "model" / "model.safetensors", PolicyManifest(bytes(32), 3, root, (), root, 0))
    command, told = [sys.executable, "-m", "node.inference.process"], encode_run(run)
    child: Any = EngineProcess(command, told, assets, starter=Forking())  # type: ignore[arg-type]
    control = ApiServer(folder / "node.sock", lambda: {})
    context = SimpleNamespace(policy_cache=SimpleNamespace(newest=held))
    place: Any = SimpleNamespace(control=control, engine=child, context=context, rest=GuestRest())
    answering = await AnswerServer.open(place)
    assert answering is not None
    control.mount(answering.routes())
    tokenizer = LocalTokenizer(assets / "model")
    listener = HttpListener(bind("127.0.0.1:0", "a test", "--test"))
    listener.mount(OpenAi(NodeAnswerer(folder / "node.sock", tokenizer, 128), {"tiny": ""}).routes())
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        await nursery.start(control.run)
        await nursery.start(listener.run)
        async with httpx.AsyncClient(base_url=f"http://{listener.place}", timeout=60) as client:
            yield Place(answering, client, folder / "node.sock")
        nursery.cancel_scope.cancel()


def drawn_here(assets: Path, prompt: str, seed: int, count: int, most: int) -> list[list[int]]:
    engine = TorchEngine(assets / "model")
    engine.load(engine.read(str(assets / "model" / "model.safetensors")))
    tokens = engine.tokenizer.encode(prompt)
    return [
        one.output
        for one in generate(engine, [GenerationRequest(tokens, draw_of(seed, n, most)) for n in range(count)], 1.0)
    ]


async def test_a_nodes_newest_policy_answers_as_the_same_model_does_here(
    tiny_run: RunSpec, tiny_assets: Path, tmp_path: Path
) -> None:
    async with node(tiny_run, tiny_assets, tmp_path) as place:
        client = place.client
        body = {"prompt": "312=", "max_tokens": 20, "seed": 5, "n": 3, "return_token_ids": True}
        found = (await client.post("/v1/completions", json=body)).json()
        expected = drawn_here(tiny_assets, "312=", 5, 3, 20)
        assert [one["token_ids"] for one in found["choices"]] == expected
        streamed = (await client.post("/v1/completions", json=body | {"stream": True})).text
        parts = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
        said: dict[int, list[int]] = {}
        for part in parts:
            for choice in part["choices"]:
                said.setdefault(choice["index"], []).extend(choice["token_ids"])
        assert [said[number] for number in range(3)] == expected

        likely = {"prompt": "312=", "max_tokens": 1, "echo": True, "logprobs": 2, "temperature": 0}
        told = (await client.post("/v1/completions", json=likely)).json()["choices"][0]["logprobs"]
        assert told["token_logprobs"][0] is None and all(len(one) in (2, 3) for one in told["top_logprobs"][1:])
        pairs = zip(told["token_logprobs"][1:], told["top_logprobs"][1:], strict=True)
        assert all(value in top.values() for value, top in pairs)

        # A stop text ends it at the node, too; proofs are of model directories.
        first = next(text for text in map(chr, range(48, 58)) if text in found["choices"][0]["text"])
        stopped = (await client.post("/v1/completions", json=body | {"n": 1, "stop": [first]})).json()
        assert first not in stopped["choices"][0]["text"] and stopped["choices"][0]["finish_reason"] == "stop"
        assert (await client.post("/v1/completions", json=body | {"proofs": True})).status_code == 400
        assert place.answering.count >= 7
        with trio.fail_after(20):
            while place.answering.under_way:
                await trio.sleep(0.02)


async def test_a_client_that_goes_in_mid_stream_frees_the_nodes_engine(
    tiny_run: RunSpec, tiny_assets: Path, tmp_path: Path
) -> None:
    async with node(tiny_run, tiny_assets, tmp_path) as place:
        way = await trio.open_unix_socket(str(place.control))
        data = json.dumps({"prompt": [3, 4], "most": 1 << 19, "seed": 1, "temperature": 2.0}).encode()
        head = f"POST /answer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        await way.send_all(head.encode() + data)
        with trio.fail_after(30):
            while not place.answering.under_way:
                await trio.sleep(0.01)
        await way.aclose()
        with trio.fail_after(30):
            while place.answering.under_way:
                await trio.sleep(0.02)
        body = {"prompt": "1=", "max_tokens": 2, "seed": 1}
        assert (await place.client.post("/v1/completions", json=body)).status_code == 200


@pytest.mark.parametrize("tokens", [[1 << 70], [-1], [1.5], [True], ["1"]])
def test_tokens_are_numbers_that_an_engine_can_be_told(tokens: list[Any]) -> None:
    for name in ("prompt", "output"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"prompt": [1], name: tokens}, AnswerOrder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt": []}, "no tokens"),
        ({"most": 0}, "no tokens"),
        ({"most": 1 << 40}, "more than"),
        ({"temperature": -1.0}, "out of bounds"),
        ({"seed": 1 << 62}, ""),
        ({"number": -1}, "out of bounds"),
        ({"top": 1000}, "out of bounds"),
    ],
)
def test_what_is_asked_has_bounds(change: dict[str, Any], said: str) -> None:
    fault = msgspec.convert({"prompt": [1], **change}, AnswerOrder).fault()
    assert (said in fault) if said else not fault
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"prompt": [1], **change, "more": 1}, AnswerOrder)
