"""A node's pay, brought home: its line of the newest posted table is claimed, and its owner is told what comes when.

The table is a blob that any validator serves, checked against the root on chain. Whether anything is due follows from
the chain's events, and each claim is tried there before it is sent. Times are those of blocks. Warns of what costs
money if nobody acts: an escrow that runs out, a slash that must be appealed with a key that is not here, new
validators.
"""

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import msgspec
import structlog
import trio

from contracts.bindings import CaseState, Claimed, PoolInfo, Stake
from node.chain.bonds import read_bond
from node.chain.errors import FeeTooHigh, Reverted, tokens
from node.changes import Changes
from node.progress import TROUBLE, ProgressRecord
from node.services.filing import OwnFiling
from node.services.pool_accounting import ChainAnswer, ChainPoller, PoolAccounting, PoolRecord
from node.state.facts import keep, recall
from node.state.pay import PAY, PayRecord, Sums, Tabled
from node.status_schema import EpochPart, FilingPart, PaidUnitsPart, PayPart
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.messages import EpochRootSigned, Signed, of_kind, open_envelope
from protocol.table import TableHead
from protocol.upkeep import WEEK, Patience, slot_began

log = structlog.get_logger()
SENDING = "claiming"
"""The journal's fact: the claim that may be on its way."""


_NONE_WAITS = {"waits_through": -1, "counts_at": 0}


class Account(msgspec.Struct, frozen=True):
    """What a node's work comes to, in units. made: nobody has decided on it yet; accepted: not certified yet;
    certified: by a quorum, in no table that counts, and not filed; waiting: of these, covered by the table that
    waits; due: payable by the table that counts and not claimed, claimable: of it, what the contract pays now;
    owed: in the table, for when the pool can pay; claimed: paid by now; missed: accepted, and in no table for ever;
    unclear: nobody can say; until: when the next of what is certified can be claimed, by the chain; open_until:
    when what is not certified by then never is; last_at: when the last of both can be claimed; paid: wei; filed:
    after the pool's end, and not redeemed yet."""

    made: int = 0
    accepted: int = 0
    certified: int = 0
    waiting: int = 0
    due: int = 0
    owed: int = 0
    claimable: int = 0
    claimed: int = 0
    missed: int = 0
    unclear: int = 0
    until: int = 0
    open_until: int = 0
    last_at: int = 0
    paid: int = 0
    filed: int = 0


