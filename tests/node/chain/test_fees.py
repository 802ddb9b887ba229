"""Gas that gets dear: what can wait is sent later, what cannot is paid better for as long as it takes, under a cap."""

from typing import Any

import msgspec
import pytest
import trio

from node.chain.errors import FeeTooHigh, TransactionUnconfirmed
from node.chain.sender import SendLimits
from protocol.upkeep import DAY, LEASE_SECONDS, WEEK, Patience, margin, renewal_due, slot_began
from tests.node.chain.conftest import Settled
from tests.node.chain.test_sender import Sending, no_blocks, offers, sending

UNASKED_RAISES = 5

__all__ = ["sending"]

GWEI = 10**9
QUICK = SendLimits(poll=0.01, bump_after=0.02, give_up=20.0, max_fee=10_000 * GWEI)


def price(chain_rpc: Any, gwei: int) -> int:
    """The time of the block that has this base fee."""
    chain_rpc("anvil_setNextBlockBaseFeePerGas", hex(gwei * GWEI))
    chain_rpc("evm_mine")
    return int(chain_rpc("eth_getBlockByNumber", "latest", False)["timestamp"], 16)


async def test_a_hundredfold_price_is_waited_out_by_a_renewal_and_paid_when_its_time_runs_out(
    profile: Any, settled: Settled, connect: Any, chain_rpc: Any
) -> None:
    people = settled.people
    client = connect(profile, people.node, limits=QUICK)
    price(chain_rpc, 1)
    await client.join(people.pool, "/ip4/10.0.0.1/tcp/2")
    now = price(chain_rpc, 100)
    until = now + margin(LEASE_SECONDS)
    with pytest.raises(FeeTooHigh) as caught:
        await client.join(people.pool, "/ip4/10.0.0.1/tcp/3", patience=Patience(now, until))
    assert caught.value.waits and "is tried again" in caught.value.remedy
    # What cannot wait is sent at the same price, and so is the renewal an hour before the end of its lease.
    await client.join(people.pool, "/ip4/10.0.0.1/tcp/4")
    now = price(chain_rpc, 100)
    await client.join(people.pool, "/ip4/10.0.0.1/tcp/5", patience=Patience(now - 23 * 3600, now + 3600))
    price(chain_rpc, 1)
    now = price(chain_rpc, 1)
    receipt = await client.join(people.pool, "/ip4/10.0.0.1/tcp/6", patience=Patience(now, now + DAY))
    assert receipt.cost < receipt.gas_used * 4 * GWEI


async def test_a_price_that_rises_under_a_sent_transaction_is_followed_more_often_than_five_times(
    sending: Sending, chain_rpc: Any
) -> None:
    limits = msgspec.structs.replace(QUICK, longest_raise=0.05)
    gwei, followed = 1, 0
    price(chain_rpc, gwei)
    with no_blocks(chain_rpc):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sending.client(limits=limits).faucet, sending.gets, 5)
            while followed < UNASKED_RAISES + 3:
                before = await an_offer(chain_rpc, 0)
                gwei = before // GWEI * 5 // 4 + 1
                await trio.to_thread.run_sync(price, chain_rpc, gwei)  # this block takes it no more
                await an_offer(chain_rpc, gwei * GWEI)
                followed += 1
            await trio.to_thread.run_sync(chain_rpc, "evm_mine")
    assert await sending.got() == 5 and sending.mined() == 1


async def an_offer(chain_rpc: Any, more_than: int) -> int:
    with trio.fail_after(15):
        while True:
            now = await trio.to_thread.run_sync(offers, chain_rpc)
            if now and now[0] > more_than:
                return now[0]
            await trio.sleep(0.01)


async def test_blocks_that_do_not_come_are_no_reason_to_pay_more_for_ever(sending: Sending, chain_rpc: Any) -> None:
    price(chain_rpc, 1)
    limits = msgspec.structs.replace(QUICK, give_up=2.0, longest_raise=0.02)
    with no_blocks(chain_rpc), pytest.raises(TransactionUnconfirmed):
        await sending.client(limits=limits).faucet(sending.gets, 5)
    assert len(sending.fates()) == 1 + UNASKED_RAISES


def test_what_is_paid_at_once_is_twice_the_usual_price_and_half_of_the_time_later_what_the_owner_allows() -> None:
    patience, cap = Patience(1000, 1000 + DAY), 10_000
    assert [patience.most(10, cap, at) for at in (0, 1000, 1000 + DAY // 4, 1000 + DAY // 2, 10**6)] == [
        20,
        20,
        447,
        cap,
        cap,
    ]
    assert Patience(5, 5).most(10, cap, 5) == cap and patience.most(9_000, cap, 0) == cap


def test_a_lease_is_renewed_once_in_its_last_eighth_and_a_short_one_leaves_a_minute() -> None:
    assert renewal_due(10 * DAY, LEASE_SECONDS) == 9 * DAY and LEASE_SECONDS - margin(LEASE_SECONDS) == WEEK
    assert [margin(one) for one in (30, 90, 600, 86_400)] == [15, 45, 75, 10_800]


def test_each_node_claims_at_its_own_time_of_the_week_and_all_of_them_spread_over_it() -> None:
    nodes: Any = ["0x" + (one * 2**152 // 7 + one).to_bytes(20).hex() for one in range(140)]
    began = [slot_began(node, 10**9) for node in nodes]
    assert all(10**9 - WEEK < one <= 10**9 for one in began)
    days = [(10**9 - one) // DAY for one in began]
    assert all(days.count(day) >= 10 for day in range(7))
    assert slot_began(nodes[0], began[0] - 1) == began[0] - WEEK and slot_began(nodes[0], began[0]) == began[0]
