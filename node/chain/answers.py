"""What an RPC endpoint answered, decoded by the type that its method's result has. Pure.

The nesting is bounded before anything decodes: a decoder goes down by recursion, and on a deep enough answer the
process ends, since a library that we use lifts Python's own limit.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from node.chain.refusals import MOST_WORDS, EndpointRefused, kind_of

if TYPE_CHECKING:
    from web3.types import RPCResponse

MAX_NESTING = 16
"""Brackets inside brackets; a block with its transactions has six."""

# One without its end goes on to the end of all: else each quote in it would be tried as the next beginning, which takes
# hours for a megabyte, and holds the interpreter's lock.
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

Quantity = Annotated[str, Meta(pattern="^0x[0-9a-fA-F]{1,64}$")]
Count = Annotated[str, Meta(pattern="^0x0*[0-9a-fA-F]{1,15}$")]
"""Of blocks, logs, transactions or seconds: what SQLite holds, where they are written down."""
Data = Annotated[str, Meta(pattern="^0x(?:[0-9a-fA-F]{2})*$")]
Hash = Annotated[str, Meta(pattern="^0x[0-9a-fA-F]{64}$")]
Account = Annotated[str, Meta(pattern="^0x[0-9a-fA-F]{40}$")]


class BadAnswer(Exception):
    """Not what the method answers with; the text completes "the endpoint answered ..."."""


class _Log(msgspec.Struct, rename="camel"):
    address: Account
    topics: list[Hash]
    data: Data
    block_number: Count
    block_hash: Hash
    transaction_hash: Hash
    log_index: Count


class _Receipt(msgspec.Struct, rename="camel"):
    transaction_hash: Hash
    block_number: Count
    block_hash: Hash
    status: Quantity
    gas_used: Quantity
    logs: list[_Log]
    effective_gas_price: Quantity | UnsetType = UNSET
    contract_address: Account | None = None
    l1_fee: Quantity | None = None


class _Transaction(msgspec.Struct, rename={"sender": "from"}):
    hash: Hash
    sender: Account
    nonce: Count


class _Block(msgspec.Struct, rename="camel"):
    """Of a block that is being made, number and hash are null."""

    number: Count | None
    hash: Hash | None
    timestamp: Count
    transactions: list[Hash | _Transaction]
    parent_hash: Hash | UnsetType = UNSET
    base_fee_per_gas: Quantity | UnsetType = UNSET


LOGS = "eth_getLogs"
RESULTS: dict[str, Any] = {
    "eth_chainId": Quantity,
    "eth_blockNumber": Count,
    "eth_gasPrice": Quantity,
    "eth_maxPriorityFeePerGas": Quantity,
    "eth_getBalance": Quantity,
    "eth_getTransactionCount": Count,
    "eth_estimateGas": Quantity,
    "eth_call": Data,
    "eth_getCode": Data,
    "eth_sendRawTransaction": Hash,
    "eth_getTransactionReceipt": _Receipt | None,
    "eth_getTransactionByHash": _Transaction | None,
    "eth_getBlockByNumber": _Block | None,
    "eth_getBlockByHash": _Block | None,
}
"""Method -> type of its result, LOGS aside: a list of logs. Others, which only local chains are asked for, may answer
anything."""


class _Envelope(msgspec.Struct):
    """error: an object, as JSON-RPC has it; some gateways put a sentence there."""

    result: msgspec.Raw | UnsetType = UNSET
    error: dict[str, Any] | str | None = None
    id: Any = None


def parse_answer(method: str, body: bytes, status: int = 200) -> "RPCResponse":
    """An endpoint's whole answer to a request for `method`, with a result. status: of HTTP. Raises Refused where it
    answers with an error, and BadAnswer."""
    return _answer(method, _decoded(body, _Envelope), status)


def parse_answers(methods: Sequence[str], body: bytes, status: int = 200) -> "list[RPCResponse | EndpointRefused]":
    """The answers to questions that were one request and have the numbers from 1 on, in their order. Raises BadAnswer,
    also where one of them has none."""
    rows = _decoded(body, list[_Envelope])
    envelopes = {one.id if isinstance(one.id, int) else -1: one for one in rows}
    if len(rows) != len(methods) or envelopes.keys() != set(range(1, len(methods) + 1)):
        raise BadAnswer("without an answer to each question")
    told: list[RPCResponse | EndpointRefused] = []
    for number, method in enumerate(methods, 1):
        try:
            told.append(_answer(method, envelopes[number], status))
        except EndpointRefused as refusal:
            told.append(refusal)
    return told


def _decoded(body: bytes, kind: Any) -> Any:
    if not _is_flat(body):
        raise BadAnswer(f"with more than {MAX_NESTING} brackets inside each other")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise BadAnswer(f"without a JSON-RPC answer: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadAnswer("without JSON") from error


def _answer(method: str, envelope: _Envelope, status: int) -> "RPCResponse":
    if envelope.error is not None:
        raise _refused(method, envelope.error, status)
    if envelope.result is UNSET:
        raise BadAnswer("without a JSON-RPC answer")
    try:
        result = _rows(envelope.result) if method == LOGS else _one(envelope.result, RESULTS.get(method, Any))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # each string is looked at only now
        raise BadAnswer(f"to {method} with something else: {error}") from error
    return {"jsonrpc": "2.0", "id": 1, "result": result}


def _refused(method: str, error: dict[str, Any] | str, status: int) -> EndpointRefused:
    """As much of an error as has a form: makers leave fields out, or put other types there."""
    said = {"message": error} if isinstance(error, str) else error
    message, code, data = said.get("message"), said.get("code"), said.get("data")
    words = message if isinstance(message, str) else ""
    number = code if isinstance(code, int) else None
    kind = kind_of(method, words, number, data, status)
    return EndpointRefused(kind, method, words[:MOST_WORDS], data=data, code=number or 0)


def _one(raw: msgspec.Raw, kind: Any) -> Any:
    # Decoded twice: the type only checks, and web3's formatters want all fields as they came.
    msgspec.json.decode(raw, type=kind)
    return msgspec.json.decode(raw)


def _rows(raw: msgspec.Raw) -> list[Any]:
    """Log by log: checked in one call, 2,500 of them hold the interpreter's lock for 50 ms, and the event loop with
    it, whichever thread this is."""
    return [_one(row, _Log) for row in msgspec.json.decode(raw, type=list[msgspec.Raw])]


def _without_strings(body: bytes) -> bytes:
    """Four times as fast where nothing is escaped, as in logs, of which there are megabytes: the interpreter's lock is
    held all the while, whichever thread this is."""
    return _STRINGS.sub(b"", body) if b"\\" in body else b"".join(body.split(b'"')[::2])


def _is_flat(body: bytes) -> bool:
    if body.count(b"[") + body.count(b"{") <= MAX_NESTING:
        return True
    brackets = _without_strings(body).translate(None, _NO_BRACKETS)
    # Each turn takes the innermost pairs away: what is left after so many turns is nested deeper.
    for _ in range(MAX_NESTING):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return not brackets