class Warnings:
    """What costs money if nobody acts. told: by name, as of the last look; bonded: wei that answer for this node."""

    def __init__(self, books: PoolAccounting, progress: ProgressRecord, *, bonds: bool) -> None:
        """bonds: whether somebody must see that a slash's bond is there: a devnet gives it."""
        self.behind = 0
        """Units of all nodes that the newest table cannot pay."""
        self._chain, self._ledger, self._progress = books.chain, books.ledger, progress
        self._own, self._bonds = books.context.key.address, bonds
        # Whether a validator has the bond of a case; and what no event of this pool tells of a stake.
        self._bond = ChainAnswer[str](books.context.clock, 3600.0)
        self._stake = ChainAnswer[Stake](books.context.clock, 600.0)
        self.told: dict[str, str] = {}
        self.bonded = 0

    async def tick(self, seen: PoolRecord, provider: Address | None, certified: int, behind: int) -> None:
        """Tell what is new. certified: units that no table has yet; behind: those that the newest table owes."""
        self.behind = behind
        told = {**self._of_the_pool(seen, certified), **await self._of_cases(seen.now, provider)}
        if self._bonds and self._own in seen.pool.validators and (lacking := await self._lacking(seen, provider)):
            told["bond"] = lacking
        for name, text in told.items():
            # Of a bond the amounts follow the provider's account: it is told once until it is there.
            if self.told.get(name) != text and not (name in self.told and name == "bond"):
                log.warning(f"pay.{name.split()[0]}", what=text)
                self._progress.tell(TROUBLE, text)
        self.told = told

    def worth(self, seen: PoolRecord) -> int:
        """wei: what a unit came to in the newest table, among all units that waited for it."""
        posted, price = seen.posted, seen.pool.reward_per_unit
        return price * posted.last_units // (posted.last_units + self.behind) if self.behind else price

    def _of_the_pool(self, seen: PoolRecord, certified: int) -> dict[str, str]:
        """Money that runs out, and new judges."""
        told: dict[str, str] = {}
        pool, lasts = seen.pool, seen.lasts
        waiting = certified * pool.reward_per_unit
        if not pool.stopped_at and pool.escrow < max(waiting, pool.reward_per_unit):
            told["escrow"] = "the pool's escrow does not pay for what is certified: contract pool fund"
        # An escrow that lasts for fewer epochs like the last ones is told.
        elif not pool.stopped_at and lasts is not None and lasts < 3:
            told["escrow"] = f"the pool's escrow lasts for {lasts} more epochs like the last ones: contract pool fund"
        # A newest table that paid less of what waited for it is told.
        if self.behind and self.worth(seen) < pool.reward_per_unit * 0.9:
            told["worth"] = (
                f"{self.behind:,} units of all nodes are owed that the pool cannot pay yet: "
                f"of what waited its newest table paid {self.worth(seen) / pool.reward_per_unit:.0%}"
            )
        if seen.waiting and seen.waiting.held:
            told["table"] = (
                f"the guardian holds the table of epoch {seen.waiting.epoch}: it counts from "
                f"{when(seen.waiting.counts_at)} on, unless the arbiter drops it"
            )
        if pool.validators_from:
            names = ", ".join(pool.proposed)
            told["validators"] = f"other validators may take office from {when(pool.validators_from)}: {names}"
        return told

    async def _lacking(self, seen: PoolRecord, provider: Address | None) -> str:
        """What this validator lacks to carry a slash; empty if nothing."""

        async def ask() -> str:
            read = partial(read_bond, node=self._own, provider=provider, slash=seen.pool.slash_amount)
            bond = await self._chain.ask("read a bond", read)
            remedy = "; then ".join(bond.steps())
            lacking = f"a slash that this validator carries takes a bond: {bond.why}: {remedy}"
            return "" if bond.is_there else lacking

        return await self._bond.get(None, ask)

    async def _of_cases(self, now: int, provider: Address | None) -> dict[str, str]:
        """Stake of our provider that is lost unless somebody with its key acts in time."""
        if provider is None:
            return {}
        stake = await self._stake.get((provider, self._ledger.cases), partial(self._chain.stake_of, provider))
        self.bonded, frozen = stake.bonded, stake.frozen
        told: dict[str, str] = {}
        if not frozen:
            return told
        self._stake.forget()  # that a case is over no event of the pool tells
        for slash in [one for one in self._ledger.slashed.values() if one.provider == provider and one.case_id]:
            case = await self._chain.case(slash.case_id)
            if case.state is not CaseState.FROZEN:
                continue
            # What remains is frozen by cases of other pools, of which this ledger knows nothing.
            frozen -= case.amount
            if not case.appealed and now < case.final_at:
                told[f"case {case.id}"] = (
                    f"{case.amount / 10**18:g} tokens of stake are frozen for {slash.node}; lost unless the provider "
                    f"appeals until {when(case.final_at)}, with a bond: contract case appeal {case.id}"
                )
        if frozen > 0:
            told["case elsewhere"] = f"{frozen / 10**18:g} tokens of stake are frozen by another pool: contract show"
        return told


class Gathering:
    """When due pay is claimed, and what is paid for that. on: whether it waits for more, until this node's time of the
    week: a claim costs the same gas however many epochs it brings, and what stands in a table is owed."""

    def __init__(self, books: PoolAccounting, on: bool) -> None:
        self._on = on
        self._chain, self._ledger, self._own = books.chain, books.ledger, books.context.key.address
        self._paid_at = (-1, 0)
        """The block of the newest claim, and its time."""

    async def is_time(self, seen: PoolRecord) -> bool:
        """Whether it has waited long enough."""
        if not self._on or seen.is_last:
            return True
        return slot_began(self._own, seen.now) > await self._began(seen.pool)

    async def _began(self, pool: PoolInfo) -> int:
        """By the chain's events alone, so that no restart claims again: the last claim; of a newcomer, the pool's first
        table, so that it has its first pay at once."""
        if self._ledger.claims:
            block = self._ledger.claims[-1].block
            if self._paid_at[0] != block:
                self._paid_at = block, (await self._chain.block(block)).timestamp
            return self._paid_at[1]
        return pool.maturity(self._ledger.tables[0].epoch) if self._ledger.tables else 0

    def patience(self, seen: PoolRecord) -> Patience | None:
        """What is claimed waits for a better price until this node's next time."""
        began = slot_began(self._own, seen.now)
        return Patience(began, began + WEEK) if self._on else None

    def end(self) -> None:
        """From now on nothing waits for more."""
        self._on = False


