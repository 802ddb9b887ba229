"""The pool's housekeeping: cases past their time are made final, nodes without their stake removed, what convicted
nodes had earned goes back to the pool, and what is left of a pool that is over to who opened it.

A slashed node's own daemon has ended, so somebody else does this: the trainer, whose pool it is. Anybody may.
"""

from collections.abc import Awaitable

import structlog

from contracts.bindings import CaseState
from node.services.pool_accounting import ChainPoller, PoolAccounting, PoolRecord
from protocol.errors import IntellectError
from protocol.identity import Address

log = structlog.get_logger()
LOOKED_AT = 1
"""Members whose stake is asked about in one look, with six questions to the chain each: their turn comes round."""


class PoolKeeper(ChainPoller):
    name = "pool-keeper"
    trouble = "pool.not_cleared"

    def __init__(self, books: PoolAccounting) -> None:
        super().__init__(books)
        self._next = int(self._own, 16)  # each trainer begins with another one
        self._final: set[int] = set()

    async def tick(self, seen: PoolRecord, *, every: float = 60.0) -> float:
        # In this order: what goes back depends on which cases are final (`_final`).
        for work in (self.end_cases, self.expel, self.give_back, self.sweep):
            try:
                await work(seen)
            except IntellectError as error:  # it holds up nothing else
                log.info(self.trouble, why=error.why)
        return every

    async def end_cases(self, seen: PoolRecord) -> None:
        """Every case of the pool whose time is over, whatever its node has earned."""
        for number in self._ledger.cases:
            if number in self._final:
                continue
            case = await self._chain.case(number)
            if case.state is CaseState.FROZEN and seen.now >= case.final_at:
                await self._try(self._chain.finalize(case.id), "case.final", case=case.id)
            elif case.state is not CaseState.FROZEN:
                self._final.add(case.id)

    async def expel(self, seen: PoolRecord) -> None:
        """Members whose provider's stake, after a slash, no longer covers its nodes."""
        # Sorted, as `addresses` changes its order with each heartbeat: some members would never have their turn.
        members = sorted(self._context.membership.addresses())
        # Some at each look, in turn.
        turn = [members[(self._next + i) % len(members)] for i in range(min(LOOKED_AT, len(members)))]
        self._next += LOOKED_AT
        for node in turn:
            info = await self._chain.node_info(node)
            if info.provider is None or info.pool != self._pool:
                continue
            backing = await self._chain.backing_of(info.provider)
            if backing < await self._chain.required_stake(info.provider):
                node = await self._first_to_go(node, info.provider)
                await self._try(self._chain.expel(node), "member.expelled", node=node)

    async def _first_to_go(self, member: Address, provider: Address) -> Address:
        """Who was slashed here and is registered still: without it the others may be covered."""
        for slash in self._ledger.slashed.values():
            if slash.provider == provider and (await self._chain.node_info(slash.node)).registered:
                return slash.node
        return member

    async def give_back(self, seen: PoolRecord) -> None:
        """What convicted nodes had earned, once nothing can undo that."""
        slashed = self._ledger.slashed
        for node, slash in slashed.items():
            # An appeal could still make the conviction undone; its node is owed the money then.
            if slash.case_id and slash.case_id not in self._final:
                continue
            share, paid = await self._books.share(seen.posted, node), self._ledger.claimed().get(node, 0)
            if share is None or not share.units or share.units <= paid:
                continue
            if share.units > await self._chain.claimed(self._pool, node):  # the log may be some blocks late
                claim = self._chain.claim(self._pool, node, share.units, share.proof)
                await self._try(claim, "pay.given_back", node=node)

    async def sweep(self, seen: PoolRecord) -> None:
        """What no table promised of a pool that is over, once none can come or wait any more."""
        pool = seen.pool
        if pool.left and seen.may_be_swept:
            await self._try(self._chain.sweep(self._pool), "pool.swept", pool=self._pool, left=str(pool.left))

    async def _try(self, call: Awaitable[object], done: str, **facts: object) -> None:
        try:
            await call
        except IntellectError as error:  # somebody else did, the arbiter was faster, or nobody answers: the next one
            log.info(f"not.{done}", why=error.why, **facts)
        else:
            log.info(done, **facts)
