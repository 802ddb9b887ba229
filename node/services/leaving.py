"""A node that leaves with everything that it has earned: it takes no new work, waits until tables have it, claims, and
ends.

The wish stands in the journal, so a daemon that is started again goes on with it. Whoever leaves at once instead ends
the daemon: what is in a table then can still be claimed by anybody.
"""

from typing import Any, Self

import structlog
import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from node.services.base import Crew, Service
from node.services.context import Context
from node.services.settling import Settling, when
from node.services.workplace import Workplace
from node.state.leave import LEAVING, label_of
from node.status_schema import LeavingPart

log = structlog.get_logger()


class Leaving(Service):
    name = "leaving"

    def __init__(self, context: Context, settling: Settling, crew: Crew) -> None:
        self._context, self._settling, self._crew = context, settling, crew
        self._wanted = trio.Event()
        self._looked = False

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.context, place.settling, place.crew)

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
        self._crew.leave()
        self._context.progress.enter("leaving", self.doing)
        await self._settling.hurry()
        self._looked = True
        await self._settling.looked.until(self._is_paid)
        self._context.progress.tell("left", "everything that this node earned is paid, or never will be: it leaves")
        self._crew.left.set()

    def _is_paid(self) -> bool:
        """Whether nothing is left that could still be paid to this node."""
        account = self._settling.account
        if not self._settling.settled or account.due:
            return False
        # What no quorum has certified by the end of its window never will be; nor what a pool that was swept tables.
        return self._settling.swept or (not account.certified and self._settling.now >= account.open_until)

    def status(self) -> dict[str, Any]:
        if not self._wanted.is_set():
            return {}
        account = self._settling.account
        waits = account.made + account.accepted + account.certified + account.due
        return {"leaving": LeavingPart(waits, account.last_at, self.doing())}

    def doing(self) -> str:
        """What it waits for, in words."""
        if not self._wanted.is_set():
            return ""
        account, settling = self._settling.account, self._settling
        if not (self._looked and settling.settled):
            return "leaving: waits for the chain's word on its pay, and for the table of earnings"
        if account.due and not account.claimable:
            return f"leaving: {account.due:,} units of the table are paid as its size allows, some each epoch"
        if account.due:
            return f"leaving: {account.due:,} units are claimed"
        waits = account.made + account.accepted + account.certified
        if not waits:
            return "leaving: everything is paid"
        return f"leaving: {waits:,} units wait for the table of {when(account.last_at)}"
