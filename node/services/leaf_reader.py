"""A node's proof of what it earned: the leaves of its works in validators' roots, journaled as they come.

After an epoch each validator signs a root over the works that it lets count. A node fetches the file of it in which its
own are, checks it against the root, and keeps both until a posted table covers the epoch. What somebody signed who is
not heard any more it says again, so that whoever tables the epoch has it.
"""

import structlog
import trio

from node.bounded_dict import BoundedDict
from node.services.pool_accounting import ChainPoller, PoolAccounting, PoolRecord, by_author
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.messages import EpochRootSigned, Signed

log = structlog.get_logger()


class LeafReader(ChainPoller):
    name = "leaf-reader"
    trouble = "roots.not_kept"

    def __init__(self, books: PoolAccounting) -> None:
        super().__init__(books)
        self._said_at = books.context.clock.monotonic()
        self._known: BoundedDict[bytes, bool] = BoundedDict(4_096)  # roots that are not read again

    def begin(self, nursery: trio.Nursery) -> None:
        heard = self._context.facts.subscribe(EpochRootSigned)
        nursery.start_soon(by_author, nursery, heard, self._hear, self._is_anothers)

    def _is_anothers(self, author: Address) -> bool:
        """More than a quorum's are kept: if a validator loses its seat just before a table is made, others are too
        late."""
        return author != self._own and self._ledger.was_seated(author)

    async def _hear(self, signed: Signed[EpochRootSigned]) -> None:
        """Of all leaves of a pool only its own are of use to a node."""
        if signed.raw in self._known:
            return
        try:
            await self._books.take(signed)
            self._known[signed.raw] = True
        except (IntellectError, OSError) as error:  # it is said again
            log.info("root.unusable", validator=signed.author, epoch=signed.message.statement.epoch, why=str(error))

    async def tick(self, seen: PoolRecord) -> float:
        await self._repeat(seen)
        return min(seen.pause, self._context.time.shown_every)

    async def _repeat(self, seen: PoolRecord) -> None:
        """What those signed who are silent."""
        now, every = self._context.clock.monotonic(), self._context.time.shown_every
        if now - self._said_at < every:
            return
        self._said_at = now
        # The journal has words of these alone.
        judges = {one for bench in self._ledger.benches for one in bench.validators}
        if not any(one != self._own and self._is_inactive(one, now - 2 * every) for one in judges):
            return
        for _, author, _, _, raw in await self._journal.do(self._journal.earned.roots, seen.first, 2**62):
            if author != self._own and self._is_inactive(author, now - 2 * every):
                await self._context.board.post_raw(raw)

    def _is_inactive(self, author: Address, since: float) -> bool:
        heard = self._context.board.heard.get(author)
        return heard is None or heard < since
