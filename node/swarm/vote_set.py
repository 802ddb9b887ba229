"""The vote set: what a pool's validators say of each work, and what that amounts to.

Every member counts the same signed verdicts by the same pure rules (protocol.disputes), so that trainer, workers and
validators come to one result. A verdict counts for the one commitment that it names, and only once this node has heard
of that (`register.py`). A validator has one word about a work, for ever. Work is accepted or rejected by the quorum; a
conflict between two validators opens a dispute (`disputes.py`), which all re-check; re-checks count inside a dispute
and nowhere else. Knows nothing of engines, lots or chains.
"""

import math
from collections.abc import Callable, Mapping
from enum import Enum

from node.swarm.disputes import Bench, Dispute, DisputedWork, Disputes
from node.swarm.register import Register, RegisteredWork, WorkId
from protocol.audit import share_of_files
from protocol.disputes import Conflict, DisputeRuling, asked_alike, asked_apart, hearsay, values_complete
from protocol.identity import Address
from protocol.lots import unpack_groups
from protocol.messages import MAX_VALUES, Judgement, Signed, VerdictIssued, VerdictRechecked
from protocol.run import RunSpec
from protocol.statements import VerdictOutcome, work_id


class FileState(Enum):
    """What the pool thinks of the file of a work."""

    OPEN = "open"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    DISPUTED = "disputed"
    UNDECIDED = "undecided"
    """Its time is over and nobody won its dispute, or its prompts differ: it is not trained on, paid or slashed for."""


