"""A node's pay: what counts of its work goes on chain, one Merkle root per epoch, and its leaves beside it as a blob.

Whatever happens on the way, a file goes on chain once: it is journaled under an epoch first, and set free again only
when the chain can show that this epoch was never committed. Leaves are shown again and again until the epoch is mature,
since validators take for invented what they cannot have.
"""

from typing import Protocol, Self

import structlog
import trio

from contracts.bindings import PoolInfo, WorkInfo
from node.chain.client import Block
from node.chain.errors import Reverted
from node.services.base import Service
from node.services.duties import Duties
from node.services.station import Station
from node.services.workplace import Workplace
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.messages import WorkPublished
from protocol.work import MAX_LEAVES, Leaf, encode_leaves, merkle_root, tree_of

log = structlog.get_logger()
RETRY_PAUSE = 5.0
PAUSES = (1.0, 300.0)
"""Seconds between two looks at the epoch: a quarter of it, within these."""
ENDPOINT_LAG = 60
"""Seconds after which an endpoint that knows of no commitment is believed."""
SHOWN_EVERY = (20.0, 3600.0)
"""Seconds between two times that an epoch's leaves are shown: a sixteenth of the window, within these."""
SHOW_PAUSE = 2.5
"""Seconds between two messages: the board lets one member publish leaves every two seconds."""


class Treasury(Protocol):
    """The part of node.chain that pays."""

    async def pool(self, pool: int) -> PoolInfo: ...
    async def block(self) -> Block: ...
    async def work(self, pool: int, node: Address, epoch: int) -> WorkInfo: ...
    async def commit_work(self, pool: int, epoch: int, root: bytes, units: int) -> object: ...


