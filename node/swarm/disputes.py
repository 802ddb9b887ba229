"""Disputes: works about which validators contradict each other, and which validators are not believed any more.

A conflict between two of them opens a dispute, which all re-check; more than half of the office decides it
(`protocol.disputes`), and time convicts nobody. Whoever contradicted the majority is quarantined: its verdicts count no
more, and the envelopes that show it are kept as evidence. What verdicts amount to is for `vote_set.py`.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Protocol

import msgspec

from node.swarm.facts import JudgeContradicted, JudgeDisbelieved, Quarantined
from node.swarm.register import Register, RegisteredWork, WorkId
from protocol.disputes import Conflict, DisputeRuling, VerdictConflict, compare, resolve
from protocol.identity import Address
from protocol.messages import Judgement, Signed, VerdictIssued, VerdictRechecked
from protocol.run import RunSpec

STRIKES = 3
"""Contradictions about arithmetic that one validator may be wrong in before it is quarantined: hardware differs."""


class Bench(Protocol):
    """Who judges now, as the pool's membership has it."""

    @property
    def validators(self) -> Sequence[Address]: ...
    @property
    def quorum(self) -> int: ...
    def live_validators(self) -> list[Address]: ...


class Dispute(msgspec.Struct, frozen=True):
    """Two verdicts that conflict. first, second: as signed."""

    work: WorkId
    first: Signed[VerdictIssued]
    second: Signed[VerdictIssued]
    finding: VerdictConflict


class DisputedWork(msgspec.Struct):
    """One work. votes, rechecks: by validator; asked: whether two verdicts on it were seen to conflict, whoever is
    believed; opened: when it was disputed; heard: of the first verdict or seal;
    ruled, winner: the dispute's result, and one re-check of the side that won; overdue: those who had not spoken in
    time were noted."""

    work: RegisteredWork
    heard: float
    votes: dict[Address, Signed[VerdictIssued]] = {}
    rechecks: dict[Address, Signed[VerdictRechecked]] = {}
    asked: bool = False
    disputed: bool = False
    opened: float = 0.0
    ruled: DisputeRuling | None = None
    winner: Judgement | None = None
    overdue: bool = False

    @property
    def first(self) -> VerdictIssued | None:
        """The first verdict on it, whoever said it."""
        return next((one.message for one in self.votes.values()), None)


