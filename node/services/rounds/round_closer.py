"""A validator's word on what a round comes to: said when the round is over, and again until a quorum agrees."""

import math
from typing import Any

import structlog
import trio

from node.bounded_dict import BoundedDict
from node.changes import Bell
from node.services.base import Service
from node.services.context import Context
from node.services.rounds.adding import Outer
from node.services.rounds.applying import Rounds
from node.swarm.facts import WorkTouched
from node.swarm.register import RegisteredWork, WorkId
from node.swarm.vote_set import FileState
from protocol.agreement import Proposal, Word
from protocol.errors import ProtocolError
from protocol.identity import Address, address_bytes
from protocol.messages import Heartbeat, RoundVote, of_kind, open_envelope
from protocol.rounds import chosen, closes_at, too_large

log = structlog.get_logger()
IDLE_ROUNDS = 8
"""Rounds that do not wait for who has claimed a replica and contributed nothing to a round that waited."""


class RoundCloser(Service):
    """One per validator.

    Who closes a round? A leader would be one machine on which all wait. "In is what a quorum of lists names" needs
    none, but who heard two of three lists and who heard all three add different things, and their states part for ever.
    So validators agree, by `protocol.agreement` (ADR 040): this service says a word once its own clock allows it,
    whoever has spoken, and says it again, because boards forget and a liar's word may reach one alone. What it signed
    before a restart binds it: its journal is read before it says anything of a round.

    A round is over when all who claimed a replica have contributed, or its seconds are. A peer that one waited for in
    vain keeps nobody waiting for the next `IDLE_ROUNDS`."""

    name = "round-closer"

    def __init__(self, context: Context, rounds: Rounds) -> None:
        self._context, self._rounds = context, rounds
        self._accepted_at: BoundedDict[WorkId, float] = BoundedDict(4096)
        self._idle: BoundedDict[Address, int] = BoundedDict(4096, refresh=True)
        """Peers that contributed nothing since a round waited for them in vain, and which one did."""
        self._claimed: BoundedDict[Address, tuple[int, int]] = BoundedDict(4096, refresh=True)
        """Peers that claimed a replica: in which of their starts, and in which round they were."""
        self._done_at: BoundedDict[int, float] = BoundedDict(4)
        self._recalled: BoundedDict[int, None] = BoundedDict(4)
        self._next = math.inf
        """When the running round may be over, as far as is known."""
        self._bell = Bell()
        rounds.moved.follow(self._bell.ring)
        rounds.votes.heard.follow(self._bell.ring)
        self.said = 0

    def status(self) -> dict[str, Any]:
        return {"pretraining": {"votes_signed": self.said}}

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._context.handle, self._bell.ring, WorkTouched)
            while not self._rounds.over:
                outer, due = self._rounds.outer, math.inf
                # The pool may give its replica to another one, while this node goes on and may come back to office.
                if outer is not None and self._is_in_office():
                    # Of the round before, too: who has decided says so to those who have not, until the next one is.
                    if outer.round:
                        due = await self._tick(outer.round - 1, None)
                    due = min(due, await self._tick(outer.round, outer))
                # Seconds between two looks at most: that a peer is gone nobody says.
                await self._bell.wait(min(due - self._context.clock.monotonic(), 1.0))
            nursery.cancel_scope.cancel()

    def _is_in_office(self) -> bool:
        return self._context.membership.is_validator(self._context.key.address)

    async def _recall(self, round_: int) -> None:
        """What this node signed of a round before this start binds it, and boards may have forgotten it."""
        context, self._recalled[round_] = self._context, None
        # Own words that are read again when a round is first looked at: those of many rounds.
        for raw in await context.journal.do(context.journal.last_said, "round_vote", 64):
            try:
                signed = of_kind(open_envelope(context.domain, context.pool, raw), RoundVote)
            except ProtocolError as error:  # of another pool
                log.info("round_vote.not_recalled", why=error.why)
                continue
            if signed.message.round == round_:
                self._rounds.votes.note(signed)

    async def _tick(self, round_: int, outer: Outer | None) -> float:
        """Say what there is to say of a round; when there may be more although nothing is heard. outer: of the one that
        runs."""
        if round_ not in self._recalled:
            await self._recall(round_)
        now, agreement, self._next = self._context.clock.monotonic(), self._rounds.votes.book.of(round_), math.inf
        wanted = None if outer is None or agreement.has_own else self._wanted(outer, now)
        word = agreement.next_word(wanted, now)
        for one in [word] if word is not None else agreement.again(now):
            await self._say(round_, one, agreement.shown(one))
        # With its own word a quorum may be there.
        return now if word is not None else min(self._next, agreement.due(now))

    def _wanted(self, outer: Outer, now: float) -> Proposal | None:
        """What this validator accepted in a round; None while its own clock says that the round is not over."""
        works = self._rounds.works()
        accepted = [work for work in works if self._is_accepted(work, now)]
        if not self._is_over(outer, works, accepted, now):
            return None
        return Proposal(outer.root, outer.state, outer.size, self._files(outer, accepted))

    def _is_accepted(self, work: RegisteredWork, now: float) -> bool:
        if self._context.state.vote_set.state(work.id) is not FileState.ACCEPTED:
            return False
        self._accepted_at.setdefault(work.id, now)
        self._idle.pop(work.node, None)
        # Of two commitments for one slot neither is used (ADR 005).
        return not self._context.state.register.is_contested(work)

    def _is_over(self, outer: Outer, works: list[RegisteredWork], accepted: list[RegisteredWork], now: float) -> bool:
        """Whether the round's time is over, or everybody who is waited for has contributed."""
        rules, states = self._rounds.rules, self._context.state.vote_set.state
        times = [self._accepted_at[work.id] for work in accepted]
        this = [work for work in works if work.round == outer.round]
        closes = closes_at(outer.opened, times, rules, tried=len(this))
        at_work = self._at_work(outer)
        self._next = math.inf if closes is None else closes
        if closes is not None and now >= closes:
            # A claimed replica costs its node nothing.
            self._idle.update(dict.fromkeys(at_work - {work.node for work in accepted}, outer.round))
            return True
        judged = (FileState.ACCEPTED, FileState.REJECTED)
        done = {work.node for work in this if states(work.id) in judged}
        if len(accepted) < rules.min_contributions or not done >= at_work:
            return False
        # Who was not waited for and is here all the same is judged first, if that does not take long.
        over = self._done_at.setdefault(outer.round, now) + rules.grace_seconds
        self._next = min(self._next, over)
        return done >= {work.node for work in this} or now >= over

    def _at_work(self, outer: Outer) -> set[Address]:
        """Living peers that are in this round, or were in the one before: a heartbeat may be a little old. Not those
        for which a round waited in vain lately."""
        beats = self._context.membership.beats(self._context.clock.monotonic())
        there = {node for node, beat in beats.items() if self._is_in(node, beat, outer.round - 1)}
        return {node for node in there if outer.round - self._idle.get(node, outer.round - IDLE_ROUNDS) >= IDLE_ROUNDS}

    def _is_in(self, node: Address, beat: Heartbeat, round_: int) -> bool:
        """Whether a living peer has a replica and is in a round or further."""
        if beat.replica_id >= 0:
            self._claimed[node] = beat.boot, beat.policy_step
            return beat.policy_step >= round_
        # Who starts again has no replica until its model is loaded. It goes on with the round in which it stopped; a
        # round that did not wait would take its contribution from it, and with that what its next steps build on.
        boot, said = self._claimed.get(node, (beat.boot, -1))
        if boot == beat.boot:
            return False
        # Several rounds may have begun since it said where it was.
        return max([said, *(work.round for work in self._context.state.register.of(node))]) >= round_

    def _files(self, outer: Outer, accepted: list[RegisteredWork]) -> tuple[bytes, ...]:
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

    async def _say(self, round_: int, word: Word, shown: tuple[bytes, ...] = ()) -> None:
        """One word a place, for ever: the journal has it before anybody hears it. shown: what a closed one rests on."""
        journal, board = self._context.journal, self._context.board
        slot = f"{round_}/{word.ballot}/{int(word.closed)}".encode()
        raw = await journal.do(journal.said, "round_vote", slot)
        if raw is None and journal.fence.covers(round_):
            return  # another daemon may have spoken of this round with this key
        if raw is None:
            message = RoundVote(
                pool=self._context.pool,
                round=round_,
                ballot=word.ballot,
                closed=word.closed,
                shown=shown,
                **word.proposal._asdict(),
            )
            raw = board.sealed(message)
            await journal.promise(journal.say, "round_vote", slot, raw, step=round_)
            self.said += 1
            log.info(
                "round_vote.signed",
                round=round_,
                ballot=word.ballot,
                closed=word.closed,
                files=len(word.proposal.files),
            )
        await board.post_raw(raw)
        # At once, and not when the board's reader comes to it: the next look must know the own word.
        if self._is_in_office():  # still: the journal and the network take their time
            self._rounds.votes.note(board.opened(raw, RoundVote))
