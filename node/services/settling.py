"""A worker's pay, brought home: what is mature is settled, and whoever looks at the status sees what comes when.

What was committed stands in the ledger (the chain's events); whether it is due is asked of the chain itself before
anything is sent. Times are those of blocks. Work that the pool had no money for is topped up once it has some. Warns of
what costs money if nobody acts: an empty escrow, a slash that must be appealed with a key that is not here, new
validators.
"""

import time
from collections.abc import Sequence
from typing import Any, Protocol, Self

import msgspec
import structlog
import trio

from contracts.bindings import CaseInfo, CaseState, NodeInfo, PoolInfo, Stake, WorkInfo
from node.chain.client import Block
from node.chain.errors import Reverted, tokens
from node.chain.faucet import is_devnet
from node.chain.ledger import Entry, Ledger
from node.progress import TROUBLE
from node.services.base import Service
from node.services.station import Station
from node.services.workplace import Workplace
from protocol.errors import IntellectError
from protocol.identity import Address

log = structlog.get_logger()
BATCH = 32
"""Epochs settled in one transaction: far below a block's gas."""
EPOCHS_TO_GATHER = 8
MOST_TO_GATHER = 6 * 3600.0
"""Seconds that pay may wait for more to come, so that one transaction brings several epochs: a third of the gas."""
RETRY_PAUSE = 5.0
PAUSES = (1.0, 300.0)
"""Seconds between two looks: a quarter of an epoch, within these."""
WARNED = 64
EPOCHS_TOLD = 64
"""Epochs of ours whose pay the status tells, the newest."""
SENDING = "settling"
"""The journal's fact: epochs for which a transaction may be on its way."""


class Treasury(Protocol):
    """The part of node.chain that pays."""

    async def pool(self, pool: int) -> PoolInfo: ...
    async def block(self) -> Block: ...
    async def work(self, pool: int, node: Address, epoch: int) -> WorkInfo: ...
    async def top_up(self, pool: int, node: Address, epoch: int) -> object: ...
    async def settle(self, pool: int, node: Address, epochs: Sequence[int]) -> object: ...
    async def node_info(self, node: Address) -> NodeInfo: ...
    async def stake_of(self, provider: Address) -> Stake: ...
    async def case(self, case: int) -> CaseInfo: ...


class Account(msgspec.Struct, frozen=True):
    """What a node's work comes to. Amounts in wei; due: mature and not settled; waiting: not mature yet; until: when
    the next of it is; voided: taken by a slash that may be overturned; unfunded: units without a reserve."""

    paid: int = 0
    due: int = 0
    waiting: int = 0
    until: int = 0
    voided: int = 0
    unfunded: int = 0


class EpochPay(msgspec.Struct, frozen=True):
    """What one epoch of this node's work comes to. state: paid, due, waiting, voided by a slash, invalidated by the
    validators, or unfunded; amount: wei; matures_at: the chain's second."""

    epoch: int
    state: str
    amount: int
    units: int
    matures_at: int

    def told(self) -> dict[str, Any]:
        """JSON-ready: no number beyond what JSON readers can hold."""
        return {
            "epoch": self.epoch,
            "state": self.state,
            "wei": str(self.amount),
            "units": self.units,
            "matures_at": self.matures_at,
        }


