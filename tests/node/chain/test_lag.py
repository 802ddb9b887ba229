"""Endpoints whose parts lag behind each other: one transaction stays one."""

from typing import Any

import msgspec
import pytest
import trio

from node.chain.errors import FeeTooHigh, TransactionReplaced, TransactionUnconfirmed
from node.chain.outbox import Fate
from node.chain.receipts import use_of
from node.chain.rpc import Eth, FallbackProvider
from node.chain.sender import SendLimits
from tests.node.chain.test_sender import SEND, Sending, no_blocks, offers, sending, until

__all__ = ["sending"]
RECEIPT, BY_HASH = "eth_getTransactionReceipt", "eth_getTransactionByHash"
BLOCK = "eth_getBlockByNumber"
WAITS = SendLimits(poll=0.2, bump_after=60, give_up=15, lag=1.5)
SHORT = msgspec.structs.replace(WAITS, give_up=0.3)
TOO_LOW = {"error": {"code": -32000, "message": "nonce too low"}}


@pytest.mark.parametrize(("blind", "confirmations"), [((RECEIPT,), 0), ((RECEIPT, BY_HASH), 2)])
async def test_a_count_that_runs_ahead_of_receipts_is_no_replacement(
    sending: Sending, meddler: Any, chain_rpc: Any, blind: tuple[str, ...], confirmations: int
) -> None:
    meddler.lags = dict.fromkeys(blind, 0.5)
    limits = msgspec.structs.replace(WAITS, confirmations=confirmations)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sending.client(meddler.url, limits=limits).faucet, sending.gets, 5)
        await until(lambda: meddler.sent == 1)
        await trio.sleep(0.6)
        await trio.to_thread.run_sync(chain_rpc, "anvil_mine", hex(confirmations))
    assert await sending.got() == 5
    assert sending.fates() == [Fate.MINED] and meddler.sent == 1


async def test_a_count_ahead_is_no_replacement_even_where_old_blocks_are_not_counted(
    sending: Sending, meddler: Any
) -> None:
    meddler.lags = dict.fromkeys((RECEIPT, BY_HASH, BLOCK), 0.5)
    await sending.client(meddler.url, limits=WAITS).faucet(sending.gets, 5)
    assert await sending.got() == 5
    assert sending.fates() == [Fate.MINED] and meddler.sent == 1


@pytest.mark.parametrize("blind", [(RECEIPT,), (RECEIPT, BY_HASH)])
async def test_an_endpoint_that_takes_it_and_says_nonce_too_low_gets_it_once(
    sending: Sending, meddler: Any, blind: tuple[str, ...]
) -> None:
    meddler.after[SEND] = TOO_LOW
    meddler.lags = dict.fromkeys(blind, 0.5)
    await sending.client(meddler.url, limits=WAITS).faucet(sending.gets, 5)
    assert await sending.got() == 5
    assert sending.fates() == [Fate.MINED] and meddler.sent == 1


async def test_a_restart_while_receipts_lag_sends_nothing_again(sending: Sending, meddler: Any) -> None:
    meddler.lags = dict.fromkeys((RECEIPT, BY_HASH), 3600.0)
    with pytest.raises(TransactionUnconfirmed):
        await sending.client(meddler.url, limits=SHORT).faucet(sending.gets, 5)
    restarted = sending.client(meddler.url, limits=WAITS)
    (left,) = await restarted.resume(sending.key)
    assert left.fate is Fate.PENDING
    meddler.lags.clear()
    await restarted.faucet(sending.gets, 5)
    assert await sending.got() == 5
    assert sending.fates() == [Fate.MINED] and meddler.sent == 1


async def test_a_number_used_by_another_program_is_told_after_the_lag_where_no_block_can_be_asked(
    sending: Sending, meddler: Any, chain_rpc: Any
) -> None:
    with no_blocks(chain_rpc), pytest.raises(TransactionReplaced):
        async with trio.open_nursery(strict_exception_groups=False) as nursery:
            limits = msgspec.structs.replace(WAITS, lag=0.3)
            nursery.start_soon(sending.client(meddler.url, limits=limits).faucet, sending.gets, 5)
            await until(lambda: bool(offers(chain_rpc)))
            meddler.before[BLOCK] = {"error": {"code": -32000, "message": "missing trie node"}}
            await trio.to_thread.run_sync(chain_rpc, SEND, "0x" + sending.sign(0, 30).hex())
            await trio.to_thread.run_sync(chain_rpc, "evm_mine")
    assert await sending.got() == 0
    assert set(sending.fates()) == {Fate.REPLACED}


