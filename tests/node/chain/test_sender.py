"""Nothing is sent twice and nothing is lost, whatever crashes, hangs, gets stuck or is replaced."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from eth_account import Account
from web3 import Web3

from node.chain.client import ChainClient
from node.chain.errors import InsufficientFunds, TransactionReplaced, TransactionUnconfirmed
from node.chain.faucet import DevnetFaucet
from node.chain.outbox import Fate, Outbox
from node.chain.profile import NetworkProfile
from node.chain.refusals import RECEIPT
from node.chain.sender import SendLimits
from protocol.identity import NodeKey

IMPATIENT = SendLimits(poll=0.02, bump_after=60, give_up=0.3)
PATIENT = SendLimits(poll=0.02, bump_after=0.2, give_up=15)
SEND = "eth_sendRawTransaction"


class Sending:
    """A key with coin, an outbox on disk, and clients that use both: each as a new process would."""

    def __init__(self, profile: NetworkProfile, connect: Callable[..., ChainClient], file: Path) -> None:
        self.profile = profile
        self.key = NodeKey.generate()
        self.gets = NodeKey.generate().address
        self._connect = connect
        self._file = file

    def client(self, *urls: str, limits: SendLimits = PATIENT) -> ChainClient:
        profile = msgspec.structs.replace(self.profile, rpc_urls=urls or self.profile.rpc_urls)
        return self._connect(profile, self.key, outbox=self._file, limits=limits)

    async def got(self) -> int:
        """Tokens that arrived: what the chain says of how often it was sent."""
        return (await self.client().balances(self.gets)).token

    def fates(self) -> list[Fate]:
        """What the journal says."""
        outbox = Outbox(self._file, f"{self.profile.chain_id}:{self.profile.contracts.swarm}")
        try:
            return [row.fate for row in outbox.history(self.key.address)]
        finally:
            outbox.close()

    def mined(self) -> int:
        return self.fates().count(Fate.MINED)

    def sign(self, nonce: int, gwei: int) -> bytes:
        """A transaction by another program with the same key."""
        fee = {"maxFeePerGas": gwei * 10**9, "maxPriorityFeePerGas": gwei * 10**9}
        own = Web3.to_checksum_address(self.key.address)
        fields = {"to": own, "value": 1, "nonce": nonce, "gas": 21_000, "chainId": self.profile.chain_id, **fee}
        return bytes(Account.sign_transaction(fields, self.key.secret).raw_transaction)


@pytest.fixture
async def sending(profile: NetworkProfile, connect: Callable[..., ChainClient], tmp_path: Path) -> Sending:
    sending = Sending(profile, connect, tmp_path / "outbox.sqlite")
    await DevnetFaucet(sending.client()).fund(sending.key.address, coin=10**19)
    return sending


@contextmanager
def no_blocks(chain_rpc: Callable[..., Any]) -> Iterator[None]:
    chain_rpc("evm_setAutomine", False)
    try:
        yield
    finally:
        chain_rpc("evm_setAutomine", True)


async def test_a_lost_answer_does_not_make_it_two(sending: Sending, meddler: Any) -> None:
    meddler.after[SEND] = None
    client = sending.client(meddler.url, *sending.profile.rpc_urls)
    await client.faucet(sending.gets, 5)
    assert await sending.got() == 5
    assert sending.fates() == [Fate.MINED]


async def test_an_endpoints_own_trouble_is_no_refusal(sending: Sending, meddler: Any) -> None:
    meddler.after[SEND] = {"error": {"code": -32603, "message": "internal error"}}
    await sending.client(meddler.url).faucet(sending.gets, 5)
    assert await sending.got() == 5
    assert sending.fates() == [Fate.MINED]


async def test_what_was_written_down_and_never_sent_is_sent_after_a_restart(sending: Sending, meddler: Any) -> None:
    meddler.before[SEND] = None
    with pytest.raises(TransactionUnconfirmed):
        await sending.client(meddler.url, limits=IMPATIENT).faucet(sending.gets, 5)
    assert await sending.got() == 0
    await sending.client().faucet(sending.gets, 5)
    assert await sending.got() == 5
    assert sending.fates() == [Fate.MINED]


async def test_what_was_mined_unseen_is_told_after_a_restart(sending: Sending, meddler: Any) -> None:
    meddler.after["eth_getTransactionReceipt"] = {"result": None}
    meddler.after["eth_getTransactionCount"] = {"result": "0x0"}
    with pytest.raises(TransactionUnconfirmed) as caught:
        await sending.client(meddler.url, limits=IMPATIENT).faucet(sending.gets, 5)
    (left,) = await sending.client().resume(sending.key)
    sent = left.pending
    assert (left.fate, sent.hash, sent.action) == (Fate.MINED, caught.value.transaction, "mint test tokens")
    assert left.receipt is not None and left.receipt.transaction == caught.value.transaction
    assert await sending.client().resume(sending.key) == []
    assert sending.fates() == [Fate.MINED]
    await sending.client().faucet(sending.gets, 5)
    assert await sending.got() == 10


async def test_a_stuck_transaction_is_paid_better_after_a_restart(sending: Sending, chain_rpc: Any) -> None:
    with no_blocks(chain_rpc):
        with pytest.raises(TransactionUnconfirmed):
            await sending.client(limits=IMPATIENT).faucet(sending.gets, 5)
        before = offers(chain_rpc)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sending.client().faucet, sending.gets, 7)
            await until(lambda: len(now := offers(chain_rpc)) == 2 and now[0] > before[0])
            await trio.to_thread.run_sync(chain_rpc, "evm_mine")
    assert await sending.got() == 12
    await sending.client().resume(sending.key)
    assert sending.mined() == 2


async def until(check: Callable[[], bool]) -> None:
    """check asks the chain; looked at until it holds."""
    with trio.fail_after(60):
        while not await trio.to_thread.run_sync(check):
            await trio.sleep(0.02)


def offers(chain_rpc: Callable[..., Any]) -> list[int]:
    """What the waiting transactions offer per gas, by their number."""
    content = chain_rpc("txpool_content")
    by_nonce = next(iter(content["pending"].values()), {})
    return [int(by_nonce[nonce]["maxFeePerGas"], 16) for nonce in sorted(by_nonce, key=int)]


async def test_an_unused_number_before_ours_is_filled(sending: Sending, chain_rpc: Any) -> None:
    with no_blocks(chain_rpc):
        others = chain_rpc(SEND, "0x" + sending.sign(0, 3).hex())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sending.client().faucet, sending.gets, 5)
            await until(lambda: len(offers(chain_rpc)) == 2)
            await trio.to_thread.run_sync(chain_rpc, "anvil_dropTransaction", others)
            await trio.to_thread.run_sync(chain_rpc, "evm_setAutomine", True)
    assert await sending.got() == 5


async def test_a_number_that_another_program_used_is_told_and_nothing_happened(
    sending: Sending, chain_rpc: Any
) -> None:
    with no_blocks(chain_rpc):
        with pytest.raises(TransactionReplaced) as caught:
            async with trio.open_nursery(strict_exception_groups=False) as nursery:
                nursery.start_soon(sending.client().faucet, sending.gets, 5)
                await until(lambda: bool(offers(chain_rpc)))
                await trio.to_thread.run_sync(chain_rpc, SEND, "0x" + sending.sign(0, 30).hex())
                await trio.to_thread.run_sync(chain_rpc, "evm_mine")
        assert "number 0" in caught.value.why
    assert await sending.got() == 0
    assert set(sending.fates()) == {Fate.REPLACED}
    await sending.client().faucet(sending.gets, 5)
    assert await sending.got() == 5


async def test_an_endpoint_that_counts_too_few_does_not_make_us_use_a_number_twice(
    sending: Sending, meddler: Any
) -> None:
    client = sending.client(meddler.url)
    await client.faucet(sending.gets, 5)
    meddler.before["eth_getTransactionCount"] = {"result": "0x0"}
    await client.faucet(sending.gets, 6)
    assert await sending.got() == 11
    assert sending.fates() == [Fate.MINED, Fate.MINED]


@pytest.mark.parametrize(("batches", "requests"), [(True, 3), (False, 8)])
async def test_a_transaction_takes_three_requests(sending: Sending, meddler: Any, batches: bool, requests: int) -> None:
    """What is asked before it, the sending, and its receipt; the control takes one question at a time."""
    meddler.batches = batches
    client, looks = sending.client(meddler.url, limits=SendLimits(bump_after=60.0)), list[str]()
    await client.faucet(sending.gets, 1)
    before = meddler.posts
    meddler.at = lambda method, when: looks.append(method) if (method, when) == (RECEIPT, "before") else None
    await client.faucet(sending.gets, 2)
    # On a busy machine the receipt is not there at the first look, which then asks whether the number is used.
    assert meddler.posts - before - 2 * (len(looks) - 1) == requests


async def test_too_low_a_fee_is_raised_at_once(sending: Sending, meddler: Any) -> None:
    meddler.before[SEND] = {"error": {"code": -32000, "message": "transaction underpriced"}}
    meddler.times = 1
    await sending.client(meddler.url).faucet(sending.gets, 5)
    assert await sending.got() == 5
    assert sending.fates() == [Fate.REFUSED, Fate.MINED]


async def test_a_refusal_leaves_nothing_to_send_again(sending: Sending, meddler: Any) -> None:
    meddler.before[SEND] = {"error": {"code": -32000, "message": "insufficient funds for gas * price + value"}}
    with pytest.raises(InsufficientFunds):
        await sending.client(meddler.url).faucet(sending.gets, 5)
    assert sending.fates() == [Fate.REFUSED]
    assert await sending.client().resume(sending.key) == []
    assert await sending.got() == 0


async def test_a_receipt_whose_block_is_replaced_does_not_count(sending: Sending, chain_rpc: Any) -> None:
    limits = msgspec.structs.replace(PATIENT, confirmations=2)
    snapshot = chain_rpc("evm_snapshot")
    async with trio.open_nursery() as nursery:
        start = int(chain_rpc("eth_blockNumber"), 16)
        nursery.start_soon(sending.client(limits=limits).faucet, sending.gets, 5)
        await until(lambda: int(chain_rpc("eth_blockNumber"), 16) > start)
        await trio.to_thread.run_sync(chain_rpc, "evm_revert", snapshot)
        await until(lambda: int(chain_rpc("eth_blockNumber"), 16) > start)
        assert await sending.got() == 5 and sending.mined() == 0
        await trio.to_thread.run_sync(chain_rpc, "anvil_mine", "0x2")
    assert await sending.got() == 5
    assert sending.fates().count(Fate.MINED) == 1


async def test_a_new_chain_is_not_sent_what_was_left_of_the_old_one(
    sending: Sending, meddler: Any, connect: Callable[..., ChainClient], tmp_path: Path
) -> None:
    meddler.before[SEND] = None
    with pytest.raises(TransactionUnconfirmed):
        await sending.client(meddler.url, limits=IMPATIENT).faucet(sending.gets, 5)
    other = msgspec.structs.replace(sending.profile.contracts, swarm=sending.profile.contracts.vault)
    elsewhere = msgspec.structs.replace(sending.profile, contracts=other)
    assert await connect(elsewhere, outbox=tmp_path / "outbox.sqlite").resume(sending.key) == []
    assert await sending.got() == 0
