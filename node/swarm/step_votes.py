"""Step votes: what validators found when they audited the trainer's steps, and whether they drew as they pledged.

Counts verdicts per statement; one validator has one word about one. What follows from a quorum is for others.
"""

from collections.abc import Callable, Container

import msgspec

from node.bounded_dict import BoundedDict
from node.status_schema import BadStepPart, StepVerdictsPart
from node.swarm.audit_lots import AuditLots
from node.swarm.facts import PolicyFollowed
from protocol.checks import reason_name
from protocol.identity import Address
from protocol.messages import LotsRevealed, Signed, StepVerdict
from protocol.statements import VerdictOutcome

KEPT = 512
"""Statements that are remembered."""


class _Judged(msgspec.Struct, gc=False):
    """What is known of one statement. by: the verdicts of its auditors; owing: those who drew it and said nothing."""

    trainer: Address
    step: int
    by: dict[Address, Signed[StepVerdict]] = {}
    owing: set[Address] = set()

    @property
    def against(self) -> list[Signed[StepVerdict]]:
        return [one for one in self.by.values() if one.message.outcome != VerdictOutcome.ACCEPT]


class StepVotes:
    """One per node. lots: what validators pledged; is_party: whether a validator is one to what a trainer does."""

    def __init__(self, lots: AuditLots, is_party: Callable[[Address, Address], bool]) -> None:
        self._lots = lots
        self._is_party = is_party
        self._judged: BoundedDict[bytes, _Judged] = BoundedDict(KEPT)
        self._last: Signed[StepVerdict] | None = None
        self.verdicts = 0

    def stated(self, followed: PolicyFollowed) -> None:
        """A policy is followed, whose step may be drawn from now on."""
        statement = followed.statement
        if statement.step > 0:
            self._judged.setdefault(statement.struct_hash, _Judged(followed.author, statement.step, {}, set()))

    def add(self, signed: Signed[StepVerdict]) -> bool:
        """Count a verdict on what was stated; False if its author has spoken of it."""
        statement = signed.message.statement
        fresh = _Judged(signed.message.trainer, statement.step, {}, set())
        known = self._judged.setdefault(statement.struct_hash, fresh)
        if signed.author in known.by:
            return False
        known.by[signed.author] = signed
        known.owing.discard(signed.author)
        self.verdicts += 1
        if self._last is None or self._last.message.statement.step <= statement.step:
            self._last = signed
        return True

    def against(self, statement: bytes, disbelieved: Container[Address]) -> list[Signed[StepVerdict]]:
        """The verdicts of believed validators against a step."""
        found = self._judged.get(statement)
        return [one for one in found.against if one.author not in disbelieved] if found else []

    def revealed(self, signed: Signed[LotsRevealed]) -> None:
        """A secret is known: who drew a step and said nothing of it owes a verdict. It is no fault by itself: a part of
        the step may not have been had."""
        for statement, known in self._judged.items():
            if signed.author in known.by or self._is_party(signed.author, known.trainer):
                continue
            if self._lots.draws_step(signed.author, signed.message, known.step, statement):
                known.owing.add(signed.author)

    def judged_by(self, statement: bytes) -> dict[Address, Signed[StepVerdict]]:
        """The verdicts on one statement."""
        found = self._judged.get(statement)
        return dict(found.by) if found else {}

    def words_of(self, validator: Address) -> list[Signed[StepVerdict]]:
        """What a validator said of steps, newest first."""
        return [one.by[validator] for one in reversed(self._judged.values()) if validator in one.by]

    def status(self) -> StepVerdictsPart:
        """last_step: K of the newest audited step, which turned policy K into the next; held, steps: statements that no
        quorum and nobody found bad, of those that somebody audited; owing: draws without a verdict."""
        audited = [one for one in self._judged.values() if one.by]
        bad = [one for one in audited if one.against]
        last = self._last
        return StepVerdictsPart(
            last_step=last.message.statement.step - 1 if last else None,
            last_by=last.author if last else None,
            last_says=(reason_name(last.message.reason) if last.message.reason else "held") if last else None,
            held=len(audited) - len(bad),
            steps=len(audited),
            verdicts=self.verdicts,
            bad=[self._row(one) for one in bad[-8:]],
            owing=sum(len(one.owing) for one in self._judged.values()),
        )

    def _row(self, judged: _Judged) -> BadStepPart:
        first = judged.against[0]
        return BadStepPart(
            step=judged.step - 1,
            by=[one.author for one in judged.against],
            reason=reason_name(first.message.reason),
            detail=first.message.detail,
            held_by=len(judged.by) - len(judged.against),
        )