class OwnClaim:
    """A claim of this node's pay on its way, and what the chain said of the last one."""

    def __init__(self, books: PoolAccounting) -> None:
        self._chain, self._ledger, self._journal = books.chain, books.ledger, books.context.journal
        self._pool, self._own, self._clock = books.context.pool, books.context.key.address, books.context.clock
        self._heard = (0, 0.0)
        """Units that were paid by what the chain said of this node's last claim, and when (monotonic)."""
        self._may_send = True
        """Whether the journal may name a claim: at the start nobody knows."""

    async def paid(self, *, late: float = 120.0) -> int:
        """Units that were paid by now. The log tells it, but an event comes some blocks late: until then it is what
        this node heard of its own claim. late: seconds after which there is no event to wait for."""
        now, told, (heard, at) = self._clock.monotonic(), self._logged(), self._heard
        if heard > told and now >= at + late:  # a block was replaced, or the log lags far behind
            heard = await self._chain.claimed(self._pool, self._own)
            self._heard = heard, now
        return max(told, heard)

    def _logged(self) -> int:
        return self._ledger.claimed().get(self._own, 0)

    async def claim(self, units: int, proof: tuple[bytes, ...], patience: Patience | None) -> None:
        # Written down with its proof: after a crash the table may be another one, and the call must be equal.
        self._may_send = True
        await keep(self._journal, SENDING, (units, proof))
        await self._send(units, proof, patience)

    async def finish(self, patience: Patience | None) -> None:
        """Send what the journal names. After a crash this is the very same call again, which the outbox knows: what is
        on its way is waited for, and not sent a second time. The contract pays a difference, so twice pays nothing."""
        # What cannot be read is claimed anew: the contract pays a difference.
        claim = await recall(self._journal, SENDING, tuple[int, tuple[bytes, ...]]) if self._may_send else None
        if claim is None:
            self._may_send = False
            return
        await self._send(*claim, patience)

    async def _send(self, units: int, proof: tuple[bytes, ...], patience: Patience | None) -> None:
        """What the journal names."""
        before, claimed = self._logged(), -1
        try:
            # What a transaction would do is asked before it costs gas: of one that pays nothing the contract says so.
            receipt = await self._chain.claim(self._pool, self._own, units, proof, patience=patience)
            log.info("pay.claimed", units=units)
            paid = sum(one.units for one in receipt.events if isinstance(one, Claimed) and one.node == self._own)
            claimed = units if before + paid == units else -1
        # Somebody else carried it, a newer table was posted, or its size allows no more yet; or it waits for a price.
        except (Reverted, FeeTooHigh) as error:
            log.info("pay.not_due", units=units, why=error.why)
            claimed = before if isinstance(error, FeeTooHigh) else -1
        await keep(self._journal, SENDING, None)
        self._may_send = False
        if claimed < 0:  # it was paid in part, by others, or not at all
            claimed = await self._chain.claimed(self._pool, self._own)
        self._heard = claimed, self._clock.monotonic()