class Disputes:
    """One per node. clock: monotonic seconds; told: who is not believed any more, however that came about, and who
    signed two verdicts on one work."""

    def __init__(
        self,
        run: RunSpec,
        register: Register,
        bench: Bench,
        clock: Callable[[], float],
        told: Callable[[JudgeDisbelieved | JudgeContradicted], object] = lambda one: None,
    ) -> None:
        self._most = 64  # disputes and convictions that are remembered, with what shows them
        self._audit = run.audit
        self._register = register
        self._bench = bench
        self._clock = clock
        self._told = told
        self._open: dict[WorkId, DisputedWork] = {}
        self._strikes: dict[Address, int] = {}
        self._shown: dict[Address, list[bytes]] = {}
        self.quarantined: dict[Address, Quarantined] = {}
        self.raised = self.resolved = 0

    def open(self) -> list[WorkId]:
        """What waits for re-checks; disputes whose time is over are closed by asking."""
        for case in list(self._open.values()):
            self.settle(case)
        return list(self._open)

    def in_dispute(self) -> list[tuple[bytes, ...]]:
        """The envelopes that open each dispute again for whoever reads them: its policy, its work, its verdicts."""
        open_ones = list(self._open.values())[-self._most :]
        return [(*self.shows(case), *(one.raw for one in case.votes.values())) for case in open_ones]

    def restore(self, quarantined: Sequence[Quarantined]) -> None:
        """Those who were not believed before a restart."""
        self.quarantined.update({one.validator: one for one in quarantined})

    def close(self, id: WorkId) -> None:
        """The register knows this work no more: nobody looks at it again."""
        self.resolved += self._open.pop(id, None) is not None

    # a work in dispute

    def compare(self, case: DisputedWork, first: Judgement, second: Judgement) -> VerdictConflict | None:
        """How two verdicts on a work conflict."""
        return compare(first, second, case.work.groups, self._audit.logprob_tolerance)

    def believed(self, case: DisputedWork) -> dict[Address, Judgement]:
        """What believed validators said first."""
        return {author: one.message for author, one in case.votes.items() if author not in self.quarantined}

    def conflicts(self, case: DisputedWork, signed: Signed[VerdictIssued]) -> list[Dispute]:
        found: list[Dispute] = []
        if case.disputed or signed.author in self.quarantined:
            return found
        for author, other in case.votes.items():
            if author == signed.author or author in self.quarantined:
                continue
            finding = self.compare(case, other.message, signed.message)
            if finding is not None:
                found.append(Dispute(case.work.id, other, signed, finding))
        if found:
            self.begin(case)
            self.settle(case)  # the re-checks may have come before
        return found

    def begin(self, case: DisputedWork) -> None:
        if not case.disputed:
            case.asked = case.disputed = True
            case.opened = self._clock()
            self._open[case.work.id] = case
            self.raised += 1

    def is_over(self, case: DisputedWork) -> bool:
        """Whether the time of its dispute is over. It convicts nobody, and second looks still count."""
        return self._clock() - case.opened > 2 * self._audit.verdict_seconds

    def settle(self, case: DisputedWork) -> None:
        """Decide a dispute as soon as second looks do, however late these come. Nobody is waited for in vain: when its
        time is over nobody is asked to look any more."""
        if not case.disputed or case.ruled is not None:
            return
        votes = {author: one.message for author, one in case.votes.items()}
        office = set(self._bench.validators) - self.quarantined.keys()
        rechecks = {author: one.message for author, one in case.rechecks.items() if author in office}
        result = resolve(votes, rechecks, len(office), case.work.groups, self._audit.logprob_tolerance)
        if result is not None:
            case.ruled, case.winner = result.ruling, result.winner
        if (result is not None or self.is_over(case)) and self._open.pop(case.work.id, None):
            self.resolved += 1
        for validator, finding in result.wrong.items() if result is not None else ():
            self.punish(case, validator, finding)

    def punish(self, case: DisputedWork, validator: Address, finding: VerdictConflict | None) -> None:
        """Hold against a validator what it got wrong in a decided dispute."""
        if finding is None or finding.kind is not Conflict.CONTRADICTION:
            return
        self._strikes[validator] = self._strikes.get(validator, 0) + 1
        shown = self._shown.setdefault(validator, [])  # of all strikes: others must come to the same count
        # Rounding may look like a contradiction once; `STRIKES` of them do not.
        shown += [*self.shows(case), *(one.raw for one in (*case.votes.values(), *case.rechecks.values()))]
        if finding.objective or self._strikes[validator] >= STRIKES:
            self.quarantine(validator, finding.what, tuple(self._shown.pop(validator)))

    def second_word(self, case: DisputedWork, before: Signed[VerdictIssued], signed: Signed[VerdictIssued]) -> None:
        """The same again is a repetition; anything else about the same work is a contradiction in itself."""
        if before.message.verdict == signed.message.verdict:
            return
        what = "it signed two different verdicts on one file"
        self.convict(case, signed.author, what, before.raw, signed.raw)
        self._told(JudgeContradicted(signed.author, before.message, signed.message))
        self.settle(case)

    # who is not believed

    def convict(self, case: DisputedWork, validator: Address, why: str, *shown: bytes) -> None:
        """Believe a validator no more for what it said of a work."""
        self.quarantine(validator, why, (*self.shows(case), *shown))

    def quarantine(self, validator: Address, why: str, evidence: tuple[bytes, ...]) -> None:
        """Believe a validator no more: what it said shows that it lied, or that it broke its promise (lots)."""
        if validator in self.quarantined:
            return
        # Never somebody in office if it can be helped: it would be believed again.
        if len(self.quarantined) >= self._most:  # of many benches: a pool has at most 16 validators at a time
            here = set(self._bench.live_validators())
            away = (one for one in self.quarantined if one not in here)
            del self.quarantined[next(away, next(iter(self.quarantined)))]
        one = self.quarantined[validator] = Quarantined(validator, why, self._clock(), evidence)
        self._told(JudgeDisbelieved(validator, one))
        for case in list(self._open.values()):
            self._withdraw(case)

    def shows(self, case: DisputedWork) -> tuple[bytes, ...]:
        """What makes verdicts on a work count for those who come later: its policy's announcement, its commitment."""
        announced = self._register.announcement(case.work)
        return (*((announced,) if announced else ()), case.work.signed.raw)

    def _withdraw(self, case: DisputedWork) -> None:
        """End a dispute that only somebody led who is not believed any more: who knew that before never opened it, and
        would not look again."""
        if not any(self.compare(case, *pair) for pair in combinations(self.believed(case).values(), 2)):
            case.disputed = False
            self._open.pop(case.work.id, None)
            self.resolved += 1
