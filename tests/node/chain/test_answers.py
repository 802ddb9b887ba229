"""What endpoints answer is of the right type, or another endpoint is asked."""

import json
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from web3.types import RPCEndpoint

from contracts.asking import at_once
from node.chain.answers import MAX_NESTING, BadAnswer, parse_answer, parse_answers
from node.chain.blocks import Block
from node.chain.errors import RpcUnreachable
from node.chain.follower import EventStore
from node.chain.refusals import EndpointRefused, RefusalKind
from node.chain.rpc import FallbackProvider


def answer(result: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("eth_blockNumber", 12),
        ("eth_blockNumber", "12"),
        ("eth_blockNumber", "0x"),
        ("eth_blockNumber", None),
        ("eth_getTransactionCount", "0x" + "f" * 65),
        ("eth_getTransactionCount", "0x" + "f" * 16),
        ("eth_blockNumber", "0x1" + "0" * 16),
        ("eth_call", "0xabc"),
        ("eth_call", {"data": "0x"}),
        ("eth_sendRawTransaction", "0x12"),
        ("eth_getLogs", None),
        ("eth_getLogs", [{"address": "0x" + "11" * 20}]),
        ("eth_getTransactionReceipt", []),
        ("eth_getTransactionReceipt", {"status": "0x1"}),
        ("eth_getBlockByNumber", {"number": "0x1", "hash": "0x12", "timestamp": "0x1", "transactions": []}),
        ("eth_getBlockByNumber", {"number": "0x1", "hash": None, "timestamp": "soon", "transactions": []}),
    ],
)
def test_a_result_of_another_type_is_refused(method: str, result: Any) -> None:
    with pytest.raises(BadAnswer):
        parse_answer(method, answer(result))


HASH = "0x" + "11" * 32
BLOCK = {"number": "0x5", "hash": HASH, "timestamp": "0x6553f100", "transactions": [], "parentHash": HASH}
LOG = {"address": "0x" + "11" * 20, "topics": [HASH], "data": "0x", "blockNumber": "0x5", "blockHash": HASH}


@pytest.mark.parametrize("name", ["number", "timestamp"])
def test_what_the_follower_writes_down_fits_into_its_rows(name: str, tmp_path: Path) -> None:
    """A number beyond 63 bits ended the daemon, in SQLite."""
    told = parse_answer("eth_getBlockByNumber", answer({**BLOCK, name: "0x" + "f" * 15}))["result"]
    store = EventStore(tmp_path / "f.sqlite")
    store.advance(Block(int(told["number"], 16), bytes(32), int(told["timestamp"], 16)), [])
    store.close()
    for much in ("f" * 16, "f" * 64):
        with pytest.raises(BadAnswer):
            parse_answer("eth_getBlockByNumber", answer({**BLOCK, name: "0x" + much}))


@pytest.mark.parametrize("name", ["blockNumber", "logIndex"])
def test_a_log_at_no_place_is_refused(name: str) -> None:
    log = {**LOG, "transactionHash": HASH, "logIndex": "0x0"}
    assert parse_answer("eth_getLogs", answer([log]))["result"] == [log]
    with pytest.raises(BadAnswer):
        parse_answer("eth_getLogs", answer([{**log, name: "0x" + "f" * 16}]))


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b"null", b'{"jsonrpc":"2.0"}', b'{"error":7}', b"\xff"])
def test_what_is_no_answer_is_refused(body: bytes) -> None:
    with pytest.raises(BadAnswer):
        parse_answer("eth_call", body)


def test_what_endpoints_add_is_let_through() -> None:
    assert (
        parse_answer("eth_call", b'{"jsonrpc":"2.0","id":7,"result":"0x","extra":[1],"error":null}')["result"] == "0x"
    )
    with pytest.raises(EndpointRefused) as caught:
        parse_answer("eth_call", b'{"error":{"code":3,"message":"execution reverted","data":"0x12","more":1}}')
    refusal = caught.value
    assert (refusal.kind, refusal.code, refusal.words, refusal.data) == (
        RefusalKind.REVERTED,
        3,
        "execution reverted",
        "0x12",
    )


@pytest.mark.parametrize("error", ['"over the limit"', "{}", '{"message":null,"code":"x"}', '{"code":1.5,"data":[7]}'])
def test_an_error_without_its_form_is_a_refusal_all_the_same(error: str) -> None:
    with pytest.raises(EndpointRefused):
        parse_answer("eth_getBalance", b'{"error":' + error.encode() + b"}")


@pytest.mark.parametrize(("method", "result"), [("eth_call", b'"0x\xff"'), ("eth_getLogs", b'[{"data":"\xc3\x28"}]')])
def test_a_byte_that_is_no_utf8_makes_no_answer(method: str, result: bytes) -> None:
    """It ended the request in an exception that no endpoint's failure is, and no other endpoint was asked."""
    with pytest.raises(BadAnswer):
        parse_answer(method, b'{"jsonrpc":"2.0","id":1,"result":' + result + b"}")


