"""Pay brought to those who are not there: a node that is away, or has left the pool, is claimed for by others.

Anybody may carry a claim, and whoever does pays its gas: the contracts give no share of it. So validators and the
trainer do it, in turns that follow from the claim, a week after they have seen a line that nobody claims: a member that
is away for some days claims for itself when its time of the week comes. Of who has left the pool, and in one that is
over, they wait for a day. What is owed since when stands in the journal: a restart waits no day more.
"""

from typing import Any, Self

import structlog

from node.chain.errors import FeeTooHigh, Reverted
from node.services.court.turns import place
from node.services.pool_accounting import ChainPoller, PoolAccounting, PoolRecord
from node.services.workplace import Workplace
from node.state.facts import keep, recall
from protocol.identity import Address, address_from_bytes
from protocol.table import EarningsTable
from protocol.upkeep import DAY, WEEK, Patience

log = structlog.get_logger()
OWED = "owed"
"""The fact of whom nobody claims for: node -> (units that it was paid, since when), by the chain's time."""
Owed = dict[bytes, tuple[int, int]]


class ClaimCarrier(ChainPoller):
    """One per validator and trainer."""

    name = "claim-carrier"
    trouble = "pay.not_brought"

    # turn: seconds that each keeper before this one is given.
    def __init__(self, books: PoolAccounting, *, day: int = DAY, week: int = WEEK, turn: int = 600) -> None:
        super().__init__(books)
        self._day, self._week, self._turn = day, week, turn
        self.brought = 0
        self._before: Owed | None = None
        """What the journal has of it; None until it is asked."""

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.books)

    def status(self) -> dict[str, Any]:
        return {"pay": {"brought": self.brought}}

    async def tick(self, seen: PoolRecord) -> float:
        table = await self._books.of(seen.posted)
        if table is not None:
            before = await self._known()
            owed = self._owed(table, before, seen.now)
            due = [name for name, (paid, since) in owed.items() if seen.now >= self._due(seen, name, paid, since)]
            # Claims of one look: a pool of thousands that has ended takes hours, and no other word of this node waits
            # for it.
            for name in due[:8]:
                owed[name] = (await self._bring(address_from_bytes(name), seen), seen.now)
            if owed != before:
                await keep(self._journal, OWED, owed)
                self._before = owed
        return seen.pause

    async def _known(self) -> Owed:
        if self._before is None:
            self._before = await recall(self._journal, OWED, Owed) or {}
        return self._before

    def _owed(self, table: EarningsTable, before: Owed, now: int) -> Owed:
        """Whom the table owes more than it was paid, and who does not claim."""
        found, paid = Owed(), self._ledger.claimed()
        for line in table.lines:
            node = address_from_bytes(line.node)
            claimed = paid.get(node, 0)
            if line.units > claimed and not self._is_there(node) and node not in self._ledger.slashed:
                known = before.get(line.node)
                found[line.node] = known if known is not None and known[0] == claimed else (claimed, now)
        return found

    def _is_there(self, node: Address) -> bool:
        heard = self._context.board.heard.get(node)
        # Seconds without a word after which a node is away: it claims for itself as soon as it is back.
        return node == self._own or (heard is not None and self._context.clock.monotonic() - heard < 900.0)

    def _due(self, seen: PoolRecord, name: bytes, paid: int, since: int) -> int:
        """A member comes back, and claims when its time of the week comes; who has left does not."""
        comes = not seen.pool.ended and self._context.membership.is_member(address_from_bytes(name))
        return since + (self._week if comes else self._day) + self._wait(name, paid)

    def _wait(self, name: bytes, claimed: int) -> int:
        """Seconds that others act first; by what was paid, so that it is another one's turn each time."""
        case = name + claimed.to_bytes(8)
        others = [one for one in self._context.state.vote_set.active_validators() if one != self._own]
        return self._turn * sum(place(case, one) < place(case, self._own) for one in others)

    async def _bring(self, node: Address, seen: PoolRecord) -> int:
        """What the node was paid by then."""
        share = await self._books.share(seen.posted, node)
        # The ledger is as old as the events that count: somebody may have been faster.
        claimed = await self._chain.claimed(self._pool, node)
        if share is None or not share.units or share.units <= claimed:
            return claimed
        try:
            # Begun anew by each look: another's claim waits for as long as gas is dear.
            patience = Patience(seen.now, seen.now + self._day)
            await self._chain.claim(self._pool, node, share.units, share.proof, patience=patience)
        except (Reverted, FeeTooHigh) as error:  # its size allows no more yet, its case is open, or gas is dear
            log.info("pay.not_brought", node=node, why=error.why)
            return claimed
        self.brought += 1
        log.info("pay.brought", node=node, units=share.units - claimed)
        return share.units
