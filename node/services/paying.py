"""A worker's pay: what was accepted goes on chain, one Merkle root per epoch, and its leaves beside it as a blob."""

import time
from typing import Protocol, Self

import structlog
import trio

from contracts.bindings import PoolInfo, WorkInfo
from node.chain.client import Block
from node.services.base import Service
from node.services.station import Station
from node.services.workplace import Workplace
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.messages import WorkPublished
from protocol.work import Leaf, encode_leaves, merkle_root, tree_of

log = structlog.get_logger()
RETRY_PAUSE = 5.0
PAUSES = (1.0, 300.0)
"""Seconds between two looks at the epoch: a quarter of it, within these."""


class Treasury(Protocol):
    """The part of node.chain that pays."""

    async def pool(self, pool: int) -> PoolInfo: ...
    async def block(self) -> Block: ...
    async def work(self, pool: int, node: Address, epoch: int) -> WorkInfo: ...
    async def commit_work(self, pool: int, epoch: int, root: bytes, units: int) -> object: ...


class Paying(Service):
    name = "paying"

    def __init__(self, station: Station, treasury: Treasury) -> None:
        self._station = station
        self._journal = station.journal
        self._treasury = treasury

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.station, place.chain)

    async def run(self) -> None:
        """Once an epoch is over, its accepted files are committed."""
        while True:
            try:
                pool = await self._treasury.pool(self._station.pool)
                now = (await self._treasury.block()).timestamp
                await self.commit_epoch(pool.epoch_at(now) - 1)
                shortest, longest = PAUSES
                await trio.sleep(min(max(pool.epoch_seconds / 4, shortest), longest))
            except IntellectError as error:
                log.warning("work.not_committed", why=error.why)
                await trio.sleep(RETRY_PAUSE)

    async def commit_epoch(self, epoch: int) -> None:
        """Commit what is accepted and not yet on chain under the epoch that just ended."""
        last = int(await self._journal.do(self._journal.recall, "epoch") or b"-1")
        if epoch <= last:
            return
        files = await self._journal.do(self._journal.files_of_epoch, epoch)
        if not files:
            files = await self._journal.do(self._journal.unpaid_files, time.time())
            await self._journal.do(self._journal.assign_epoch, [file.file_root for file in files], epoch)
        if files and not await self._is_on_chain(epoch):
            root = merkle_root(tree_of(self._station.pool, self._station.key.address, files))
            units = sum(file.units for file in files)
            await self._treasury.commit_work(self._station.pool, epoch, root, units)
            await self._publish_leaves(epoch, root, files)
            log.info("work.committed", epoch=epoch, files=len(files), units=units)
        await self._journal.do(self._journal.remember, "epoch", str(epoch).encode())

    async def _publish_leaves(self, epoch: int, root: bytes, files: list[Leaf]) -> None:
        """Show which files stand behind an epoch's root, so that one that is rejected later can be taken out."""
        info = await self._station.blobs.add(encode_leaves(files))
        message = WorkPublished(
            pool=self._station.pool, epoch=epoch, root=root, leaves_root=info.root, leaves_size=info.size
        )
        await self._station.board.post(message)

    async def _is_on_chain(self, epoch: int) -> bool:
        """Whether a commitment was sent before a restart could be journaled."""
        work = await self._treasury.work(self._station.pool, self._station.key.address, epoch)
        return any(work.root)
