"""What a look at a pool's books asks of the chain."""

from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio

from contracts.bindings import (
    Claimed,
    EarningsPosted,
    PoolBooks,
    PoolFunded,
    PoolInfo,
    PostedEarnings,
    ValidatorsSet,
    WaitingEarnings,
)
from node.bounded_dict import BoundedDict
from node.chain.blocks import Block
from node.chain.ledger import Ledger
from node.clock import Clock
from node.services.context import PoolTime
from node.services.pool_accounting import ChainAnswer, PoolAccounting
from protocol import pages
from protocol.blobs import describe
from protocol.earnings import EarningsLine
from protocol.errors import OwnFailure
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
        self.escrow, self.epoch, self.threshold = 5, 0, 1
        self.waiting: WaitingEarnings | None = None

    async def books(self, pool: int, known: PoolInfo | None = None) -> PoolBooks:
        self.asked["pool" if known is None else "tables"] += 1
        await trio.lowlevel.checkpoint()
        given: Any = dict.fromkeys(PoolInfo.__struct_fields__, 0) | {"id": pool, "threshold": self.threshold}
        info = msgspec.structs.replace(known or PoolInfo(**given), escrow=self.escrow)
        return PoolBooks(info, PostedEarnings(self.epoch, bytes(32), 0), self.waiting)

    async def block(self) -> Block:
        self.asked["block"] += 1
        await trio.lowlevel.checkpoint()
        return Block(1, b"", int(trio.current_time()))


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
    assert books.chain.asked == {"pool": 1}  # type: ignore[attr-defined]


async def test_what_an_event_moved_is_read_again_and_nothing_else(
    books: PoolAccounting, autojump_clock: trio.testing.MockClock
) -> None:
    chain: Any = books.chain

    async def look() -> PoolInfo:
        await trio.sleep(1)
        return (await books.read()).pool

    assert (await look()).escrow == 5
    chain.escrow, chain.threshold = 6, 2
    books.ledger.apply(Claimed(**FIELDS, node=OWN, provider=OWN, units=1, amount=1))
    assert (await look()).escrow == 5 and chain.asked["pool"] == 1, "being paid changes no terms"
    books.ledger.apply(PoolFunded(**FIELDS, payer=OWN, amount=1, escrow=6))
    assert (await look()).escrow == (await look()).escrow == 6
    assert (await look()).threshold == 1 and (chain.asked["pool"], chain.asked["tables"]) == (1, 1)
    books.ledger.apply(ValidatorsSet(**FIELDS, number=2, validators=(OWN,), threshold=2))
    assert (await look()).threshold == (await look()).threshold == 2 and chain.asked["pool"] == 2
    chain.epoch, chain.escrow = 1, 3
    books.ask_again()
    assert (await look()).escrow == 3, "this node posted a table, and its event has not come"
    chain.escrow = 2
    await trio.sleep(ANEW_SECONDS)
    assert (await look()).escrow == 2
    assert (chain.asked["pool"], chain.asked["tables"]) == (3, 2) and chain.asked["block"] == 9
    books.ledger.now = lambda: 77
    assert (await books.read()).now == 77 and chain.asked["block"] == 9, "the newest block is known"


async def test_a_table_that_waits_is_told_by_its_event_and_asked_for_when_it_counts(books: PoolAccounting) -> None:
    chain: Any = books.chain
    books.ledger.now = lambda: 30
    await books.read()
    chain.waiting = WaitingEarnings(bytes(32), 5, 1, 50, False, b"")
    table = {"number": 1, "root": bytes(32), "total": 5, "blob": bytes(32), "counts_at": 50, "signers": ()}
    books.ledger.apply(EarningsPosted(**FIELDS, epoch=1, **table))
    for now in (31, 40, 49):
        books.ledger.now = lambda now=now: now
        waiting = (await books.read()).waiting
        assert waiting is not None and (waiting.epoch, waiting.total, waiting.counts_at) == (1, 5, 50)
    assert (chain.asked["pool"], chain.asked["tables"]) == (1, 0)
    chain.epoch, chain.waiting = 1, None
    for now in (50, 51, 70):
        books.ledger.now = lambda now=now: now
        assert (await books.read()).first == 2
    assert (chain.asked["pool"], chain.asked["tables"]) == (1, 1)


async def test_a_machine_that_lags_behind_the_newest_table_is_asked_again(books: PoolAccounting) -> None:
    chain: Any = books.chain
    books.ledger.now = lambda: 60
    await books.read()
    table = {"number": 1, "root": bytes(32), "total": 5, "blob": bytes(32), "counts_at": 50, "signers": ()}
    books.ledger.apply(EarningsPosted(**FIELDS, epoch=1, **table))
    for asked in (0, 1, 2):
        assert (await books.read()).first == 1 and chain.asked["tables"] == asked, "it does not know the table yet"
    chain.epoch = 1
    assert (await books.read()).first == (await books.read()).first == 2
    assert chain.asked["tables"] == 3


async def test_an_answer_is_asked_for_again_when_it_is_old_or_about_something_else(
    autojump_clock: trio.testing.MockClock,
) -> None:
    asked = Counter[str]()

    async def ask(what: str) -> str:
        await trio.lowlevel.checkpoint()
        asked[what] += 1
        return what

    kept = ChainAnswer[str](Clock(monotonic=trio.current_time), 10.0)
    for _ in range(3):
        assert await kept.get(1, partial(ask, "a")) == "a"
    assert await kept.get(2, partial(ask, "b")) == "b"
    await trio.sleep(10.0)
    assert await kept.get(2, partial(ask, "c")) == "c"
    kept.forget()
    assert await kept.get(2, partial(ask, "d")) == "d"
    assert asked == {"a": 1, "b": 1, "c": 1, "d": 1}


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
    for at, around, most in ((13, (6, 7), 0), (12, (2, 6), 2), (41, (7, None), 9), (3, (None, 4), 9)):
        asked.clear()
        books.ledger.around = lambda _, around=around: around
        assert await books.block_before(at) == max(number for number, time in enumerate(TIMES) if time < at)
        assert len(asked) <= most, "the follower saw these blocks"


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
    damaged, data = policy_cache.folder / head.pages[0].root.hex(), b"what this disk made of it"
    whole, _ = damaged.read_bytes(), damaged.write_bytes(data)
    with pytest.raises(OwnFailure, match="damaged on this machine"):
        await first.of(posted)
    damaged.write_bytes(whole)
    policy_cache.asked.clear()
    assert await first.of(posted) == table
    assert set(policy_cache.asked) == {page.root for page in head.pages} - {head.pages[2].root}