class Settling(Service):
    """gather: seconds that due pay may wait for more, None for what suits the pool's epochs."""

    name = "settling"

    def __init__(self, station: Station, treasury: Treasury, ledger: Ledger, gather: float | None = None) -> None:
        self._pool = station.pool
        self._own = station.key.address
        self._journal = station.journal
        self._treasury = treasury
        self._ledger = ledger
        self._gather = gather
        self._progress = station.progress
        self._provider: Address | None = None
        self._told_paid: int | None = None
        self._voided: set[int] = set()
        self._warned: dict[str, str] = {}
        self.seen: PoolInfo | None = None
        self.account = Account()
        self.epochs: list[EpochPay] = []
        self._claimable_from = 0.0
        self.warnings: list[str] = []

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        gather = 0.0 if is_devnet(place.chain.profile) else None  # gas costs nothing there
        return cls(place.station, place.chain, place.ledger, gather)

    async def run(self) -> None:
        while True:
            pause = RETRY_PAUSE
            try:
                pool = await self._treasury.pool(self._pool)
                await self.look(pool)
                shortest, longest = PAUSES
                pause = min(max(pool.epoch_seconds / 4, shortest), longest)
            except IntellectError as error:
                log.warning("pay.not_settled", why=error.why)
                self._progress.trouble(f"pay could not be settled: {error.why}")
            await trio.sleep(pause)

    def status(self) -> dict[str, Any]:
        account = self.account
        pay = {
            "provider": self._provider or "",
            "earned_wei": str(account.paid + account.due + account.waiting),
            "paid_wei": str(account.paid),
            "due_wei": str(account.due),
            "waiting_wei": str(account.waiting),
            "waiting_until": account.until,
            "voided_wei": str(account.voided),
            "unfunded_units": account.unfunded,
            "warnings": self.warnings,
            "claimable_from": self._claimable_from,
            "epochs": [epoch.told() for epoch in self.epochs[-EPOCHS_TOLD:]],
            "escrow_wei": str(self.seen.escrow) if self.seen else None,
            "reward_per_unit_wei": str(self.seen.reward_per_unit) if self.seen else None,
        }
        return {"pay": pay}

    async def look(self, pool: PoolInfo) -> None:
        """One look at what is due, and at what the owner should know."""
        self.seen = pool
        if self._provider is None:
            self._provider = (await self._treasury.node_info(self._own)).owner
        await self._finish()
        await self._top_up(pool)  # before settling: what is settled short stays short
        now = (await self._treasury.block()).timestamp
        due = await self._due(pool, now)
        if due and (len(due) >= BATCH or now - pool.maturity(due[0]) >= self._patience(pool)):
            for start in range(0, len(due), BATCH):
                await self._settle(due[start : start + BATCH])
        self._claimable_from = round(time.time() - pool.window - pool.epoch_seconds, 1)
        self.epochs = [self._epoch(entry, pool, now) for entry in self._ledger.of(self._own)]
        account = self._sum(self.epochs)
        self._tell_of_pay(account.paid)
        await self._warn(pool, now)  # of what the account counts, at least
        self.account = account

    # paying

    def _patience(self, pool: PoolInfo) -> float:
        wanted = min(EPOCHS_TO_GATHER * pool.epoch_seconds, MOST_TO_GATHER)
        return wanted if self._gather is None else self._gather

    async def _top_up(self, pool: PoolInfo) -> None:
        """Have pay reserved for what of our work has none, oldest first, as far as the escrow has it by now. After a
        crash the chain says what is still lacking, and the outbox knows the equal call."""
        free = pool.escrow // pool.reward_per_unit if pool.reward_per_unit else 0
        for entry in sorted(self._ledger.of(self._own), key=lambda entry: entry.epoch):
            if not free:
                return
            if not entry.is_short or entry.paid is not None:
                continue
            work = await self._treasury.work(self._pool, self._own, entry.epoch)
            units = min(work.units - work.reserved_units, free)
            if not any(work.root) or work.voided or not units:
                continue
            try:
                await self._treasury.top_up(self._pool, self._own, entry.epoch)
            except Reverted as error:  # somebody else's work got it: the next look sees what is left
                log.info("pay.not_topped_up", epoch=entry.epoch, why=error.why)
                return
            free -= units
            log.info("pay.topped_up", epoch=entry.epoch, units=units)

    async def _due(self, pool: PoolInfo, now: int) -> list[int]:
        """Mature epochs of ours that something is reserved for, oldest first: as the chain says at this moment."""
        due: list[int] = []
        for entry in sorted(self._ledger.of(self._own), key=lambda entry: entry.epoch):
            if entry.closed or now < pool.maturity(entry.epoch):
                continue
            work = await self._treasury.work(self._pool, self._own, entry.epoch)
            (self._voided.add if work.voided else self._voided.discard)(entry.epoch)
            if any(work.root) and work.reserved_units and not work.voided:
                due.append(entry.epoch)
        return due

    async def _settle(self, epochs: list[int]) -> None:
        await self._journal.do(self._journal.remember, SENDING, msgspec.msgpack.encode(epochs))
        await self._finish()

    async def _finish(self) -> None:
        """Send what the journal names. After a crash this is the very same call again, which the outbox knows: what is
        on its way is waited for, and not sent a second time."""
        kept = await self._journal.do(self._journal.recall, SENDING)
        epochs = msgspec.msgpack.decode(kept, type=list[int]) if kept else []
        if not epochs:
            return
        try:
            await self._treasury.settle(self._pool, self._own, epochs)
            log.info("pay.settled", epochs=epochs)
        except Reverted as error:  # somebody else was faster, or a slash was: the chain is read again
            log.info("pay.not_due", epochs=epochs, why=error.why)
        await self._journal.do(self._journal.remember, SENDING, b"")

    # telling

    def _sum(self, epochs: Sequence[EpochPay]) -> Account:
        def worth(state: str) -> int:
            return sum(epoch.amount for epoch in epochs if epoch.state == state)

        until = min((epoch.matures_at for epoch in epochs if epoch.state == "waiting" and epoch.amount), default=0)
        unfunded = sum(entry.units - entry.reserved for entry in self._ledger.of(self._own) if entry.is_short)
        return Account(worth("paid"), worth("due"), worth("waiting"), until, worth("voided"), unfunded)

    def _epoch(self, entry: Entry, pool: PoolInfo, now: int) -> EpochPay:
        matures = pool.maturity(entry.epoch)
        if entry.paid is not None:
            return EpochPay(entry.epoch, "paid", entry.paid, entry.units, matures)
        worth = 0 if entry.closed else entry.reserved * pool.reward_per_unit
        if entry.epoch in self._voided or (self._own in self._ledger.slashed and now < matures):
            state = "voided"
        elif entry.closed:
            state = "unfunded" if entry.is_short else "invalidated"
        else:
            state = "due" if now >= matures else "waiting"
        return EpochPay(entry.epoch, state, worth, entry.units, matures)

    def _tell_of_pay(self, paid: int) -> None:
        """What has arrived since the last look; at the first one, all of it is old."""
        before, self._told_paid = self._told_paid, paid
        if before is not None and paid > before:
            text = f"{tokens(paid - before)} tokens were paid to {self._provider}; {tokens(paid)} by now"
            self._progress.tell("paid", text)

    async def _warn(self, pool: PoolInfo, now: int) -> None:
        told = {**self._of_reserves(pool, now), **self._of_the_pool(pool, now), **await self._of_cases(now)}
        for name, text in told.items():
            if self._warned.get(name) != text:
                log.warning(f"pay.{name.split()[0]}", what=text)
                self._progress.tell(TROUBLE, text)
        self._warned, self.warnings = told, list(told.values())

    def _of_reserves(self, pool: PoolInfo, now: int) -> dict[str, str]:
        """Commitments of ours that wait for money in the pool, as long as their time runs."""
        short = [entry for entry in self._ledger.of(self._own) if entry.is_short and now < pool.maturity(entry.epoch)]
        return {f"unfunded {entry.epoch}": _short(entry) for entry in short[-WARNED:]}

    def _of_the_pool(self, pool: PoolInfo, now: int) -> dict[str, str]:
        """Money that runs out, and new judges."""
        told: dict[str, str] = {}
        last = pool.epoch_at(now) - 1
        wanted = sum(entry.claimed for entry in self._ledger.since(last) if entry.epoch == last) * pool.reward_per_unit
        if not pool.stopped_at and pool.escrow < max(wanted, pool.reward_per_unit):
            told["escrow"] = "the pool's escrow does not pay for another epoch like the last one: contract pool fund"
        if pool.validators_from:
            names = ", ".join(pool.proposed)
            told["validators"] = f"other validators may take office from {_date(pool.validators_from)}: {names}"
        return told

    async def _of_cases(self, now: int) -> dict[str, str]:
        """Stake of our provider that is lost unless somebody with its key acts in time."""
        if self._provider is None:
            return {}
        frozen = (await self._treasury.stake_of(self._provider)).frozen
        told: dict[str, str] = {}
        if not frozen:
            return told
        for slash in [one for one in self._ledger.slashed.values() if one.provider == self._provider and one.case_id]:
            case = await self._treasury.case(slash.case_id)
            if case.state is not CaseState.FROZEN:
                continue
            frozen -= case.amount
            if not case.appealed and now < case.final_at:
                told[f"case {case.id}"] = (
                    f"{case.amount / 10**18:g} tokens of stake are frozen for {slash.node}; lost unless the provider "
                    f"appeals until {_date(case.final_at)}: contract case appeal {case.id}"
                )
        if frozen > 0:
            told["case elsewhere"] = f"{frozen / 10**18:g} tokens of stake are frozen by another pool: contract show"
        return told


def _short(entry: Entry) -> str:
    lacking = f"{entry.units - entry.reserved} of its {entry.units} units"
    return f"epoch {entry.epoch}: nothing is reserved for {lacking}, they wait for money in the pool"


def _date(timestamp: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(timestamp))
