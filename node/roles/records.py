"""What a validator knows of each worker over time: evidence by the sequential test, groups found in order.

In the journal, because a worker's record must survive the validator's restart. Which consequence a standing has is for
the validator; the arithmetic is protocol.decision.
"""

from collections import OrderedDict

import msgspec

from node.journal import Journal
from protocol.decision import DecisionSpec, Evidence, Level, Record, Standing, after, standing
from protocol.identity import Address

REMEMBERED = 8192
IN_MEMORY = 1024


class History(msgspec.Struct, frozen=True):
    """record: of the sequential test; verified: groups recomputed in order; files: roots' first bytes, counted once."""

    record: Record = Record()
    verified: int = 0
    files: tuple[bytes, ...] = ()


class Records:
    """One validator's memory of workers."""

    def __init__(self, spec: DecisionSpec, journal: Journal) -> None:
        self._spec = spec
        self._journal = journal
        self._known: OrderedDict[Address, History] = OrderedDict()
        self._others: dict[Address, dict[Address, tuple[int, str]]] = {}

    async def of(self, node: Address) -> History:
        """The history of a worker."""
        known = self._known.get(node)
        if known is None:
            raw = await self._journal.do(self._journal.recall, f"history_{node}")
            known = msgspec.json.decode(raw, type=History) if raw else History()
            self._known[node] = known
            while len(self._known) > IN_MEMORY:
                self._known.popitem(last=False)
        return known

    async def add(self, node: Address, root: bytes, evidence: Evidence, groups: int, accepted: bool) -> Standing:
        """Count one inspected file, once; returns the worker's standing."""
        history = await self.of(node)
        name = root[:8]
        if name not in history.files:
            history = History(
                record=after(history.record, evidence, self._spec),
                verified=history.verified + groups if accepted else 0,
                files=(*history.files, name)[-64:],
            )
            self._known[node] = history
            await self._journal.do(self._journal.remember, f"history_{node}", msgspec.json.encode(history))
        return standing(history.record, self._spec)

    async def is_suspect(self, node: Address) -> bool:
        return standing((await self.of(node)).record, self._spec).level >= Level.SUSPECT

    def heard(self, validator: Address, node: Address, level: int, verifier: str) -> None:
        """What another validator says of a worker."""
        told = self._others.setdefault(node, {})
        told[validator] = (level, verifier)
        while len(self._others) > REMEMBERED:
            self._others.pop(next(iter(self._others)))

    def seconded(self, node: Address, verifier: str, believed: set[Address]) -> bool:
        """Whether a believed validator with another class of engine suspects this worker, too."""
        told = self._others.get(node, {})
        return any(
            level >= Level.SUSPECT and other and other != verifier
            for validator, (level, other) in told.items()
            if validator in believed
        )
