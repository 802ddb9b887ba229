"""Tables of earnings: what all nodes show is checked, added up, signed, compared, and carried to the chain.

A validator fetches what nodes show of each epoch, checks the signatures off the event loop, and keeps which works a
quorum certified. Once an epoch's window is over it signs the table that follows the posted one. Where another
validator's table differs, the blobs that it names and this one lacks are fetched, and the proofs against works that it
leaves out; then both come to the same. From the first table that it signs for an epoch on, a validator takes what it
lacks from other validators' tables alone, so that nobody can keep it signing anew. Whoever's turn it is carries a
quorum's signatures. Nothing is signed beyond what is funded: what falls short stays in the table, owed.
"""

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import msgspec
import structlog
import trio

from contracts.bindings import PoolInfo
from node.chain.errors import Reverted
from node.recent import Recent
from node.services.books import RETRY_PAUSE, Books, Keeping, Seen
from node.services.certifying import Certifying
from node.services.court.turns import seconds_to_wait
from node.services.workplace import Workplace
from node.state.kept import cached
from node.status_schema import TablePart
from node.swarm.ballots import FileState
from node.swarm.facts import WorkTouched
from node.swarm.membership import is_cut_off, voices
from protocol.earnings import (
    MAX_SHOWN_BYTES,
    MAX_WORKS,
    Refusal,
    Shown,
    Source,
    decode_certificates,
    refusal_of,
)
from protocol.errors import IntellectError, ProtocolError
from protocol.identity import Address, address_bytes, address_from_bytes
from protocol.messages import MAX_SHOWN, CertificatesShown, EarningsSigned, EpochShown
from protocol.statements import Accepted, Domain, Earnings, Statement, Verdict, sign, signer_of
from protocol.table import MAX_HEAD_BYTES, Table, decode_head, encode_head, table_after

log = structlog.get_logger()
PAUSES = (1.0, 15.0)
"""Seconds between two looks: a fortieth of the window, within these."""
SETTLING = 2.5
"""Looks between signing a table and carrying it: what another one leaves out, with a proof, is heeded first."""
REPEAT_EVERY = 60.0
SAID_WITHIN = 1.0
"""Seconds that the word on a table waits for other words of this node."""
QUEUE = MAX_SHOWN
"""Epochs of one node that wait to be fetched."""
READ = 256
"""Blobs of one node that are not looked at again, or not soon."""
CHUNK = 256
"""Works that are checked in one go of a thread."""
LACKING = 2048
USELESS = 1024
"""Signatures of nobody who may certify, in one blob, before the rest is not looked at."""
TABLES_EACH = 16
"""Tables of one validator that are compared before the next is posted: nobody keeps the others signing anew."""
MISSES = 3
"""Blobs named by one table that cannot be had or are of no use, before the rest of it is not looked at."""


class _Mine(msgspec.Struct):
    """What this node signed last. due: when it is this node's turn to carry it; said_at: when it was said."""

    message: EarningsSigned
    table: Table
    due: float
    said_at: float = 0.0


