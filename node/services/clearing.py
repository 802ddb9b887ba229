"""The pool's housekeeping: what a slash voided goes back to the escrow, once the slash cannot be undone any more; what
is left of a pool that is over goes to who opened it.

A slashed node's own daemon has ended, so somebody else does this: the trainer, whose pool it is. Anybody may.
"""

from typing import Protocol, Self

import structlog
import trio

from contracts.bindings import CaseInfo, CaseState, PoolInfo, WorkInfo
from node.chain.client import Block
from node.chain.errors import Reverted
from node.chain.ledger import Ledger
from node.services.base import Service
from node.services.workplace import Workplace
from protocol.errors import IntellectError
from protocol.identity import Address

log = structlog.get_logger()
EVERY = 60.0


class Clearer(Protocol):
    """The part of node.chain that ends cases and gives reserved money back."""

    async def pool(self, pool: int) -> PoolInfo: ...
    async def block(self) -> Block: ...
    async def case(self, case: int) -> CaseInfo: ...
    async def work(self, pool: int, node: Address, epoch: int) -> WorkInfo: ...
    async def appeal_seconds(self) -> int: ...
    async def finalize(self, case: int) -> object: ...
    async def release(self, pool: int, node: Address, epoch: int) -> object: ...
    async def sweep(self, pool: int) -> object: ...


class Clearing(Service):
    name = "clearing"

    def __init__(self, pool: int, chain: Clearer, ledger: Ledger) -> None:
        self._pool = pool
        self._chain = chain
        self._ledger = ledger
        self.released = 0

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.station.pool, place.chain, place.ledger)

    async def run(self) -> None:
        while True:
            await trio.sleep(EVERY)
            try:
                for node, slash in list(self._ledger.slashed.items()):
                    await self.clear(node, slash.case_id)
                await self.sweep()
            except IntellectError as error:
                log.info("work.not_released", why=error.why)

    async def clear(self, node: Address, case: int) -> None:
        """Release what a node's slash voided, if that is final or can be made so."""
        waiting = [entry.epoch for entry in self._ledger.of(node) if not entry.closed]
        if not waiting or not await self._is_final(case):
            return
        for epoch in waiting:
            if not (await self._chain.work(self._pool, node, epoch)).voided:
                continue
            try:
                await self._chain.release(self._pool, node, epoch)
            except Reverted as error:
                log.info("work.not_released", node=node, epoch=epoch, why=error.why)
                continue
            self.released += 1
            log.info("work.released", node=node, epoch=epoch)

    async def sweep(self) -> None:
        """Once the pool's last epoch is mature: pay out what no work has a claim on, and when no slash can be
        overturned any more, the bond. Until then work without a reserve comes first: its node may still top it up."""
        pool = await self._chain.pool(self._pool)
        if not pool.ended or not (pool.escrow or pool.bond):
            return
        over = pool.maturity(pool.epoch_at(pool.stopped_at))
        now = (await self._chain.block()).timestamp
        if now < over:
            return
        if now < over + 2 * await self._chain.appeal_seconds():
            wanted = any(entry.is_short and entry.paid is None for entry in self._ledger.since(0))
            if wanted or not pool.escrow:
                return
        try:
            await self._chain.sweep(self._pool)
        except Reverted as error:
            log.info("pool.not_swept", pool=self._pool, why=error.why)
            return
        log.info("pool.swept", pool=self._pool, opener=pool.opener, escrow=str(pool.escrow))

    async def _is_final(self, case: int) -> bool:
        if not case:
            return True
        info = await self._chain.case(case)
        if info.state is CaseState.FROZEN and (await self._chain.block()).timestamp >= info.final_at:
            try:
                await self._chain.finalize(case)
            except Reverted as error:  # somebody else did, or the arbiter was faster
                log.info("case.not_finalized", case=case, why=error.why)
            info = await self._chain.case(case)
        return info.state is CaseState.FINAL
