"""A node that leaves with everything that it has earned: it takes no new work, waits until tables have it, claims, and
ends.

The request stands in the journal, so a daemon that is started again goes on with it. Whoever leaves at once instead
ends the daemon: what is in a table then can still be claimed by anybody.
"""

from typing import Any

import structlog
import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from node.services.base import Service, ServiceManager
from node.services.claimer import Account, Claimer, when
from node.services.context import Context
from node.state.leave import LEAVING, label_of
from node.status_schema import LeavingPart

log = structlog.get_logger()


class Departure(Service):
    name = "departure"

    def __init__(self, context: Context, claimer: Claimer, manager: ServiceManager) -> None:
        self._context, self._claimer, self._manager = context, claimer, manager
        self._wanted = trio.Event()
        self._looked = False

    def routes(self) -> list[Route]:
        return [Route("/leave", self._ask, methods=["POST"])]

    async def _ask(self, _: Request) -> Response:
        await self.leave()
        return JSONResponse({"leaving": True})

    async def leave(self) -> None:
        """From now on. Once it is said, no start forgets it."""
        journal = self._context.journal
        await journal.do(journal.remember, LEAVING, label_of(self._context.domain, self._context.pool))
        self._wanted.set()

    async def run(self) -> None:
        journal = self._context.journal
        if await journal.do(journal.recall, LEAVING):
            self._wanted.set()
        await self._wanted.wait()
        log.info("node.leaving")
        self._manager.leave()
        self._context.progress.enter("leaving", self.activity)
        # First a look that sees all that was made: "nothing is left" of an older one would leave pay behind.
        await self._claimer.hurry()
        self._looked = True
        await self._claimer.looked.until(self._is_paid)
        self._context.progress.tell("left", "everything that this node earned is paid, or never will be: it leaves")
        self._manager.left.set()

    def _is_paid(self) -> bool:
        """Whether nothing is left that could still be paid to this node."""
        account, seen = self._claimer.account, self._claimer.seen
        if seen is None or not self._claimer.settled or account.due:
            return False
        if self._claimer.filing.filed.over:
            return True
        # What no quorum has certified by the end of its window never will be. A pool that was swept tables nothing.
        waits = account.certified or account.owed or account.filed
        return self._claimer.swept or (not waits and seen.now >= account.open_until)

    def status(self) -> dict[str, Any]:
        if not self._wanted.is_set():
            return {}
        account = self._claimer.account
        left = _waiting(account) + account.due + account.owed + account.filed
        return {"leaving": LeavingPart(left, account.last_at, self.activity())}

    def activity(self) -> str:
        """What it waits for, in words, with the date where there is one."""
        if not self._wanted.is_set():
            return ""
        account, seen = self._claimer.account, self._claimer.seen
        if seen is None or not (self._looked and self._claimer.settled):
            return "leaving: waits for the chain's word on its pay, and for the table of earnings"
        pool = seen.pool
        if account.due and not account.claimable:
            more = when(pool.epoch_end(pool.epoch_at(seen.now)))
            return f"leaving: {account.due:,} units of the table are paid as its size allows, more from {more} on"
        if account.due:
            return f"leaving: {account.due:,} units are claimed"
        if account.filed:
            return f"leaving: {account.filed:,} units are filed, and redeemed from {when(pool.filing.redeems)} on"
        if (waits := _waiting(account)) and seen.may_be_filed:
            return f"leaving: {waits:,} units that no table has are filed until {when(pool.filing.ends)}"
        if waits:
            return f"leaving: {waits:,} units wait for the table of {when(account.last_at)}"
        if not account.owed:
            return "leaving: everything is paid"
        owed = f"leaving: {account.owed:,} units are owed beyond the table"
        if pool.escrow < pool.reward_per_unit:
            funds = f"no date: the pool has no money, until somebody funds it (contract pool fund {pool.id} TOKENS)"
            return f"{owed}; {funds}. leave --now leaves them owed"
        return f"{owed}, which pays so many of an epoch; the next one comes from {when(pool.next_table(seen.first))} on"


def _waiting(account: Account) -> int:
    """Units that are in no table."""
    return account.made + account.accepted + account.certified