class Tabling(Keeping):
    name = "tabling"
    trouble = "earnings.interrupted"

    def __init__(self, books: Books, certifying: Certifying | None = None) -> None:
        super().__init__(books)
        context = books.context
        self._certifying = certifying
        self._bench = Bench({})
        self._left_at: dict[int, int] = {}
        """Block in which a bench took office -> its timestamp."""
        self._quorum = context.quorum
        self._first = 0
        """The first epoch that no posted table covers."""
        self._frozen = -1
        """Through this epoch works are taken from other validators' tables alone."""
        self._heard_since = context.clock.monotonic()
        self._queues: dict[Address, trio.MemorySendChannel[EpochShown]] = {}
        self._read: dict[Address, Recent[bytes, float]] = {}
        self._compared = Counter[Address]()
        """Tables of each that were looked at: again only where it could not be had whole."""
        self._done: set[bytes] = set()
        self._unfit: set[Address] = set()
        self._mine: _Mine | None = None
        self._pause = PAUSES[0]
        self._next_try = 0.0
        self.waiting = ""
        self.posted = 0

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.books, place.certifying)

    def status(self) -> dict[str, Any]:
        return {"audit": {"earnings": TablePart(self._first, self.posted, self.waiting)}}

    def begin(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._follow_shown, nursery)
        nursery.start_soon(self._follow_jury)
        nursery.start_soon(self._compare_all)

    # what nodes show

    async def _follow_shown(self, nursery: trio.Nursery) -> None:
        async for signed in self._context.facts.subscribe(CertificatesShown):
            queue = self._queues.get(signed.author)
            if queue is None:
                # One queue and one fetcher for each node: a slow or huge blob holds up its author's next one only.
                queue, work = trio.open_memory_channel[EpochShown](QUEUE)
                self._queues[signed.author] = queue
                nursery.start_soon(self._fetch_all, signed.author, work)
            for shown in signed.message.shown:
                try:
                    queue.send_nowait(shown)
                except trio.WouldBlock:
                    log.info("certificates.skipped", node=signed.author, epoch=shown.epoch)

    async def _fetch_all(self, node: Address, work: trio.MemoryReceiveChannel[EpochShown]) -> None:
        """One node's blobs, in order; what cannot be had is shown again."""
        read = self._read.setdefault(node, Recent(READ))
        async for message in work:
            now = self._context.clock.monotonic()
            if now < read.get(message.root, 0.0) or not self._is_wanted(message.epoch) or not self._bench.last:
                continue  # without a bench the chain has not been asked yet: it is shown again
            try:
                source = Source(message.epoch, address_bytes(node), message.root, message.size)
                lacks = await self._take(source, (node,))
                # What lacks certificates is read again when it is shown next: validators say lost ones again.
                read[message.root] = now + self._context.time.shown_every / 2 if lacks else math.inf
            except (IntellectError, OSError, msgspec.ValidationError) as error:
                log.info("certificates.unusable", node=node, epoch=message.epoch, why=str(error))
                if isinstance(error, ProtocolError):
                    read[message.root] = math.inf  # bytes of this root will never be others

    def _is_wanted(self, epoch: int) -> bool:
        # Not the epoch that still runs: its works change with every file.
        return max(self._first, self._frozen + 1) <= epoch < self._context.time.epoch()

    async def _take(self, source: Source, holders: Sequence[Address]) -> bool:
        """Fetch a blob and keep the works in it that a quorum certified; whether certificates are lacking in it. Raises
        ProtocolError where it is of no use."""
        node, others = address_from_bytes(source.node), self._context.membership.addresses()
        read = partial(decode_certificates, node=node, epoch=source.epoch)
        shown = await self._books.fetch(source.root, min(source.size, MAX_SHOWN_BYTES), [*holders, *others], read)
        known = await self._journal.do(self._journal.earned.earned_works, source.epoch, node)
        kept = await self._journal.do(self._journal.pay.certificates, node, source.epoch)
        checked = {signature for said in kept.values() for _, signature in said}
        looked = _Looked()
        fresh = [one for one in shown.works if (one.work, one.units) not in known]
        # In parts, so that useless signatures are noticed after USELESS of them and not after all that fit the blob.
        for start in range(0, len(fresh), CHUNK):
            part = Shown(shown.node, shown.epoch, tuple(fresh[start : start + CHUNK]))
            given = (part, self._context.domain, self._pool, self._bench, self._quorum, self._own, checked)
            await trio.to_thread.run_sync(looked.check, *given)
            if looked.useless > USELESS:
                break
        if looked.earned:
            works = [(one.work, one.units) for one in shown.works if (one.work, one.units) in known] + looked.earned
            noted = (source.epoch, node, works, (source.root, source.size), MAX_WORKS)
            await self._journal.do(self._journal.earned.note_earned, *noted)
        if looked.useless > USELESS:
            raise ProtocolError("useless certificates", "they are of nobody who may certify, or doubled")
        if looked.lacking and self._certifying is not None:
            await self._certifying.answer(looked.lacking[:LACKING])
        return bool(looked.lacking)

    # what is refused after all

    async def _follow_jury(self) -> None:
        """A fault that a quorum finds inside the window takes the work out."""
        ballots = self._context.state.ballots
        async for touched in self._context.facts.subscribe(WorkTouched):
            id = touched.work
            if ballots.state(id) is not FileState.REJECTED or not ballots.undisputed(id):
                continue
            said = [(one.verdict, one.signature) for one in ballots.rejecting(id).values()]
            if len(said) >= self._quorum:
                proof = msgspec.msgpack.encode(refusal_of(said))
                await self._journal.do(self._journal.earned.refuse, id, said[0][0].epoch, proof)

    async def _heed_refusals(self, refusals: Sequence[Refusal]) -> None:
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

    async def look(self, seen: Seen) -> float:
        """One look at what is to be tabled, signed, compared, carried."""
        pool, first = seen.pool, seen.first
        self._pause = min(max(pool.window / 40, PAUSES[0]), PAUSES[1])
        await self._learn_bench(pool, first)
        if first != self._first:
            # A new table was posted: what was signed or compared for the old one counts no more.
            self._first, self._mine, self._compared, self._done, self._unfit = first, None, Counter(), set(), set()
        # Epochs whose window is over by the chain's clock: until then a quorum may still refuse a work of them.
        last = pool.epoch_at(max(seen.now - pool.window, 0)) - 1
        if self._is_deaf(pool):
            return self._pause
        table = await self._table(seen, last) if last >= first else None
        if table is not None:
            await self._sign(table)
            await self._carry(pool)
        return self._pause

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
        bench = Bench(kept | dict.fromkeys(struck, -1))
        if bench != self._bench:
            self._bench = bench
            self._read.clear()  # what was worth nothing may count now

    def _is_deaf(self, pool: PoolInfo) -> bool:
        """Whether nodes may not have had the time to show what they have: after a start, or a time alone."""
        now = self._context.clock.monotonic()
        alone = len(pool.validators) == 1
        # A validator that hears nobody would table what it has, and lack what others showed meanwhile.
        if not alone and is_cut_off(voices(self._context.board, self._context.membership), now):
            self._heard_since = now
        deaf = now < self._heard_since + 2 * self._context.time.shown_every
        self.waiting = "nodes are given the time to show what they have" if deaf else ""
        return deaf

    async def _table(self, seen: Seen, last: int) -> Table | None:
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
        earned: dict[int, dict[Address, int]] = {}
        for epoch, node, units in await self._journal.do(self._journal.earned.earned_between, first, last):
            if node not in convicted:
                earned.setdefault(epoch, {})[node] = units
        escrow = self._ledger.escrow(block, pool.reward_per_unit) - posted.total
        most = min(max(escrow, 0), pool.units_per_epoch * (last + 1 - first))
        rows = await self._journal.do(self._journal.earned.sources, first, last)
        sources = [Source(at, address_bytes(node), root, size) for at, node, root, size in rows]
        proofs = await self._journal.do(self._journal.earned.refusals, first, last)
        where = "a refusal in the journal"
        read = [cached(where, partial(msgspec.msgpack.decode, proof, type=Refusal)) for proof in proofs]
        refusals = [one for one in read if one is not None]
        claims = (self._ledger.claimed(), self._ledger.claimed(block))
        given = (self._pool, last, before, earned, most, *claims, sources, refusals)
        table = await trio.to_thread.run_sync(table_after, *given)
        more = sum(sum(units.values()) for units in earned.values()) + (before.behind if before else 0)
        if table is None and more:
            self.waiting = f"{more} units are certified, and the pool can pay for {most} now"
        return table

    async def _sign(self, table: Table) -> None:
        now, own = self._context.clock.monotonic(), self._mine
        # Compared by lines: other sources of the same units are no reason to sign anew.
        rows = (table.epoch, table.total, table.lines, table.owed)
        if own is None or (own.table.epoch, own.table.total, own.table.lines, own.table.owed) != rows:
            head, files = await trio.to_thread.run_sync(table.files)
            root = head.root()
            for file in files:
                await self._context.blobs.add(file)
            info = await self._context.blobs.add(encode_head(head))
            earnings = Earnings(self._pool, table.epoch, root, table.total)
            signature = sign(self._context.key, self._context.domain, earnings)
            message = EarningsSigned(
                pool=earnings.pool, earnings=earnings, table=info.root, size=info.size, signature=signature
            )
            # First the others get the time to sign alike; then one carries it, chosen by the table's own root.
            turn = SETTLING * self._pause + seconds_to_wait(self._context, root)
            own = self._mine = _Mine(message, table, now + turn)
            self._frozen = max(self._frozen, table.epoch)
            log.info("earnings.signed", epoch=table.epoch, total=table.total, nodes=len(table.lines))
        if not own.said_at or now - own.said_at >= REPEAT_EVERY:
            own.said_at = now
            self._context.board.say([own.message], within=SAID_WITHIN)

    async def _compare_all(self) -> None:
        """Beside the looks, each validator beside the others: who names what nobody has stops nobody's own table."""
        while True:
            await trio.sleep(self._pause)
            if not self._bench.last:
                continue  # the chain has not been asked yet
            async with trio.open_nursery() as nursery:
                for author, message in self._books.signed.items():
                    nursery.start_soon(self._compare, author, message)

    async def _compare(self, author: Address, message: EarningsSigned) -> None:
        """Fetch what another's table rests on and this node lacks."""
        own, first = self._mine.message.earnings if self._mine else None, self._first
        if message.earnings == own or message.earnings.epoch < first or author == self._own:
            return
        if message.table in self._done or self._compared[author] >= TABLES_EACH:
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

    async def _take_from(self, author: Address, message: EarningsSigned, first: int) -> None:
        read = partial(decode_head, pool=self._pool)
        table = await self._books.fetch(message.table, min(message.size, MAX_HEAD_BYTES), [author], read)
        log.info("earnings.differ", validator=author, epoch=table.epoch, total=table.total)
        rows = await self._journal.do(self._journal.earned.sources, first, table.epoch)
        known = {root for _, _, root, _ in rows}
        misses = 0
        for source in table.sources:
            if source.root in known or not first <= source.epoch < self._context.time.epoch():
                continue
            if misses >= MISSES:
                break
            try:
                await self._take(source, (author, address_from_bytes(source.node)))
            except (IntellectError, OSError) as error:
                misses += 1
                log.info("certificates.unusable", validator=author, epoch=source.epoch, why=str(error))
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
            given = (earnings.pool, earnings.epoch, earnings.root, earnings.total)
            await self._chain.post_earnings(*given, fit[: pool.threshold])
        except Reverted as error:
            if error.name == "ValidatorUnfit":  # one without its stake spoils the others' signatures
                self._unfit |= {author for author in alike if author in error.args_.values()}
            log.info("earnings.not_posted", epoch=earnings.epoch, why=error.why)
            return
        self.posted += 1
        log.info("earnings.posted", epoch=earnings.epoch, total=earnings.total)


