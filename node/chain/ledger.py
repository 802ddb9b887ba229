"""A pool's books, from the chain's events: tables of earnings that were posted, our node's pay, whom a slash hit.

Fed by the service that follows the events, which delivers the whole history at every start; takes back what a replaced
block took out. Knows no clock and asks nobody: whoever spends money on what stands here asks the chain once more.
"""

from collections import Counter, deque
from collections.abc import Callable

from contracts.bindings import (
    Admitted,
    ChainEvent,
    Claimed,
    EarningsDropped,
    EarningsHeld,
    EarningsPosted,
    Filed,
    FilingDropped,
    FilingsHeld,
    GivenBack,
    InvitationsRevoked,
    Joined,
    Left,
    NodeAttested,
    PoolFunded,
    PoolSwept,
    Redeemed,
    Slashed,
    SlashOverturned,
    TermEnded,
    TermHeld,
    TermTaken,
    ValidatorsSet,
)
from protocol.identity import Address

_MOVES_MONEY = (
    EarningsDropped,
    EarningsHeld,
    Filed,
    FilingDropped,
    FilingsHeld,
    GivenBack,
    PoolFunded,
    PoolSwept,
    Redeemed,
)
_MOVES_NOTHING = (
    Admitted,
    Claimed,
    EarningsPosted,
    InvitationsRevoked,
    Joined,
    Left,
    NodeAttested,
    Slashed,
    SlashOverturned,
    TermEnded,
    TermHeld,
    TermTaken,
)


