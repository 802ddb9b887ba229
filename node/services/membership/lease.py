"""How this node stands on chain: its stake, its lease, which is renewed well before it runs out, and its return."""

from collections.abc import Callable
from typing import Any

import structlog
import trio

from node.chain.client import ChainClient
from node.progress import ProgressRecord
from node.services.base import Service
from node.swarm.membership import Membership
from protocol.errors import IntellectError
from protocol.identity import Address

EVERY = 5.0


class Stake(Service):
    """The stake that answers for this node, as the chain has it."""

    name = "stake"

    def __init__(self, chain: ChainClient, own: Address) -> None:
        self._chain = chain
        self._own = own
        self.bonded = 0
        """wei"""

    async def run(self) -> None:
        while True:
            try:
                node = await self._chain.node_info(self._own)
                if node.provider is not None:
                    self.bonded = (await self._chain.stake_of(node.provider)).bonded
            except IntellectError as error:
                log.info("stake.unknown", why=error.why)
            await trio.sleep(EVERY)

    def status(self) -> dict[str, Any]:
        return {"stake": {"bonded_wei": str(self.bonded)}}


log = structlog.get_logger()
RENEWALS_PER_LEASE = 3
UNKNOWN_LEASE = 20.0


class Lease(Service):
    """contact: where others reach this node now, as the chain tells them."""

    name = "lease"

    def __init__(
        self,
        chain: ChainClient,
        pool: int,
        membership: Membership,
        contact: Callable[[], str],
        progress: ProgressRecord | None = None,
    ) -> None:
        self._chain = chain
        self._pool = pool
        self._membership = membership
        self._contact = contact
        self._progress = progress or ProgressRecord()

    async def run(self) -> None:
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


TRY_EVERY = 5.0


class Returning(Service):
    """A node that came back while the chain was silent: once it answers, it is told so, and hears what was left unsent.

    contact: where others reach this node now. Ends when the node has joined again."""

    name = "returning"

    def __init__(self, chain: ChainClient, pool: int, contact: Callable[[], str], progress: ProgressRecord) -> None:
        self._chain = chain
        self._pool = pool
        self._contact = contact
        self._progress = progress

    async def run(self) -> None:
        while True:
            if await self._return():
                return
            await trio.sleep(TRY_EVERY)

    async def _return(self) -> bool:
        try:
            await self._chain.connect()
            await self._chain.join(self._pool, self._contact())
        except IntellectError as error:
            log.info("pool.not_rejoined", why=error.why)
            return False
        self._progress.tell("joined", f"the chain answers again: in pool {self._pool}, reached at {self._contact()}")
        return True