class VoteSet:
    """Counts verdicts on the works of a register. clock: monotonic seconds."""

    def __init__(
        self, run: RunSpec, register: Register, bench: Bench, clock: Callable[[], float], disputes: Disputes
    ) -> None:
        self.disputes = disputes
        self._bench = bench
        self._audit = run.audit
        self._register = register
        self._clock = clock
        self._cases: dict[WorkId, DisputedWork] = {}
        register.follow_closed(self._close)
        self._missed: dict[Address, int] = {}

    # what is said

    def note(self, id: WorkId) -> DisputedWork:
        """Somebody has a word on a work: from now on the others are waited for. Raises KeyError for a work that the
        register does not know."""
        case = self._cases.get(id)
        if case is None:
            work = self._register.get(id)
            if work is None:
                raise KeyError(id)
            case = self._cases[id] = DisputedWork(work, self._clock(), votes={}, rechecks={})
        return case

    def add(self, signed: Signed[VerdictIssued]) -> list[Dispute]:
        """Count a verdict; returns the conflicts that it opens, none for a work that is disputed already.

        Raises KeyError for a work that the register does not know.
        """
        message, author = signed.message, signed.author
        case = self.note(work_id(message.verdict))
        # Before all else: a second verdict is evidence, and must never replace the first.
        if author in case.votes:
            self.disputes.second_word(case, case.votes[author], signed)
            return []
        if not values_complete(message, case.work.groups, MAX_VALUES):
            self.disputes.convict(case, author, "it accepts without saying what it recomputed", signed.raw)
            return []
        case.votes[author] = signed
        # One verdict is enough to count as speaking again; `is_silent` asks for files in a row.
        self._missed[author] = 0
        # The dispute is decided, so this late word is measured by what won it.
        if case.winner is not None and author not in self.disputes.quarantined:  # too late to be looked at again by all
            self.disputes.punish(case, author, self.disputes.compare(case, message, case.winner))
        return self.disputes.conflicts(case, signed)

    def recheck(self, signed: Signed[VerdictRechecked]) -> None:
        """Count a second look. It decides only a dispute that is open here, or opens later: outside of one nobody looks
        again. Raises KeyError as `note`."""
        message, author = signed.message, signed.author
        case = self.note(work_id(message.verdict))
        before = case.rechecks.get(author)
        if before is not None:
            # Values may differ by rounding; outcome and reason may not.
            if before.message.verdict != message.verdict:
                what = "it said two different things of a second look at one file"
                self.disputes.convict(case, author, what, before.raw, signed.raw)
            return
        looked = unpack_groups(message.checked, case.work.groups) or ()
        accepts = message.verdict.outcome == VerdictOutcome.ACCEPT
        # A rejection needs one bad group; only an acceptance says something of all of them.
        whole = not accepts or case.work.is_recomputed or len(looked) == case.work.groups > 0
        if not whole or not values_complete(message, case.work.groups, MAX_VALUES):
            what = "it accepts what it was to look at again without having looked at all of it"
            self.disputes.convict(case, author, what, signed.raw)
            return
        case.rechecks[author] = signed
        self.disputes.settle(case)

    def handle(self, dispute: tuple[Signed[VerdictIssued], Signed[VerdictIssued]]) -> bool:
        """Take a dispute that somebody else raised; whether the verdicts really conflict. Raises KeyError as `note`."""
        first, second = (one.message for one in dispute)
        case = self.note(work_id(first.verdict))
        finding = self.disputes.compare(case, first, second)
        # A raiser may be wrong or lie: only a conflict that we see ourselves costs everybody a second look.
        if finding is None or dispute[0].author == dispute[1].author:
            return False
        case.asked = True
        # Whoever is not believed any more must not cost everybody another look.
        if any(one.author in self.disputes.quarantined for one in dispute):
            return False  # it has said enough
        for one in dispute:
            self.add(one)
        self.disputes.begin(case)
        return True

    # what it amounts to

    def state(self, id: WorkId) -> FileState:
        """What the pool thinks of a work at this moment."""
        case = self._cases.get(id)
        if case is None:
            return FileState.OPEN
        self.disputes.settle(case)
        self._note_silence(case)
        if case.ruled is DisputeRuling.ACCEPTED:
            return FileState.ACCEPTED
        if case.ruled is not None:
            return FileState.REJECTED
        accepting, rejecting = self.accepting(id), self.rejecting(id)
        if case.disputed:
            over = self.disputes.is_over(case)
            return self._by_first_words(len(accepting), len(rejecting)) if over else FileState.DISPUTED
        needed = self._needed(case, rejecting)
        # At a tie the acceptance stands: a contradiction about the same thing would be a dispute, decided above.
        if len(accepting) >= needed and len(accepting) >= len(rejecting):
            return FileState.ACCEPTED
        if len(rejecting) >= self._needed(case, {}):
            return FileState.REJECTED
        return FileState.UNDECIDED if self._differs_for_good(case) else FileState.OPEN

    def _differs_for_good(self, case: DisputedWork) -> bool:
        """Whether the time is over in which a quorum could have computed the same prompts: then the file is nobody's
        fault and nobody's gain (ADR 101)."""
        waited = self._clock() - case.heard >= self._audit.verdict_seconds
        return waited and asked_apart(self.disputes.believed(case).values())

    def _by_first_words(self, accepting: int, rejecting: int) -> FileState:
        """What a dispute comes to that nobody won in time: what a quorum had said, if more than those against."""
        if max(accepting, rejecting) < self._bench.quorum or accepting == rejecting:
            return FileState.UNDECIDED
        return FileState.ACCEPTED if accepting > rejecting else FileState.REJECTED

    def accepting(self, id: WorkId) -> dict[Address, Judgement]:
        """What accepts a work, by believed validator: verdicts, or what won its dispute."""
        return self._side(id, accept=True)

    def rejecting(self, id: WorkId) -> dict[Address, Judgement]:
        """What rejects a work, with or without its worker's stake; otherwise as `accepting`."""
        return self._side(id, accept=False)

    def accusations(self, id: WorkId, reason: int) -> dict[Address, Judgement]:
        """What would take the stake for `reason`, verdicts and re-checks."""
        votes = self.rejecting(id)
        return {
            a: v for a, v in votes.items() if v.verdict.outcome == VerdictOutcome.SLASH and v.verdict.reason == reason
        }

    def prompts_differ(self, id: WorkId) -> bool:
        """Whether believed validators computed different prompts of a work."""
        case = self._cases.get(id)
        return case is not None and asked_apart(self.disputes.believed(case).values())

    def verdict_of(self, id: WorkId, validator: Address) -> Signed[VerdictIssued] | None:
        """A validator's one word about a work, believed or not."""
        case = self._cases.get(id)
        return case.votes.get(validator) if case else None

    def words_of(self, validator: Address) -> list[Signed[VerdictIssued] | Signed[VerdictRechecked]]:
        """Verdicts and second looks of a validator, newest works first."""
        cases = list(reversed(self._cases.values()))
        return [row[validator] for case in cases for row in (case.votes, case.rechecks) if validator in row]

    def has_turned(self, id: WorkId, validator: Address) -> bool:
        """Whether its second look denies a fact of its verdict, and no dispute of the work is known that asked it to
        look. A group that it had not drawn, or arithmetic, is none."""
        case = self._cases.get(id)
        if case is None or case.asked or validator not in case.votes or validator not in case.rechecks:
            return False
        both = case.votes[validator].message, case.rechecks[validator].message
        finding = self.disputes.compare(case, *both)
        return finding is not None and finding.kind is Conflict.CONTRADICTION and finding.objective

    def has_spoken(self, id: WorkId) -> set[Address]:
        """Who has shown a verdict on a work."""
        case = self._cases.get(id)
        return set(case.votes) if case else set()

    def undisputed(self, id: WorkId, patience: float = math.inf) -> bool:
        """Whether every living, believed validator has spoken of a work, or the time for that is over; and no dispute
        about it is open. Only then may a stake be touched. patience: seconds, where they are fewer than the run's."""
        case = self._cases.get(id)
        if case is None:
            return False
        if case.disputed and case.ruled is None:
            return self.state(id) in (FileState.ACCEPTED, FileState.REJECTED)
        # In a dispute a second look counts as having spoken, too: it may be a validator's first word here.
        said = {*case.votes, *(case.rechecks if case.disputed else ())}
        waited = self._clock() - case.heard >= min(self._audit.verdict_seconds, patience)
        return waited or all(validator in said for validator in self.active_validators())

    def _needed(self, case: DisputedWork, rejecting: Mapping[Address, Judgement]) -> int:
        """How many verdicts decide a file: the quorum; once silent validators have been waited for, as many as are
        alive, but two at least where three or more are in office: what one alone says is a claim. A run with servers
        always waits for its quorum: nobody alone is a witness."""
        if self._audit.witnessed != "no" or self._clock() - case.heard < self._audit.verdict_seconds:
            return self._bench.quorum
        deciding = set(self.active_validators())
        if len(self._bench.validators) >= 3:
            return max(2, min(self._bench.quorum, len(deciding)))
        # Of two the one that could not have a file leaves the word to the other: there is no third whom to ask.
        return max(1, min(self._bench.quorum, len(deciding - {a for a, one in rejecting.items() if hearsay(one)})))

    def active_validators(self) -> list[Address]:
        """The validators that are alive, believed and not silent."""
        if not (live := self._bench.live_validators()):
            return []
        let_pass = self.files_let_pass(self._bench.quorum - 1)
        return [one for one in live if one not in self.disputes.quarantined and not self.is_inactive(one, let_pass)]

    def is_inactive(self, validator: Address, let_pass: int = 0) -> bool:
        """Whether it let the last files pass without a verdict, alive or not. Where validators share files out, nobody
        is expected to speak of each: twice as many as would be its share must pass. A busy one leaves out what the
        quorum has accepted meanwhile. let_pass: how many files may pass, where that is known already."""
        return self._missed.get(validator, 0) >= (let_pass or self.files_let_pass(self._bench.quorum - 1))

    def files_let_pass(self, looking: int) -> int:
        """Files in a row without a word that say something of a validator, if one more than `looking` are to look at
        each."""
        share = share_of_files(len(self._bench.live_validators()), looking)
        # Files in a row that could be had and that a validator let pass without a word, before others decide without
        # it.
        silent_after = 4
        return silent_after if share >= 1 else math.ceil(2 * silent_after / share)

    # inside

    def _note_silence(self, case: DisputedWork) -> None:
        """Once per work: who has not spoken when its time was over. A file that this node never had may be one that
        nobody could have."""
        if case.overdue or not case.work.delivered or self._clock() - case.heard < self._audit.verdict_seconds:
            return
        case.overdue = True
        for validator in self._bench.live_validators():
            if validator not in case.votes and validator not in case.rechecks:
                self._missed[validator] = self._missed.get(validator, 0) + 1

    def _close(self, work: RegisteredWork) -> None:
        self._cases.pop(work.id, None)
        self.disputes.close(work.id)

    def _side(self, id: WorkId, *, accept: bool) -> dict[Address, Judgement]:
        """What believed validators say of a work, if it is of this kind: their verdicts; once a dispute about it is
        decided, what agrees with the side that won."""
        case = self._cases.get(id)
        if case is None:
            return {}
        if case.winner is None:
            said: dict[Address, Judgement] = {author: one.message for author, one in case.votes.items()}
        else:
            both, winner = [*case.votes.items(), *case.rechecks.items()], case.winner
            said = {a: one.message for a, one in both if self.disputes.compare(case, one.message, winner) is None}
        said = {a: one for a, one in said.items() if a not in self.disputes.quarantined}
        said = asked_alike(said, self._bench.quorum)
        return {a: one for a, one in said.items() if (one.verdict.outcome == VerdictOutcome.ACCEPT) == accept}