class Ledger:
    """The books of one pool. own: the node whose pay is remembered; read_until: the chain's time up to which all events
    have come; now: that of the newest block that was seen, unix seconds, 0 for none; around: as
    `EventFollower.around`."""

    def __init__(
        self,
        own: Address,
        read_until: Callable[[], float] = lambda: float("inf"),
        now: Callable[[], int] = lambda: 0,
        around: Callable[[int], tuple[int | None, int | None]] = lambda at: (None, None),
    ) -> None:
        self._own = own
        self.read_until, self.now, self.around = read_until, now, around
        self._money: list[tuple[int, int, int]] = []
        """Block, wei that came into the escrow, units that came back to it."""
        self._taken: dict[Address, tuple[int, int]] = {}
        """Of each node: the block of its last claim, and all units that were claimed or given back."""
        self._slashes: dict[Address, list[Slashed]] = {}
        self._overturned: set[int] = set()
        self._dropped: dict[EarningsDropped, EarningsPosted] = {}
        self._attested: dict[Address, list[NodeAttested]] = {}
        # Tables that are remembered, the newest: six weeks of hourly ones.
        self.tables: deque[EarningsPosted] = deque(maxlen=1_024)
        """As they were posted, the newest last, which may not count yet; without those that were dropped."""
        # Benches that are remembered, the newest: a new one takes office a window after it was named, at the soonest.
        self.benches: deque[ValidatorsSet] = deque(maxlen=16)
        """Who took office, the newest last."""
        self.seated = 0
        """How many benches took office: the number of the newest."""
        self.claims: list[Claimed] = []
        """What our own node was paid by tables, the newest last."""
        self.redeemed: list[Redeemed] = []
        """What it was paid of what it filed."""
        self._filings: list[Filed | FilingDropped] = []
        """What it filed, and what of that was dropped."""
        self.terms = self.books = 0
        """Events that came or were taken back: as long as these stand, the pool's terms and people do, and its escrow
        and filings. That members come, go, are paid, are slashed or hold the chair changes none of them; a table does
        once it counts."""

    # from the chain

    def apply(self, event: ChainEvent) -> None:
        self.books += isinstance(event, _MOVES_MONEY)
        self.terms += not isinstance(event, _MOVES_MONEY + _MOVES_NOTHING)
        match event:
            case EarningsPosted():
                self.tables.append(event)
            case EarningsDropped() if self.tables:
                self._dropped[event] = self.tables.pop()  # none is posted while another one waits
            case NodeAttested(node=node):
                self._attested.setdefault(node, []).append(event)
            case ValidatorsSet():
                self.benches.append(event)
                self.seated += 1
            case Redeemed(node=node) if node == self._own:
                self.redeemed.append(event)
            case Filed(node=node) | FilingDropped(node=node) if node == self._own:
                self._filings.append(event)
            case PoolFunded(block=block, amount=amount):
                self._money.append((block, amount, 0))
            case Claimed(block=block, node=node, units=units):
                self._take(block, node, units)
                if node == self._own:
                    self.claims.append(event)
            case GivenBack(block=block, node=node, units=units):
                self._take(block, node, units)
                self._money.append((block, 0, units))
            case Slashed(node=node):
                self._slashes.setdefault(node, []).append(event)
            case SlashOverturned(case_id=case):
                # The slash stays on record beside it: a replaced block may take the overturning back.
                self._overturned.add(case)

    def undo(self, event: ChainEvent) -> None:
        """A replaced block took an event back."""
        self.books, self.terms = self.books + 1, self.terms + 1
        match event:
            # It may be gone: these queues are bounded, and newer ones push the oldest out.
            case EarningsPosted() if event in self.tables:
                self.tables.remove(event)
            case EarningsDropped() if event in self._dropped:
                self.tables.append(self._dropped.pop(event))
            case NodeAttested(node=node):
                self._attested[node].remove(event)
            case ValidatorsSet():
                self.seated -= 1
                if event in self.benches:
                    self.benches.remove(event)
            case Redeemed() if event in self.redeemed:
                self.redeemed.remove(event)
            case Filed() | FilingDropped() if event in self._filings:
                self._filings.remove(event)
            case PoolFunded(block=block, amount=amount):
                self._money.remove((block, amount, 0))
            case Claimed(block=block, node=node, units=units):
                self._take(block, node, -units)
                if event in self.claims:
                    self.claims.remove(event)
            case GivenBack(block=block, node=node, units=units):
                self._take(block, node, -units)
                self._money.remove((block, 0, units))
            case Slashed(node=node):
                self._slashes[node] = [known for known in self._slashes.get(node, ()) if known != event]
            case SlashOverturned(case_id=case):
                self._overturned.discard(case)

    def _take(self, block: int, node: Address, units: int) -> None:
        last, before = self._taken.get(node, (0, 0))
        self._taken[node] = (max(last, block), before + units)

    # what is known

    def escrow(self, block: int, price: int) -> int:
        """Units that came into the escrow by the end of a block, those that tables promised since too."""
        came = [(wei, units) for at, wei, units in self._money if at <= block]
        return sum(wei for wei, _ in came) // price + sum(units for _, units in came) if price else 0

    def claimed(self, block: int | None = None) -> dict[Address, int]:
        """Units of each node that were paid or given back; block: of those alone that had the last of it by its end."""
        return {node: units for node, (at, units) in self._taken.items() if units and (block is None or at <= block)}

    def attested(self, node: Address, at: int, block: int) -> int:
        """How big a quorum had found a node to be at a time, unix seconds, by what was on chain at a block's end."""
        found = [one for one in self._attested.get(node, ()) if one.block <= block and one.made_at < at]
        newest = max(found, key=lambda one: one.made_at, default=None)
        return newest.units if newest and at <= newest.until else 0

    def was_seated(self, validator: Address) -> bool:
        """Whether one of the benches that are remembered has it."""
        return any(validator in bench.validators for bench in self.benches)

    @property
    def paid(self) -> int:
        """Token wei that our node's provider got, since the pool began."""
        return sum(one.amount for one in (*self.claims, *self.redeemed))

    @property
    def filed(self) -> dict[int, int]:
        """Units of each epoch that our node filed, redeemed and dropped ones too."""
        units = Counter[int]()
        for one in self._filings:
            if isinstance(one, Filed):
                units[one.epoch] += one.units
        return dict(sorted(units.items()))

    @property
    def unredeemed(self) -> int:
        """Of these those that were neither redeemed nor dropped."""
        left = sum(one.units if isinstance(one, Filed) else -one.units for one in self._filings)
        return left - sum(one.filed for one in self.redeemed)

    @property
    def slashed(self) -> dict[Address, Slashed]:
        """By node: its slash, unless that was overturned."""
        left = {
            node: [slash for slash in slashes if not slash.case_id or slash.case_id not in self._overturned]
            for node, slashes in self._slashes.items()
        }
        return {node: slashes[-1] for node, slashes in left.items() if slashes}

    @property
    def convicted(self) -> set[Address]:
        """Nodes whose own signatures convicted them: nothing gives them back what they had earned."""
        return {node for node, slashes in self._slashes.items() if any(not slash.case_id for slash in slashes)}

    @property
    def judged(self) -> bool:
        """Whether judges ever had anybody slashed: then the vault may owe somebody a bond."""
        return any(slash.case_id for slashes in self._slashes.values() for slash in slashes)

    @property
    def cases(self) -> list[int]:
        """The vault's cases of all slashes that were not overturned; a node may have one beside a later conviction."""
        found = {slash.case_id for slashes in self._slashes.values() for slash in slashes}
        return sorted(found - self._overturned - {0})