class Bench(msgspec.Struct, frozen=True):
    """Who may have certified, and through which epoch: no end for who is in office, -1 for who was thrown out."""

    last: dict[Address, float]

    def of(self, epoch: int) -> frozenset[Address]:
        return frozenset(one for one, last in self.last.items() if last >= epoch)


class _Looked:
    """What a blob of certificates is found to hold, chunk by chunk, in a thread. earned: (work, units) that a quorum
    certified; lacking: works without this validator's signature; useless: signatures of nobody who may certify."""

    def __init__(self) -> None:
        self.earned: list[tuple[bytes, int]] = []
        self.lacking: list[Accepted] = []
        self.useless = 0

    def check(
        self, part: Shown, domain: Domain, pool: int, bench: Bench, quorum: int, own: Address, checked: set[bytes]
    ) -> None:
        """checked: signatures that this node made or checked before; of them each has still to fit its work."""
        counted = bench.of(part.epoch)
        for one in part.works:
            statement = part.statement(pool, one)
            signers: set[Address | None] = set()
            struck: set[Address | None] = set()
            # A quorum is enough, and of those that were checked before the signer is remembered (identity.recover).
            for signature in sorted(one.signatures, key=lambda each: each not in checked):
                signer = _signer(domain, statement, signature)
                if signer in counted and signer not in signers:
                    signers.add(signer)
                elif signer in bench.last and signer not in signers | struck:
                    struck.add(signer)  # its node heard it while it counted
                else:
                    self.useless += 1
                if len(signers) >= quorum:
                    break
            if len(signers) >= quorum:
                self.earned.append((one.work, one.units))
            elif own not in signers:
                self.lacking.append(statement)


def _signer(domain: Domain, statement: Statement, signature: bytes) -> Address | None:
    try:
        return signer_of(domain, statement, signature)
    except ProtocolError:
        return None


def _against(statements: Sequence[tuple[Verdict, bytes]], domain: Domain, bench: frozenset[Address]) -> int:
    """How many of the bench signed a refusal."""
    return len({_signer(domain, verdict, signature) for verdict, signature in statements} & bench)
