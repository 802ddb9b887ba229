"""A node's pay, brought home: its line of the newest posted table is claimed, and its owner is told what comes when.

The table is a blob that any validator serves, checked against the root on chain. Whether anything is due is asked of
the chain itself before anything is sent. Times are those of blocks. Warns of what costs money if nobody acts: an escrow
that runs out, a slash that must be appealed with a key that is not here, new validators.
"""

import time
from collections.abc import Sequence
from typing import Any, Protocol, Self

import msgspec
import structlog
import trio

from contracts.bindings import CaseInfo, CaseState, NodeInfo, PoolInfo, PostedEarnings, Stake
from node.chain.client import Block
from node.chain.errors import Reverted, tokens
from node.chain.faucet import is_devnet
from node.chain.ledger import Ledger
from node.progress import TROUBLE
from node.services.base import Service
from node.services.station import Station
from node.services.tables import Tables
from node.services.workplace import Workplace
from protocol.errors import IntellectError
from protocol.identity import Address

log = structlog.get_logger()
EPOCHS_TO_GATHER = 8
MOST_TO_GATHER = 6 * 3600.0
"""Seconds that pay may wait for more to come, so that one transaction brings several epochs."""
RETRY_PAUSE = 5.0
PAUSES = (1.0, 300.0)
"""Seconds between two looks: a quarter of an epoch, within these."""
EPOCHS_TOLD = 64
"""Epochs of ours whose pay the status tells, the newest."""
WARN_EPOCHS = 3
"""An escrow that lasts for fewer epochs like the last ones is told."""
SENDING = "claiming"
"""The journal's fact: the claim that may be on its way."""


class Treasury(Protocol):
    """The part of node.chain that pays."""

    async def pool(self, pool: int) -> PoolInfo: ...
    async def block(self) -> Block: ...
    async def earnings(self, pool: int) -> PostedEarnings: ...
    async def claimed(self, pool: int, node: Address) -> int: ...
    async def claim(self, pool: int, node: Address, units: int, proof: Sequence[bytes]) -> object: ...
    async def node_info(self, node: Address) -> NodeInfo: ...
    async def stake_of(self, provider: Address) -> Stake: ...
    async def case(self, case: int) -> CaseInfo: ...


class Account(msgspec.Struct, frozen=True):
    """What a node's work comes to, in units. claimed: paid by now; due: in the posted table and not claimed; certified:
    by a quorum, and in no table yet; until: when the next of it can be claimed, by the chain; paid: wei."""

    claimed: int = 0
    due: int = 0
    certified: int = 0
    until: int = 0
    paid: int = 0


