"""A node's jury: hears the board for the pool's state, tells facts, remembers what must outlive a restart.

Raises disputes that it is the first to see (validators and trainers only: others may not). What a word counts for is
`PoolState`'s to say.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import structlog
import trio

from node.changes import Bell, every, side_by_side
from node.clock import Seconds
from node.state.facts import keep, recall
from node.state.journal import Journal
from node.state.kept import cached
from node.swarm.board import Board
from node.swarm.counts import COUNTS, Office
from node.swarm.facts import Equivocation, Facts, JudgeDisbelieved, LeaderDisbelieved, News, Quarantined
from node.swarm.membership import Membership
from node.swarm.pool_state import Input, Learnt, Passed, PoolState, TermsChanged, WordHeard
from protocol.errors import ProtocolError
from protocol.identity import Address
from protocol.messages import DisputeRaised, Heartbeat, Message, Signed, StepVerdict, open_envelope
from protocol.run import RunSpec
from protocol.statements import Domain

log = structlog.get_logger()
T = TypeVar("T")
QUARANTINE = "quarantined_validators"
EQUIVOCATIONS = "equivocations"
DISPUTES = "open_disputes"
LINES = (
    (Office.LEADER, Office.TRAINER),
    (Office.MEMBER,),
    # In the order in which they came: a seal that is read after another's verdict looks like a copier's.
    (Office.VALIDATOR, Office.TRAINER_OR_VALIDATOR),
)
"""Whose words are read together: a flood of one office costs the others no room."""


class Jury:
    """One per node. journal: remembers who is not believed, with the evidence, over a restart; None: for the moment
    only; clock: monotonic seconds."""

    def __init__(
        self,
        board: Board,
        membership: Membership,
        run: RunSpec,
        pool: int,
        journal: Journal | None,
        clock: Seconds = trio.current_time,
    ) -> None:
        self._board = board
        self._journal = journal
        self._pool = pool
        self._convicting: dict[int, tuple[Equivocation, list[Signed[Message]]]] = {}
        """By term: the evidence against its holder, opened, since who asks for it asks twice a second."""
        self.facts = Facts(clock)
        self.state = PoolState(membership, run, pool, board.opened, clock)
        self._kept: tuple[object, ...] = ()
        self._judged = Bell()
        membership.terms.follow(lambda: self.apply(TermsChanged()))

    async def run(self) -> None:
        """Listen until cancelled."""
        await self._recall()
        lines: list[trio.MemoryReceiveChannel[Any]] = [self._board.subscribe(Heartbeat)]
        for offices in LINES:
            kinds = (kind for kind, row in COUNTS.items() if row.by in offices and kind is not Heartbeat)
            lines.append(self._board.subscribe(*kinds))
        tick = partial(every, 1.0, lambda: self.apply(Passed()), at_once=False)  # what the clock decides
        await side_by_side(*(partial(self._follow, line) for line in lines), tick, self._remember)

    def apply(self, given: Input) -> None:
        """One input, and tell what follows from it."""
        news = self.state.apply(given)
        for one in news:
            if isinstance(one, JudgeDisbelieved):
                self._board.pin(one.why.evidence)
            elif isinstance(one, LeaderDisbelieved):
                self._board.pin(one.equivocation.evidence)
        self.facts.tell(news)
        self._note(news)

    def learn(self, step: int, root: bytes, *, outer: bool = False) -> None:
        """This node knows a policy by itself: the outer state of a round that it applied, or its image."""
        self.apply(Learnt(step, root, outer))

    def step_verdicts(self, domain: Domain, term: int) -> dict[Address, StepVerdict]:
        """What validators said of the step for which the holder of a term is not believed, by author; nothing where it
        convicted itself. Those who convicted it are in the journal, the others came since the start."""
        equivocation = self.state.policies.equivocations.get(term)
        if equivocation is None:
            return {}
        # Opening envelopes costs a signature each, and the equivocation of a term never changes once it is known.
        if term not in self._convicting or self._convicting[term][0] is not equivocation:
            read = partial(_opened, domain, self._pool, equivocation.evidence)
            self._convicting[term] = equivocation, cached("an equivocation's evidence in the journal", read) or []
        said = {one.author: one.message for one in self._convicting[term][1] if isinstance(one.message, StepVerdict)}
        for one in list(said.values())[:1]:
            said |= {a: of.message for a, of in self.state.steps.judged_by(one.statement.struct_hash).items()}
        return said

    async def _follow(self, line: trio.MemoryReceiveChannel[Signed[Any]]) -> None:
        async for signed in line:
            self.apply(WordHeard(signed))

    # what outlives a restart

    async def _recall(self) -> None:
        """Whom this node did not believe before a restart, and why."""
        self.state.disputes.restore(await self._recalled(QUARANTINE, list[Quarantined]) or [])
        # Evidence is pinned again, since the board of a node that was away has forgotten it.
        for one in self.state.disputes.quarantined.values():
            self._board.pin(one.evidence)
        self.state.policies.equivocations.update(await self._recalled(EQUIVOCATIONS, dict[int, Equivocation]) or {})
        for equivocation in self.state.policies.equivocations.values():
            self._board.pin(equivocation.evidence)
            self._open_again(equivocation.evidence)
        for envelopes in await self._recalled(DISPUTES, list[list[bytes]]) or []:
            self._open_again(envelopes)

    async def _recalled(self, name: str, kind: type[T]) -> T | None:
        return await recall(self._journal, name, kind) if self._journal is not None else None

    def _open_again(self, envelopes: Sequence[bytes]) -> None:
        """A dispute that was open before a restart, which all validators may have had at once: nobody would tell of it.
        What is read here is checked as if it had just come, and the same conflict follows."""
        for raw in envelopes:
            try:
                signed = self._board.opened(raw)
            except ProtocolError as error:  # of somebody who has left
                log.info("dispute.not_opened_again", why=error.why)
                return
            self.apply(WordHeard(signed))

    def _note(self, news: Sequence[News]) -> None:
        """Whether there is something to remember or to raise."""
        held = any(isinstance(one, JudgeDisbelieved | LeaderDisbelieved) for one in news)
        counted = self.state.disputes.raised, self.state.disputes.resolved
        if held or self.state.works.to_raise or counted != self._kept:
            self._kept = counted
            self._judged.ring()

    async def _remember(self) -> None:
        """Keep the evidence against validators, and against the trainer; and what is in dispute, which others hear."""
        while True:
            await self._judged.wait()
            while self.state.works.to_raise:
                dispute = self.state.works.to_raise.popleft()
                try:
                    await self._board.post(
                        DisputeRaised(pool=self._pool, first=dispute.first.raw, second=dispute.second.raw)
                    )
                except ProtocolError as error:  # two verdicts on a file of very many groups do not fit one message
                    log.warning("dispute.not_raised", work=dispute.work.hex()[:16], why=error.why)
            kept = {
                QUARANTINE: list(self.state.disputes.quarantined.values()),
                DISPUTES: self.state.disputes.in_dispute(),
                EQUIVOCATIONS: self.state.policies.equivocations,
            }
            if (journal := self._journal) is not None:
                for name, what in kept.items():
                    await keep(journal, name, what)


def _opened(domain: Domain, pool: int, envelopes: Sequence[bytes]) -> list[Signed[Any]]:
    return [open_envelope(domain, pool, raw) for raw in envelopes]
