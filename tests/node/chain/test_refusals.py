"""What makers of endpoints write into their refusals, as public issue threads have it, and what is made of each."""
# ruff: noqa: E501 - a row is a line

from typing import Any

import msgspec
import pytest
from eth_abi.abi import encode
from eth_hash.auto import keccak

from node.chain.client import ChainClient
from node.chain.errors import InsufficientFunds, InsufficientStake, Reverted, RpcRefused, scrubbed, shown, translate
from node.chain.refusals import (
    CALL,
    ESTIMATE,
    LOGS,
    RESTS,
    SEND,
    EndpointRefused,
    Marks,
    RefusalKind,
    kind_of,
    revert_of,
)
from node.chain.simulate import SimulatedStep
from protocol.identity import NodeKey
from tests.node.chain.test_client import Connect, with_urls
from tests.node.chain.test_lag import WAITS
from tests.node.chain.test_sender import Sending, sending

__all__ = ["sending"]
BLOCK, STATE = "eth_getBlockByNumber", "eth_getBalance"
WHO = "0x" + "11" * 20
EVICTED = "0x" + (keccak(b"NodeEvicted(uint256,address)")[:4] + encode(["uint256", "address"], [7, WHO])).hex()
TOO_LOW = ["address", "uint256", "uint256"], [WHO, 5 * 10**18, 20 * 10**18]
STAKE = "0x" + (keccak(b"StakeTooLow(address,uint256,uint256)")[:4] + encode(*TOO_LOW)).hex()
REASON = "0x08c379a0" + encode(["string"], ["rate limit of this contract"]).hex()

