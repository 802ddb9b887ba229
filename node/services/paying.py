"""A node's proof of what it earned: certificates of its works, journaled as they come, shown until a table has them.

What k validators certified alike is all that pay rests on. After an epoch's end the node shows what it has of it as a
blob, works without enough certificates too, so that validators can say again what was lost; and shows it again until a
posted table covers the epoch.
"""

from typing import Protocol, Self

import structlog
import trio

from contracts.bindings import PoolInfo, PostedEarnings
from node.chain.client import Block
from node.chain.ledger import Ledger
from node.services.base import Service
from node.services.station import Station
from node.services.workplace import Workplace
from protocol.earnings import MAX_SIGNATURES, ShownWork, encode_certificates
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.messages import MAX_SHOWN, CertificatesShown, EpochShown, ValidatorSaid
from protocol.statements import Accepted, WorkCommitment, is_signed_by, work_id

log = structlog.get_logger()
RETRY_PAUSE = 5.0
PAUSES = (1.0, 300.0)
"""Seconds between two looks at the epoch: a quarter of it, within these."""
SAID_WITHIN = 1.0
"""Seconds that what is shown waits for other words of this node."""
POLL = 0.5
MOST = 262_144
"""Certificates of one validator that are kept: a day of three a second."""


class Chain(Protocol):
    """The part of node.chain that knows the time, and which epochs were tabled."""

    async def pool(self, pool: int) -> PoolInfo: ...
    async def block(self) -> Block: ...
    async def earnings(self, pool: int) -> PostedEarnings: ...


class Paying(Service):
    name = "paying"

    def __init__(self, station: Station, chain: Chain, ledger: Ledger) -> None:
        self._station = station
        self._own = station.key.address
        self._journal = station.journal
        self._chain = chain
        self._ledger = ledger
        self._heard: list[tuple[Address, Accepted, bytes]] = []
        self._shown: dict[int, tuple[bytes, float]] = {}
        """By epoch: the blob that was shown last, and when."""

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.station, place.chain, place.ledger)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear)
            nursery.start_soon(self._keep)
            while True:
                pause = RETRY_PAUSE
                try:
                    pause = await self.look()
                except IntellectError as error:
                    log.warning("certificates.not_shown", why=error.why)
                await trio.sleep(pause)

    # having

    async def _hear(self) -> None:
        """Of all certificates of a pool only a node's own are worth the check of a signature to it."""
        async for signed in self._station.board.subscribe(ValidatorSaid):
            for one in signed.message.certificates:
                if one.node == self._own and signed.author != self._own:
                    statement = one.statement(self._station.pool)
                    if is_signed_by(signed.author, self._station.domain, statement, one.signature):
                        self._heard.append((signed.author, statement, one.signature))

    async def _keep(self) -> None:
        while True:
            await trio.sleep(POLL)
            rows, self._heard = self._heard, []
            if rows:
                await self._journal.do(self._journal.take_certificates, rows, MOST)

    # showing

    async def look(self) -> float:
        """Show what is due to be shown; returns the seconds until the next look."""
        pool = await self._chain.pool(self._station.pool)
        self._station.time.saw((await self._chain.block()).timestamp)
        posted = (await self._chain.earnings(self._station.pool)).epoch
        await self._forget()
        first, now = 0 if posted is None else posted + 1, self._station.clock.monotonic()
        last = self._station.time.epoch() - 1
        self._shown = {epoch: known for epoch, known in self._shown.items() if epoch >= first}
        due: list[EpochShown] = []
        for epoch in await self._journal.do(self._journal.own_epochs, self._own, first):
            if epoch > last:
                continue
            blob = await self._blob(epoch)
            before, at = self._shown.get(epoch, (b"", 0.0))
            if blob != before or now - at >= self._station.time.shown_every:
                info = await self._station.blobs.add(blob)
                self._shown[epoch] = (blob, now)
                due.append(EpochShown(epoch, info.root, info.size))
        for start in range(0, len(due), MAX_SHOWN):
            message = CertificatesShown(pool=self._station.pool, shown=tuple(due[start : start + MAX_SHOWN]))
            self._station.board.say([message], within=SAID_WITHIN)
        shortest, longest = PAUSES
        return min(max(pool.epoch_seconds / 4, shortest), longest, self._station.time.shown_every)

    async def _forget(self) -> None:
        """What the last table but one covers: the newest may still be in a block that is replaced."""
        tables = self._ledger.tables
        if len(tables) > 1:
            await self._journal.do(self._journal.forget_epochs, tables[-2].epoch)

    async def _blob(self, epoch: int) -> bytes:
        certified = await self._journal.do(self._journal.certificates, self._own, epoch)
        own = await self._journal.do(self._journal.own_works, epoch)
        return await trio.to_thread.run_sync(self._encode, epoch, certified, own)

    def _encode(
        self,
        epoch: int,
        certified: dict[tuple[bytes, int], list[tuple[Address, bytes]]],
        own: list[tuple[bytes, int, bytes, int]],
    ) -> bytes:
        """Of two claims about one work the one that more validators make."""
        works: dict[bytes, ShownWork] = {}
        for policy, index, root, units in own:
            commitment = WorkCommitment(self._station.pool, self._own, policy, index, root, units, epoch)
            works[work_id(commitment)] = ShownWork(work_id(commitment), units, ())
        for (work, units), said in certified.items():
            if work not in works or len(said) > len(works[work].signatures):
                works[work] = ShownWork(work, units, tuple(signature for _, signature in said[:MAX_SIGNATURES]))
        return encode_certificates(self._own, epoch, [one for one in works.values() if one.units])
