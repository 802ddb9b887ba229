"""A pool's books, from the chain's events: tables of earnings that were posted, our node's pay, whom a slash hit.

Fed by the service that follows the events, which delivers the whole history at every start; takes back what a replaced
block took out. Knows no clock and asks nobody: whoever spends money on what stands here asks the chain once more.
"""

from collections import Counter, deque

from contracts.bindings import (
    Claimed,
    EarningsPosted,
    Event,
    Joined,
    Left,
    NodeAttested,
    Slashed,
    SlashOverturned,
    TermHeld,
    ValidatorsSet,
)
from protocol.identity import Address

MOST_TABLES = 1_024
"""Tables that are remembered, the newest: six weeks of hourly ones."""

MOST_BENCHES = 16
"""Benches that are remembered, the newest: a new one takes office a window after it was named, at the soonest."""


class Ledger:
    """The books of one pool. own: the node whose pay is remembered."""

    def __init__(self, own: Address) -> None:
        self._own = own
        self._slashes: dict[Address, list[Slashed]] = {}
        self._overturned: set[int] = set()
        self.tables: deque[EarningsPosted] = deque(maxlen=MOST_TABLES)
        """As they were posted, the newest last."""
        self.benches: deque[ValidatorsSet] = deque(maxlen=MOST_BENCHES)
        """Who took office, the newest last."""
        self.claims: list[Claimed] = []
        """What our own node was paid, the newest last."""
        self.claimed = Counter[Address]()
        """Units that each node was paid."""
        self.told = 0
        """Events that came or were taken back: as long as it stands, the pool's terms do. That members come, go, are
        paid or hold the chair changes none of them."""

    # from the chain

    def apply(self, event: Event) -> None:
        self.told += not isinstance(event, Joined | Left | Claimed | NodeAttested | TermHeld)
        match event:
            case EarningsPosted():
                self.tables.append(event)
            case ValidatorsSet():
                self.benches.append(event)
            case Claimed():
                self.claimed[event.node] += event.units
                if event.node == self._own:
                    self.claims.append(event)
            case Slashed(node=node):
                self._slashes.setdefault(node, []).append(event)
            case SlashOverturned(case_id=case):
                # The slash stays on record beside it: a replaced block may take the overturning back.
                self._overturned.add(case)

    def undo(self, event: Event) -> None:
        """A replaced block took an event back."""
        self.told += 1
        match event:
            # It may be gone: these queues are bounded, and newer ones push the oldest out.
            case EarningsPosted() if event in self.tables:
                self.tables.remove(event)
            case ValidatorsSet() if event in self.benches:
                self.benches.remove(event)
            case Claimed():
                self.claimed[event.node] -= event.units
                if event in self.claims:
                    self.claims.remove(event)
            case Slashed(node=node):
                self._slashes[node] = [known for known in self._slashes.get(node, ()) if known != event]
            case SlashOverturned(case_id=case):
                self._overturned.discard(case)

    # what is known

    @property
    def paid(self) -> int:
        """Token wei that our node's provider got, since the pool began."""
        return sum(claim.amount for claim in self.claims)

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
    def cases(self) -> list[int]:
        """The vault's cases of all slashes that were not overturned; a node may have one beside a later conviction."""
        found = {slash.case_id for slashes in self._slashes.values() for slash in slashes}
        return sorted(found - self._overturned - {0})
