"""The stake that answers for this node, as the chain has it."""

from typing import Any

import structlog
import trio

from node.chain.client import ChainClient
from node.services.base import Service
from protocol.errors import IntellectError
from protocol.identity import Address

log = structlog.get_logger()
EVERY = 5.0


class Stake(Service):
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
