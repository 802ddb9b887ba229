"""Epochs' leaves, as their workers show them: which works stand behind each root on chain. One per validator.

Whoever does not deliver holds up nobody else, and is asked again. What was had is kept under node, epoch and root,
since anybody may announce whatever root it likes; a node that shows much crowds out its own older epochs.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog
import trio

from node.recent import Recent
from node.services.station import Station
from node.swarm.register import WorkId
from protocol.errors import IntellectError, ProtocolError
from protocol.identity import Address
from protocol.messages import WorkPublished
from protocol.work import MAX_LEAVES_BYTES, Leaf, checked_leaves, works_of

log = structlog.get_logger()
FETCH_TIMEOUT = 30.0
RETRY_PAUSE = 20.0
GIVE_UP = 2 * 86_400.0
KEPT = 1024
KEPT_LEAVES = 65_536
"""Of one worker: it crowds out its own old epochs, not those of others."""
QUEUE = 16
MISSING = 64
"""Announcements of one worker whose leaves are asked for again."""

EpochKey = tuple[Address, int, bytes]
"""(node, epoch, root of 32 bytes)"""


class ShownEpoch(msgspec.Struct, frozen=True):
    """What stands behind a root. works: the id of each leaf, in the order of the tree; index: where each one stands."""

    node: Address
    number: int
    root: bytes
    leaves: tuple[Leaf, ...]
    works: tuple[WorkId, ...]
    index: dict[WorkId, int]
    units: int


class Place(msgspec.Struct, frozen=True):
    """Where a work stands: the epoch, and which leaf of it."""

    epoch: ShownEpoch
    number: int


class Leaves:
    """Follows what workers show until cancelled."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._epochs: OrderedDict[EpochKey, ShownEpoch] = OrderedDict()
        self._queues: dict[Address, trio.MemorySendChannel[WorkPublished]] = {}
        self._listeners: list[Callable[[ShownEpoch], None]] = []

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            async for signed in self._station.board.subscribe(WorkPublished):
                message = signed.message
                if (signed.author, message.epoch, message.root) in self._epochs:
                    continue
                queue = self._queues.get(signed.author)
                if queue is None:
                    queue, work = trio.open_memory_channel[WorkPublished](QUEUE)
                    self._queues[signed.author] = queue
                    nursery.start_soon(self._fetch_all, signed.author, work)
                try:
                    queue.send_nowait(message)
                except trio.WouldBlock:
                    log.info("leaves.skipped", node=signed.author, epoch=message.epoch)

    def follow(self, listener: Callable[[ShownEpoch], None]) -> None:
        """Tell of every epoch whose leaves were had, those already known first."""
        self._listeners.append(listener)
        for epoch in list(self._epochs.values()):
            listener(epoch)

    def of(self, node: Address, epoch: int, root: bytes) -> ShownEpoch | None:
        return self._epochs.get((node, epoch, root))

    def places(self, node: Address, work: WorkId) -> list[Place]:
        """Every epoch of a node in which a work stands."""
        mine = [epoch for key, epoch in self._epochs.items() if key[0] == node]
        return [Place(epoch, epoch.index[work]) for epoch in mine if work in epoch.index]

    # having

    async def _fetch_all(self, node: Address, work: trio.MemoryReceiveChannel[WorkPublished]) -> None:
        """One worker's leaves, in order; what could not be had is asked for again and again, the newest first."""
        missing: Recent[tuple[int, bytes, bytes], tuple[WorkPublished, float]] = Recent(MISSING)
        while True:
            message, since = None, self._station.clock.monotonic()
            with trio.move_on_after(RETRY_PAUSE if missing else float("inf")):
                message = await work.receive()
            if message is None:
                message, since = missing.popitem()[1]
            if not await self._fetch(node, message) and self._station.clock.monotonic() - since < GIVE_UP:
                key = (message.epoch, message.root, message.leaves_root)
                missing[key] = (message, since)
                missing.move_to_end(key, last=False)

    async def _fetch(self, node: Address, message: WorkPublished) -> bool:
        """Whether the leaves are had, or are none."""
        own, validators = self._station.key.address, self._station.jury.validators()
        try:
            path = await self._station.blobs.fetch(
                message.leaves_root,
                [node, *(one for one in validators if one not in (own, node))],
                max_size=min(message.leaves_size, MAX_LEAVES_BYTES),
                timeout=FETCH_TIMEOUT,
            )
            shown = await trio.to_thread.run_sync(_read, node, message, path)
        except (IntellectError, OSError) as error:
            log.info("leaves.unusable", node=node, epoch=message.epoch, why=str(error))
            return isinstance(error, ProtocolError)  # bytes of this root will never be others
        self.note(shown)
        return True

    def note(self, epoch: ShownEpoch) -> None:
        """Keep what an epoch is made of, once it is known to be of its root."""
        key = (epoch.node, epoch.number, epoch.root)
        self._epochs[key] = epoch
        self._epochs.move_to_end(key)
        mine = [key for key in self._epochs if key[0] == epoch.node]
        while len(mine) > 1 and sum(len(self._epochs[key].works) for key in mine) > KEPT_LEAVES:
            del self._epochs[mine.pop(0)]
        while len(self._epochs) > KEPT:
            self._epochs.popitem(last=False)
        for listener in self._listeners:
            listener(epoch)


def shown_epoch(pool: int, node: Address, number: int, root: bytes, leaves: Sequence[Leaf]) -> ShownEpoch:
    """Leaves that are known to be those of the root."""
    works = tuple(works_of(pool, node, leaves))
    index, units = {id: place for place, id in enumerate(works)}, sum(leaf.units for leaf in leaves)
    return ShownEpoch(node, number, root, tuple(leaves), works, index, units)


def _read(node: Address, message: WorkPublished, path: Path) -> ShownEpoch:
    """path: what the node gave as its leaves. Raises ProtocolError."""
    leaves = checked_leaves(message.pool, node, message.root, path.read_bytes())
    return shown_epoch(message.pool, node, message.epoch, message.root, leaves)
