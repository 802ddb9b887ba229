"""Keeps every case that this node carries to the chain as a file, before it is sent.

So that its owner can look at it, hand it to somebody else, or carry it again by hand (`intellect-node contract
slash FILE`), whatever happens to this node or to its transaction.
"""

from pathlib import Path

import structlog
import trio

from node.chain.cases import Case, write_case
from node.chain.client import ChainClient, Receipt

log = structlog.get_logger()


class CaseKeeper:
    """A chain client's way to slash, with the cases in `folder`."""

    def __init__(self, chain: ChainClient, folder: Path) -> None:
        self._chain = chain
        self._folder = folder

    async def carry(self, case: Case) -> Receipt:
        """As ChainClient.carry."""
        path = self._folder / f"{case.name}.json"
        try:
            await trio.to_thread.run_sync(write_case, path, case)
        except OSError as error:
            log.warning("case.not_kept", path=str(path), why=str(error))  # the case still goes to the chain
        return await self._chain.carry(case)