class Claimer(ChainPoller):
    """gathers: whether due pay waits for more (`Gathering`)."""

    name = "claimer"
    trouble = "pay.not_claimed"

    def __init__(self, books: PoolAccounting, *, gathers: bool = True, epochs_told: int = 64) -> None:
        self._epochs_told = epochs_told  # epochs of ours whose pay the status tells, the newest
        super().__init__(books)
        self.gathering = Gathering(books, gathers)
        self._progress = self._context.progress
        self._provider: Address | None = None
        self._told_paid: int | None = None
        self._warnings = Warnings(books, self._progress, bonds=gathers)
        self.filing = OwnFiling(books, self._progress)
        """What no table has of it after the pool's end."""
        self._waiting: dict[int, int] = {}
        """Epoch -> units of it that are certified, and in no table."""
        self._tabled: list[Tabled] = []
        self._told_certified: set[int] | None = None
        self._claim = OwnClaim(books)
        self._allowance = ChainAnswer[int](self._context.clock, math.inf)
        self._credits: dict[Address, ChainAnswer[int]] = {}
        self._record: PayRecord | None = None
        self._summed: tuple[Any, int, Sums] | None = None
        """What the journal was asked, after how many changes, and the sums then."""
        self._seen: PoolRecord | None = None
        self.account = Account()
        self.looked = Changes()
        self.settled = self.swept = False
        """The newest table is read, and of a pool that is over nothing is tabled any more: both as of the last look."""

    @classmethod
    async def open(cls, place: Any) -> Self:
        return place.claimer

    def begin(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._books.listen)

    def failed(self, error: IntellectError) -> None:
        self._progress.trouble(f"pay could not be claimed: {error.why}")

    def status(self) -> dict[str, Any]:
        account, seen = self.account, self._seen
        price = seen.pool.reward_per_unit if seen else 0
        earned = account.paid + (account.due + account.owed + account.certified + account.filed) * price
        pay = PayPart(
            provider=self._provider or "",
            earned_wei=str(earned),
            paid_wei=str(account.paid),
            due_wei=str(account.due * price),
            owed_wei=str(account.owed * price),
            waiting_wei=str(account.certified * price),
            filed_wei=str(account.filed * price),
            filing=_filing(seen),
            waiting_until=account.until,
            last_at=account.last_at,
            missed_wei=str(account.missed * price),
            unclear_wei=str(account.unclear * price),
            units=_units(account),
            table_epoch=seen.posted.epoch if seen else None,
            epochs=self._epochs()[-self._epochs_told :],
            warnings=list(self._warnings.told.values()),
            escrow_wei=str(seen.pool.escrow) if seen else None,
            escrow_epochs=seen.lasts if seen else None,
            reward_per_unit_wei=str(price) if seen else None,
            unit_worth_wei=str(self._warnings.worth(seen)) if seen else None,
        )
        return {"pay": pay, "stake": {"bonded_wei": str(self._warnings.bonded)}}

    def _epochs(self) -> list[EpochPart]:
        """JSON-ready: no number beyond what JSON readers can hold."""
        told = [(one.epoch, self._state(one), one.units, one.missed, one.unclear) for one in self._tabled]
        seen = self._seen
        waits = seen.waiting.epoch if seen and seen.waiting else -1
        told += [
            (epoch, "waiting" if epoch <= waits else self.filing.state(epoch), units, 0, 0)
            for epoch, units in self._waiting.items()
        ]
        price, at = (seen.pool.reward_per_unit, seen.claimable) if seen else (0, lambda epoch: 0)
        return [
            EpochPart(epoch, state, str(units * price), units, missed, unclear, at(epoch))
            for epoch, state, units, missed, unclear in told
        ]

    def _state(self, one: Tabled) -> str:
        if not one.units:
            return "unclear" if one.unclear else "missed"
        return "claimed" if self.account.claimed >= one.line else "in the table"

    async def hurry(self) -> None:
        """From now on pay waits for no more to come. Returns once all is looked at that was made before."""
        self.gathering.end()
        # Who leaves goes by the chain's own word, however little an event has moved.
        self._books.ask_again()
        for _ in range(2):  # the first one may be under way, and may have asked the journal before
            looked = self.looked.next
            self._bell.ring()
            await looked.wait()

    async def tick(self, seen: PoolRecord) -> float:
        """One look at what is due, and at what the owner should know."""
        pool, self._seen = seen.pool, seen
        if self._provider is None:
            self._provider = (await self._chain.node_info(self._own)).owner
        # What a crash left under way comes first: whether more is due is asked of the chain after it.
        await self._claim.finish(self.gathering.patience(seen))
        head, share = await self._books.head(seen.posted), await self._books.share(seen.posted, self._own)
        claimed = await self._claim.paid()
        if share and share.units and share.units > claimed and await self.gathering.is_time(seen):
            await self._claim.claim(share.units, share.proof, self.gathering.patience(seen))
            claimed = await self._claim.paid()
        await self.filing.tick(seen)
        # Who has no line had its last one claimed.
        line = share.units or claimed if share else 0
        await self._sum(seen, head, (line, share.rest if share else 0), claimed)
        await self._collect()
        self._tell_of_pay(self.account.paid)
        self._tell_of_certified(seen)
        behind = head.owing.behind if head and head.owing else 0
        await self._warnings.tick(seen, self._provider, self.account.certified, behind)
        self.swept = seen.may_be_swept and not pool.escrow
        self.looked.tell()
        return seen.pause

    @property
    def seen(self) -> PoolRecord | None:
        """The pool as of the last look."""
        return self._seen

    async def _collect(self) -> None:
        """Bonds and shares of cases that are over, of this node and of its provider."""
        if not self._ledger.judged:
            return
        for who in filter(None, (self._own, self._provider)):
            credit = self._credits.setdefault(who, ChainAnswer(self._context.clock, 600.0))
            # Slashes, and those that were overturned: what a case left its carrier and its judges comes with neither.
            if owed := await credit.get((self._ledger.judged, self._ledger.cases), partial(self._chain.credit_of, who)):
                await self._chain.collect(who)
                credit.forget()
                log.info("case.collected", who=who, amount=str(owed))
                self._progress.tell("collected", f"{tokens(owed)} tokens of cases that are over were paid to {who}")

    # telling

    async def _sum(self, seen: PoolRecord, head: TableHead | None, share: tuple[int, int], claimed: int) -> None:
        """share: units of this node's line, and those that it is owed beyond it."""
        pool, journal, posted, (line, rest) = seen.pool, self._journal, seen.first - 1, share
        if self._record is None:
            self._record = await journal.do(journal.pay.record)
        if head is not None or not seen.posted.total:
            await self._note(seen, head, line + rest, claimed)
        known = self._record
        self.settled = known is not None and known.root == seen.posted.root
        # What was claimed was in a table, also in one that cannot be had.
        earned = max(line + rest, claimed, known.line if known else 0)
        due = line - claimed if head is not None else earned - claimed
        waits = seen.waiting.epoch if seen.waiting else -1

        def look() -> tuple[int, list[Tabled], Sums]:
            changes = journal.db.total_changes
            found = journal.pay.tabled(self._epochs_told), journal.pay.sums(self._own, pool.threshold, posted, earned)
            if known is not None and len(self._ledger.tables) > 1:
                # The newest table may still be in a block that is replaced; what was not read may still be told apart.
                # At each look: who was away is told of old epochs later.
                journal.pay.forget_epochs(min(self._ledger.tables[-2].epoch, known.through))
            return changes, *found

        asked = (pool.threshold, posted, earned, known, list(self._ledger.tables)[-2:])
        # Rows that were written: while their number stands still, so does what the journal answers.
        if self._summed is None or self._summed[:2] != (asked, journal.db.total_changes):
            changes, self._tabled, sums = await journal.do(look)
            self._summed = asked, changes, sums
        sums = self._summed[2]
        self._waiting = sums.certified
        allowed = 0
        if due:  # a node's size bounds what it is paid at once
            ask = partial(self._chain.ask, "read what a node may claim")
            own = partial(ask, lambda c: c.allowance_of(self._pool, self._own))
            # Each epoch allows more, and each claim takes some.
            allowed = await self._allowance.get((claimed, pool.epoch_at(seen.now)), own)
        self.account = Account(
            made=sums.made,
            accepted=sums.accepted,
            certified=self.filing.open(certified := sum(sums.certified.values())),
            waiting=sum(units for epoch, units in sums.certified.items() if epoch <= waits),
            due=due,
            owed=rest,
            claimable=min(due, allowed),
            claimed=claimed,
            missed=sums.missed + self.filing.missed(certified),
            unclear=sums.unclear + sums.unread,
            until=seen.claimable(min(sums.certified)) if sums.certified else 0,
            open_until=pool.maturity(sums.undecided) if sums.undecided >= 0 else 0,
            last_at=seen.claimable(last) if (last := max([sums.undecided, *sums.certified])) >= 0 else 0,
            paid=self._ledger.paid,
            filed=self.filing.filed.left,
        )

    async def _note(self, seen: PoolRecord, head: TableHead | None, line: int, claimed: int) -> None:
        """Keep where this node's works are, table by table."""
        known, posted, through = self._record, seen.posted, seen.first - 1
        if known is not None and known.root == posted.root:
            times = {"delay": seen.pool.delay} | _waits(seen) | self.filing.facts(seen)
            record = msgspec.structs.replace(known, claimed=claimed, quorum=seen.pool.threshold, **times)
            if record != known:
                await keep(self._journal, PAY, record)
            self._record = record
            return
        if known is None:  # what the journal holds of before it was looked at is told as well as it can be
            record = self._recorded(seen, (0, 0, 0), posted.root, through, line, claimed)
        elif through <= known.through:  # after a reorganisation, another table in its place
            start = (known.first, known.before, known.unclear_before)
            record = self._recorded(seen, start, posted.root, through, line, claimed)
        else:
            start = (known.through + 1, known.line, known.unclear)
            record = self._recorded(seen, start, posted.root, through, line, claimed)
        if head is None or record.first > through:
            self._record = await self._journal.do(self._journal.pay.settle, self._own, record, None)
            return
        # The usual case needs no blob, nor the tables between: everything certified is in this one.
        if await self._settle_whole(record):
            return
        for between in [one for one in self._ledger.tables if record.first <= one.epoch < through]:
            if (earlier := await self._books.earlier(between, self._own)) is not None:
                names, said = earlier
                # Without a line all was claimed by then that it ever had: nothing came since, or nobody can say what.
                own = (said.units or record.before) + said.rest
                part = msgspec.structs.replace(record, root=between.root, through=between.epoch, line=own)
                if own >= record.before and (settled := await self._settle(part, names)) is not None:
                    after = (settled.through + 1, settled.line, settled.unclear)
                    record = self._recorded(seen, after, posted.root, through, line, claimed)
        await self._settle(record, head)

    def _recorded(
        self, seen: PoolRecord, start: tuple[int, int, int], root: bytes, through: int, line: int, claimed: int
    ) -> PayRecord:
        """start: the first epoch, the line before it, and the units in it of which nobody can say whose they are."""
        pool, (first, before, unclear) = seen.pool, start
        times = (pool.started_at, pool.epoch_seconds, pool.window)
        given = (*times, True, unclear, unclear, pool.delay)
        return PayRecord(
            root,
            first,
            through,
            before,
            line,
            claimed,
            pool.threshold,
            *given,
            **_waits(seen),
            **self.filing.facts(seen),
        )

    async def _settle_whole(self, record: PayRecord) -> PayRecord | None:
        """Settle where a table has all that was certified."""
        certified = await self._certified(record, record.through)
        return await self._keep(record, None, certified) if certified == record.line - record.before else None

    async def _settle(self, record: PayRecord, head: TableHead) -> PayRecord | None:
        """Find which works a table has: all that were certified, if their sum is what the line rose by; else those in
        the roots that the table names. None where one of them cannot be had: it is asked for at the next look."""
        if (settled := await self._settle_whole(record)) is not None:
            return settled
        try:
            works = await self._works_in(head, record.quorum, record.line - record.before)
        except (IntellectError, OSError) as error:
            log.info("pay.not_looked_up", through=record.through, why=str(error))
            return None
        # It names what is new in it; of tables before it that could not be had, all that was certified is left.
        before = [one.epoch for one in self._ledger.tables if record.first <= one.epoch < record.through]
        if before:
            given = (self._own, record.quorum, record.first, before[-1])
            works |= await self._journal.do(self._journal.pay.certified_works, *given)
        rise = record.line - record.before
        if sum(works.values()) != rise:
            # Roots of tables before the newest are shown no more: what this node heard accepted may be the rest of it.
            accepted = await self._journal.do(self._journal.pay.accepted_works, record.first, record.through)
            every = works | accepted
            works = every if sum(every.values()) == rise else works
        # If that does not explain the rise, nobody can say which works it has: told as unclear, not guessed.
        clear = sum(works.values()) == rise
        certified = await self._certified(record, record.through)
        return await self._keep(msgspec.structs.replace(record, clear=clear), frozenset(works), certified)

    async def _certified(self, record: PayRecord, through: int) -> int:
        given = (self._own, record.quorum, record.first, through)
        return sum((await self._journal.do(self._journal.pay.certified_works, *given)).values())

    async def _keep(self, record: PayRecord, works: frozenset[bytes] | None, certified: int) -> PayRecord:
        record = await self._journal.do(self._journal.pay.settle, self._own, record, works)
        self._record, rise = record, record.line - record.before
        log.info("pay.tabled", through=record.through, units=rise, certified=certified, clear=record.clear)
        first, last = record.first, record.through
        which = f"epoch {first}" if first == last else f"epochs {first} to {last}"
        if rise:
            text = f"{rise:,} units of {which} are owed, and claimed as the pool can pay them"
            self._progress.tell("in the table", text)
        if record.clear and certified > rise:
            self._progress.trouble(f"{certified - rise:,} certified units of {which} missed the table of earnings")
        return record

    async def _works_in(self, head: TableHead, quorum: int, rise: int) -> dict[bytes, int]:
        """Work -> units of this node that a table counts, by the roots that it was made of. Those that were said while
        the node was away are read unless the others explain the rise. Raises IntellectError or OSError."""
        sources: list[Signed[EpochRootSigned]] = []
        for raw in head.sources:
            await trio.lowlevel.checkpoint()  # a signature each
            sources.append(of_kind(open_envelope(self._context.domain, self._pool, raw), EpochRootSigned))
        refused = {one.work(self._pool) for one in head.refusals}
        works = await self._named(sources, quorum, refused)
        if sum(works.values()) != rise:
            for signed in sources:
                await self._books.take(signed)
            works = await self._named(sources, quorum, refused)
        return works

    async def _named(
        self, sources: Sequence[Signed[EpochRootSigned]], quorum: int, refused: set[bytes]
    ) -> dict[bytes, int]:
        roots = [(one.message.statement.epoch, one.author, one.message.statement.number) for one in sources]
        works = await self._journal.do(self._journal.pay.named, self._own, roots, quorum)
        return {work: units for work, units in works.items() if work not in refused}

    def _tell_of_pay(self, paid: int) -> None:
        """What has arrived since the last look; at the first one, all of it is old."""
        # The first look after a start has nothing to compare with: old pay is no news.
        before, self._told_paid = self._told_paid, paid
        if before is not None and paid > before:
            text = f"{tokens(paid - before)} tokens were paid to {self._provider}; {tokens(paid)} by now"
            self._progress.tell("claimed", text)

    def _tell_of_certified(self, seen: PoolRecord) -> None:
        """What was certified of each epoch, once; at the first look, all of it is old."""
        waiting, before = self._waiting, self._told_certified
        self._told_certified = waiting.keys() | (before or set())
        for epoch in sorted(waiting.keys() - before if before is not None else ()):
            at = when(seen.claimable(epoch))
            self._progress.tell("certified", f"{waiting[epoch]:,} units of epoch {epoch}, claimable from {at} on")


def _filing(seen: PoolRecord | None) -> FilingPart | None:
    if seen is None or not seen.pool.ended:
        return None
    times = seen.pool.filing
    return FilingPart(times.starts, times.ends, times.redeems, times.held_until)


def _units(account: Account) -> PaidUnitsPart:
    told = (account.made, account.accepted, account.claimable, account.unclear, account.waiting, account.filed)
    return PaidUnitsPart(account.claimed, account.due, account.certified, account.missed, account.owed, *told)


def _waits(seen: PoolRecord) -> dict[str, Any]:
    """As a PayRecord has it."""
    waiting = seen.waiting
    return {"waits_through": waiting.epoch, "counts_at": waiting.counts_at} if waiting else _NONE_WAITS


def when(timestamp: int) -> str:
    """A chain's second as a date."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(timestamp))
