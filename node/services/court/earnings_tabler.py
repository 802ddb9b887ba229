"""Tables of earnings: the leaves of validators' roots are read, counted, signed, compared, and carried to the chain.

A validator reads all leaves of each root of an epoch, off the event loop, and keeps which works a quorum named. Once an
epoch's window is over it signs the table that follows the posted one. Where another validator's table differs, the
roots that it names and this one lacks are read, and the proofs against works that it leaves out; then both come to the
same. From the first table that it signs for an epoch on, a validator takes what it lacks from other validators' tables
alone, so that nobody can keep it signing anew. Whoever's turn it is carries a quorum's signatures; then the table waits
for the pool's delay, and the next one is made on it once it counts. Nothing is signed beyond what is funded: what falls
short stays in the table, owed.
"""

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

import msgspec
import structlog
import trio

from contracts.bindings import PoolInfo, WaitingEarnings
from node.chain.errors import Reverted
from node.changes import every
from node.services.court.turns import seconds_to_wait
from node.services.pool_accounting import RETRY_PAUSE, ChainPoller, PoolAccounting, PoolRecord, by_author
from node.services.workplace import Workplace
from node.state.kept import cached
from node.swarm.facts import LeavesRead, WorkTouched
from node.swarm.membership import is_cut_off, voices
from node.swarm.vote_set import FileState
from protocol.earnings import (
    MAX_LEAVES_BYTES,
    Leaf,
    RefusedWork,
    all_leaves,
    decode_leaves,
    refusal_of,
    unpaid_judgements,
)
from protocol.errors import IntellectError, ProtocolError
from protocol.identity import Address
from protocol.messages import EarningsVote, EpochRootSigned, Signed, of_kind, open_envelope
from protocol.pages import read_page
from protocol.statements import Domain, Earnings, EpochRoot, Verdict, sign, signer_of
from protocol.table import MAX_HEAD_BYTES, EarningsTable, decode_head, encode_head, table_after

log = structlog.get_logger()
"""Seconds between two looks: a fortieth of the window, within these."""
ROOTS_EACH = 64
"""Roots of one validator and epoch that are read."""


class _Mine(msgspec.Struct):
    """What this node signed last. due: when it is this node's turn to carry it; said_at: when it was said."""

    message: EarningsVote
    table: EarningsTable
    due: float
    said_at: float = 0.0


