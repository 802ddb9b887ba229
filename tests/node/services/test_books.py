"""What a look at a pool's books asks of the chain."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from contracts.bindings import Claimed, PoolFunded, PoolInfo, PostedEarnings
from node.chain.ledger import Ledger
from node.chain.views import Block
from node.clock import Clock
from node.services.books import SHARED_SECONDS, TERMS_SECONDS, Books
from node.services.context import PoolTime
from protocol.identity import NodeKey

POOL = 7
OWN = NodeKey.generate().address
FIELDS = {"block": 1, "transaction": "0x", "log_index": 0, "pool": POOL}


class Contract:
    def __init__(self) -> None:
        self.asked = Counter[str]()
        self.escrow, self.epoch = 5, 0

    async def pool(self, pool: int) -> PoolInfo:
        self.asked["pool"] += 1
        await trio.lowlevel.checkpoint()
        given: Any = dict.fromkeys(PoolInfo.__struct_fields__, 0) | {"id": pool, "escrow": self.escrow}
        return PoolInfo(**given)

    async def block(self) -> Block:
        self.asked["block"] += 1
        await trio.lowlevel.checkpoint()
        return Block(1, b"", int(trio.current_time()))

    async def earnings(self, pool: int) -> PostedEarnings:
        self.asked["earnings"] += 1
        await trio.lowlevel.checkpoint()
        return PostedEarnings(self.epoch, bytes(32), 0)


@pytest.fixture
def books() -> Books:
    context: Any = SimpleNamespace(pool=POOL, journal=None, clock=Clock(monotonic=trio.current_time), time=PoolTime())
    return Books(context, Contract(), Ledger(OWN))  # type: ignore[arg-type]


async def test_a_look_serves_all_who_look_at_that_time(books: Books, autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(books.look)
    assert books.chain.asked == {"pool": 1, "block": 1, "earnings": 1}  # type: ignore[attr-defined]


async def test_terms_are_read_again_once_they_may_be_others(
    books: Books, autojump_clock: trio.testing.MockClock
) -> None:
    chain: Any = books.chain

    async def escrow() -> int:
        await trio.sleep(SHARED_SECONDS)
        return (await books.look()).pool.escrow

    assert await escrow() == 5
    chain.escrow = 6
    books.ledger.apply(Claimed(**FIELDS, node=OWN, provider=OWN, units=1, amount=1))
    assert await escrow() == 5 and chain.asked["pool"] == 1, "being paid changes no terms"
    books.ledger.apply(PoolFunded(**FIELDS, payer=OWN, amount=1, escrow=6))
    assert await escrow() == 6 and await escrow() == 6 and chain.asked["pool"] == 2
    chain.epoch, chain.escrow = 1, 3
    assert await escrow() == 3, "a table was posted, and its event has not come"
    chain.escrow = 2
    await trio.sleep(TERMS_SECONDS)
    assert await escrow() == 2
    assert chain.asked["earnings"] == chain.asked["block"] == 6