ROWS: list[tuple[str, RefusalKind, str, int | None, str, Any, int]] = [
    # maker, meaning, method, code, message, data, HTTP status
    ("geth", RefusalKind.REVERTED, CALL, 3, "execution reverted", EVICTED, 200),
    ("geth, a reason of any words", RefusalKind.REVERTED, CALL, 3, "execution reverted: rate limit of this contract", REASON, 200),
    ("geth, without data", RefusalKind.REVERTED, ESTIMATE, -32000, "execution reverted", None, 200),
    ("geth, of gas", RefusalKind.REVERTED, CALL, -32000, "out of gas", None, 200),
    ("geth, another halt", RefusalKind.REVERTED, CALL, -32000, "invalid opcode: INVALID", None, 200),
    ("Nethermind", RefusalKind.REVERTED, CALL, -32000, "execution reverted", EVICTED, 200),
    ("Nethermind, Parity", RefusalKind.REVERTED, CALL, -32015, "VM execution error.", f"Reverted {EVICTED}", 200),
    ("Nethermind, in words", RefusalKind.REVERTED, CALL, -32015, "VM execution error.", "Reverted ERC721", 200),
    ("Besu", RefusalKind.REVERTED, CALL, -32000, "Execution reverted", EVICTED, 200),
    ("Frontier", RefusalKind.REVERTED, CALL, -32603, "VM Exception while processing transaction: revert", EVICTED, 200),
    ("a gateway that hides the words", RefusalKind.REVERTED, CALL, -32603, "Internal error", {"data": EVICTED}, 200),
    ("Filecoin", RefusalKind.REVERTED, CALL, 1, "message execution failed (exit=[33], revert reason=[0x])", None, 200),
    ("Klaytn", RefusalKind.REVERTED, CALL, -32000, "evm: execution reverted", None, 500),
    ("Hardhat 3", RefusalKind.BROKEN, CALL, -32603, "Internal error", {"message": "Internal error"}, 200),
    ("Base", RefusalKind.QUOTA, CALL, -32016, "over rate limit", None, 200),
    ("Base, wrapped", RefusalKind.QUOTA, BLOCK, -32000, '429 Too Many Requests: {"code":-32016,"message":"over rate limit"}', None, 200),
    ("Base, logs", RefusalKind.QUOTA, LOGS, -32016, "over rate limit", None, 200),
    ("Infura, a day", RefusalKind.QUOTA, BLOCK, -32005, "daily request count exceeded, request rate limited", None, 200),
    ("Infura, logs", RefusalKind.QUOTA, LOGS, -32005, "daily request count exceeded, request rate limited", None, 429),
    ("Infura, a project", RefusalKind.QUOTA, STATE, -32005, "project ID request rate exceeded", {"rate": {"backoff": 1}}, 429),
    ("Alchemy", RefusalKind.QUOTA, CALL, 429, "Your app has exceeded its compute units per second capacity.", None, 429),
    ("Alchemy, logs in 200", RefusalKind.QUOTA, LOGS, 429, "Your app has exceeded its compute units per second capacity.", None, 200),
    ("QuickNode", RefusalKind.QUOTA, CALL, -32012, "credits limited to 6000/sec", None, 200),
    ("QuickNode, of seconds", RefusalKind.QUOTA, CALL, -32007, "50/second request limit reached - reduce calls per second", None, 200),
    ("Tenderly", RefusalKind.QUOTA, CALL, -32005, "rate limit exceeded", None, 429),
    ("EIP-1474", RefusalKind.QUOTA, CALL, -32005, "limit exceeded", None, 200),
    ("a free plan", RefusalKind.QUOTA, CALL, -32098, "You reached the free tier limit", None, 200),
    ("Parity, a number in the queue", RefusalKind.OCCUPIED, SEND, -32010, "Transaction with the same nonce already exists in the queue.", None, 200),
    ("geth, an index in the making", RefusalKind.PRUNED, CALL, -32000, "state histories haven't been fully indexed yet", None, 200),
    ("a node that is not there yet", RefusalKind.BEHIND, CALL, -32000, "block 5 has not been synced yet", None, 200),
    ("a range in other words", RefusalKind.RANGE, LOGS, -32000, "the range of blocks must be less than 1024", None, 200),
    ("geth's pool", RefusalKind.QUOTA, SEND, -32000, "txpool is full", None, 200),
    ("Alchemy, a month", RefusalKind.BARRED, BLOCK, -32600, "Monthly capacity limit exceeded. Visit the dashboard", None, 403),
    ("Ankr", RefusalKind.BARRED, BLOCK, -32000, "Unauthorized: You must authenticate your request with an API key.", None, 200),
    ("Ankr, a chain", RefusalKind.BARRED, BLOCK, -32052, "API key is not allowed to access blockchain", None, 403),
    ("Infura, settings", RefusalKind.BARRED, STATE, -32002, "rejected due to project ID settings", None, 200),
    ("a gateway", RefusalKind.BARRED, BLOCK, -32600, "forbidden", None, 403),
    ("a gateway, by status alone", RefusalKind.BARRED, LOGS, None, "", None, 403),
    ("proxyd", RefusalKind.BROKEN, BLOCK, -32011, "no backend is currently healthy to serve traffic", None, 503),
    ("proxyd, time", RefusalKind.BROKEN, CALL, -32015, "backend gateway timeout", None, 504),
    ("Alchemy", RefusalKind.BROKEN, CALL, -32603, "internal error, try again", None, 200),
    ("nobody knows", RefusalKind.BROKEN, STATE, -32000, "moon in the wrong house", None, 200),
    ("geth behind a balancer", RefusalKind.BEHIND, BLOCK, -32000, "header not found", None, 200),
    ("Besu", RefusalKind.BEHIND, CALL, -32000, "Block not found", None, 200),
    ("Nitro, logs", RefusalKind.BEHIND, LOGS, -32000, "invalid block range params", None, 200),
    ("geth, logs", RefusalKind.BEHIND, LOGS, -32602, "block range extends beyond current head block", None, 200),
    ("Avalanche, logs", RefusalKind.BEHIND, LOGS, -32000, "requested from block 12 after last accepted block 10", None, 200),
    ("Avalanche", RefusalKind.BEHIND, CALL, -32000, "cannot query unfinalized data", None, 200),
    ("Parity, logs", RefusalKind.BEHIND, LOGS, -32000, "One of the blocks specified in filter (fromBlock, toBlock or blockHash) cannot be found", None, 200),
    ("Hedera", RefusalKind.BEHIND, BLOCK, -32001, "Requested resource not found.", None, 200),
    ("Nethermind's pool", RefusalKind.BEHIND, SEND, -32010, "NonceGap, Future nonce. Expected nonce: 62", None, 200),
    ("geth", RefusalKind.PRUNED, CALL, -32000, "missing trie node 9a71ab (path ) state 0x9a is not available", None, 200),
    ("geth, path scheme", RefusalKind.PRUNED, STATE, -32000, "historical state not available in path scheme yet", None, 200),
    ("geth, tracing", RefusalKind.PRUNED, CALL, -32000, "required historical state unavailable (reexec=128)", None, 200),
    ("Parity", RefusalKind.PRUNED, STATE, -32000, "This request is not supported because your node is running with state pruning. Run with --pruning=archive.", None, 200),
    ("PublicNode", RefusalKind.PRUNED, CALL, -32701, "Archive requests require a personal token", None, 403),
    ("dRPC", RefusalKind.UNSUPPORTED, CALL, -32601, "method is not available on freetier", None, 200),
    ("geth", RefusalKind.UNSUPPORTED, BLOCK, -32601, "the method eth_getBlockByNumber does not exist/is not available", None, 200),
    ("proxyd", RefusalKind.UNSUPPORTED, LOGS, -32001, "rpc method is not whitelisted", None, 200),
    ("by its number alone", RefusalKind.UNSUPPORTED, STATE, -32601, "nope", None, 200),
    ("Infura, blocks", RefusalKind.RANGE, LOGS, -32602, "range 1000000 exceeds limit of 10000", None, 200),
    ("Infura, logs", RefusalKind.RANGE, LOGS, -32005, "query returned more than 10000 results", None, 200),
    ("Tenderly, in its data", RefusalKind.RANGE, LOGS, -32602, "invalid params", {"payload": "range 9009594 is bigger than range limit 2000"}, 200),
    ("Morph", RefusalKind.RANGE, LOGS, -32000, "block range is larger than max block range, block range = 5120, max block range = 5000", None, 200),
    ("QuickNode", RefusalKind.RANGE, LOGS, -32614, "eth_getLogs is limited to a 10,000 range", None, 413),
    ("BNB", RefusalKind.RANGE, LOGS, -32000, "exceed maximum block range: 5000", None, 200),
    ("BNB, shorter", RefusalKind.RANGE, LOGS, -32005, "limit exceeded", None, 200),
    ("Candle", RefusalKind.RANGE, LOGS, -32600, "block range too high", None, 200),
    ("Alchemy", RefusalKind.RANGE, LOGS, -32600, "You can make eth_getLogs requests with up to a 500 block range.", None, 400),
    ("Alchemy, bytes", RefusalKind.RANGE, LOGS, -32602, "Log response size exceeded. Please reduce query block range.", None, 200),
    ("Moonbeam", RefusalKind.RANGE, LOGS, -32603, "block range is too wide (maximum 1024)", None, 200),
    ("dRPC", RefusalKind.RANGE, LOGS, 35, "ranges over 10000 blocks are not supported on freetier", None, 400),
    ("Avalanche", RefusalKind.RANGE, LOGS, -32000, "requested too many blocks from 1 to 9000, maximum is set to 2048", None, 200),
    ("geth", RefusalKind.KNOWN, SEND, -32000, "already known", None, 200),
    ("Nethermind", RefusalKind.KNOWN, SEND, -32010, "AlreadyKnown", None, 200),
    ("Parity", RefusalKind.KNOWN, SEND, -32010, "Transaction with the same hash was already imported.", None, 200),
    ("Besu", RefusalKind.KNOWN, SEND, -32000, "Known transaction", None, 200),
    ("geth", RefusalKind.NONCE_USED, SEND, -32000, "nonce too low: next nonce 5, tx nonce 4", None, 200),
    ("Nethermind", RefusalKind.NONCE_USED, SEND, -32010, "OldNonce, Current nonce: 5, nonce of rejected tx: 4", None, 200),
    ("Parity", RefusalKind.NONCE_USED, SEND, -32010, "Transaction nonce is too low. Try incrementing the nonce.", None, 200),
    ("geth", RefusalKind.OCCUPIED, SEND, -32000, "replacement transaction underpriced", None, 200),
    ("Nethermind", RefusalKind.OCCUPIED, SEND, -32010, "FeeTooLowToCompete", None, 200),
    ("geth", RefusalKind.UNDERPRICED, SEND, -32000, "transaction underpriced", None, 200),
    ("Nethermind", RefusalKind.UNDERPRICED, SEND, -32010, "FeeTooLow, MaxFeePerGas too low", None, 200),
    ("geth, of the block", RefusalKind.UNDERPRICED, SEND, -32000, "max fee per gas less than block base fee", None, 200),
    ("geth", RefusalKind.FUNDS, SEND, -32000, "insufficient funds for gas * price + value", None, 200),
    ("Besu", RefusalKind.FUNDS, SEND, -32004, "Upfront cost exceeds account balance", None, 200),
    ("Nethermind", RefusalKind.FUNDS, SEND, -32010, "InsufficientFunds, Account balance: 0", None, 200),
    ("geth", RefusalKind.REJECTED, SEND, -32000, "intrinsic gas too low", None, 200),
    ("geth", RefusalKind.REJECTED, ESTIMATE, -32000, "gas required exceeds allowance (21000)", None, 200),
    ("geth", RefusalKind.REJECTED, SEND, -32000, "invalid chain id for signer", None, 200),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}: {row[4][:40]}")
