"""Ballots: what a pool's validators say of each file, and whether they may still be believed.

Every member counts the same signed verdicts by the same pure rules (protocol.disputes), so that trainer, workers and
validators come to one result. A file is accepted or rejected by the quorum; a conflict between two validators
opens a dispute, which all re-check; whoever contradicted the majority is quarantined: its verdicts count no more,
and the two envelopes that show it are kept as evidence. Knows nothing of engines, lots or chains.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import combinations

import msgspec

from protocol.disputes import Finding, Resolution, Ruling, compare, hearsay, resolve, values_complete
from protocol.identity import Address
from protocol.messages import MAX_VALUES, Signed, VerdictIssued
from protocol.run import RunSpec
from protocol.statements import Outcome

REMEMBERED = 8192
STRIKES = 3
"""Contradictions about arithmetic that one validator may be wrong in before it is quarantined: hardware differs."""
SILENT_AFTER = 4
"""Files in a row that a validator let pass without a word before others decide without it."""
EVIDENCE = 64


class FileState(Enum):
    """What the pool thinks of a file."""

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

    root: bytes
    first: Signed
    second: Signed
    finding: Finding


class _Case(msgspec.Struct):
    """One file. votes, rechecks: by validator; opened: when it was disputed; heard: first verdict; ruled: result;
    overdue: those who had not spoken in time were noted."""

    heard: float
    votes: dict[Address, Signed] = {}
    rechecks: dict[Address, Signed] = {}
    disputed: bool = False
    opened: float = 0.0
    ruled: Ruling | None = None
    overdue: bool = False


class Ballots:
    """Counts verdicts. live: the validators that are alive now; clock: monotonic seconds."""

    def __init__(
        self, run: RunSpec, quorum: int, live: Callable[[], Sequence[Address]], clock: Callable[[], float]
    ) -> None:
        self._groups = run.rollout.prompts_per_file
        self._audit = run.audit
        self._quorum = quorum
        self._live = live
        self._clock = clock
        self._cases: OrderedDict[bytes, _Case] = OrderedDict()
        self._strikes: dict[Address, int] = {}
        self._shown: dict[Address, list[bytes]] = {}
        self._missed: dict[Address, int] = {}
        self.quarantined: dict[Address, Quarantined] = {}
        self.on_quarantine: Callable[[Quarantined], None] = lambda one: None
        """Told of everyone who is not believed any more, however that came about."""
        self.disputes_raised = 0
        self.disputes_resolved = 0

    # what is said

    def add(self, signed: Signed) -> list[Dispute]:
        """Count a verdict; returns the conflicts that it opens (none for a file that is disputed already)."""
        message = _verdict(signed)
        case = self._case(message.verdict.file_root)
        side = case.rechecks if message.recheck else case.votes
        if signed.author in side:
            return self._second_word(case, side[signed.author], signed)
        if not values_complete(message, self._groups, MAX_VALUES):
            self._quarantine(signed.author, "it accepts without saying what it recomputed", (signed.raw,))
            return []
        side[signed.author] = signed
        self._missed[signed.author] = 0
        if message.recheck:
            self._settle(case)
            return []
        return self._conflicts(case, signed)

    def heed(self, dispute: tuple[Signed, Signed]) -> bool:
        """Take a dispute that somebody else raised; whether the two verdicts really conflict."""
        first, second = (_verdict(one) for one in dispute)
        finding = compare(first, second, self._groups, self._audit.logprob_tolerance)
        if finding is None or dispute[0].author == dispute[1].author:
            return False
        if any(one.author in self.quarantined for one in dispute):
            return False  # it has said enough
        for one in dispute:
            self.add(one)
        self._open(self._case(first.verdict.file_root))
        return True

    def quarantine(self, validator: Address, why: str, evidence: tuple[bytes, ...]) -> None:
        """Believe a validator no more: it broke a promise that somebody else watches over (lots)."""
        self._quarantine(validator, why, evidence)

    # what it amounts to

    def state(self, root: bytes) -> FileState:
        """What the pool thinks of a file at this moment."""
        case = self._cases.get(root)
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

    def accepting(self, root: bytes) -> dict[Address, VerdictIssued]:
        """The believed verdicts that accept a file, re-checks first where there are any."""
        case = self._cases.get(root)
        return {author: _verdict(one) for author, one in self._side(case, True).items()} if case else {}

    def rejecting(self, root: bytes) -> dict[Address, VerdictIssued]:
        """The believed verdicts that reject a file, with or without its worker's stake."""
        case = self._cases.get(root)
        return {author: _verdict(one) for author, one in self._side(case, False).items()} if case else {}

    def accusations(self, root: bytes, reason: int) -> dict[Address, VerdictIssued]:
        """The believed verdicts that would take the stake for `reason`, of those that a contract can be shown."""
        votes = {author: vote for author, vote in self.rejecting(root).items() if vote.signature}
        return {a: v for a, v in votes.items() if v.verdict.outcome == Outcome.SLASH and v.verdict.reason == reason}

    def undisputed(self, root: bytes) -> bool:
        """Whether every living, believed validator has spoken of a file, or the time for that is over; and no dispute
        about it is open. Only then may a stake be touched."""
        case = self._cases.get(root)
        if case is None or (case.disputed and case.ruled is None):
            return False
        said = {*case.votes, *case.rechecks}
        waited = self._clock() - case.heard >= self._audit.verdict_seconds
        return waited or all(validator in said for validator in self.electorate())

    def _needed(self, case: _Case, rejecting: Mapping[Address, Signed]) -> int:
        """How many verdicts decide a file: the quorum; once silent validators have been waited for, as many as are
        alive, at least one. Who rejects by hearsay then counts as if it had not spoken."""
        if self._clock() - case.heard < self._audit.verdict_seconds:
            return self._quorum
        abstaining = {author for author, one in rejecting.items() if hearsay(_verdict(one))}
        return max(1, min(self._quorum, len(set(self.electorate()) - abstaining)))

    def electorate(self) -> list[Address]:
        """The validators that are alive, believed and not silent."""
        return [one for one in self._live() if one not in self.quarantined and not self.is_silent(one)]

    def is_silent(self, validator: Address) -> bool:
        """Whether it let the last files pass without a verdict, alive or not."""
        return self._missed.get(validator, 0) >= SILENT_AFTER

    def open_disputes(self) -> list[bytes]:
        """Roots of the files that wait for re-checks; those whose time is over are closed by asking."""
        for case in self._open_cases():
            self._settle(case)
        return [root for root, case in self._cases.items() if case.disputed and case.ruled is None]

    def worker_of(self, root: bytes) -> Address | None:
        """Whose file it is, as the first verdict on it says."""
        case = self._cases.get(root)
        first = next(iter(case.votes.values()), None) if case else None
        return _verdict(first).verdict.node if first else None

    def restore(self, quarantined: Sequence[Quarantined]) -> None:
        """Those who were not believed before a restart."""
        self.quarantined.update({one.validator: one for one in quarantined})

    # inside

    def _note_silence(self, case: _Case) -> None:
        """Once per file: who has not spoken when its time was over."""
        if case.overdue or self._clock() - case.heard < self._audit.verdict_seconds:
            return
        case.overdue = True
        for validator in self._live():
            if validator not in case.votes and validator not in case.rechecks:
                self._missed[validator] = self._missed.get(validator, 0) + 1

    def _case(self, root: bytes) -> _Case:
        case = self._cases.get(root)
        if case is None:
            case = self._cases[root] = _Case(heard=self._clock(), votes={}, rechecks={})
            if len(self._cases) > REMEMBERED:
                self._cases.popitem(last=False)
        return case

    def _side(self, case: _Case, accept: bool) -> dict[Address, Signed]:
        """Per believed validator its last word, if it is of this kind."""
        last = {**case.votes, **case.rechecks}
        return {
            author: one
            for author, one in last.items()
            if author not in self.quarantined and (_verdict(one).verdict.outcome == Outcome.ACCEPT) == accept
        }

    def _conflicts(self, case: _Case, signed: Signed) -> list[Dispute]:
        found: list[Dispute] = []
        if case.disputed or signed.author in self.quarantined:
            return found
        for author, other in case.votes.items():
            if author == signed.author or author in self.quarantined:
                continue
            finding = compare(_verdict(other), _verdict(signed), self._groups, self._audit.logprob_tolerance)
            if finding is not None:
                found.append(Dispute(_verdict(signed).verdict.file_root, other, signed, finding))
        if found:
            self._open(case)
            self._settle(case)  # the re-checks may have come before
        return found

    def _open(self, case: _Case) -> None:
        if not case.disputed:
            case.disputed, case.opened = True, self._clock()
            self.disputes_raised += 1

    def _second_word(self, case: _Case, before: Signed, signed: Signed) -> list[Dispute]:
        """The same again is a repetition; something else about the same file is a contradiction in itself."""
        old, new = _verdict(before), _verdict(signed)
        same = (old.verdict, old.checked, old.rewards) == (new.verdict, new.checked, new.rewards)
        if before.raw != signed.raw and not same:
            self._quarantine(signed.author, "it signed two different verdicts on one file", (before.raw, signed.raw))
            self._settle(case)
        return []

    def _settle(self, case: _Case) -> None:
        """Decide a dispute as soon as the re-checks do, or when their time is over."""
        if not case.disputed or case.ruled is not None:
            return
        votes = {author: _verdict(one) for author, one in case.votes.items()}
        rechecks = {a: _verdict(one) for a, one in case.rechecks.items() if a not in self.quarantined}
        spoke = votes.keys() - self.quarantined.keys()  # whoever has just come knows nobody alive
        electorate = len(spoke | set(self.electorate()) | set(rechecks))
        result = resolve(votes, rechecks, electorate, self._groups, self._audit.logprob_tolerance)
        if result is None and self._clock() - case.opened > 2 * self._audit.verdict_seconds:
            result = resolve(votes, rechecks, len(rechecks), self._groups, self._audit.logprob_tolerance)
        if result is not None:
            self._conclude(case, result)

    def _conclude(self, case: _Case, result: Resolution) -> None:
        case.ruled = result.ruling
        self.disputes_resolved += 1
        for validator, finding in result.wrong.items():
            self._strikes[validator] = self._strikes.get(validator, 0) + 1
            shown = self._shown.setdefault(validator, [])  # of all strikes: others must come to the same count
            shown += [one.raw for one in (*case.votes.values(), *case.rechecks.values())]
            if finding.objective or self._strikes[validator] >= STRIKES:
                self._quarantine(validator, finding.what, tuple(self._shown.pop(validator)))

    def _quarantine(self, validator: Address, why: str, evidence: tuple[bytes, ...]) -> None:
        if validator in self.quarantined or len(self.quarantined) >= EVIDENCE:
            return
        one = self.quarantined[validator] = Quarantined(validator, why, self._clock(), evidence)
        self.on_quarantine(one)
        for case in self._open_cases():
            self._withdraw(case)

    def _open_cases(self) -> list[_Case]:
        return [case for case in self._cases.values() if case.disputed and case.ruled is None]

    def _withdraw(self, case: _Case) -> None:
        """End a dispute that only somebody led who is not believed any more: who knew that before never opened it, and
        would not look again."""
        believed = [_verdict(one) for author, one in case.votes.items() if author not in self.quarantined]
        tolerance = self._audit.logprob_tolerance
        if not any(compare(a, b, self._groups, tolerance) for a, b in combinations(believed, 2)):
            case.disputed = False
            self.disputes_resolved += 1


def _verdict(signed: Signed) -> VerdictIssued:
    assert isinstance(signed.message, VerdictIssued)  # noqa: S101 - what the caller subscribed to
    return signed.message
