"""A node's pay, brought home: its line of the newest posted table is claimed, and its owner is told what comes when.

The table is a blob that any validator serves, checked against the root on chain. Whether anything is due is asked of
the chain itself before anything is sent. Times are those of blocks. Warns of what costs money if nobody acts: an escrow
that runs out, a slash that must be appealed with a key that is not here, new validators.
"""

import time
from functools import partial
from typing import Any, Self

import msgspec
import structlog
import trio

from contracts.bindings import CaseState, PoolInfo
from node.chain.errors import Reverted, tokens
from node.chain.faucet import is_devnet
from node.progress import TROUBLE
from node.services.books import Books, Keeping, Seen
from node.services.workplace import Workplace
from node.state.kept import cached
from node.state.made import UNCLEAR
from node.state.pay import PAY, PayRecord, Tabled
from node.status_schema import EpochPart, PaidUnitsPart, PayPart
from protocol.earnings import decode_certificates
from protocol.errors import IntellectError
from protocol.identity import Address, address_bytes
from protocol.table import Head

log = structlog.get_logger()
# a claim costs the same gas however many epochs it brings, and what stands in a table is owed: waiting loses nothing
EPOCHS_TO_GATHER = 8
MOST_TO_GATHER = 6 * 3600.0
"""Seconds that pay may wait for more to come, so that one transaction brings several epochs."""
EPOCHS_TOLD = 64
"""Epochs of ours whose pay the status tells, the newest."""
WARN_EPOCHS = 3
"""An escrow that lasts for fewer epochs like the last ones is told."""
WARN_SHARE = 0.9
"""A newest table that paid less of what waited for it is told."""
SENDING = "claiming"
"""The journal's fact: the claim that may be on its way."""


class Account(msgspec.Struct, frozen=True):
    """What a node's work comes to, in units. claimed: paid by now; due: in the posted table and not claimed; owed: in
    it, for when the pool can pay; certified: by a quorum, and in no table yet; missed: accepted, and in no table for
    ever; until: when the next of it can be claimed, by the chain; paid: wei."""

    claimed: int = 0
    due: int = 0
    owed: int = 0
    certified: int = 0
    missed: int = 0
    until: int = 0
    paid: int = 0


