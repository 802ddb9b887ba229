"""What a look at a pool's books asks of the chain."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from contracts.bindings import Claimed, PoolFunded, PoolInfo, PostedEarnings
from node.bounded_dict import BoundedDict
from node.chain.blocks import Block
from node.chain.ledger import Ledger
from node.clock import Clock
from node.services.context import PoolTime
from node.services.pool_accounting import PoolAccounting
from protocol import pages
from protocol.blobs import describe
from protocol.earnings import EarningsLine
from protocol.identity import NodeKey, address_from_bytes
from protocol.messages import EarningsVote
from protocol.pages import verify
from protocol.statements import Earnings
from protocol.table import encode_head, table_after
from tests.attacks.validators.court import InlineJournal

ANEW_SECONDS = 120.0

POOL, TIMES = 7, [0, 3, 3, 9, 12, 12, 12, 40, 41, 60]
"""Of blocks, by their number."""
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

    async def waiting(self, pool: int) -> None:
        self.asked["waiting"] += 1
        await trio.lowlevel.checkpoint()


@pytest.fixture
def books() -> PoolAccounting:
    context: Any = SimpleNamespace(pool=POOL, journal=None, clock=Clock(monotonic=trio.current_time), time=PoolTime())
    return PoolAccounting(context, Contract(), Ledger(OWN))  # type: ignore[arg-type]


async def test_a_look_serves_all_who_look_at_that_time(
    books: PoolAccounting, autojump_clock: trio.testing.MockClock
) -> None:
    books.ledger.now = lambda: 9
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(books.read)
    assert books.chain.asked == {"pool": 1, "earnings": 1, "waiting": 1}  # type: ignore[attr-defined]


async def test_a_pool_is_read_again_once_it_may_be_another(
    books: PoolAccounting, autojump_clock: trio.testing.MockClock
) -> None:
    chain: Any = books.chain

    async def escrow() -> int:
        await trio.sleep(1)
        return (await books.read()).pool.escrow

    assert await escrow() == 5
    chain.escrow = 6
    books.ledger.apply(Claimed(**FIELDS, node=OWN, provider=OWN, units=1, amount=1))
    assert await escrow() == 5 and chain.asked["pool"] == 1, "being paid changes no terms"
    books.ledger.apply(PoolFunded(**FIELDS, payer=OWN, amount=1, escrow=6))
    assert await escrow() == 6 and await escrow() == 6 and chain.asked["pool"] == 2
    chain.epoch, chain.escrow = 1, 3
    books.ask_again()
    assert await escrow() == 3, "this node posted a table, and its event has not come"
    chain.escrow = 2
    await trio.sleep(ANEW_SECONDS)
    assert await escrow() == 2
    assert chain.asked["earnings"] == chain.asked["pool"] == 4 and chain.asked["block"] == 6
    books.ledger.now = lambda: 77
    assert (await books.read()).now == 77 and chain.asked["block"] == 6, "the newest block is known"


async def test_the_last_block_before_a_time_is_found_once_in_few_questions(books: PoolAccounting) -> None:
    asked: list[int | None] = []

    async def block(number: int | None = None) -> Block:
        await trio.lowlevel.checkpoint()
        asked.append(number)
        number = len(TIMES) - 1 if number is None else number
        return Block(number, b"", TIMES[number])

    books.chain = SimpleNamespace(block=block)  # type: ignore[assignment]
    for at in (1, 3, 4, 12, 13, 41, 60, 61):
        asked.clear()
        wanted = max(number for number, time in enumerate(TIMES) if time < at)
        assert await books.block_before(at) == wanted and len(asked) <= 9
        assert await books.block_before(at) == wanted and len(asked) <= 9


class Shelf:
    """Blobs that somebody holds, and which of them were asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, list[bytes]()

    def put(self, data: bytes) -> bytes:
        root = describe(data).root
        (self.folder / root.hex()).write_bytes(data)
        return root

    async def fetch(self, root: bytes, sources: Any, **_: Any) -> Path:
        await trio.lowlevel.checkpoint()
        self.asked.append(root)
        return self.folder / root.hex()


async def test_a_worker_reads_its_page_of_a_table_and_keeps_it_for_the_next_start(
    books: PoolAccounting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE_ROWS", 4)
    table = table_after(
        POOL, 3, None, {3: {address_from_bytes(n.to_bytes(20)): n for n in range(1, 18)}}, 2**50, {}, {}
    )
    assert table is not None
    policy_cache, (head, files) = Shelf(tmp_path), table.files()
    for file in files:
        policy_cache.put(file)
    named, posted = policy_cache.put(encode_head(head)), PostedEarnings(3, table.root(), table.total)
    journal, membership = InlineJournal(), SimpleNamespace(addresses=list)
    context: Any = SimpleNamespace(
        pool=POOL, journal=journal, blobs=policy_cache, membership=membership, key=SimpleNamespace(address=OWN)
    )
    earnings = Earnings(POOL, 3, 1, posted.root, posted.total, bytes(32))
    message = EarningsVote(pool=POOL, earnings=earnings, table=named, size=2**20, signature=bytes(65))
    node = address_from_bytes((10).to_bytes(20))

    def started() -> PoolAccounting:
        return PoolAccounting(context, books.chain, Ledger(OWN))

    first = started()
    first._signed[OWN] = BoundedDict(1)
    first._signed[OWN][posted.root] = message
    for one in (first, started()):
        share = await one.share(posted, node)
        assert share is not None and share.units == 10
        assert verify(posted.root, EarningsLine((10).to_bytes(20), 10).leaf(), share.proof)
        assert policy_cache.asked == [named, head.pages[2].root], "the head and one page, and from then on nothing"
    policy_cache.asked.clear()
    assert await first.of(posted) == table
    assert set(policy_cache.asked) == {page.root for page in head.pages} - {head.pages[2].root}
