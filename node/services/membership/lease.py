"""How this node stands in its pool on chain: its lease, which is renewed well before it runs out, and its return."""

from collections.abc import Callable

import structlog
import trio

from node.chain.client import ChainClient
from node.progress import ProgressRecord
from node.services.base import Service
from node.swarm.membership import Membership
from protocol.errors import IntellectError

log = structlog.get_logger()
RENEWALS_PER_LEASE = 3
UNKNOWN_LEASE = 20.0
TRY_EVERY = 5.0


class Lease(Service):
    """contact: where others reach this node now, as the chain tells them; joined: False for a node that came back
    while the chain was silent, which joins again once it answers."""

    name = "lease"

    def __init__(
        self,
        chain: ChainClient,
        pool: int,
        membership: Membership,
        contact: Callable[[], str],
        progress: ProgressRecord | None = None,
        *,
        joined: bool = True,
    ) -> None:
        self._chain = chain
        self._pool = pool
        self._membership = membership
        self._contact = contact
        self._progress = progress or ProgressRecord()
        self._joined = joined

    async def run(self) -> None:
        while not self._joined:
            await self._join_again()
        while True:
            pause = UNKNOWN_LEASE
            try:
                pool = await self._chain.pool(self._pool)
                pause = pool.lease_seconds / RENEWALS_PER_LEASE
                await trio.sleep(pause)
                if self._membership.is_member(self._membership.own):
                    await self._chain.join(self._pool, self._contact())
            except IntellectError as error:
                log.warning("lease.not_renewed", why=error.why)
                self._progress.trouble(f"the membership was not renewed: {error.why}")
                await trio.sleep(min(pause, UNKNOWN_LEASE))

    async def _join_again(self) -> None:
        try:
            await self._chain.connect()
            await self._chain.join(self._pool, self._contact())
        except IntellectError as error:
            log.info("pool.not_rejoined", why=error.why)
            await trio.sleep(TRY_EVERY)
        else:
            self._joined = True
            told = f"the chain answers again: in pool {self._pool}, reached at {self._contact()}"
            self._progress.tell("joined", told)
