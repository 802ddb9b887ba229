"""What a node earned and no table has, brought home after its pool's end: filed by validators' roots, and redeemed.

A quorum that falls silent leaves its roots: the journal has this node's line of each, with its way up. As soon as no
table may come any more they go to the chain, and once what everybody filed is known the pool pays it, or its share.
"""

from typing import Any

import msgspec
import structlog
import trio

from node.chain.errors import Reverted, tokens
from node.chain.simulate import SimulatedStep
from node.progress import ProgressRecord
from node.services.pool_accounting import PoolAccounting, PoolRecord
from node.state.earned import OwnLine
from node.state.facts import keep, recall
from protocol.filing import Filing, RootLine, Seated, filings_of, in_turn, read_line
from protocol.identity import Address

log = structlog.get_logger()
SENDING = "filing"
"""The journal's fact: what may be on its way."""


class OwnFiled(msgspec.Struct, frozen=True):
    """What was filed by this node, in units. epochs: of each that no table has; left: neither redeemed nor dropped;
    over: whether nothing can be filed or redeemed any more."""

    epochs: dict[int, int] = {}
    left: int = 0
    over: bool = False

    @property
    def sum(self) -> int:
        return sum(self.epochs.values())


class OwnFiling:
    """One per node; `look` after each look at its pay."""

    def __init__(self, books: PoolAccounting, progress: ProgressRecord) -> None:
        self._context, self._chain, self._ledger, self._progress = books.context, books.chain, books.ledger, progress
        self._journal, self._own, self._pool = books.context.journal, books.context.key.address, books.context.pool
        self._took_office: dict[int, int] = {}
        """Block in which a bench took office -> its timestamp."""
        self._sent_until = 1
        """The chain's time by which all is there that was sent, unix seconds: the log tells later what it came to."""
        self._read: dict[bytes, tuple[Address, RootLine]] = {}
        """By the envelope of the root."""
        self.filed = OwnFiled()

    async def tick(self, seen: PoolRecord) -> None:
        """File what is to be filed now, redeem what is to be redeemed now."""
        if not seen.pool.ended:
            return
        await self._finish()
        times = seen.pool.filing
        if seen.may_be_filed and seen.now < times.ends and self._ledger.read_until() >= self._sent_until:
            await self._file(seen)
        if self._ledger.unredeemed and seen.now >= times.redeems:
            await self._redeem()
        filed, left = self._filed(seen), self._ledger.unredeemed
        # Whoever has not read the log to the end of filing knows of nothing that it is over.
        over = seen.may_be_filed and min(seen.now, self._ledger.read_until()) >= times.ends and not left
        self.filed = OwnFiled(filed, left, over)

    def state(self, epoch: int) -> str:
        """Of an epoch that was certified and that no table has."""
        if epoch in self.filed.epochs and not self.filed.over:
            return "filed"
        if not self.filed.over:
            return "certified"
        return "redeemed" if epoch in self.filed.epochs and self._ledger.redeemed else "missed"

    def facts(self, seen: PoolRecord) -> dict[str, Any]:
        """As a PayRecord has them."""
        filed, redeems_at = tuple(sorted(self.filed.epochs)), seen.pool.filing.redeems if seen.pool.ended else 0
        redeemed = bool(self._ledger.redeemed)
        return {"filed": filed, "redeems_at": redeems_at, "redeemed": redeemed, "over": self.filed.over}

    def open(self, certified: int) -> int:
        """Of so many units that no table has, those that may still be tabled or filed."""
        return 0 if self.filed.over else max(certified - self.filed.sum, 0)

    def missed(self, certified: int) -> int:
        """Of these those that are never paid."""
        return certified - self.filed.sum * bool(self._ledger.redeemed) if self.filed.over else 0

    def _filed(self, seen: PoolRecord) -> dict[int, int]:
        """Units that were filed of each epoch that no table has."""
        return {
            epoch: units for epoch, units in self._ledger.filed.items() if seen.may_be_filed and epoch >= seen.first
        }

    async def _lines(self, seen: PoolRecord) -> list[OwnLine]:
        """Of epochs that no table has."""
        last = seen.pool.epoch_at(seen.pool.stopped_at)
        return await self._journal.do(self._journal.earned.lines, seen.first, last)

    # filing

    async def _file(self, seen: PoolRecord) -> None:
        """Whatever is more than was filed: roots that were heard since, too."""
        filed = self._filed(seen)
        wanted = [filing for filing in await self.filings(seen) if filing.units > filed.get(filing.epoch, 0)]
        while wanted:
            part = in_turn(wanted)
            wanted = wanted[len(part) :]
            # Written down whole: after a crash more roots may have come, and the call must be equal.
            await keep(self._journal, SENDING, part)
            await self._finish()

    async def filings(self, seen: PoolRecord) -> list[Filing]:
        """Of each epoch that no table has and that a quorum named works of this node in."""
        lines = await self._lines(seen)
        await trio.to_thread.run_sync(self._read_all, lines)
        read = [self._read[line.raw] for line in lines]
        return filings_of(read, await self._benches(), lambda epoch: seen.pool.epoch_end(epoch - 1))

    def _read_all(self, lines: list[OwnLine]) -> None:
        """A signature each, once."""
        for line in lines:
            if line.raw not in self._read:
                given = (self._context.domain, self._pool, line.raw, line.units, line.proof)
                self._read[line.raw] = read_line(*given)

    async def _benches(self) -> list[Seated]:
        benches = list(self._ledger.benches)
        for event in benches:
            if event.block not in self._took_office:
                self._took_office[event.block] = (await self._chain.block(event.block)).timestamp
        first = self._ledger.seated - len(benches) + 1
        return [
            Seated(first + n, self._took_office[one.block], one.threshold, tuple(one.validators))
            for n, one in enumerate(benches)
        ]

    async def _finish(self) -> None:
        """Send what the journal names. After a crash this is the very same call again, which the outbox knows; the
        contract takes of an epoch only what is more, so twice files nothing."""
        filings = await recall(self._journal, SENDING, list[Filing])
        if not filings:
            return
        try:
            what = f"file {len(filings)} epochs of {self._own}"
            call = self._chain.contracts.file(self._pool, self._own, filings)
            await self._chain.execute(SimulatedStep(what, call), self._context.key)
            self._sent_until = (await self._chain.block()).timestamp
            units = sum(filing.units for filing in filings)
            log.info("pay.filed", epochs=[filing.epoch for filing in filings], units=units)
            self._progress.tell("filed", f"{units:,} units that no table has are filed, and redeemed later")
        except Reverted as error:  # a table came after all, its size allows no more, or its time is over
            if error.name == "NothingToFile":  # it was filed before: the log says so soon
                log.info("pay.filed_before", epochs=[filing.epoch for filing in filings])
            else:
                log.warning("pay.not_filed", why=error.why)
                self._progress.trouble(f"what no table has could not be filed: {error.why}")
        await keep(self._journal, SENDING, None)

    async def _redeem(self) -> None:
        try:
            call = self._chain.contracts.redeem(self._pool, self._own)
            await self._chain.execute(SimulatedStep(f"redeem what {self._own} filed", call), self._context.key)
        except Reverted as error:  # somebody else carried it, or a case about this node is open
            log.info("pay.not_redeemed", why=error.why)
            return
        paid = tokens(sum(one.amount for one in self._ledger.redeemed))
        log.info("pay.redeemed", paid=paid)
