"""A validator's word on what a round comes to: said when the round is over, and again until a quorum agrees."""

from typing import Any, Self

import structlog
import trio

from node.recent import Recent
from node.services.base import Service
from node.services.rounds.applying import Outer, Rounds
from node.services.station import Station
from node.services.workplace import Workplace
from node.swarm.ballots import FileState
from node.swarm.register import Work, WorkId
from protocol.agreement import Proposal, Word
from protocol.identity import Address, address_bytes
from protocol.messages import CutSigned
from protocol.rounds import chosen, closes_at, too_large

log = structlog.get_logger()
POLL = 0.1


class Cutting(Service):
    """One per validator."""

    name = "cutting"

    def __init__(self, station: Station, rounds: Rounds) -> None:
        self._station, self._rounds = station, rounds
        self._accepted_at: Recent[WorkId, float] = Recent(4096)
        self.said = 0

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.station, place.rounds)

    def status(self) -> dict[str, Any]:
        return {"pretraining": {"cuts_signed": self.said}}

    async def run(self) -> None:
        while not self._rounds.over:
            outer = self._rounds.outer
            # The pool may give its seat to another one, while this node goes on and may come back to office.
            if outer is not None and self._is_in_office():
                await self._look(outer)
            await trio.sleep(POLL)

    def _is_in_office(self) -> bool:
        return self._station.membership.is_validator(self._station.key.address)

    async def _look(self, outer: Outer) -> None:
        """Say what there is to say of the round that runs."""
        now, agreement = self._station.clock.monotonic(), self._rounds.agreement(outer.round)
        works = self._rounds.works()
        accepted = [work for work in works if self._is_accepted(work, now)]
        if not agreement.has_begun and not self._is_over(outer, works, accepted, now):
            return
        wanted = Proposal(outer.root, outer.state, outer.size, self._files(outer, accepted))
        alive = self._station.jury.ballots.electorate()
        word = agreement.next_word(self._station.key.address, wanted, alive, now)
        if word is not None:
            await self._say(outer.round, word)

    def _is_accepted(self, work: Work, now: float) -> bool:
        if self._station.jury.ballots.state(work.id) is not FileState.ACCEPTED:
            return False
        self._accepted_at.setdefault(work.id, now)
        # Of two commitments for one slot neither is used (ADR 005).
        return not self._station.jury.register.is_contested(work)

    def _is_over(self, outer: Outer, works: list[Work], accepted: list[Work], now: float) -> bool:
        """Whether the round's time is over, or everybody who is at work on it has contributed."""
        rules, states = self._rounds.rules, self._station.jury.ballots.state
        times = [self._accepted_at[work.id] for work in accepted]
        tried = sum(work.round == outer.round for work in works)
        closes = closes_at(outer.opened, times, rules, tried=tried)
        if closes is not None and now >= closes:
            return True
        judged = (FileState.ACCEPTED, FileState.REJECTED)
        done = {work.node for work in works if work.round == outer.round and states(work.id) in judged}
        return len(accepted) >= rules.min_contributions and done >= self._at_work(outer)

    def _at_work(self, outer: Outer) -> set[Address]:
        """Living peers that are in this round, or were in the one before: a heartbeat may be a little old."""
        beats = self._station.membership.beats(self._station.clock.monotonic())
        return {node for node, beat in beats.items() if beat.seat >= 0 and beat.policy_step >= outer.round - 1}

    def _files(self, outer: Outer, accepted: list[Work]) -> tuple[bytes, ...]:
        """Roots of what is in, by this validator's own eyes: none that is far too large; of too many, a lot's."""
        norms = {work.commitment.file_root: self._rounds.norms.get(work.commitment.file_root) for work in accepted}
        # By the norms that this node measured: of what it accepted by others' verdicts it has none.
        large = too_large({root: norm for root, norm in norms.items() if norm is not None})
        authors = {
            work.commitment.file_root: address_bytes(work.node)
            for work in accepted
            if work.commitment.file_root not in large
        }
        return tuple(chosen(authors, self._rounds.rules.max_contributions, outer.root))

    async def _say(self, round_: int, word: Word) -> None:
        """Once for ever: the journal has it before anybody hears it."""
        journal, board = self._station.journal, self._station.board
        slot = f"{round_}/{word.ballot}/{int(word.closed)}".encode()
        raw = await journal.do(journal.said, "cut", slot)
        if raw is None:
            message = CutSigned(
                pool=self._station.pool,
                round=round_,
                ballot=word.ballot,
                closed=word.closed,
                **word.proposal._asdict(),
            )
            raw = board.sealed(message)
            await journal.do(journal.say, "cut", slot, raw)
            self.said += 1
        await board.post_raw(raw)
        # At once, and not when the board's reader comes to it: the next look must know the own word.
        if self._is_in_office():  # still: the journal and the network take their time
            self._rounds.note(board.opened(raw, CutSigned))
        log.info("cut.signed", round=round_, ballot=word.ballot, closed=word.closed, files=len(word.proposal.files))
