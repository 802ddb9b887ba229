"""A pool's books: what its contract says now, and the posted table of earnings, of which the root alone stands there.

The table is found among what validators signed, and kept in the journal.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar, Generic, TypeVar, cast

import msgspec
import structlog
import trio

from contracts.bindings import EarningsPosted, PoolInfo, PostedEarnings, WaitingEarnings
from node.bounded_dict import BoundedDict
from node.chain.client import ChainClient
from node.chain.ledger import Ledger
from node.changes import Bell
from node.clock import Clock
from node.services.base import Service
from node.services.context import Context
from node.state.files import as_named
from node.state.journal import TABLE
from protocol.blobs import describe
from protocol.earnings import MAX_LEAVES_BYTES, Accepted, EarningsLine, Leaf, Leaves, decode_leaves
from protocol.errors import IntellectError, ProtocolError
from protocol.identity import Address, address_bytes
from protocol.messages import EarningsVote, EpochRootSigned, M, Signed
from protocol.pages import PageRow, TablePage, pages_of, read_page
from protocol.table import MAX_HEAD_BYTES, EarningsTable, Owed, Share, TableHead, checked_head, whole

log = structlog.get_logger()
T = TypeVar("T")
R = TypeVar("R", bound=PageRow)


RETRY_PAUSE = 5.0


class PoolRecord(msgspec.Struct, frozen=True):
    """A pool in its contract. now: the newest block's time, unix seconds; posted: the newest table of earnings that
    counts; waiting: the one that does not yet, without its signers where its event told it; pauses: seconds between two
    looks, at least and at most."""

    pool: PoolInfo
    now: int
    posted: PostedEarnings
    waiting: WaitingEarnings | None = None
    pauses: tuple[float, float] = (1.0, 300.0)

    @property
    def shown(self) -> int:
        """The last epoch of the newest table, -1 before the first."""
        return self.waiting.epoch if self.waiting else self.first - 1

    def counts(self, now: int) -> bool:
        """Whether the table that waits counts by now."""
        return self.waiting is not None and now >= self.waiting.counts_at

    @property
    def first(self) -> int:
        """The first epoch that no table covers which counts."""
        return 0 if self.posted.epoch is None else self.posted.epoch + 1

    def claimable(self, epoch: int) -> int:
        """From this second on what was earned in an epoch can be claimed, as far as is known."""
        waiting = self.waiting
        if waiting and epoch <= waiting.epoch:
            return waiting.counts_at
        return self.pool.filing.redeems if self.may_be_filed else self.pool.countable(epoch)

    @property
    def may_be_filed(self) -> bool:
        """Whether the pool is over, and no table can come or wait any more: what none has is filed, as long as that
        goes."""
        return self.pool.ended and self.waiting is None and self.now >= self.pool.filing.starts

    @property
    def may_be_swept(self) -> bool:
        """Whether the pool is over, and nothing can be tabled or filed any more, or waits to be redeemed."""
        return self.pool.ended and self.waiting is None and self.now >= self.pool.swept_from

    @property
    def is_last(self) -> bool:
        """Whether the pool is over, and its table has every epoch or none comes any more."""
        last = self.pool.epoch_at(self.pool.stopped_at)
        return self.pool.ended and (self.may_be_swept or self.first > last)

    @property
    def lasts(self) -> int | None:
        """For how many epochs like those of the newest table the escrow lasts; None where there is none to go by."""
        price = self.pool.reward_per_unit
        return self.posted.epochs_left(self.pool.escrow // price) if price else None

    @property
    def pause(self) -> float:
        """Seconds until a node looks again at what it earned: a quarter of an epoch, within `pauses`."""
        return min(max(self.pool.epoch_seconds / 4, self.pauses[0]), self.pauses[1])


class PoolAccounting:
    """A pool's contract, its events, and its tables by root, found among what validators signed. One per node."""

    def __init__(
        self, context: Context, chain: ChainClient, ledger: Ledger, *, pauses: tuple[float, float] = (1.0, 300.0)
    ) -> None:
        self.context = context
        self._pauses = pauses
        self.chain = chain
        self.ledger = ledger
        self._journal = context.journal
        self._signed: dict[Address, BoundedDict[bytes, EarningsVote]] = {}
        self._heads: dict[bytes, TableHead] = {}
        """Of the table that was posted last, by its root."""
        self._table: tuple[TableHead, EarningsTable] | None = None
        self._share: tuple[TableHead, Address, Share] | None = None
        """What was made of it last."""
        self._files: dict[bytes, bytes] = {}
        """What was read of it: the head by the table's root, files of rows by their own."""
        self._read: dict[bytes, tuple[PageRow, ...]] = {}
        self._written: set[bytes] = set()
        self._before = (0, 0)
        """A time, and the last block before it."""
        self._turn = trio.Lock()
        self._seen: PoolRecord | None = None
        self._asked_at = 0.0
        self._told = (-1, -1)
        """Events of terms and of money that had come when the contract was read."""

    async def read(self) -> PoolRecord:
        """What stands in the contract; the pool's clock hears what time it is there. A pool changes with an event of
        it, and what that moved is read once; the time is that of the newest block that was seen."""
        # Several services look at the same time. Those that wait here get the first one's answer.
        async with self._turn:
            # Read before the chain is asked: an event that comes meanwhile has it asked again.
            clock, told, seen = self.context.clock.monotonic(), (self.ledger.terms, self.ledger.books), self._seen
            now = self.ledger.now() or (await self.chain.block()).timestamp
            # A table that has waited long enough counts without an event.
            counts = seen is not None and seen.counts(now)
            # After which the chain is asked again whatever is told: an event comes once its block counts, not before.
            anew = seen is None or told[0] != self._told[0] or clock >= self._asked_at + 120.0
            if seen is None or anew or counts or told != self._told:
                known = None if seen is None or anew else seen.pool
                read = await self.chain.books(self.context.pool, known)
                seen = PoolRecord(read.pool, 0, read.posted, read.waiting, self._pauses)
                self._asked_at, self._told = clock if anew else self._asked_at, told
            # Of a new table its event says all until it counts; also where a machine that lags was asked.
            if self.ledger.tables and self.ledger.tables[-1].epoch > seen.shown:
                seen = msgspec.structs.replace(seen, waiting=_waiting(self.ledger.tables[-1]))
            # Epochs go by the chain's time: a clock that is off would certify for the wrong one.
            self.context.time.saw(now)
            self._seen = msgspec.structs.replace(seen, now=now)
            return self._seen

    def ask_again(self) -> None:
        """Of money at the next look: this node posted a table, or leaves, and no event is waited for."""
        self._told = (self._told[0], -1)

    async def listen(self) -> None:
        async for signed in self.context.facts.subscribe(EarningsVote):
            # Tables of one validator that are remembered: others are crowded out by its own.
            said = self._signed.setdefault(signed.author, BoundedDict(16, refresh=True))
            # Several, since the table on chain may be an older one than the last that was signed.
            said[signed.message.earnings.root] = signed.message

    @property
    def signed(self) -> dict[Address, EarningsVote]:
        """What each validator signed last."""
        return {author: next(reversed(said.values())) for author, said in self._signed.items()}

    async def of(self, posted: PostedEarnings) -> EarningsTable | None:
        """The table that stands on chain, with all its rows; None before the first, and while nobody shows it."""
        if (head := await self.head(posted)) is None:
            return None
        if self._table is not None and self._table[0] is head:
            return self._table[1]
        lines = [line for page in head.pages for line in await self._rows(page, EarningsLine)]
        owed = [row for page in head.debts for row in await self._rows(page, Owed)]
        await self._keep()
        self._table = head, await trio.to_thread.run_sync(whole, head, lines, owed)
        return self._table[1]

    async def share(self, posted: PostedEarnings, node: Address) -> Share | None:
        """What it says of one node, for which few of its files are fetched; None as `of`."""
        if (head := await self.head(posted)) is None:
            return None
        # Asked again at each look, by this node about itself mostly.
        if self._share is not None and self._share[0] is head and self._share[1] == node:
            return self._share[2]
        lines = {number: await self._rows(head.pages[number], EarningsLine) for number in head.pages_of(node)}
        places = pages_of(head.debts, address_bytes(node))
        owed = [row for number in places for row in await self._rows(head.debts[number], Owed)]
        await self._keep()
        self._share = head, node, await trio.to_thread.run_sync(head.share, node, lines, owed)
        return self._share[2]

    async def earlier(self, posted: EarningsPosted, node: Address) -> tuple[TableHead, Share] | None:
        """What a table says of one node that stood on chain before, as long as somebody shows it. Not kept."""
        read = partial(checked_head, pool=self.context.pool, root=posted.root, total=posted.total)
        if (found := await self._shown(posted.root, read)) is None:
            return None
        head, holders = found[0], [*self._signed, *self.context.membership.addresses()]

        async def rows(page: TablePage, kind: type[R]) -> tuple[R, ...]:
            return await self.fetch(page.root, page.size, holders, lambda data: read_page(data, page, kind))

        try:
            lines = {number: await rows(head.pages[number], EarningsLine) for number in head.pages_of(node)}
            places = pages_of(head.debts, address_bytes(node))
            owed = [row for number in places for row in await rows(head.debts[number], Owed)]
        except (IntellectError, OSError) as error:
            log.info("table.unusable", why=str(error))
            return None
        return head, await trio.to_thread.run_sync(head.share, node, lines, owed)

    async def head(self, posted: PostedEarnings) -> TableHead | None:
        """The same without its rows."""
        if not posted.total:
            return None
        if posted.root not in self._heads:
            read = partial(checked_head, pool=self.context.pool, root=posted.root, total=posted.total)
            if (found := await self._kept(read) or await self._shown(posted.root, read)) is None:
                return None
            head, data = found
            self._heads = {posted.root: head}
            named = {page.root for page in (*head.pages, *head.debts)}
            self._read = {root: rows for root, rows in self._read.items() if root in named}
            self._files = {root: file for root, file in self._files.items() if root in named} | {posted.root: data}
        return self._heads[posted.root]

    async def _kept(self, read: Callable[[bytes], TableHead]) -> tuple[TableHead, bytes] | None:
        kept = await self._journal.do(self._journal.recall, TABLE)
        # `read` checks the root, so a stale table in the journal is no harm.
        with suppress(IntellectError, msgspec.MsgspecError):  # it is the one before
            data, *files = msgspec.msgpack.decode(kept or b"", type=list[bytes])
            head = await trio.to_thread.run_sync(read, data)
            self._files = {describe(file).root: file for file in files}
            return head, data
        return None

    async def _keep(self) -> None:
        """In the journal what was read of the table: its signers may be gone when this node starts again, and it must
        claim by it."""
        if self._files.keys() != self._written:
            files = sorted(self._files.items(), key=lambda each: each[0] not in self._heads)
            data = msgspec.msgpack.encode([file for _, file in files])
            await self._journal.do(self._journal.remember, TABLE, data)
            self._written = set(self._files)

    async def _rows(self, page: TablePage, kind: type[R]) -> tuple[R, ...]:
        """Of one file of the table that was read last."""
        if page.root not in self._files:
            holders = [*self._signed, *self.context.membership.addresses()]
            self._files[page.root] = await self.fetch(page.root, page.size, holders, bytes)
        if page.root not in self._read:
            self._read[page.root] = await trio.to_thread.run_sync(read_page, self._files[page.root], page, kind)
        return cast(tuple[R, ...], self._read[page.root])

    async def _shown(self, root: bytes, read: Callable[[bytes], TableHead]) -> tuple[TableHead, bytes] | None:
        for author, message in [(one, said[root]) for one, said in self._signed.items() if root in said]:
            try:
                size = min(message.size, MAX_HEAD_BYTES)
                # Whoever signed it has it. Anybody else may, and the root says whether it is the one.
                holders = [author, *self.context.membership.addresses()]
                return await self.fetch(message.table, size, holders, lambda data: (read(data), data))
            except (IntellectError, OSError) as error:
                log.info("table.unusable", validator=author, why=str(error))
        # Nobody who signed it is heard: the chain names the file of its lines, which any member may have.
        for posted in [one for one in self.ledger.tables if one.root == root]:
            try:
                holders = self.context.membership.addresses()
                return await self.fetch(posted.blob, MAX_HEAD_BYTES, holders, lambda data: (read(data), data))
            except (IntellectError, OSError) as error:
                log.info("table.unusable", blob=posted.blob.hex(), why=str(error))
        return None

    async def take(self, signed: Signed[EpochRootSigned]) -> None:
        """Into the journal, what a root names of this node. Raises IntellectError or OSError."""
        said, name = signed.message.statement, address_bytes(self.context.key.address)
        if said.epoch < await self._journal.do(self._journal.pay.covered):
            return
        holders = [signed.author, *self.context.membership.addresses()]
        leaves = await self.fetch(said.blob, MAX_LEAVES_BYTES, holders, partial(decode_leaves, said=said))
        found: list[Accepted] = []
        for number in pages_of(leaves.pages, name):
            page = leaves.pages[number]
            rows = await self.fetch(page.root, page.size, holders, partial(read_page, page=page, kind=Leaf))
            own = [row for row in rows if row.node == name]
            found += [Accepted(said.pool, self.context.key.address, said.epoch, row.work, row.units) for row in own]
        line = await self._line(leaves, holders) if found else None
        if line is not None and line[0] != sum(one.units for one in found):
            raise ProtocolError("useless root", "this node's line is not what its works come to")
        await self._journal.do(self._note, signed, found, line)

    async def _line(self, leaves: Leaves, holders: Sequence[Address]) -> tuple[int, tuple[bytes, ...]]:
        """Units of this node's line under a root, and the way up; raises ProtocolError where it has none."""
        name = address_bytes(self.context.key.address)
        for number in pages_of(leaves.lines, name):
            page = leaves.lines[number]
            rows = await self.fetch(page.root, page.size, holders, partial(read_page, page=page, kind=EarningsLine))
            for line in [row for row in rows if row.node == name]:
                return line.units, leaves.proof_of_line(number, rows, line)
        raise ProtocolError("useless root", "it has works of this node, and no line")

    def _note(
        self, signed: Signed[EpochRootSigned], works: list[Accepted], line: tuple[int, tuple[bytes, ...]] | None
    ) -> None:
        """In the journal's thread."""
        said = signed.message.statement
        # Leaves of one validator that a node keeps of its own works: a day of three a second.
        self._journal.pay.take_leaves(signed.author, said.number, works, 262_144)
        if line is not None:
            self._journal.earned.note_line(said.epoch, signed.author, said.number, *line, signed.raw)
            self._journal.earned.note_root(said.epoch, signed.author, said.number, said.root, signed.raw, whole=False)

    async def block_before(self, at: int) -> int:
        """The last block of before a time, unix seconds: what everybody reckons by."""
        if self._before[0] != at:
            # Nobody needs to be asked where the follower saw both.
            last, after = self.ledger.around(at)
            low, step = after or (await self.chain.block()).number, 1
            high = low + 1
            if last is not None and after:
                low, high = last, after
            else:
                while low > 0 and (await self.chain.block(low)).timestamp >= at:
                    low, high, step = max(low - step, 0), low, 2 * step
            while high - low > 1:
                middle = (low + high) // 2
                is_before = (await self.chain.block(middle)).timestamp < at
                low, high = (middle, high) if is_before else (low, middle)
            self._before = (at, low)
        return self._before[1]

    async def fetch(self, root: bytes, size: int, holders: Sequence[Address], read: Callable[[bytes], T]) -> T:
        """A blob of at most this size, as `read` finds it, in a thread. Raises IntellectError or OSError."""
        others = list(dict.fromkeys(one for one in holders if one != self.context.key.address))
        path = await self.context.blobs.fetch(root, others, max_size=size, timeout=30.0)
        return await trio.to_thread.run_sync(lambda: read(as_named(path.read_bytes(), root, "a table")))


