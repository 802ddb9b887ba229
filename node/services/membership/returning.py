"""A node that came back while the chain was silent: once it answers, it is told so, and hears what was left unsent."""

from collections.abc import Callable

import structlog
import trio

from node.chain.client import ChainClient
from node.progress import ProgressRecord
from node.services.base import Service
from protocol.errors import IntellectError

log = structlog.get_logger()
EVERY = 5.0


class Returning(Service):
    """contact: where others reach this node now. Ends when the node has joined again."""

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
            await trio.sleep(EVERY)

    async def _return(self) -> bool:
        try:
            await self._chain.connect()
            await self._chain.join(self._pool, self._contact())
        except IntellectError as error:
            log.info("pool.not_rejoined", why=error.why)
            return False
        self._progress.tell("joined", f"the chain answers again: in pool {self._pool}, reached at {self._contact()}")
        return True
