"""The pool's housekeeping: cases past their time are made final, nodes without their stake expelled, what convicted
nodes had earned goes back to the pool, and what is left of a pool that is over to who opened it.

A slashed node's own daemon has ended, so somebody else does this: the trainer, whose pool it is. Anybody may.
"""

from collections.abc import Awaitable, Sequence
from typing import Protocol, Self

import structlog
import trio

from contracts.bindings import CaseInfo, CaseState, NodeInfo, PoolInfo, PostedEarnings
from node.chain.client import Block
from node.chain.ledger import Ledger
from node.services.base import Service
from node.services.station import Station
from node.services.tables import Tables
from node.services.workplace import Workplace
from protocol.earnings import Table
from protocol.errors import IntellectError
from protocol.identity import Address

log = structlog.get_logger()
EVERY = 60.0
LOOKED_AT = 16
"""Members whose stake is asked about in one look: their turn comes round."""


class Clearer(Protocol):
    """The part of node.chain that ends cases and memberships, and gives money back."""

    async def pool(self, pool: int) -> PoolInfo: ...
    async def block(self) -> Block: ...
    async def case(self, case: int) -> CaseInfo: ...
    async def earnings(self, pool: int) -> PostedEarnings: ...
    async def claimed(self, pool: int, node: Address) -> int: ...
    async def claim(self, pool: int, node: Address, units: int, proof: Sequence[bytes]) -> object: ...
    async def node_info(self, node: Address) -> NodeInfo: ...
    async def backing_of(self, provider: Address) -> int: ...
    async def required_stake(self, provider: Address, more_units: int = 0) -> int: ...
    async def finalize(self, case: int) -> object: ...
    async def expel(self, node: Address) -> object: ...
    async def sweep(self, pool: int) -> object: ...


class Clearing(Service):
    name = "clearing"

    def __init__(self, station: Station, chain: Clearer, ledger: Ledger, tables: Tables) -> None:
        self._pool = station.pool
        self._membership = station.membership
        self._chain = chain
        self._ledger = ledger
        self._tables = tables
        self._next = 0
        self._final: set[int] = set()

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.station, place.chain, place.ledger, place.tables)

    async def run(self) -> None:
        while True:
            await trio.sleep(EVERY)
            for work in (self.end_cases, self.expel, self.give_back, self.sweep):
                try:
                    await work()
                except IntellectError as error:
                    log.info("pool.not_cleared", why=error.why)

    async def end_cases(self) -> None:
        """Every case of the pool whose time is over, whatever its node has earned."""
        now = (await self._chain.block()).timestamp
        for number in self._ledger.cases:
            if number in self._final:
                continue
            case = await self._chain.case(number)
            if case.state is CaseState.FROZEN and now >= case.final_at:
                await self._try(self._chain.finalize(case.id), "case.final", case=case.id)
            elif case.state is not CaseState.FROZEN:
                self._final.add(case.id)

    async def expel(self) -> None:
        """Members whose provider's stake, after a slash, no longer covers its nodes."""
        members = sorted(self._membership.addresses())
        turn = [members[(self._next + i) % len(members)] for i in range(min(LOOKED_AT, len(members)))]
        self._next += LOOKED_AT
        for node in turn:
            info = await self._chain.node_info(node)
            if info.provider is None or info.pool != self._pool:
                continue
            backing = await self._chain.backing_of(info.provider)
            if backing < await self._chain.required_stake(info.provider):
                await self._try(self._chain.expel(node), "member.expelled", node=node)

    async def give_back(self) -> None:
        """What convicted nodes had earned, once nothing can undo that."""
        slashed = self._ledger.slashed
        table = await self._table() if slashed else None
        for node, slash in list(slashed.items()) if table else ():
            if slash.case_id and slash.case_id not in self._final:
                continue
            units = table.units_of(node) if table else 0
            if table and units > await self._chain.claimed(self._pool, node):
                await self._try(
                    self._chain.claim(self._pool, node, units, table.proof(node)), "pay.given_back", node=node
                )

    async def sweep(self) -> None:
        """What no table promised of a pool that is over, a window after its last epoch can be tabled."""
        pool = await self._chain.pool(self._pool)
        if not pool.ended or not pool.escrow:
            return
        if (await self._chain.block()).timestamp >= pool.maturity(pool.epoch_at(pool.stopped_at)) + pool.window:
            await self._try(self._chain.sweep(self._pool), "pool.swept", pool=self._pool, escrow=str(pool.escrow))

    async def _table(self) -> Table | None:
        posted = await self._chain.earnings(self._pool)
        return await self._tables.of(posted) if posted.total else None

    async def _try(self, call: Awaitable[object], done: str, **facts: object) -> None:
        try:
            await call
        except IntellectError as error:  # somebody else did, the arbiter was faster, or nobody answers: the next one
            log.info(f"not.{done}", why=error.why, **facts)
        else:
            log.info(done, **facts)