def _waiting(table: EarningsPosted) -> WaitingEarnings:
    return WaitingEarnings(table.root, table.total, table.epoch, table.counts_at, held=False, signers=b"")


class ChainAnswer(Generic[T]):
    """What the chain answered, which no event of the pool tells. seconds: after which it is asked again."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._answer: tuple[object, float, T] | None = None

    async def get(self, about: object, ask: Callable[[], Awaitable[T]]) -> T:
        """about: what the answer follows from; where that is another, it is asked for again."""
        now = self._clock.monotonic()
        if self._answer is None or self._answer[0] != about or now >= self._answer[1] + self._seconds:
            self._answer = about, now, await ask()
        return self._answer[2]

    def forget(self) -> None:
        """It may be another one soon."""
        self._answer = None


async def by_author(
    nursery: trio.Nursery,
    heard: trio.MemoryReceiveChannel[Signed[M]],
    work: Callable[[Signed[M]], Awaitable[object]],
    of: Callable[[Address], bool],
) -> None:
    """Do it with each word of those that count; of one author in order, beside those of others: a slow or huge blob
    holds up its author's next one only."""
    queues: dict[Address, trio.MemorySendChannel[Signed[M]]] = {}
    async for signed in heard:
        if not of(signed.author):
            continue
        if (queue := queues.get(signed.author)) is None:
            queue, words = trio.open_memory_channel[Signed[M]](64)  # words of one author that wait for their blobs
            queues[signed.author] = queue
            nursery.start_soon(_work_off, words, work)
        with suppress(trio.WouldBlock):  # it is said again
            queue.send_nowait(signed)


async def _work_off(
    words: trio.MemoryReceiveChannel[Signed[M]], work: Callable[[Signed[M]], Awaitable[object]]
) -> None:
    async for signed in words:
        await work(signed)


class ChainPoller(Service):
    """Looks at the pool's books again and again, and does what is due. trouble: the log's word where it could not."""

    trouble: ClassVar[str]

    def __init__(self, books: PoolAccounting) -> None:
        self._books, self._context = books, books.context
        self._chain, self._ledger = books.chain, books.ledger
        self._pool, self._own = books.context.pool, books.context.key.address
        self._journal = books.context.journal
        self._bell = Bell()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self.begin(nursery)
            while True:
                pause = RETRY_PAUSE
                try:
                    pause = await self.tick(await self._books.read())
                except IntellectError as error:
                    log.warning(self.trouble, why=error.why)
                    self.failed(error)
                await self._bell.wait(pause)

    def begin(self, nursery: trio.Nursery) -> None:
        """Start what goes on beside the looks."""

    async def tick(self, seen: PoolRecord) -> float:
        """One look; returns the seconds until the next one."""
        raise NotImplementedError

    def failed(self, error: IntellectError) -> None:
        """Whatever else is to be done about that."""