class Paying(Service):
    name = "paying"

    def __init__(self, station: Station, treasury: Treasury, duties: Duties | None = None) -> None:
        self._station = station
        self._own = station.key.address
        self._journal = station.journal
        self._treasury = treasury
        self._duties = duties
        self._on_chain: set[int] = set()
        """Epochs of ours that are not mature and that the chain has."""
        self._roots: dict[int, bytes] = {}
        """Of those: hashed once, shown often."""

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        """A worker's files are journaled by what makes them, judging and training by `Duties`."""
        return cls(place.station, place.chain, None if place.role == "worker" else place.duties)

    async def run(self) -> None:
        """Once an epoch is over, what counts of it is committed; until it is mature, shown."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._show_leaves)
            if self._duties:
                nursery.start_soon(self._duties.run)
            while True:
                pause = RETRY_PAUSE
                try:
                    pool = await self._treasury.pool(self._station.pool)
                    now = (await self._treasury.block()).timestamp
                    await self._make_good(pool, now)
                    await self.commit_epoch(pool.epoch_at(now) - 1)
                    shortest, longest = PAUSES
                    pause = min(max(pool.epoch_seconds / 4, shortest), longest)
                except IntellectError as error:
                    log.warning("work.not_committed", why=error.why)
                await trio.sleep(pause)

    async def commit_epoch(self, epoch: int) -> None:
        """Commit what is accepted and not yet on chain under the epoch that just ended."""
        last = int(await self._journal.do(self._journal.recall, "epoch") or b"-1")
        if epoch <= last:
            return
        files = await self._journal.do(self._journal.files_of_epoch, epoch)
        if not files:
            files = await self._choose(epoch)
        if files:
            await self._put_on_chain(epoch, files)
        await self._journal.do(self._journal.remember, "epoch", str(epoch).encode())

    async def _choose(self, epoch: int) -> list[Leaf]:
        """The files that go under this epoch: no more than the pool can pay at this moment, the others later; none that
        are so old that validators have forgotten them."""
        pool = await self._treasury.pool(self._station.pool)
        now = self._station.clock.wall()
        waiting = await self._journal.do(self._journal.unpaid_files, now, now - pool.window - pool.epoch_seconds)
        free = pool.escrow // pool.reward_per_unit if pool.reward_per_unit else 2**32 - 1
        files: list[Leaf] = []
        for file in waiting[:MAX_LEAVES]:
            if file.units <= free:
                files.append(file)
                free -= file.units
        if len(files) < len(waiting):
            left = sum(file.units for file in waiting) - sum(file.units for file in files)
            log.warning("work.waits_for_escrow", pool=pool.id, units=left, escrow=str(pool.escrow))
        await self._journal.do(self._journal.assign_epoch, [file.file_root for file in files], epoch)
        return files

    async def _make_good(self, pool: PoolInfo, now: int) -> None:
        """Epochs whose files were chosen, and whose commitment nobody saw on chain: once more; or, if it is too late
        and the chain has none, their files are free for another epoch."""
        first = pool.epoch_at(max(now - pool.window, 0))  # older ones are mature: whatever became of them is done
        self._on_chain = {epoch for epoch in self._on_chain if epoch >= first}
        self._roots = {epoch: root for epoch, root in self._roots.items() if epoch >= first}
        for epoch in await self._journal.do(self._journal.epochs_from, first):
            if epoch in self._on_chain or now >= pool.maturity(epoch):
                continue
            if now < pool.commit_until(epoch):
                await self._put_on_chain(epoch, await self._journal.do(self._journal.files_of_epoch, epoch))
            elif await self._is_on_chain(epoch):
                self._on_chain.add(epoch)
            elif now >= pool.commit_until(epoch) + ENDPOINT_LAG:
                await self._journal.do(self._journal.free_epoch, epoch)
                log.warning("work.missed_its_epoch", epoch=epoch)

    async def _put_on_chain(self, epoch: int, files: list[Leaf]) -> None:
        if not await self._is_on_chain(epoch):
            root = await trio.to_thread.run_sync(self._root, files)
            units = sum(file.units for file in files)
            try:
                await self._treasury.commit_work(self._station.pool, epoch, root, units)
            except Reverted as error:
                if error.name not in ("AlreadyCommitted", "CommitTooLate"):
                    raise
                log.info("work.not_committed", epoch=epoch, why=error.why)
                return
            log.info("work.committed", epoch=epoch, files=len(files), units=units)
            self._on_chain.add(epoch)
            await self._show(epoch, files)
        self._on_chain.add(epoch)

    # showing

    async def _show_leaves(self) -> None:
        """Every epoch that can still be objected to, soon after the start and then now and again: a validator may have
        missed it, or started anew."""
        while True:
            pause = RETRY_PAUSE
            try:
                pool = await self._treasury.pool(self._station.pool)
                for epoch in sorted(self._on_chain):
                    await self._show(epoch, await self._journal.do(self._journal.files_of_epoch, epoch))
                    await trio.sleep(SHOW_PAUSE)
                shortest, longest = SHOWN_EVERY
                pause = min(max(pool.window / 16, shortest), longest) if self._on_chain else RETRY_PAUSE
            except IntellectError as error:
                log.info("leaves.not_shown", why=error.why)
            await trio.sleep(pause)

    async def _show(self, epoch: int, files: list[Leaf]) -> None:
        """Publish which works stand behind an epoch's root: the same each time, so that nobody is told twice."""
        if not files:
            return
        info = await self._station.blobs.add(await trio.to_thread.run_sync(encode_leaves, files))
        if epoch not in self._roots:
            self._roots[epoch] = await trio.to_thread.run_sync(self._root, files)
        root = self._roots[epoch]
        message = WorkPublished(
            pool=self._station.pool, epoch=epoch, root=root, leaves_root=info.root, leaves_size=info.size
        )
        await self._station.board.post(message)

    def _root(self, files: list[Leaf]) -> bytes:
        return merkle_root(tree_of(self._station.pool, self._own, files))

    async def _is_on_chain(self, epoch: int) -> bool:
        """Whether a commitment was sent before a restart could be journaled."""
        work = await self._treasury.work(self._station.pool, self._own, epoch)
        return any(work.root)
