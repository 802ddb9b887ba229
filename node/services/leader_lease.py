"""The chair: a leader holds it, validators say that they do not hear it any more, a standby takes it in its turn.

What is so stands on the chain, and every node reads it there (`node.swarm.terms`). Without a chair nothing of this is
done: the pool's manager leads.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog
import trio

from node.audit.looks import LookHistory
from node.chain.errors import Reverted
from node.changes import every
from node.services.base import Service
from node.services.context import Context
from node.services.leader_watch import LeaderWatch
from node.swarm.facts import LeaderDisbelieved, PolicyFollowed, TermBegan, TermMoved, Undone
from node.swarm.terms import Term
from node.weights.fetch import PolicyFollower
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.messages import LeaderSilent, StepVerdict
from protocol.statements import TermSilent, Verdict, VerdictOutcome, WorkCommitment, sign

log = structlog.get_logger()
Lease = tuple[int, int]
"""(number of the term, end of the lease in unix seconds)."""


class OnChain(Protocol):
    """The part of node.chain that a chair needs."""

    async def hold_chair(self, pool: int, step: int, policy_root: bytes) -> object: ...
    async def take_chair(self, pool: int, term: int, from_step: int, parent: bytes) -> object: ...
    async def end_term_by_verdicts(
        self, term: int, commitment: WorkCommitment, verdicts: list[Verdict], signatures: list[bytes]
    ) -> object: ...
    async def end_term(self, silent: list[TermSilent], signatures: list[bytes]) -> object: ...


class LeadFrom(msgspec.Struct, frozen=True):
    """What a trainer could lead from: the first policy that would be its own, and the root of the one before it."""

    from_step: int
    parent: bytes


class ChairCandidate(Protocol):
    """A trainer, as far as its chair asks it."""

    def ready(self) -> LeadFrom | None:
        """What it could lead from, None while it cannot."""
        ...

    def at(self) -> tuple[int, bytes]:
        """How far it has led: step and root of the newest policy."""
        ...

    def holds(self) -> bool:
        """Whether its term is to go on."""
        ...


class LeaderLease(Service):
    """candidate: the trainer that may lead here; None at a validator, which only says whom it does not hear; policies,
    looks: a validator's."""

    name = "chair"

    def __init__(
        self,
        context: Context,
        chain: OnChain,
        candidate: ChairCandidate | None = None,
        policies: PolicyFollower | None = None,
        looks: LookHistory | None = None,
        *,
        look_every: float = 1.0,
        pause: float = 2.0,
    ) -> None:
        self._look_every = look_every  # seconds between two looks at what only time decides: silence, a lease, a turn
        self._pause = pause  # seconds before a transaction that failed is tried again
        self._candidate = candidate
        self._watch = LeaderWatch(context, policies.history if policies is not None else None, looks)
        self._context = context
        self._chain = chain
        self._terms = context.membership.terms
        self._complete: tuple[Lease, float] | None = None
        self._signed: Lease | None = None
        self._unfit: set[Address] = set()
        """Validators whose signature the contract did not take, for want of a stake."""
        self.lost = 0

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(every, self._look_every, self._sign)
            if self._candidate is not None:
                nursery.start_soon(self._act_always, self._candidate)
            nursery.start_soon(self._watch.run)

    # whose it is

    def leads(self, step: int) -> bool:
        """Whether policy `step` is this node's to publish, and the chain still says so as far as this node knows. While
        the chain is silent a leader goes on until its lease is over by its own clock."""
        term = self._terms.of(step)
        # The contract alone says who leads; no trainer goes by what it hears (ADR 031).
        if term.holder != self._context.key.address:
            return False
        return term is not self._terms.now or self._in_force(term)

    def _in_force(self, term: Term) -> bool:
        return not term.ended and self._context.time.now() < term.until

    def status(self) -> dict[str, Any]:
        term, own = self._terms.now, self._context.key.address
        if not self._terms.seated:
            return {}
        # In the order in which the contract lets them take the chair.
        standbys = (one for one in self._terms.trainers if one != term.holder)
        order = sorted(standbys, key=lambda one: self._terms.turn(one) or 0)
        facts = {
            "term": term.number,
            "holder": term.holder,
            "leads": term.holder == own and self._in_force(term),
            "from_step": term.from_step,
            "ended": term.ended,
            "until": term.until,
            "standbys": order,
            "lost": self.lost,
        }
        return {"chair": facts}

    # validators: silence

    async def _sign(self) -> None:
        members, term = self._context.membership, self._terms.now
        if self._terms.seated and members.may_validate(members.own) and (why := self._watch.gone(term)):
            await self._say_silent(term, why)

    async def _say_silent(self, term: Term, why: str) -> None:
        key = (term.number, term.until)
        # A validator's silence is one word per lease; the holder that renews it starts a new count.
        if key == self._signed:
            return
        self._signed = key
        context = self._context
        silent = TermSilent(context.pool, *key, self._watch.sound(term))
        signature = sign(context.key, context.domain, silent)
        log.warning("leader.silent", holder=term.holder, term=term.number, what=why)
        context.progress.tell("chair", f"the trainer {term.holder} {why}: this validator says so")
        await context.board.post(LeaderSilent(**msgspec.structs.asdict(silent), signature=signature))

    # trainers: hold, end, take

    async def _act_always(self, candidate: ChairCandidate) -> None:
        kinds = (LeaderSilent, StepVerdict, LeaderDisbelieved, PolicyFollowed, TermBegan, TermMoved, Undone)
        await self._context.on_news(partial(self._try_to_act, candidate), *kinds, within=self._look_every)

    async def _try_to_act(self, candidate: ChairCandidate) -> None:
        if not self._terms.seated or self._context.key.address not in self._terms.trainers:
            return
        try:
            await self._act(candidate)
        except Reverted as error:  # another one was first, or the chain's clock is a little behind
            self.lost += 1
            if error.name == "ValidatorUnfit":  # one spoils the others' signatures
                self._unfit |= {one for one in self._context.membership.validators if one in error.args_.values()}
            log.info("chair.refused", why=error.why)
            await trio.sleep(self._pause)
        except IntellectError as error:
            log.warning("chair.not_reached", why=error.why)
            await trio.sleep(self._pause)

    async def _act(self, candidate: ChairCandidate) -> None:
        term, now = self._terms.now, self._context.time.now()
        if term.holder == self._context.key.address and not term.ended:
            # The last part of a lease, in which it is held: so long, of an hour twenty minutes, a chain may be slow or
            # silent before a standby may take the chair. Each hold costs gas, so it is not held sooner.
            if now > term.until - self._terms.lease / 3 and candidate.holds():
                await self._chain.hold_chair(self._context.pool, *candidate.at())
                await self._until_changed(term)
            if candidate.holds():
                return
        ready, turn = candidate.ready(), self._terms.turn(self._context.key.address)
        if turn is None:
            return
        if now < turn:
            await self._end(term, ready, (turn - term.until) // max(self._terms.grace, 1))
        elif ready is not None:
            try:
                await self._take(term, ready)
            except Reverted as error:
                # Somebody carried a liar's word of how far the run is: others correct it.
                words = self._silence(term.number, set(self._context.membership.validators) - self._unfit)
                if error.name != "BadStep" or not words:
                    raise
                await self._carry_silence(words)

    async def _take(self, term: Term, ready: LeadFrom) -> None:
        log.info("chair.taking", term=term.number + 1, from_step=ready.from_step)
        await self._chain.take_chair(self._context.pool, term.number + 1, ready.from_step, ready.parent)
        await self._until_changed(term)
        said = f"this trainer leads from policy {ready.from_step} on, in term {term.number + 1}"
        self._context.progress.tell("chair", said)

    async def _end(self, term: Term, ready: LeadFrom | None, place: int) -> None:
        """What ends a term before its lease does, once there is such a thing; the next standby first."""
        key, act = (term.number, term.until), self._what_ends(term, ready)
        if act is None:
            return
        if self._complete is None or self._complete[0] != key:
            self._complete = key, self._context.clock.monotonic()
        # Seconds that a standby leaves to each one before it to carry the validators' words.
        if self._context.clock.monotonic() - self._complete[1] >= place * 5.0:
            await act()
            await self._until_changed(term)

    def _what_ends(self, term: Term, ready: LeadFrom | None) -> Callable[[], Awaitable[object]] | None:
        """Of a holder that is out the chair is free at once. A quorum's verdicts against a step of its end its term
        whoever could lead then; its silence only where somebody can."""
        if ready is not None and self._is_out(term):
            return partial(self._take, term, ready)
        if term.ended:
            return None
        judged = self._context.jury.step_verdicts(self._context.domain, term.number)
        # The contract refuses all signatures if one is by a validator without a stake.
        quorum, fit = self._context.membership.quorum, set(self._context.membership.validators) - self._unfit
        against = [one for author, one in judged.items() if one.outcome != VerdictOutcome.ACCEPT and author in fit][
            :quorum
        ]
        if len(against) == quorum and against[0].trainer == term.holder:
            bad = against[0].statement.commitment(term.holder)
            verdicts, signatures = [one.verdict for one in against], [one.signature for one in against]
            return partial(self._chain.end_term_by_verdicts, term.number, bad, verdicts, signatures)
        words = self._silence(term.number, fit)
        if ready is None or not words or words[0].until != term.until:
            return None
        return partial(self._carry_silence, words)

    def said_reached(self) -> int | None:
        """How far the run is by a quorum's words about the term that runs, which the chain goes by; None without."""
        words = self._silence(self._terms.now.number, set(self._context.membership.validators) - self._unfit)
        return words[0].step if words else None

    def _is_out(self, term: Term) -> bool:
        """Whether its holder was thrown out, or left. The first one may join in its first lease, so only an eviction
        counts. Of who never joined nobody knows."""
        members, member = self._context.membership, self._context.membership.table.get(term.holder)
        left = member is not None and member.gone is not None
        return members.is_evicted(term.holder) or (term.number > 0 and left)

    def _silence(self, term: int, fit: set[Address]) -> list[LeaderSilent]:
        """A quorum's words about one lease of a term, the greatest first; none while there are too few. The least ones:
        the chain takes none on trust, and what is too great keeps every later term waiting."""
        # Each validator's word about the latest lease that it spoke of.
        said = [one.message for one in self._context.facts.standing(LeaderSilent) if one.author in fit]
        leases = Counter(one.until for one in said if one.term == term)
        quorum = self._context.membership.quorum
        lease = max((until for until, words in leases.items() if words >= quorum), default=None)
        words = sorted((one for one in said if (one.term, one.until) == (term, lease)), key=lambda one: one.step)
        return words[:quorum][::-1]

    async def _carry_silence(self, words: list[LeaderSilent]) -> None:
        await self._chain.end_term([one.statement for one in words], [one.signature for one in words])

    async def _until_changed(self, term: Term) -> None:
        """Until the chain's events tell of it."""
        # Until its event is read the term looks as before, and the next look would send the transaction again.
        await self._context.until(
            lambda: self._terms.now != term, TermBegan, TermMoved, Undone, seconds=4 * self._pause
        )
