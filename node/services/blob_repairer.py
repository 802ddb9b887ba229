"""Keeps the blobs on this disk whole: looks through all of them now and then, and fetches again what was damaged.

What is used is compared where it is used (`blobs/proof.py`); this finds what nobody asks for. Own files that wait for
their verdicts are looked at first, and at once: whoever cannot hand one over is not paid for it.
"""

import time
from typing import Any

import structlog
import trio

from node.blobs.errors import StoreFailed
from node.blobs.store import BlobStore
from node.changes import every
from node.services.base import Service
from node.services.committing import REPEATED
from node.services.context import Context
from node.state.journal import Journal
from protocol.blobs import MAX_BLOB_SIZE
from protocol.errors import IntellectError

log = structlog.get_logger()
RATE = (16 * 1024, 64 * 1024**2)
"""Bytes a second that are looked at, at least and at most."""
PATIENCE = (60.0, 20_000_000)
"""Seconds for which a damaged blob is asked for at least, and the bytes a second that a larger one has."""


class BlobRepairer(Service):
    """every: seconds of a round; rests: between two looks."""

    name = "blob-repairer"

    # Every blob is looked at once in `every` seconds: 34 kB/s for 20 GiB. `rests`: between two looks for what was not.
    def __init__(
        self, context: Context, store: BlobStore, *, every: float = 7 * 24 * 3600.0, rests: float = 60.0
    ) -> None:
        self._context = context
        self._store, self._proof = store, store.proof
        self._every, self._rests = every, rests
        # Damaged blobs that wait to be fetched; of more, the others come back when they are asked for.
        self._send, self._lost = trio.open_memory_channel[tuple[bytes, int]](256)
        self._fetched = self._gone = self._looked_at = 0
        self._oldest: float | None = None

    async def run(self) -> None:
        self._proof.follow(self._handle)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._mend)
            await self._prove_own()
            await every(lambda: self._rests, self._tick)

    def status(self) -> dict[str, Any]:
        oldest = None if self._oldest is None else round(max(0.0, time.time() - self._oldest), 1)
        return {
            "blobs": {
                "bytes_written": self._store.written,
                "damaged": self._proof.damaged,
                "fetched_again": self._fetched,
                "not_fetched_again": self._gone,
                "bytes_looked_at": self._looked_at,
                "oldest_look_seconds": oldest,
            }
        }

    def _handle(self, root: bytes, size: int) -> None:
        try:
            self._send.send_nowait((root, size))
        except trio.WouldBlock:
            self._gone += 1

    async def _mend(self) -> None:
        context, why = self._context, ""
        async for root, size in self._lost:
            seconds = PATIENCE[0] + size / PATIENCE[1]
            # What has arrived stays in the store's partial file, so another attempt goes on where this one ended.
            for _ in range(3):
                try:
                    await context.blobs.fetch(root, context.membership.addresses(), max_size=size, timeout=seconds)
                except IntellectError as error:
                    why = error.why
                else:
                    self._fetched += 1
                    log.info("blob.fetched_again", root=root.hex(), bytes=size)
                    break
            else:
                self._gone += 1
                log.warning("blob.not_fetched_again", root=root.hex(), bytes=size, why=why)

    async def _prove_own(self) -> None:
        """This node's newest files that are not judged yet: whoever has one hands it back."""
        for root in await self._context.journal.do(_open_files, self._context.journal):
            try:
                if root not in self._proof.sizes:
                    self._handle(root, MAX_BLOB_SIZE)
                await self._proof.whole(root)
            except StoreFailed as error:
                log.warning("blob.not_compared", root=root.hex(), why=error.why)

    async def _tick(self) -> None:
        """Compare what was not compared for a round, the longest first, as fast as a round of all needs it."""
        times = await trio.to_thread.run_sync(self._proof.proven_at)
        self._oldest = min(times.values(), default=None)
        total = sum(self._proof.sizes.get(root, 0) for root in times)
        rate = min(max(total / self._every, RATE[0]), RATE[1])

        async def pace(size: int) -> None:
            self._looked_at += size
            await trio.sleep(size / rate)

        due = time.time() - self._every
        for root, at in sorted(times.items(), key=lambda item: item[1]):
            if at > due:
                break
            try:
                await self._proof.prove(root, pace)
            except StoreFailed as error:
                log.warning("blob.not_compared", root=root.hex(), why=error.why)


def _open_files(journal: Journal) -> list[bytes]:
    return [one.root for one in journal.files.records(REPEATED) if one.state == "pending"]
