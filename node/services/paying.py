"""A node's proof of what it earned: certificates of its works, journaled as they come, shown until a table has them.

What k validators certified alike is all that pay rests on. After an epoch's end the node shows what it has of it as a
blob, works without enough certificates too, so that validators can say again what was lost; and shows it again until a
posted table covers the epoch.
"""

import trio

from node.services.books import Books, Keeping, Seen
from node.swarm.facts import Certified
from protocol.earnings import MAX_SIGNATURES, ShownWork, encode_certificates
from protocol.identity import Address
from protocol.messages import MAX_SHOWN, CertificatesShown, EpochShown
from protocol.statements import Accepted, is_signed_by

SAID_WITHIN = 1.0
"""Seconds that what is shown waits for other words of this node."""
TOGETHER = 0.5
"""Seconds in which certificates are gathered before they are journaled: each visit to its thread costs a turn."""
MOST = 262_144
"""Certificates of one validator that are kept: a day of three a second."""


class Paying(Keeping):
    name = "paying"
    trouble = "certificates.not_shown"

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._heard: list[tuple[Address, Accepted, bytes]] = []
        self._news = trio.Event()
        self._shown: dict[int, tuple[bytes, float]] = {}
        """By epoch: the blob that was shown last, and when."""

    def begin(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._hear)
        nursery.start_soon(self._keep)

    # having

    async def _hear(self) -> None:
        """Of all certificates of a pool only a node's own are worth the check of a signature to it. More than a
        quorum's are kept: if a validator loses its seat just before a table is made, others are too late."""
        async for said in self._context.facts.subscribe(Certified):
            for one in said.certificates:
                if one.node == self._own and said.author != self._own:
                    statement = one.statement(self._pool)
                    if is_signed_by(said.author, self._context.domain, statement, one.signature):
                        self._heard.append((said.author, statement, one.signature))
                        self._news.set()

    async def _keep(self) -> None:
        while True:
            await self._news.wait()
            await trio.sleep(TOGETHER)
            self._news, rows, self._heard = trio.Event(), self._heard, []
            await self._journal.do(self._journal.pay.take_certificates, rows, MOST)

    # showing

    async def look(self, seen: Seen) -> float:
        """Show what is due to be shown."""
        first, now = seen.first, self._context.clock.monotonic()
        last = self._context.time.epoch() - 1
        self._shown = {epoch: known for epoch, known in self._shown.items() if epoch >= first}
        due: list[EpochShown] = []
        for epoch in await self._journal.do(self._journal.pay.own_epochs, self._own, first):
            # Nobody tables an epoch that is not over, and its certificates are still coming.
            if epoch > last:
                continue
            blob = await self._journal.do(self._blob, epoch)
            before, at = self._shown.get(epoch, (b"", 0.0))
            # Again after a while without a change: the board forgets, and validators come and go.
            if blob != before or now - at >= self._context.time.shown_every:
                info = await self._context.blobs.add(blob)
                self._shown[epoch] = (blob, now)
                due.append(EpochShown(epoch, info.root, info.size))
        for start in range(0, len(due), MAX_SHOWN):
            message = CertificatesShown(pool=self._pool, shown=tuple(due[start : start + MAX_SHOWN]))
            self._context.board.say([message], within=SAID_WITHIN)
        return min(seen.pause, self._context.time.shown_every)

    def _blob(self, epoch: int) -> bytes:
        """Of two claims about one work the one that more validators make. In the journal's thread."""
        works = {work: ShownWork(work, units, ()) for work, units in self._journal.files.own_works(epoch)}
        for (work, units), said in self._journal.pay.certificates(self._own, epoch).items():
            if work not in works or len(said) > len(works[work].signatures):
                works[work] = ShownWork(work, units, tuple(signature for _, signature in said[:MAX_SIGNATURES]))
        return encode_certificates(self._own, epoch, [one for one in works.values() if one.units])
