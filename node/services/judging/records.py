"""What a validator knows of each worker over time: evidence by the sequential test, groups found in order.

In the journal, because a worker's record must survive the validator's restart. Which consequence a standing has is for
the validator; the arithmetic is protocol.decision.
"""

from functools import partial

import msgspec

from node.bounded_dict import BoundedDict
from node.state.journal import Journal
from node.state.kept import kept
from node.swarm.register import WorkId
from protocol.decision import DecisionSpec, Evidence, SuspicionLevel, WorkerRecord, WorkerStanding, after, standing
from protocol.engines import kind
from protocol.identity import Address


class WorkerHistory(msgspec.Struct, frozen=True):
    """records: of the sequential test, by the class of engine that looked (each file counts in one of them, so that the
    bound on false alarms per file holds over all); verified: groups recomputed in order; files: first bytes of their
    works' ids, counted once."""

    records: dict[str, WorkerRecord] = {}
    verified: int = 0
    files: tuple[bytes, ...] = ()


class WorkerRecords:
    """One validator's memory of workers."""

    def __init__(self, spec: DecisionSpec, journal: Journal) -> None:
        self._spec = spec
        self._journal = journal
        self._known: BoundedDict[Address, WorkerHistory] = BoundedDict(1024)
        self._others: dict[Address, BoundedDict[Address, BoundedDict[str, int]]] = {}
        """Validator -> worker -> class of engine -> level."""

    async def of(self, node: Address) -> WorkerHistory:
        """The history of a worker."""
        known = self._known.get(node)
        if known is None:
            raw = await self._journal.do(self._journal.recall, f"history_{node}")
            where = f"what the journal has of worker {node}"
            known = kept(where, partial(msgspec.json.decode, raw, type=WorkerHistory)) if raw else WorkerHistory()
            self._known[node] = known
        return known

    async def add(self, node: Address, work: WorkId, evidence: Evidence, groups: int, accepted: bool) -> WorkerStanding:
        """Count one inspected file, once; returns the worker's standing in the eyes of the class that looked.

        A file of which no prefill was made counts for no class, and says nothing.
        """
        history = await self.of(node)
        name, record = work[:8], history.records.get(evidence.verifier, WorkerRecord())
        # A file that is looked at twice must not count as two: the bound on false alarms is per file.
        if name not in history.files:
            record = after(record, evidence, self._spec)
            history = WorkerHistory(
                records={**history.records, evidence.verifier: record},
                verified=history.verified + groups if accepted else 0,
                files=(*history.files, name)[-64:],
            )
            self._known[node] = history
            await self._journal.do(self._journal.remember, f"history_{node}", msgspec.json.encode(history))
        return standing(record, self._spec)

    async def worst(self, node: Address) -> tuple[WorkerStanding, str]:
        """(the worker's worst standing over all classes of engines that this validator looked with, that class)."""
        records = (await self.of(node)).records
        standings = [(standing(record, self._spec), verifier) for verifier, record in records.items()]
        return max(standings, key=lambda one: one[0].log_odds, default=(standing(WorkerRecord(), self._spec), ""))

    async def is_suspect(self, node: Address) -> bool:
        return (await self.worst(node))[0].level >= SuspicionLevel.SUSPECT

    def heard(self, validator: Address, node: Address, level: int, verifier: str) -> None:
        """What another validator says of a worker, looking with one class of engine."""
        # Bounds of what one other validator says, on how many workers and in how many classes of engines: it crowds out
        # its own word only.
        workers = self._others.setdefault(validator, BoundedDict(2048, refresh=True))
        workers[node] = told = workers.get(node, BoundedDict(8, refresh=True))
        told[verifier] = level

    def seconded(self, node: Address, verifier: str, believed: set[Address]) -> bool:
        """Whether a believed validator suspects this worker through another kind of engine, too."""
        return any(
            level >= SuspicionLevel.SUSPECT and other and kind(other) != kind(verifier)
            for validator, workers in self._others.items()
            if validator in believed
            for other, level in workers.get(node, {}).items()
        )