def test_a_makers_refusal_is_read_by_what_it_means(
    row: tuple[str, RefusalKind, str, int | None, str, Any, int],
) -> None:
    _, kind, method, code, message, data, status = row
    assert kind_of(method, message, code, data, status) is kind


def test_no_method_but_a_call_is_refused_by_a_contract() -> None:
    for method in (BLOCK, STATE, LOGS, SEND, "eth_getCode"):
        assert kind_of(method, "execution reverted", 3, EVICTED) is not RefusalKind.REVERTED
    assert kind_of(CALL, "execution reverted", 3, EVICTED) is RefusalKind.REVERTED, "the control"


NAMED = 'NodeEvicted(7, "' + WHO + '")'
GANACHE = {
    "0x" + "ab" * 32: {"error": "revert", "program_counter": 279, "return": EVICTED},
    "stack": "RuntimeError: revert",
}
FORMS: dict[str, tuple[str, Any]] = {
    "geth, anvil": ("execution reverted", EVICTED),
    "Hardhat 2": (
        f"VM Exception while processing transaction: reverted with custom error '{NAMED}'",
        {"data": EVICTED},
    ),
    "Hardhat 2, its words": (f"VM Exception while processing transaction: reverted with custom error '{NAMED}'", None),
    "Hardhat 2, a stranger's error": (f"reverted with an unrecognized custom error (return data: {EVICTED})", None),
    "Hardhat 3": ("execution reverted", {"message": "execution reverted", "txHash": "0x" + "22" * 32, "data": EVICTED}),
    "Parity": ("VM execution error.", f"Reverted {EVICTED}"),
    "ganache 6": ("VM Exception while processing transaction: revert", GANACHE),
    "ganache 7": (
        "VM Exception while processing transaction: revert",
        {"hash": None, "result": EVICTED, "reason": None},
    ),
    "a client's words in a gateway's": (f'error code 3: execution reverted, data: "{EVICTED}"', None),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_contracts_reason_is_read_in_each_makers_form(form: str) -> None:
    message, data = FORMS[form]
    assert kind_of(CALL, message, -32603, data) is RefusalKind.REVERTED
    found = revert_of(message, data)
    assert found.name == "NodeEvicted" and found.args["pool"] == 7 and str(found.args["node"]).lower() == WHO


def test_a_reason_that_is_told_in_words_without_its_arguments_is_still_told() -> None:
    error = translate(EndpointRefused(RefusalKind.REVERTED, CALL, "reverted with custom error 'StakeTooLow()'"), "join")
    assert isinstance(error, Reverted) and error.name == "StakeTooLow"
    assert isinstance(translate(EndpointRefused(RefusalKind.REVERTED, CALL, "", data=STAKE), "join"), InsufficientStake)
    assert revert_of("reverted with reason string 'no'", None).args == {"message": "no"}
    assert revert_of("reverted with panic code 0x11 (overflow)", None).args == {"code": 17}
    assert revert_of("reverted with custom error 'Theirs(1)'", None).name == "unknown"


def test_an_endpoints_words_are_told_with_its_address_and_a_remedy() -> None:
    error = translate(
        EndpointRefused(RefusalKind.PRUNED, CALL, "missing trie node", "https://rpc.example/…", code=-32000),
        "read pool 1",
    )
    assert isinstance(error, RpcRefused) and "https://rpc.example/…: missing trie node" in error.why
    assert "archive" in error.remedy
    assert isinstance(
        translate(EndpointRefused(RefusalKind.FUNDS, SEND, "insufficient funds"), "join"), InsufficientFunds
    )


def test_a_refusal_as_long_as_an_answer_may_be_is_read_at_once() -> None:
    for words in ("range " * 200_000, "exceed" + " a" * 500_000, "block" * 200_000, "0x" + "ab" * 500_000, "(" * 10**6):
        kind_of(LOGS, words, -32000, [words, {"x": words}])
        revert_of(words, {"data": words})


# ---- rests


def test_an_endpoint_rests_longer_each_time_and_anew_once_it_answered() -> None:
    marks, least, most = Marks(), RESTS[RefusalKind.QUOTA].least, RESTS[RefusalKind.QUOTA].most
    now, rests = 0.0, []
    for _ in range(8):
        marks.note("a", CALL, RefusalKind.QUOTA, now)
        rests.append(marks.rests("a", LOGS, now))
        now += rests[-1]
        assert marks.rests("a", CALL, now) == 0.0
    assert rests[:3] == [least, 2 * least, 4 * least] and rests[-1] == most
    assert marks.rests("b", CALL, 0.0) == 0.0, "each for itself"
    marks.answered("a", CALL)
    marks.note("a", CALL, RefusalKind.QUOTA, now)
    assert marks.rests("a", CALL, now) == least


def test_a_method_that_an_endpoint_lacks_rests_alone() -> None:
    marks = Marks()
    marks.note("a", LOGS, RefusalKind.UNSUPPORTED, 0.0)
    assert marks.rests("a", LOGS, 0.0) == 600.0 and marks.rests("a", CALL, 0.0) == 0.0
    marks.note("a", CALL, RefusalKind.REVERTED, 0.0)
    assert marks.rests("a", CALL, 0.0) == 0.0, "a contract's word is nothing against the endpoint"


# ---- secrets


@pytest.mark.parametrize(
    "url",
    [
        "https://user:SECRETKEY@rpc.example/",
        "https://rpc.example/v2/SECRETKEY",
        "https://rpc.example/?apikey=SECRETKEY",
        "https://[2001:db8::1]:8545/SECRETKEY/x",
    ],
)
def test_no_secret_of_a_url_is_told(url: str) -> None:
    said = scrubbed(f"403 for {url}: key SECRETKEY is blocked", url)
    assert "SECRETKEY" not in said and "blocked" in said
    assert "SECRETKEY" not in shown(url) and shown(url).endswith("/…") == ("@" not in url)


# ---- against a chain


REFUSALS = {
    "Base: a quota in the body": (-32016, "over rate limit"),
    "Infura: a quota of a day": (-32005, "daily request count exceeded, request rate limited"),
    "a wrapped 429": (-32000, '429 Too Many Requests: {"code":-32016}'),
    "behind": (-32000, "header not found"),
    "pruned": (-32000, "missing trie node 9a71ab (path ) state 0x9a is not available"),
    "not on the free tier": (-32601, "method is not available on freetier"),
    "out of order": (-32603, "internal error, try again"),
    "unheard of": (-39999, "the moon is in the wrong house"),
    "not understood": (-32602, "invalid argument 0"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_the_healthy_next_endpoint_is_asked(people: Any, meddler: Any, connect: Connect, refusal: str) -> None:
    code, message = REFUSALS[refusal]
    for method in (BLOCK, CALL):
        meddler.before[method] = {"error": {"code": code, "message": message}}
    client = connect(with_urls(people.client.profile, meddler.url, *people.client.profile.rpc_urls))
    assert (await client.block()).number > 0 and await client.pool_count() > 0
    asked: list[str] = []
    meddler.at = lambda method, when: asked.append(method)
    assert await client.pool_count() > 0
    assert refusal == "not understood" or not asked, "it rests"


async def test_an_endpoints_refusal_is_no_contracts_word(people: Any, meddler: Any, connect: Connect) -> None:
    client = connect(with_urls(people.client.profile, meddler.url))
    await client.connect()
    for code, message in (
        (-32000, "header not found"),
        (-32603, "internal error"),
        (-32601, "method is not available on freetier"),
    ):
        meddler.before[CALL] = {"error": {"code": code, "message": message, "data": None}}
        with pytest.raises(Exception, match=message) as caught:
            await client.pool_count()
        assert not isinstance(caught.value, Reverted)


async def test_who_has_one_endpoint_waits_out_its_quota(
    people: Any, meddler: Any, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RESTS, RefusalKind.QUOTA, RESTS[RefusalKind.QUOTA]._replace(least=0.05))  # type: ignore[arg-type]
    client = connect(with_urls(people.client.profile, meddler.url))
    await client.connect()
    meddler.before[CALL], meddler.times = {"error": {"code": -32016, "message": "over rate limit"}}, 1
    assert await client.pool_count() > 0


@pytest.mark.parametrize("form", ["Hardhat 2", "Hardhat 2, its words", "Parity", "ganache 6", "ganache 7"])
async def test_a_proxy_that_rewrites_errors_hides_no_reason(
    people: Any, meddler: Any, connect: Connect, form: str
) -> None:
    """The court and the chair branch on the names."""

    def rewritten(answer: dict[str, Any]) -> dict[str, Any]:
        if "error" not in answer:
            return answer
        message, data = FORMS[form]
        bytes_ = answer["error"]["data"]
        words = 'NotMember(7, "' + WHO + '")'
        told = msgspec.json.decode(msgspec.json.encode(data).decode().replace(EVICTED, bytes_).encode())
        return answer | {"error": {"code": -32603, "message": message.replace(NAMED, words), "data": told}}

    meddler.rewrite = rewritten
    client = connect(with_urls(people.client.profile, meddler.url))
    step = SimulatedStep("claim", client.contracts.claim(people.pool, people.node.address, 1, []))
    with pytest.raises(Reverted) as caught:
        await client.simulate([step], people.manager.address)
    assert caught.value.name == "NotMember"


async def test_a_send_that_one_endpoint_refuses_goes_on_at_once_with_equal_bytes(
    sending: Sending, meddler: Any
) -> None:
    meddler.before[SEND] = {"error": {"code": -32016, "message": "over rate limit"}}
    await sending.client(meddler.url, *sending.profile.rpc_urls).faucet(sending.gets, 5)
    assert await sending.got() == 5 and len(sending.fates()) == 1, "one variant"


async def test_a_send_that_the_only_endpoint_refuses_is_offered_again_and_pays_no_more(
    sending: Sending, meddler: Any
) -> None:
    meddler.before[SEND], meddler.times = {"error": {"code": -32603, "message": "internal error"}}, 1
    await sending.client(meddler.url, limits=WAITS).faucet(sending.gets, 5)
    assert await sending.got() == 5 and len(sending.fates()) == 1


async def test_an_endpoint_that_runs_no_program_of_ours_is_asked_for_each_contract(
    people: Any, meddler: Any, connect: Connect
) -> None:
    def refuses(request: dict[str, Any]) -> dict[str, Any] | None:
        if request["method"] == CALL and "to" not in request["params"][0]:
            return {"error": {"code": -32602, "message": "missing required field 'to'"}}
        return None

    meddler.rule = refuses
    profile = with_urls(people.client.profile, meddler.url)
    await connect(profile).connect()
    wrong = msgspec.structs.replace(profile.contracts, court=NodeKey.generate().address)
    with pytest.raises(Exception, match="no code at the address of: court"):
        await connect(msgspec.structs.replace(profile, contracts=wrong)).connect()


async def test_an_endpoint_without_a_recommended_tip_is_asked_for_the_price(sending: Sending, meddler: Any) -> None:
    meddler.before["eth_maxPriorityFeePerGas"] = {"error": {"code": -32601, "message": "method not found"}}
    meddler.before["eth_feeHistory"] = {"result": {"oldestBlock": "0x1", "baseFeePerGas": ["0x1"], "gasUsedRatio": []}}
    await sending.client(meddler.url).faucet(sending.gets, 5)
    assert await sending.got() == 5


async def test_a_range_is_halved_for_the_endpoint_that_refuses_it_alone(
    people: Any, meddler: Any, connect: Connect
) -> None:
    def grudging(request: dict[str, Any]) -> dict[str, Any] | None:
        asked = request["params"][0] if request["method"] == LOGS else {}
        if asked and int(asked["toBlock"], 16) - int(asked["fromBlock"], 16) > 3:
            return {"error": {"code": -32602, "message": "range 5 exceeds limit of 4"}}
        return None

    meddler.rule = grudging
    client: ChainClient = connect(with_urls(people.client.profile, meddler.url, *people.client.profile.rpc_urls))
    head = (await client.block()).number
    found = await client.logs(0, head, [])
    assert found == await people.client.logs(0, head, [])
    assert client.log_blocks <= 4
    meddler.before[BLOCK] = {"error": {"code": -32016, "message": "over rate limit"}}
    await client.block()
    assert client.url == people.client.profile.rpc_urls[0] and client.log_blocks > 4