async def test_another_programs_number_is_believed_once_its_block_is_deep(sending: Sending, chain_rpc: Any) -> None:
    """A block that is replaced may have ours instead."""
    limits = msgspec.structs.replace(WAITS, confirmations=2, lag=0.1)
    snapshot: list[str] = []
    with no_blocks(chain_rpc):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sending.client(limits=limits).faucet, sending.gets, 5)
            await until(lambda: bool(offers(chain_rpc)))
            raw = "0x" + chain_rpc("eth_getRawTransactionByHash", _waiting(chain_rpc)).removeprefix("0x")
            snapshot.append(chain_rpc("evm_snapshot"))
            await trio.to_thread.run_sync(chain_rpc, SEND, "0x" + sending.sign(0, 30).hex())
            await trio.to_thread.run_sync(chain_rpc, "evm_mine")
            await trio.sleep(0.5)
            await trio.to_thread.run_sync(chain_rpc, "evm_revert", snapshot[0])
            await trio.to_thread.run_sync(chain_rpc, SEND, raw)
            await trio.to_thread.run_sync(chain_rpc, "anvil_mine", "0x3")
    assert await sending.got() == 5
    assert sending.fates().count(Fate.MINED) == 1


def _waiting(chain_rpc: Any) -> str:
    content = chain_rpc("txpool_content")["pending"]
    return next(iter(next(iter(content.values())).values()))["hash"]


async def test_an_endpoints_tip_is_capped(sending: Sending, meddler: Any) -> None:
    """One that asked for 9,000 gwei had half a coin paid for one bond."""
    meddler.before["eth_maxPriorityFeePerGas"] = {"result": hex(9_000 * 10**9)}
    receipt = await sending.client(meddler.url, limits=WAITS).faucet(sending.gets, 5)
    assert receipt.cost <= receipt.gas_used * WAITS.max_fee // 5
    assert await sending.got() == 5


async def test_gas_above_the_cap_is_not_paid_and_nothing_is_sent(sending: Sending, meddler: Any) -> None:
    limits = msgspec.structs.replace(WAITS, max_fee=1)
    with pytest.raises(FeeTooHigh) as caught:
        await sending.client(meddler.url, limits=limits).faucet(sending.gets, 5)
    assert "max_fee_gwei" in caught.value.remedy
    assert meddler.sent == 0 and sending.fates() == []


async def test_a_stuck_transaction_is_never_paid_more_than_the_cap(sending: Sending, chain_rpc: Any) -> None:
    limits = msgspec.structs.replace(WAITS, poll=0.02, bump_after=0.05, give_up=0.8, max_fee=3 * 10**9)
    chain_rpc("anvil_setNextBlockBaseFeePerGas", hex(10**9))  # from 2.3 an eighth more a few times is above the cap
    chain_rpc("evm_mine")
    with no_blocks(chain_rpc):
        with pytest.raises(TransactionUnconfirmed):
            await sending.client(limits=limits).faucet(sending.gets, 5)
        (offer,) = offers(chain_rpc)
        assert offer <= limits.max_fee


async def test_a_receipt_ends_the_time_for_which_nothing_was_known(sending: Sending, meddler: Any) -> None:
    """Else a block that is replaced long afterwards would be held against ours at once."""
    meddler.lags = {RECEIPT: 0.5, BY_HASH: 3600.0, BLOCK: 3600.0}
    client = sending.client(meddler.url, limits=WAITS)
    await client.faucet(sending.gets, 5)
    assert client._sender._receipts._missing == {}


async def test_an_endpoint_that_shows_blocks_without_transactions_is_no_proof(sending: Sending, meddler: Any) -> None:
    await sending.client().faucet(sending.gets, 5)
    shown = {"number": "0x1", "hash": "0x" + "11" * 32, "timestamp": "0x1", "transactions": ["0x" + "22" * 32]}
    meddler.before[BLOCK] = {"result": shown}
    provider = FallbackProvider([meddler.url], sending.profile.chain_id)
    try:
        assert use_of(Eth(provider.endpoints), sending.key.address, 0) is None
    finally:
        provider.close()