def test_nesting_that_would_end_the_process_is_refused() -> None:
    """In a process of its own, with a recursion limit as a dependency sets it."""
    program = (
        "import sys\nfrom node.chain.answers import BadAnswer, parse_answer\nsys.setrecursionlimit(1_000_000)\n"
        "for nested in (b'[' * 200_000, b'{\"a\":' * 200_000, b'[' * 200_000 + b']' * 200_000):\n"
        '    try:\n        parse_answer(\'anything\', b\'{"jsonrpc":"2.0","id":1,"result":\' + nested + b\'}\')\n'
        "    except BadAnswer as error:\n        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stdout.count(b"inside each other") == 3


def test_a_string_without_its_end_is_refused_as_fast_as_it_came() -> None:
    """In a process of its own, since the interpreter's lock is held all the while."""
    program = (
        "from node.chain.answers import BadAnswer, parse_answer\n"
        "try:\n    parse_answer('eth_call', b'[' * 17 + b'\"' + b'\\\\\"' * 1_000_000)\n"
        "except BadAnswer as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0 and b"inside each other" in done.stdout


def test_brackets_inside_strings_are_no_nesting() -> None:
    text = '[{\\"' * 1000
    assert parse_answer("anything", answer([text]))["result"] == [text]
    deepest: Any = 0
    for _ in range(MAX_NESTING - 1):
        deepest = [deepest]
    assert parse_answer("anything", answer(deepest))["result"] == deepest
    with pytest.raises(BadAnswer):
        parse_answer("anything", answer([deepest, [0] * MAX_NESTING, deepest and [deepest]]))


def test_a_wrong_type_at_one_endpoint_is_asked_of_the_next(profile: Any, meddler: Any) -> None:
    meddler.before["eth_blockNumber"] = {"result": ["0x1"]}
    provider = FallbackProvider([meddler.url, *profile.rpc_urls], profile.chain_id)
    try:
        assert isinstance(provider.make_request("eth_blockNumber", [])["result"], str)  # type: ignore[arg-type]
        assert provider.endpoints.url == profile.rpc_urls[0]
    finally:
        provider.close()
    alone = FallbackProvider([meddler.url], profile.chain_id)
    try:
        with pytest.raises(RpcUnreachable, match="something else"):
            alone.make_request("eth_blockNumber", [])  # type: ignore[arg-type]
    finally:
        alone.close()


def test_answers_to_questions_that_were_one_request_are_told_apart_by_their_numbers() -> None:
    rows = [{"id": 2, "error": {"code": 3, "message": "execution reverted"}}, {"id": 1, "result": "0x7"}]
    told = parse_answers(["eth_gasPrice", "eth_call"], json.dumps(rows).encode())
    assert isinstance(told[0], dict) and told[0]["result"] == "0x7"
    assert isinstance(told[1], EndpointRefused) and told[1].kind is RefusalKind.REVERTED


@pytest.mark.parametrize(
    "rows",
    [
        {"id": None, "error": {"code": -32600, "message": "batch requests are not allowed"}},
        [],
        [{"id": 1, "result": "0x7"}],
        [{"id": 1, "result": "0x7"}, {"id": 1, "result": "0x7"}],
        [{"id": 1, "result": "0x7"}, {"id": 3, "result": "0x7"}],
        [{"id": 1, "result": "0x7"}, {"id": [2], "result": "0x7"}],
        [{"id": 1, "result": "0x7"}, {"id": 2, "result": "7"}],
        [{"id": 1, "result": "0x7"}, {"id": 2}],
        [{"id": 1, "result": "0x7"}, 5],
    ],
)
def test_an_answer_to_several_questions_that_leaves_one_open_is_none(rows: Any) -> None:
    with pytest.raises(BadAnswer):
        parse_answers(["eth_gasPrice", "eth_gasPrice"], json.dumps(rows).encode())


def test_an_endpoint_that_takes_one_question_at_a_time_is_asked_so_and_not_tried_each_time(
    meddler: Any, profile: Any
) -> None:
    provider = FallbackProvider([meddler.url], profile.chain_id)
    ask = partial(provider.make_request, RPCEndpoint("eth_blockNumber"), [])
    with closing(provider):
        one_by_one = []
        for meddler.batches in (True, False):
            for _ in range(2):
                before = meddler.posts
                assert len(at_once(ask, ask, ask)) == 3
                one_by_one.append(meddler.posts - before)
    assert one_by_one == [2, 1, 4, 3], "which chain it is, too, at first; then a refusal, which is remembered"


def test_of_several_questions_what_a_contract_refuses_is_raised_and_what_the_endpoint_cannot_is_asked_elsewhere(
    meddler: Any, profile: Any
) -> None:
    provider = FallbackProvider([meddler.url, *profile.rpc_urls], profile.chain_id)
    number, price, call = (
        partial(provider.make_request, RPCEndpoint(name), [])
        for name in ("eth_blockNumber", "eth_gasPrice", "eth_call")
    )
    with closing(provider):
        meddler.before["eth_gasPrice"] = {
            "error": {"code": -32601, "message": "the method eth_gasPrice does not exist"}
        }
        assert all("result" in told for told in at_once(number, price))
        assert provider.endpoints.url == meddler.url, "it lacks no more than a method"
        meddler.before["eth_call"], before = {"error": {"code": 3, "message": "execution reverted"}}, meddler.posts
        with pytest.raises(EndpointRefused) as caught:
            at_once(number, call)
        assert caught.value.kind is RefusalKind.REVERTED and meddler.posts == before + 1