class EarningsTabler(ChainPoller):
    name = "earnings-tabler"
    trouble = "earnings.interrupted"

    def __init__(self, books: PoolAccounting, *, pauses: tuple[float, float] = (1.0, 15.0)) -> None:
        super().__init__(books)
        self._pauses = pauses
        context = books.context
        self._bench = OfficeTerm({})
        self._left_at: dict[int, int] = {}
        """Block in which a bench took office -> its timestamp."""
        self._quorum = context.quorum
        self._first = 0
        """The first epoch that no posted table covers."""
        self._counted: dict[int, tuple[object, Counter[Address]]] = {}
        """Epoch -> what it was reckoned from, and units of each node."""
        self._frozen = -1
        """Through this epoch works are taken from other validators' tables alone."""
        self._heard_since = context.clock.monotonic()
        self._bad: set[tuple[Address, EpochRoot]] = set()
        """Roots whose leaves are none, of epochs that no table covers."""
        self._compared = Counter[Address]()
        """Tables of each that were looked at: again only where it could not be had whole."""
        self._done: set[bytes] = set()
        self._unfit: set[Address] = set()
        self._mine: _Mine | None = None
        self._number = int(context.time.now())
        """The last one that this node signed. None of before its start: a journal that was lost knows none of them."""
        self._given: object = None
        self._made: EarningsTable | None = None
        """The table that was made last, and of what."""
        self._doubted = b""
        """The root of the waiting table that was told to be another one than this node's."""
        self._pause = pauses[0]
        self._next_try = 0.0
        self.waiting = ""
        self.posted = 0

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.books)

    def status(self) -> dict[str, Any]:
        told = {"tabled_before": self._first, "posted": self.posted, "waiting": self.waiting}
        return {"earnings_table": told}

    def begin(self, nursery: trio.Nursery) -> None:
        heard = self._context.facts.subscribe(EpochRootSigned)
        nursery.start_soon(by_author, nursery, heard, self._hear, self._ledger.was_seated)
        nursery.start_soon(self._follow_jury)
        nursery.start_soon(self._compare_all)

    # what validators name

    async def _hear(self, signed: Signed[EpochRootSigned]) -> None:
        said = signed.message.statement
        # Not the epoch that still runs, nor what this node has signed a table of.
        if max(self._first, self._frozen + 1) <= said.epoch < self._context.time.epoch():
            try:
                await self._take(signed)
            except (IntellectError, OSError) as error:  # it is said again
                log.info("root.unusable", validator=signed.author, epoch=said.epoch, why=str(error))

    async def _take(self, signed: Signed[EpochRootSigned]) -> None:
        """Read all leaves of a root. Raises ProtocolError where they are none, IntellectError or OSError."""
        said, author = signed.message.statement, signed.author
        known = await self._journal.do(self._journal.earned.roots, said.epoch, said.epoch, True)
        mine = [row for row in known if row[1] == author]
        if any(row[2:4] == (said.number, said.root) for row in mine) or len(mine) >= ROOTS_EACH:
            return
        if (author, said) in self._bad:
            raise ProtocolError("useless root", "its leaves are none")
        try:
            leaves = await self._leaves(said, [author, *self._context.membership.addresses()])
        except ProtocolError:
            if len(self._bad) < ROOTS_EACH * len(self._bench.last):
                self._bad.add((author, said))
            raise
        noted = (said.epoch, author, said.number, said.root, signed.raw, leaves)
        await self._journal.do(self._journal.earned.note_leaves, *noted)
        self._context.facts.tell([LeavesRead(author, signed.message, leaves)])

    async def _leaves(self, said: EpochRoot, holders: Sequence[Address]) -> tuple[Leaf, ...]:
        found = await self._books.fetch(said.blob, MAX_LEAVES_BYTES, holders, partial(decode_leaves, said=said))
        files = [
            await self._books.fetch(page.root, page.size, holders, partial(read_page, page=page, kind=Leaf))
            for page in found.pages
        ]
        return await trio.to_thread.run_sync(all_leaves, said, found, files)

    # what is refused after all

    async def _follow_jury(self) -> None:
        """A fault that a quorum finds inside the window takes the work out."""
        vote_set = self._context.state.vote_set
        async for touched in self._context.facts.subscribe(WorkTouched):
            id = touched.work
            if vote_set.state(id) is not FileState.REJECTED or not vote_set.undisputed(id):
                continue
            said = [(one.verdict, one.signature) for one in vote_set.rejecting(id).values()]
            if len(said) >= self._quorum:
                proof = msgspec.msgpack.encode(refusal_of(said))
                await self._journal.do(self._journal.earned.refuse, id, said[0][0].epoch, proof)

    async def _heed_refusals(self, refusals: Sequence[RefusedWork]) -> None:
        for refusal in refusals:
            work = refusal.work(self._pool)
            if await self._journal.do(self._journal.earned.is_refused, work):
                continue
            given = (refusal.statements(self._pool), self._context.domain, self._bench.of(refusal.epoch))
            if await trio.to_thread.run_sync(_against, *given) >= self._quorum:
                await self._journal.do(
                    self._journal.earned.refuse, work, refusal.epoch, msgspec.msgpack.encode(refusal)
                )

    # the table

    async def tick(self, seen: PoolRecord) -> float:
        """One look at what is to be tabled, signed, compared, carried."""
        pool, first = seen.pool, seen.first
        self._pause = min(max(pool.window / 40, self._pauses[0]), self._pauses[1])
        if not self._is_one_time(pool):
            self.waiting = "the pool's judges are not those of the newest event: endpoints are at different blocks"
            return self._pause
        await self._learn_bench(pool, first)
        if first != self._first:
            # A new table was posted: what was signed or compared for the old one counts no more.
            self._first, self._mine, self._compared, self._done, self._unfit = first, None, Counter(), set(), set()
            self._bad = set()
        # Epochs whose window is over by the chain's clock: until then a quorum may still refuse a work of them.
        last = pool.epoch_at(max(seen.now - pool.window, 0)) - 1
        if self._is_deaf(pool):
            return self._pause
        if seen.waiting is not None:
            await self._doubt(seen, seen.waiting)
            return self._pause
        table = await self._table(seen, last) if last >= first and pool.is_enough(first, last) else None
        if table is not None:
            await self._sign(table)
            await self._carry(pool)
        return self._pause

    def _is_one_time(self, pool: PoolInfo) -> bool:
        """Whether the pool as it was read has the judges that events told of, some struck perhaps: who counts follows
        from both, and an endpoint may keep a new bench back."""
        benches = self._ledger.benches
        return not benches or set(pool.validators) <= set(benches[-1].validators)

    async def _learn_bench(self, pool: PoolInfo, first: int) -> None:
        """Who may have certified works of epochs from `first` on. Who has left has no stake here any more, so it counts
        for no epoch after the one that it left in."""
        self._quorum = pool.threshold
        last: dict[Address, float] = {}
        # By the ledger, as the contract itself remembers only who is in office now.
        benches = list(self._ledger.benches)
        for bench, after in zip(benches, benches[1:], strict=False):
            if after.block not in self._left_at:
                self._left_at[after.block] = (await self._chain.block(after.block)).timestamp
            last |= dict.fromkeys(bench.validators, pool.epoch_at(self._left_at[after.block]))
        # Gone from the pool without a new bench having taken office: by eviction.
        struck = set(benches[-1].validators) - set(pool.validators) if benches else set[Address]()
        last |= dict.fromkeys(pool.validators, math.inf)
        struck |= {one for one in last if self._context.membership.is_evicted(one)}
        kept = {one: until for one, until in last.items() if until >= first}
        bench = OfficeTerm(kept | dict.fromkeys(struck, -1))
        if bench != self._bench:
            self._bench = bench

    def _is_deaf(self, pool: PoolInfo) -> bool:
        """Whether others may not have had the time to say what they have signed: after a start, or a time alone."""
        now = self._context.clock.monotonic()
        alone = len(pool.validators) == 1
        # A validator that hears nobody would table what it has, and lack what others signed meanwhile.
        if not alone and is_cut_off(voices(self._context.board, self._context.membership), now):
            self._heard_since = now
        deaf = now < self._heard_since + 2 * self._context.time.shown_every
        self.waiting = "others are given the time to say what they have signed" if deaf else ""
        return deaf

    async def _table(self, seen: PoolRecord, last: int) -> EarningsTable | None:
        pool, posted, first = seen.pool, seen.posted, seen.first
        # Everybody reckons by the same block, whenever it looks, and for that it must know what happened before.
        at = pool.maturity(last)
        if self._ledger.read_until() < at:
            return None
        before = await self._books.of(posted)
        if posted.total and before is None:
            self.waiting = f"the table of epoch {posted.epoch} cannot be had from anybody"
            return None
        block = await self._books.block_before(at)
        # who is slashed by judgement stays in: the contract keeps its pay until the case is final, and the arbiter may
        # overturn it long after this table
        # Their own two signatures prove it, so nothing can give them their pay back.
        convicted = self._ledger.convicted
        earned = {epoch: await self._earned(epoch) for epoch in range(first, last + 1)}
        for epoch, units in earned.items():
            for node in convicted & units.keys():
                del units[node]
            if pool.attested:  # the contract pays by size; what was found of it counts here
                end = pool.epoch_end(epoch)
                for node in units:
                    found = self._ledger.attested(node, end, block)
                    units[node] = min(units[node], found * pool.max_units_per_epoch)
        escrow = self._ledger.escrow(block, pool.reward_per_unit) - posted.total
        most = min(max(escrow, 0), pool.units_per_epoch * (last + 1 - first))
        book = self._journal.earned
        roots, proofs = await self._journal.do(lambda: (book.roots(first, last, True), book.refusals(first, last)))
        sources = [raw for *_, raw in roots]
        where = "a refusal in the journal"
        read = [cached(where, partial(msgspec.msgpack.decode, proof, type=RefusedWork)) for proof in proofs]
        refusals = [one for one in read if one is not None]
        claims = (self._ledger.claimed(), self._ledger.claimed(block))
        given = (self._pool, last, before, earned, most, *claims, sources, refusals)
        # Looks are many while others sign: of the same it is the same table.
        if given != self._given:
            self._given, self._made = given, await trio.to_thread.run_sync(table_after, *given)
        table = self._made
        more = sum(sum(units.values()) for units in earned.values()) + (before.behind if before else 0)
        if table is None and more:
            self.waiting = f"{more} units are certified, and the pool can pay for {most} now"
        return table

    async def _earned(self, epoch: int) -> Counter[Address]:
        """Node -> units of the works of an epoch that count."""
        book, do = self._journal.earned, self._journal.do
        given = (self._bench.of(epoch), self._quorum)
        known = (await do(book.read, epoch), *given, frozenset(self._bench.last))
        if epoch not in self._counted or self._counted[epoch][0] != known:
            counted = await do(book.counted, epoch, *given)
            judges = self._bench.last.keys() & {node for node, *_ in counted}
            named = await do(book.named_by, epoch, judges)
            works = [(node, work) for node, work, _ in counted]
            unpaid = await trio.to_thread.run_sync(unpaid_judgements, self._pool, epoch, works, named)
            if unpaid:
                log.info("judgements.unpaid", epoch=epoch, judgements=len(unpaid))
            units = Counter[Address]()
            for node, work, more in counted:
                units[node] += 0 if work in unpaid else more
            self._counted = {at: one for at, one in self._counted.items() if at >= self._first}
            self._counted[epoch] = known, units
        return Counter({node: units for node, units in self._counted[epoch][1].items() if units})

    async def _doubt(self, seen: PoolRecord, waiting: WaitingEarnings) -> None:
        """Tell, once, of a table that waits and is another one than this node would sign: the guardian may hold it."""
        self.waiting = f"the table of epoch {waiting.epoch} waits until {waiting.counts_at}, and counts then"
        if waiting.root == self._doubted or (self._mine and self._mine.message.earnings.root == waiting.root):
            return
        own = await self._table(seen, waiting.epoch)
        if own is None or await trio.to_thread.run_sync(own.root) == waiting.root:
            return
        self._doubted = waiting.root
        log.warning("earnings.doubted", epoch=waiting.epoch, total=waiting.total, own=own.total)
        self._context.progress.trouble(
            f"the table of epoch {waiting.epoch} that waits says {waiting.total:,} units, and this validator finds "
            f"{own.total:,}, or others' lines: its guardian can hold it: contract earnings hold"
        )

    async def _sign(self, table: EarningsTable, *, repeat_every: float = 60.0) -> None:
        now, own = self._context.clock.monotonic(), self._mine
        # Compared by lines: other sources of the same units are no reason to sign anew.
        rows = (table.epoch, table.total, table.lines, table.owed)
        if own is None or (own.table.epoch, own.table.total, own.table.lines, own.table.owed) != rows:
            head, files = await trio.to_thread.run_sync(table.files)
            root = head.root()
            for file in files:
                await self._context.blobs.add(file)
            lines = await self._context.blobs.add(encode_head(head.bare()))
            info = await self._context.blobs.add(encode_head(head))
            earnings = Earnings(self._pool, table.epoch, 0, root, table.total, lines.root)
            number = self._heard(earnings) or int(self._context.time.now())
            message = self._signed(earnings, number, info.root, info.size)
            # First the others get the time to sign alike; then one carries it, chosen by the table's own root.
            # Looks between signing a table and carrying it: what another one leaves out, with a proof, is heeded first.
            turn = 2.5 * self._pause + seconds_to_wait(self._context, root)
            own = self._mine = _Mine(message, table, now + turn)
            self._frozen = max(self._frozen, table.epoch)
            log.info("earnings.signed", epoch=table.epoch, total=table.total, nodes=len(table.lines))
        elif heard := self._heard(own.message.earnings):
            said = own.message
            own.message, own.said_at = self._signed(said.earnings, heard, said.table, said.size), 0.0
        if not own.said_at or now - own.said_at >= repeat_every:
            own.said_at = now
            # Seconds that the word on a table waits for other words of this node.
            self._context.board.say([own.message], within=1.0)

    def _heard(self, earnings: Earnings) -> int:
        """The greatest number under which others sign the same, so that a quorum comes to one; 0 for none that is later
        than what this node signed."""
        most = int(self._context.time.now()) + 3600  # seconds that another's number may be ahead of this node's time
        said = [one.earnings for one in self._books.signed.values()]
        alike = [one.number for one in said if msgspec.structs.replace(one, number=earnings.number) == earnings]
        return max((one for one in alike if self._number < one <= most), default=0)

    def _signed(self, earnings: Earnings, number: int, table: bytes, size: int) -> EarningsVote:
        """Under a number that this node has signed nothing under."""
        self._number = max(number, self._number + 1)
        earnings = msgspec.structs.replace(earnings, number=self._number)
        signature = sign(self._context.key, self._context.domain, earnings)
        return EarningsVote(pool=earnings.pool, earnings=earnings, table=table, size=size, signature=signature)

    async def _compare_all(self) -> None:
        """Beside the looks, each validator beside the others: who names what nobody has stops nobody's own table."""

        async def compare() -> None:
            if not self._bench.last:
                return  # the chain has not been asked yet
            async with trio.open_nursery() as nursery:
                for author, message in self._books.signed.items():
                    nursery.start_soon(self._compare, author, message)

        await every(lambda: self._pause, compare, at_once=False)

    async def _compare(self, author: Address, message: EarningsVote) -> None:
        """Fetch what another's table rests on and this node lacks."""
        own, first = self._mine.message.earnings.root if self._mine else b"", self._first
        if message.earnings.root == own or message.earnings.epoch < first or author == self._own:
            return
        # Tables of one validator that are compared before the next is posted: nobody keeps the others signing anew.
        if message.table in self._done or self._compared[author] >= 16:
            return
        # Before it is fetched: a validator cannot keep this one fetching by naming what nobody has.
        self._compared[author] += 1
        try:
            await self._take_from(author, message, first)
            self._done.add(message.table)
        except (IntellectError, OSError) as error:
            log.info("earnings.not_compared", validator=author, why=str(error))
            if isinstance(error, ProtocolError):
                self._done.add(message.table)  # bytes of this root will never be others

    async def _take_from(self, author: Address, message: EarningsVote, first: int) -> None:
        read = partial(decode_head, pool=self._pool)
        table = await self._books.fetch(message.table, min(message.size, MAX_HEAD_BYTES), [author], read)
        log.info("earnings.differ", validator=author, epoch=table.epoch, total=table.total)
        misses = 0
        for raw in table.sources:
            # Roots named by one table that cannot be had or are of no use, before the rest of it is not looked at.
            if misses >= 3:
                break
            try:
                signed = of_kind(open_envelope(self._context.domain, self._pool, raw), EpochRootSigned)
                epoch = signed.message.statement.epoch
                if first <= epoch < self._context.time.epoch() and signed.author in self._bench.of(epoch):
                    await self._take(signed)
            except (IntellectError, OSError) as error:
                misses += 1
                log.info("root.unusable", validator=author, why=str(error))
        await self._heed_refusals(table.refusals)
        if misses:
            raise IntellectError("unusable table of earnings", "what it rests on cannot be had", "wait")

    # carrying

    async def _carry(self, pool: PoolInfo) -> None:
        """Post what a quorum in office signed alike, when it is this node's turn."""
        own, now = self._mine, self._context.clock.monotonic()
        if own is None or now < max(own.due, self._next_try):
            return
        # The own newest word by itself: the reader of the board may not have come to it yet.
        said = {**self._books.signed, self._own: own.message}
        # Signed by the same root and total: whoever signed otherwise does not count for this table.
        alike = {author: one.signature for author, one in said.items() if one.earnings == own.message.earnings}
        fit = [alike[author] for author in pool.validators if author in alike and author not in self._unfit]
        if len(fit) < pool.threshold:
            self.waiting = f"{len(fit)} of {pool.threshold} validators have signed the table of epoch {own.table.epoch}"
            return
        earnings = own.message.earnings
        self._next_try = now + RETRY_PAUSE
        try:
            await self._chain.post_earnings(earnings, fit[: pool.threshold])
        except Reverted as error:
            if error.name == "ValidatorUnfit":  # one without its stake spoils the others' signatures
                self._unfit |= {author for author in alike if author in error.args_.values()}
            log.info("earnings.not_posted", epoch=earnings.epoch, why=error.why)
            return
        finally:
            self._books.ask_again()
        self.posted += 1
        log.info("earnings.posted", epoch=earnings.epoch, total=earnings.total)


class OfficeTerm(msgspec.Struct, frozen=True):
    """Who may have certified, and through which epoch: no end for who is in office, -1 for who was thrown out."""

    last: dict[Address, float]

    def of(self, epoch: int) -> frozenset[Address]:
        return frozenset(one for one, last in self.last.items() if last >= epoch)


def _against(statements: Sequence[tuple[Verdict, bytes]], domain: Domain, bench: frozenset[Address]) -> int:
    """How many of the bench signed a refusal."""
    found = set[Address]()
    for verdict, signature in statements:
        # One signature that is none must not hide the others: the count is what a judge goes by.
        with suppress(ProtocolError):
            found.add(signer_of(domain, verdict, signature))
    return len(found & bench)