class Settling(Keeping):
    """gather: seconds that due pay may wait for more, None for what suits the pool's epochs."""

    name = "settling"
    trouble = "pay.not_claimed"

    def __init__(self, books: Books, gather: float | None = None) -> None:
        super().__init__(books)
        self._gather = gather
        self._progress = self._context.progress
        self._provider: Address | None = None
        self._bonded = 0
        """wei that answer for this node"""
        self._told_paid: int | None = None
        self._warned: dict[str, str] = {}
        self._certified: dict[int, int] = {}
        self._tabled: list[Tabled] = []
        self._told_certified: int | None = None
        self._record: PayRecord | None = None
        self._seen: Seen | None = None
        self._behind = 0
        """Units of all nodes that the newest table cannot pay."""
        self.account = Account()

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        gather = 0.0 if is_devnet(place.chain.profile) else None  # gas costs nothing there
        return cls(place.books, gather)

    def begin(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._books.listen)

    def failed(self, error: IntellectError) -> None:
        self._progress.trouble(f"pay could not be claimed: {error.why}")

    def status(self) -> dict[str, Any]:
        account, seen = self.account, self._seen
        price = seen.pool.reward_per_unit if seen else 0
        earned = account.paid + (account.due + account.owed + account.certified) * price
        pay = PayPart(
            provider=self._provider or "",
            earned_wei=str(earned),
            paid_wei=str(account.paid),
            due_wei=str(account.due * price),
            owed_wei=str(account.owed * price),
            waiting_wei=str(account.certified * price),
            waiting_until=account.until,
            missed_wei=str(account.missed * price),
            units=PaidUnitsPart(account.claimed, account.due, account.certified, account.missed, account.owed),
            table_epoch=seen.posted.epoch if seen else None,
            epochs=self._epochs()[-EPOCHS_TOLD:],
            warnings=list(self._warned.values()),
            escrow_wei=str(seen.pool.escrow) if seen else None,
            escrow_epochs=seen.lasts if seen else None,
            reward_per_unit_wei=str(price) if seen else None,
            unit_worth_wei=str(self._worth(seen)) if seen else None,
        )
        return {"pay": pay, "stake": {"bonded_wei": str(self._bonded)}}

    def _worth(self, seen: Seen) -> int:
        """wei: what a unit came to in the newest table, among all units that waited for it."""
        posted, price = seen.posted, seen.pool.reward_per_unit
        return price * posted.last_units // (posted.last_units + self._behind) if self._behind else price

    def _epochs(self) -> list[EpochPart]:
        """JSON-ready: no number beyond what JSON readers can hold."""
        told = [(one.epoch, self._state(one), one.units or 0, one.certified - (one.units or 0)) for one in self._tabled]
        told += [(epoch, "certified", units, 0) for epoch, units in sorted(self._waiting().items())]
        pool = self._seen.pool if self._seen else None
        price, at = (pool.reward_per_unit, pool.maturity) if pool else (0, lambda epoch: 0)
        return [
            EpochPart(epoch, state, str(units * price), units, 0 if state == "unclear" else missed, at(epoch))
            for epoch, state, units, missed in told
        ]

    def _state(self, one: Tabled) -> str:
        if one.line == UNCLEAR:
            return "unclear"
        return "missed" if not one.units else "claimed" if self.account.claimed >= one.line else "in the table"

    def _waiting(self) -> dict[int, int]:
        """What no table that was looked at covers, by epoch."""
        through = -1 if self._record is None else self._record.through
        return {epoch: units for epoch, units in self._certified.items() if epoch > through}

    async def look(self, seen: Seen) -> float:
        """One look at what is due, and at what the owner should know."""
        pool, self._seen = seen.pool, seen
        if self._provider is None:
            self._provider = (await self._chain.node_info(self._own)).owner
        # What a crash left under way comes first: whether more is due is asked of the chain after it.
        await self._finish()
        head, share = await self._books.head(seen.posted), await self._books.share(seen.posted, self._own)
        self._behind = head.owing.behind if head and head.owing else 0
        claimed = await self._chain.claimed(self._pool, self._own)
        if share and share.units and share.units > claimed and self._is_time(pool, seen.now):
            await self._claim(share.units, share.proof)
            claimed = await self._chain.claimed(self._pool, self._own)
        # Who has no line had its last one claimed.
        line = share.units or claimed if share else 0
        await self._sum(seen, head, (line, share.rest if share else 0), claimed)
        await self._collect()
        self._tell_of_pay(self.account.paid)
        self._tell_of_certified(pool)
        await self._warn(seen)
        return seen.pause

    # claiming

    def _is_time(self, pool: PoolInfo, now: int) -> bool:
        """Whether what is due has waited long enough for more: since the first table after the last pay."""
        paid_at = self._ledger.claims[-1].block if self._ledger.claims else 0
        first = next((table.epoch for table in self._ledger.tables if table.block > paid_at), None)
        wanted = min(EPOCHS_TO_GATHER * pool.epoch_seconds, MOST_TO_GATHER) if self._gather is None else self._gather
        return first is None or now - pool.maturity(first) >= wanted or pool.ended

    async def _claim(self, units: int, proof: tuple[bytes, ...]) -> None:
        # Written down with its proof: after a crash the table may be another one, and the call must be equal.
        await self._journal.do(self._journal.remember, SENDING, msgspec.msgpack.encode((units, proof)))
        await self._finish()

    async def _finish(self) -> None:
        """Send what the journal names. After a crash this is the very same call again, which the outbox knows: what is
        on its way is waited for, and not sent a second time. The contract pays a difference, so twice pays nothing."""
        kept = await self._journal.do(self._journal.recall, SENDING)
        if not kept:
            return
        # What cannot be read is claimed anew: the contract pays a difference.
        read = partial(msgspec.msgpack.decode, kept, type=tuple[int, tuple[bytes, ...]])
        claim = cached(f"the journal's {SENDING}", read)
        if claim is None:
            return await self._journal.do(self._journal.remember, SENDING, b"")
        units, proof = claim
        try:
            await self._chain.claim(self._pool, self._own, units, proof)
            log.info("pay.claimed", units=units)
        except Reverted as error:  # somebody else carried it, a newer table was posted, or its size allows no more yet
            log.info("pay.not_due", units=units, why=error.why)
        await self._journal.do(self._journal.remember, SENDING, b"")

    async def _collect(self) -> None:
        """Bonds and shares of cases that are over, of this node and of its provider."""
        if not self._ledger.judged:
            return
        for who in filter(None, (self._own, self._provider)):
            owed = await self._chain.credit_of(who)
            if owed:
                await self._chain.collect(who)
                log.info("case.collected", who=who, amount=str(owed))
                self._progress.tell("collected", f"{tokens(owed)} tokens of cases that are over were paid to {who}")

    # telling

    async def _sum(self, seen: Seen, head: Head | None, share: tuple[int, int], claimed: int) -> None:
        """share: units of this node's line, and those that it is owed beyond it."""
        pool, journal, (line, rest) = seen.pool, self._journal, share
        self._certified, kept = await journal.do(
            lambda: (journal.pay.certified_units(self._own, pool.threshold), journal.recall(PAY))
        )
        read = partial(msgspec.msgpack.decode, kept or b"", type=PayRecord)
        self._record = cached(f"the journal's {PAY}", read) if kept else None
        if head is not None or not seen.posted.total:
            await self._note(seen, head, line + rest, claimed)
        self._tabled, missed = await journal.do(lambda: (journal.pay.tabled(EPOCHS_TOLD), journal.pay.missed_units()))
        waiting = self._waiting()
        until = min((pool.maturity(epoch) for epoch in waiting), default=0)
        due, certified = max(line - claimed, 0), sum(waiting.values())
        self.account = Account(claimed, due, rest, certified, missed, until, self._ledger.paid)

    async def _note(self, seen: Seen, head: Head | None, line: int, claimed: int) -> None:
        """Keep where this node's works are, table by table."""
        pool, known, through = seen.pool, self._record, seen.first - 1
        if known is None:  # what was tabled before this journal began is not told
            first, before = through + 1, line
        elif through <= known.through:  # the same, or, after a reorganisation, another one in its place
            first, before = known.first, known.before
        else:
            first, before = known.through + 1, known.line
        times = (pool.started_at, pool.epoch_seconds, pool.window)
        record = PayRecord(seen.posted.root, first, through, before, line, claimed, pool.threshold, *times)
        if head is not None and first <= through and (known is None or known.root != seen.posted.root):
            try:
                await self._settle(record, head)
            except (IntellectError, OSError) as error:  # a blob cannot be had: asked for again at the next look
                log.info("pay.not_looked_up", through=through, why=str(error))
                return
        elif record != known:
            await self._journal.do(self._journal.remember, PAY, msgspec.msgpack.encode(record))
        self._record = record

    async def _settle(self, record: PayRecord, head: Head) -> None:
        """Find which works a table has: all that were certified, if their sum is what the line rose by; else those in
        the blobs that the table names."""
        rise, epochs = record.line - record.before, range(record.first, record.through + 1)
        certified = sum(units for epoch, units in self._certified.items() if epoch in epochs)
        # The usual case needs no blob: everything certified is in the table.
        works = None if certified == rise else await self._works_in(head, record.quorum)
        # If neither explains the rise, nobody can say which works the table has: told as unclear, not guessed.
        clear = works is None or sum(works.values()) == rise
        chosen = frozenset(works) if clear and works is not None else None
        await self._journal.do(self._journal.pay.settle, self._own, record, chosen, clear)
        log.info("pay.tabled", through=record.through, units=rise, certified=certified, clear=clear)
        which = f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {epochs[0]} to {epochs[-1]}"
        if rise:
            text = f"{rise:,} units of {which} are owed, and claimed as the pool can pay them"
            self._progress.tell("in the table", text)
        if clear and certified > rise:
            self._progress.trouble(f"{certified - rise:,} certified units of {which} missed the table of earnings")

    async def _works_in(self, head: Head, quorum: int) -> dict[bytes, int]:
        """Work -> units of this node that a table counts. Raises IntellectError where a blob of them cannot be had."""
        works: dict[bytes, int] = {}
        others = self._context.membership.addresses()
        for source in head.sources:
            if source.node == address_bytes(self._own):
                read = partial(decode_certificates, node=self._own, epoch=source.epoch)
                shown = await self._books.fetch(source.root, source.size, others, read)
                works |= {one.work: one.units for one in shown.works if len(one.signatures) >= quorum}
        for refusal in head.refusals:
            works.pop(refusal.work(self._pool), None)
        return works

    def _tell_of_pay(self, paid: int) -> None:
        """What has arrived since the last look; at the first one, all of it is old."""
        # The first look after a start has nothing to compare with: old pay is no news.
        before, self._told_paid = self._told_paid, paid
        if before is not None and paid > before:
            text = f"{tokens(paid - before)} tokens were paid to {self._provider}; {tokens(paid)} by now"
            self._progress.tell("claimed", text)

    def _tell_of_certified(self, pool: PoolInfo) -> None:
        """What was certified of each epoch that is over; at the first look, all of it is old."""
        last, before = self._context.time.epoch() - 1, self._told_certified
        self._told_certified = last
        for epoch, units in sorted(self._waiting().items()):
            if before is not None and before < epoch <= last:
                when = _date(pool.maturity(epoch))
                self._progress.tell("certified", f"{units:,} units of epoch {epoch}, claimable from {when} on")

    async def _warn(self, seen: Seen) -> None:
        told = {**self._of_the_pool(seen), **await self._of_cases(seen.now)}
        for name, text in told.items():
            if self._warned.get(name) != text:
                log.warning(f"pay.{name.split()[0]}", what=text)
                self._progress.tell(TROUBLE, text)
        self._warned = told

    def _of_the_pool(self, seen: Seen) -> dict[str, str]:
        """Money that runs out, and new judges."""
        told: dict[str, str] = {}
        pool, lasts = seen.pool, seen.lasts
        waiting = self.account.certified * pool.reward_per_unit
        if not pool.stopped_at and pool.escrow < max(waiting, pool.reward_per_unit):
            told["escrow"] = "the pool's escrow does not pay for what is certified: contract pool fund"
        elif not pool.stopped_at and lasts is not None and lasts < WARN_EPOCHS:
            told["escrow"] = f"the pool's escrow lasts for {lasts} more epochs like the last ones: contract pool fund"
        if self._behind and self._worth(seen) < pool.reward_per_unit * WARN_SHARE:
            told["worth"] = (
                f"{self._behind:,} units of all nodes are owed that the pool cannot pay yet: "
                f"of what waited its newest table paid {self._worth(seen) / pool.reward_per_unit:.0%}"
            )
        if pool.validators_from:
            names = ", ".join(pool.proposed)
            told["validators"] = f"other validators may take office from {_date(pool.validators_from)}: {names}"
        return told

    async def _of_cases(self, now: int) -> dict[str, str]:
        """Stake of our provider that is lost unless somebody with its key acts in time."""
        if self._provider is None:
            return {}
        stake = await self._chain.stake_of(self._provider)
        self._bonded, frozen = stake.bonded, stake.frozen
        told: dict[str, str] = {}
        if not frozen:
            return told
        for slash in [one for one in self._ledger.slashed.values() if one.provider == self._provider and one.case_id]:
            case = await self._chain.case(slash.case_id)
            if case.state is not CaseState.FROZEN:
                continue
            # What remains is frozen by cases of other pools, of which this ledger knows nothing.
            frozen -= case.amount
            if not case.appealed and now < case.final_at:
                told[f"case {case.id}"] = (
                    f"{case.amount / 10**18:g} tokens of stake are frozen for {slash.node}; lost unless the provider "
                    f"appeals until {_date(case.final_at)}, with a bond: contract case appeal {case.id}"
                )
        if frozen > 0:
            told["case elsewhere"] = f"{frozen / 10**18:g} tokens of stake are frozen by another pool: contract show"
        return told


def _date(timestamp: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(timestamp))
