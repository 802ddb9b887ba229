"""Ballots: what a pool's validators say of each work, and whether they may still be believed.

Every member counts the same signed verdicts by the same pure rules (protocol.disputes), so that trainer, workers and
validators come to one result. A verdict counts for the one commitment that it names, and only once this node has heard
of that (`register.py`). Work is accepted or rejected by the quorum; a conflict between two validators
opens a dispute, which all re-check; whoever contradicted the majority is quarantined: its verdicts count no more,
and the envelopes that show it are kept as evidence. Knows nothing of engines, lots or chains.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import combinations

import msgspec

from node.swarm.register import Register, Work, WorkId
from protocol.disputes import Finding, Resolution, Ruling, compare, hearsay, resolve, values_complete
from protocol.identity import Address
from protocol.messages import MAX_VALUES, Signed, VerdictIssued
from protocol.run import RunSpec
from protocol.statements import Outcome, work_id

STRIKES = 3
"""Contradictions about arithmetic that one validator may be wrong in before it is quarantined: hardware differs."""
SILENT_AFTER = 4
"""Files in a row that could be had and that a validator let pass without a word, before others decide without it."""
EVIDENCE = 64


class FileState(Enum):
    """What the pool thinks of the file of a work."""

    OPEN = "open"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    DISPUTED = "disputed"


class Quarantined(msgspec.Struct, frozen=True):
    """Why a validator is not believed. evidence: envelopes of contradicting or broken promises, signed by their
    authors; enough for anybody to come to the same result."""

    validator: Address
    why: str
    at: float
    evidence: tuple[bytes, ...]


class Dispute(msgspec.Struct, frozen=True):
    """Two verdicts that conflict. first, second: as signed."""

    work: WorkId
    first: Signed[VerdictIssued]
    second: Signed[VerdictIssued]
    finding: Finding


class _Case(msgspec.Struct):
    """One work. votes, rechecks: by validator; opened: when it was disputed; heard: first verdict; ruled: result;
    overdue: those who had not spoken in time were noted."""

    work: Work
    heard: float
    votes: dict[Address, Signed[VerdictIssued]] = {}
    rechecks: dict[Address, Signed[VerdictIssued]] = {}
    disputed: bool = False
    opened: float = 0.0
    ruled: Ruling | None = None
    overdue: bool = False


class Ballots:
    """Counts verdicts on the works of a register. live: the validators that are alive now; clock: monotonic seconds."""

    def __init__(
        self,
        run: RunSpec,
        quorum: int,
        register: Register,
        live: Callable[[], Sequence[Address]],
        clock: Callable[[], float],
    ) -> None:
        self._audit = run.audit
        self._quorum = quorum
        self._register = register
        self._live = live
        self._clock = clock
        self._cases: dict[WorkId, _Case] = {}
        self._open: dict[WorkId, _Case] = {}
        register.on_forgotten = self._forget
        self._strikes: dict[Address, int] = {}
        self._shown: dict[Address, list[bytes]] = {}
        self._missed: dict[Address, int] = {}
        self.quarantined: dict[Address, Quarantined] = {}
        self.on_quarantine: Callable[[Quarantined], None] = lambda one: None
        """Told of everyone who is not believed any more, however that came about."""
        self.disputes_raised = 0
        self.disputes_resolved = 0

    # what is said

    def add(self, signed: Signed[VerdictIssued]) -> list[Dispute]:
        """Count a verdict; returns the conflicts that it opens, none for a work that is disputed already.

        Raises KeyError for a work that the register does not know.
        """
        message = signed.message
        case = self._case(work_id(message.verdict))
        side = case.rechecks if message.recheck else case.votes
        if signed.author in side:
            return self._second_word(case, side[signed.author], signed)
        if not values_complete(message, case.work.groups, MAX_VALUES):
            self._quarantine(
                signed.author, "it accepts without saying what it recomputed", (*self._shows(case), signed.raw)
            )
            return []
        side[signed.author] = signed
        self._missed[signed.author] = 0
        if message.recheck:
            self._settle(case)
            return []
        return self._conflicts(case, signed)

    def heed(self, dispute: tuple[Signed[VerdictIssued], Signed[VerdictIssued]]) -> bool:
        """Take a dispute that somebody else raised; whether the verdicts really conflict. Raises KeyError as `add`."""
        first, second = (one.message for one in dispute)
        groups = self._case(work_id(first.verdict)).work.groups
        finding = compare(first, second, groups, self._audit.logprob_tolerance)
        if finding is None or dispute[0].author == dispute[1].author:
            return False
        if any(one.author in self.quarantined for one in dispute):
            return False  # it has said enough
        for one in dispute:
            self.add(one)
        self._dispute(self._case(work_id(first.verdict)))
        return True

    def quarantine(self, validator: Address, why: str, evidence: tuple[bytes, ...]) -> None:
        """Believe a validator no more: it broke a promise that somebody else watches over (lots)."""
        self._quarantine(validator, why, evidence)

    # what it amounts to

    def state(self, id: WorkId) -> FileState:
        """What the pool thinks of a work at this moment."""
        case = self._cases.get(id)
        if case is None:
            return FileState.OPEN
        self._settle(case)
        self._note_silence(case)
        if case.ruled is Ruling.ACCEPTED:
            return FileState.ACCEPTED
        if case.ruled is not None:
            return FileState.REJECTED
        if case.disputed:
            return FileState.DISPUTED
        accepting, rejecting = self._side(case, True), self._side(case, False)
        if len(accepting) >= self._needed(case, rejecting) and len(accepting) >= len(rejecting):
            return FileState.ACCEPTED
        return FileState.REJECTED if len(rejecting) >= self._needed(case, {}) else FileState.OPEN

    def accepting(self, id: WorkId) -> dict[Address, VerdictIssued]:
        """The believed verdicts that accept a work, re-checks first where there are any."""
        case = self._cases.get(id)
        return {author: one.message for author, one in self._side(case, True).items()} if case else {}

    def rejecting(self, id: WorkId) -> dict[Address, VerdictIssued]:
        """The believed verdicts that reject a work, with or without its worker's stake."""
        case = self._cases.get(id)
        return {author: one.message for author, one in self._side(case, False).items()} if case else {}

    def accusations(self, id: WorkId, reason: int) -> dict[Address, VerdictIssued]:
        """The believed verdicts that would take the stake for `reason`, of those that a contract can be shown."""
        votes = {author: vote for author, vote in self.rejecting(id).items() if vote.signature}
        return {a: v for a, v in votes.items() if v.verdict.outcome == Outcome.SLASH and v.verdict.reason == reason}

    def undisputed(self, id: WorkId) -> bool:
        """Whether every living, believed validator has spoken of a work, or the time for that is over; and no dispute
        about it is open. Only then may a stake be touched."""
        case = self._cases.get(id)
        if case is None or (case.disputed and case.ruled is None):
            return False
        said = {*case.votes, *case.rechecks}
        waited = self._clock() - case.heard >= self._audit.verdict_seconds
        return waited or all(validator in said for validator in self.electorate())

    def _needed(self, case: _Case, rejecting: Mapping[Address, Signed[VerdictIssued]]) -> int:
        """How many verdicts decide a file: the quorum; once silent validators have been waited for, as many as are
        alive, at least one. Who rejects by hearsay then counts as if it had not spoken."""
        if self._clock() - case.heard < self._audit.verdict_seconds:
            return self._quorum
        abstaining = {author for author, one in rejecting.items() if hearsay(one.message)}
        return max(1, min(self._quorum, len(set(self.electorate()) - abstaining)))

    def electorate(self) -> list[Address]:
        """The validators that are alive, believed and not silent."""
        return [one for one in self._live() if one not in self.quarantined and not self.is_silent(one)]

    def is_silent(self, validator: Address) -> bool:
        """Whether it let the last files pass without a verdict, alive or not."""
        return self._missed.get(validator, 0) >= SILENT_AFTER

    def open_disputes(self) -> list[WorkId]:
        """What waits for re-checks; disputes whose time is over are closed by asking."""
        for case in list(self._open.values()):
            self._settle(case)
        return list(self._open)

    def restore(self, quarantined: Sequence[Quarantined]) -> None:
        """Those who were not believed before a restart."""
        self.quarantined.update({one.validator: one for one in quarantined})

    # inside

    def _note_silence(self, case: _Case) -> None:
        """Once per work: who has not spoken when its time was over. A file that this node never had may be one that
        nobody could have."""
        if case.overdue or not case.work.delivered or self._clock() - case.heard < self._audit.verdict_seconds:
            return
        case.overdue = True
        for validator in self._live():
            if validator not in case.votes and validator not in case.rechecks:
                self._missed[validator] = self._missed.get(validator, 0) + 1

    def _case(self, id: WorkId) -> _Case:
        case = self._cases.get(id)
        if case is None:
            work = self._register.get(id)
            if work is None:
                raise KeyError(id)
            case = self._cases[id] = _Case(work, self._clock(), votes={}, rechecks={})
        return case

    def _forget(self, id: WorkId) -> None:
        """The register knows this work no more."""
        self._cases.pop(id, None)
        self._open.pop(id, None)

    def _side(self, case: _Case, accept: bool) -> dict[Address, Signed[VerdictIssued]]:
        """Per believed validator its last word, if it is of this kind."""
        last = {**case.votes, **case.rechecks}
        return {
            author: one
            for author, one in last.items()
            if author not in self.quarantined and (one.message.verdict.outcome == Outcome.ACCEPT) == accept
        }

    def _conflicts(self, case: _Case, signed: Signed[VerdictIssued]) -> list[Dispute]:
        found: list[Dispute] = []
        if case.disputed or signed.author in self.quarantined:
            return found
        for author, other in case.votes.items():
            if author == signed.author or author in self.quarantined:
                continue
            finding = compare(other.message, signed.message, case.work.groups, self._audit.logprob_tolerance)
            if finding is not None:
                found.append(Dispute(case.work.id, other, signed, finding))
        if found:
            self._dispute(case)
            self._settle(case)  # the re-checks may have come before
        return found

    def _dispute(self, case: _Case) -> None:
        if not case.disputed:
            case.disputed, case.opened = True, self._clock()
            self._open[case.work.id] = case
            self.disputes_raised += 1

    def _second_word(self, case: _Case, before: Signed[VerdictIssued], signed: Signed[VerdictIssued]) -> list[Dispute]:
        """The same again is a repetition; something else about the same work is a contradiction in itself."""
        old, new = before.message, signed.message
        same = (old.verdict, old.checked, old.rewards) == (new.verdict, new.checked, new.rewards)
        if before.raw != signed.raw and not same:
            self._quarantine(
                signed.author,
                "it signed two different verdicts on one file",
                (*self._shows(case), before.raw, signed.raw),
            )
            self._settle(case)
        return []

    def _settle(self, case: _Case) -> None:
        """Decide a dispute as soon as the re-checks do, or when their time is over."""
        if not case.disputed or case.ruled is not None:
            return
        votes = {author: one.message for author, one in case.votes.items()}
        rechecks = {a: one.message for a, one in case.rechecks.items() if a not in self.quarantined}
        spoke = votes.keys() - self.quarantined.keys()  # whoever has just come knows nobody alive
        electorate = len(spoke | set(self.electorate()) | set(rechecks))
        result = resolve(votes, rechecks, electorate, case.work.groups, self._audit.logprob_tolerance)
        if result is None and self._clock() - case.opened > 2 * self._audit.verdict_seconds:
            result = resolve(votes, rechecks, len(rechecks), case.work.groups, self._audit.logprob_tolerance)
        if result is not None:
            self._conclude(case, result)

    def _conclude(self, case: _Case, result: Resolution) -> None:
        case.ruled = result.ruling
        self._open.pop(case.work.id, None)
        self.disputes_resolved += 1
        for validator, finding in result.wrong.items():
            self._strikes[validator] = self._strikes.get(validator, 0) + 1
            shown = self._shown.setdefault(validator, [])  # of all strikes: others must come to the same count
            shown += [*self._shows(case), *(one.raw for one in (*case.votes.values(), *case.rechecks.values()))]
            if finding.objective or self._strikes[validator] >= STRIKES:
                self._quarantine(validator, finding.what, tuple(self._shown.pop(validator)))

    def _quarantine(self, validator: Address, why: str, evidence: tuple[bytes, ...]) -> None:
        if validator in self.quarantined or len(self.quarantined) >= EVIDENCE:
            return
        one = self.quarantined[validator] = Quarantined(validator, why, self._clock(), evidence)
        self.on_quarantine(one)
        for case in list(self._open.values()):
            self._withdraw(case)

    def _shows(self, case: _Case) -> tuple[bytes, ...]:
        """What makes verdicts on a work count for those who come later: its policy's announcement, its commitment."""
        announced = self._register.announcement(case.work)
        return (*((announced,) if announced else ()), case.work.signed.raw)

    def _withdraw(self, case: _Case) -> None:
        """End a dispute that only somebody led who is not believed any more: who knew that before never opened it, and
        would not look again."""
        believed = [one.message for author, one in case.votes.items() if author not in self.quarantined]
        tolerance = self._audit.logprob_tolerance
        if not any(compare(a, b, case.work.groups, tolerance) for a, b in combinations(believed, 2)):
            case.disputed = False
            self._open.pop(case.work.id, None)
            self.disputes_resolved += 1
