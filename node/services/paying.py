"""A node's proof of what it earned: the leaves of its works in validators' roots, journaled as they come.

After an epoch each validator signs a root over the works that it lets count. A node fetches the file of it in which its
own are, checks it against the root, and keeps both until a posted table covers the epoch. What somebody signed who is
not heard any more it says again, so that whoever tables the epoch has it.
"""

from functools import partial

import structlog
import trio

from node.recent import Recent
from node.services.books import Books, Keeping, Seen, by_author
from protocol.earnings import MAX_LEAVES_BYTES, Accepted, Leaf, decode_leaves
from protocol.errors import IntellectError
from protocol.identity import Address, address_bytes
from protocol.messages import EpochRootSigned, Signed
from protocol.pages import pages_of, read_page

log = structlog.get_logger()
KNOWN = 4_096
"""Roots that are not read again."""
MOST = 262_144
"""Leaves of one validator that are kept: a day of three a second."""


class Paying(Keeping):
    name = "paying"
    trouble = "roots.not_kept"

    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._said_at = books.context.clock.monotonic()
        self._known: Recent[bytes, bool] = Recent(KNOWN)

    def begin(self, nursery: trio.Nursery) -> None:
        heard = self._context.facts.subscribe(EpochRootSigned, by=self._is_anothers)
        nursery.start_soon(by_author, nursery, heard, self._hear)

    def _is_anothers(self, author: Address) -> bool:
        """More than a quorum's are kept: if a validator loses its seat just before a table is made, others are too
        late."""
        return author != self._own and self._ledger.was_seated(author)

    async def _hear(self, signed: Signed[EpochRootSigned]) -> None:
        """Of all leaves of a pool only its own are of use to a node."""
        if signed.raw in self._known:
            return
        try:
            await self._journal.do(self._keep, signed, await self._works(signed))
            self._known[signed.raw] = True
        except (IntellectError, OSError) as error:  # it is said again
            log.info("root.unusable", validator=signed.author, epoch=signed.message.statement.epoch, why=str(error))

    async def _works(self, signed: Signed[EpochRootSigned]) -> list[Accepted]:
        """What a root names of this node. Raises IntellectError, OSError."""
        said, name = signed.message.statement, address_bytes(self._own)
        holders = [signed.author, *self._context.membership.addresses()]
        leaves = await self._books.fetch(said.blob, MAX_LEAVES_BYTES, holders, partial(decode_leaves, said=said))
        found: list[Accepted] = []
        for number in pages_of(leaves.pages, name):
            page = leaves.pages[number]
            rows = await self._books.fetch(page.root, page.size, holders, partial(read_page, page=page, kind=Leaf))
            own = [row for row in rows if row.node == name]
            found += [Accepted(self._pool, self._own, said.epoch, row.work, row.units) for row in own]
        return found

    def _keep(self, signed: Signed[EpochRootSigned], works: list[Accepted]) -> None:
        """In the journal's thread."""
        said = signed.message.statement
        self._journal.pay.take_leaves(signed.author, said.number, works, MOST)
        if works:
            self._journal.earned.note_root(said.epoch, signed.author, said.number, said.root, signed.raw, whole=False)

    async def look(self, seen: Seen) -> float:
        await self._forget()
        await self._repeat(seen)
        return min(seen.pause, self._context.time.shown_every)

    async def _forget(self) -> None:
        """What the last table but one covers: the newest may still be in a block that is replaced."""
        tables = self._ledger.tables
        if len(tables) > 1:
            await self._journal.do(self._journal.pay.forget_epochs, tables[-2].epoch)

    async def _repeat(self, seen: Seen) -> None:
        """What those signed who are silent."""
        now, every = self._context.clock.monotonic(), self._context.time.shown_every
        if now - self._said_at < every:
            return
        self._said_at = now
        for _, author, _, _, raw in await self._journal.do(self._journal.earned.roots, seen.first, 2**62):
            if author != self._own and self._is_silent(author, now - 2 * every):
                await self._context.board.post_raw(raw)

    def _is_silent(self, author: Address, since: float) -> bool:
        heard = self._context.board.heard.get(author)
        return heard is None or heard < since