class Settling(Service):
    """gather: seconds that due pay may wait for more, None for what suits the pool's epochs."""

    name = "settling"

    def __init__(
        self, station: Station, treasury: Treasury, ledger: Ledger, tables: Tables, gather: float | None = None
    ) -> None:
        self._pool = station.pool
        self._own = station.key.address
        self._journal = station.journal
        self._time = station.time
        self._treasury = treasury
        self._ledger = ledger
        self._tables = tables
        self._gather = gather
        self._progress = station.progress
        self._provider: Address | None = None
        self._told_paid: int | None = None
        self._warned: dict[str, str] = {}
        self._certified: dict[int, int] = {}
        self.seen: PoolInfo | None = None
        self.posted: int | None = None
        self.account = Account()
        self.warnings: list[str] = []

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        gather = 0.0 if is_devnet(place.chain.profile) else None  # gas costs nothing there
        return cls(place.station, place.chain, place.ledger, place.tables, gather)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tables.listen)
            while True:
                pause = RETRY_PAUSE
                try:
                    pool = await self._treasury.pool(self._pool)
                    await self.look(pool)
                    shortest, longest = PAUSES
                    pause = min(max(pool.epoch_seconds / 4, shortest), longest)
                except IntellectError as error:
                    log.warning("pay.not_claimed", why=error.why)
                    self._progress.trouble(f"pay could not be claimed: {error.why}")
                await trio.sleep(pause)

    def status(self) -> dict[str, Any]:
        account, pool = self.account, self.seen
        price = pool.reward_per_unit if pool else 0
        earned = account.paid + (account.due + account.certified) * price
        pay = {
            "provider": self._provider or "",
            "earned_wei": str(earned),
            "paid_wei": str(account.paid),
            "due_wei": str(account.due * price),
            "waiting_wei": str(account.certified * price),
            "waiting_until": account.until,
            "units": {"claimed": account.claimed, "in_table": account.due, "certified": account.certified},
            "table_epoch": self.posted,
            "epochs": [self._told(epoch, units) for epoch, units in sorted(self._certified.items())[-EPOCHS_TOLD:]],
            "warnings": self.warnings,
            "escrow_wei": str(pool.escrow) if pool else None,
            "escrow_epochs": None if pool is None else self._lasts(pool),
            "reward_per_unit_wei": str(price) if pool else None,
        }
        return {"pay": pay}

    def _told(self, epoch: int, units: int) -> dict[str, Any]:
        """JSON-ready: no number beyond what JSON readers can hold."""
        price, at = (self.seen.reward_per_unit, self.seen.maturity(epoch)) if self.seen else (0, 0)
        in_table = self.posted is not None and epoch <= self.posted
        state = "certified" if not in_table else "in the table" if self.account.due else "claimed"
        return {"epoch": epoch, "state": state, "wei": str(units * price), "units": units, "claimable_at": at}

    async def look(self, pool: PoolInfo) -> None:
        """One look at what is due, and at what the owner should know."""
        self.seen = pool
        if self._provider is None:
            self._provider = (await self._treasury.node_info(self._own)).owner
        await self._finish()
        block = await self._treasury.block()
        self._time.saw(block.timestamp)
        posted = await self._treasury.earnings(self._pool)
        table = await self._tables.of(posted) if posted.total else None
        units = table.units_of(self._own) if table else 0
        claimed = await self._treasury.claimed(self._pool, self._own)
        if table and units > claimed and self._is_time(pool, block.timestamp):
            await self._claim(units, table.proof(self._own))
            claimed = await self._treasury.claimed(self._pool, self._own)
        await self._sum(pool, posted.epoch, max(units - claimed, 0), claimed)
        self._tell_of_pay(self.account.paid)
        await self._warn(pool, block.timestamp)

    # claiming

    def _is_time(self, pool: PoolInfo, now: int) -> bool:
        """Whether what is due has waited long enough for more: since the first table after the last pay."""
        paid_at = self._ledger.of(self._own).block
        first = next((table.epoch for table in self._ledger.tables if table.block > paid_at), None)
        wanted = min(EPOCHS_TO_GATHER * pool.epoch_seconds, MOST_TO_GATHER) if self._gather is None else self._gather
        return first is None or now - pool.maturity(first) >= wanted or pool.ended

    async def _claim(self, units: int, proof: tuple[bytes, ...]) -> None:
        await self._journal.do(self._journal.remember, SENDING, msgspec.msgpack.encode((units, proof)))
        await self._finish()

    async def _finish(self) -> None:
        """Send what the journal names. After a crash this is the very same call again, which the outbox knows: what is
        on its way is waited for, and not sent a second time. The contract pays a difference, so twice pays nothing."""
        kept = await self._journal.do(self._journal.recall, SENDING)
        if not kept:
            return
        units, proof = msgspec.msgpack.decode(kept, type=tuple[int, tuple[bytes, ...]])
        try:
            await self._treasury.claim(self._pool, self._own, units, proof)
            log.info("pay.claimed", units=units)
        except Reverted as error:  # somebody else carried it, a newer table was posted, or its size allows no more yet
            log.info("pay.not_due", units=units, why=error.why)
        await self._journal.do(self._journal.remember, SENDING, b"")

    # telling

    async def _sum(self, pool: PoolInfo, posted: int | None, due: int, claimed: int) -> None:
        quorum = pool.threshold
        self.posted = posted
        self._certified = await self._journal.do(self._journal.certified_units, self._own, quorum)
        waiting = {epoch: units for epoch, units in self._certified.items() if posted is None or epoch > posted}
        until = min((pool.maturity(epoch) for epoch in waiting), default=0)
        paid = self._ledger.of(self._own)
        self.account = Account(claimed, due, sum(waiting.values()), until, paid.amount)

    def _lasts(self, pool: PoolInfo) -> float | None:
        """For how many epochs like those of the last tables the escrow lasts; None where there is none to go by."""
        tables = list(self._ledger.tables)[-8:]
        if len(tables) < 2 or tables[-1].total <= tables[0].total or not pool.reward_per_unit:
            return None
        per_epoch = (tables[-1].total - tables[0].total) / max(tables[-1].epoch - tables[0].epoch, 1)
        return round(pool.escrow / pool.reward_per_unit / per_epoch, 1)

    def _tell_of_pay(self, paid: int) -> None:
        """What has arrived since the last look; at the first one, all of it is old."""
        before, self._told_paid = self._told_paid, paid
        if before is not None and paid > before:
            text = f"{tokens(paid - before)} tokens were paid to {self._provider}; {tokens(paid)} by now"
            self._progress.tell("paid", text)

    async def _warn(self, pool: PoolInfo, now: int) -> None:
        told = {**self._of_the_pool(pool), **await self._of_cases(now)}
        for name, text in told.items():
            if self._warned.get(name) != text:
                log.warning(f"pay.{name.split()[0]}", what=text)
                self._progress.tell(TROUBLE, text)
        self._warned, self.warnings = told, list(told.values())

    def _of_the_pool(self, pool: PoolInfo) -> dict[str, str]:
        """Money that runs out, and new judges."""
        told: dict[str, str] = {}
        waiting = self.account.certified * pool.reward_per_unit
        lasts = self._lasts(pool)
        if not pool.stopped_at and pool.escrow < max(waiting, pool.reward_per_unit):
            told["escrow"] = "the pool's escrow does not pay for what is certified: contract pool fund"
        elif not pool.stopped_at and lasts is not None and lasts < WARN_EPOCHS:
            told["escrow"] = f"the pool's escrow lasts for {lasts:g} more epochs like the last ones: contract pool fund"
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


def _date(timestamp: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(timestamp))
