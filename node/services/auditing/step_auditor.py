"""Audits of the trainer's steps: a validator looks at those that its lot draws, and at those that others accuse.

A step is drawn by the secret that draws groups, so nobody knows beforehand who looks at what, and everybody can repeat
the draw. A verdict is in the journal before it is said. What cannot be decided is counted, and accuses nobody. Nodes
without lots audit by hand only.
"""

import math
from collections import Counter, deque
from functools import partial
from typing import Any, Self

import msgspec
import structlog
import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from node.audit.findings import Audit, Says
from node.audit.looks import LookHistory
from node.audit.order import AuditRuling
from node.bounded_dict import BoundedDict
from node.changes import Bell, every
from node.services.auditing.step_replay import Found, Overdue, StepReplay, Unavailable, Withheld
from node.services.base import Service
from node.services.context import Context
from node.services.judging.lots import OwnLots
from node.services.leader_watch import hears_a_quorum
from node.services.workplace import Dropped, Workplace
from node.status_schema import StepAuditsPart
from node.swarm.facts import PolicyFollowed
from node.swarm.policies import PolicyIndex
from node.training.settings import MOST_REPLAYED
from node.weights.fetch_history import FetchHistory
from protocol.checks import Reason
from protocol.errors import IntellectError, OwnFailure
from protocol.identity import Address
from protocol.lots import LotPledge
from protocol.manifest import PolicyStatement
from protocol.messages import MAX_DETAIL, StepObjected, StepVerdict
from protocol.statements import VerdictOutcome, sign

log = structlog.get_logger()
KIND = "step-verdict"
REFUTED = 2
"""Accusations of one member that this validator could not follow, after which it follows no more of them."""


class _Wanted(msgspec.Struct, frozen=True):
    """pledge: by which the step was drawn; accuser: a validator or standby, None if nobody accused it."""

    statement: PolicyStatement
    pledge: LotPledge | None = None
    accuser: Address | None = None


class StepAuditor(Service):
    """lots: this validator's, None for nodes that audit by hand only; dropped: steps after which the trainer is seen to
    drop a worker; looks: what came of drawn steps; history: of fetching policies, which tells what this node's own line
    does; again: seconds before one that was withheld is tried again."""

    name = "step-auditor"

    def __init__(
        self,
        context: Context,
        lots: OwnLots | None,
        replaying: StepReplay,
        dropped: trio.MemoryReceiveChannel[Dropped] | None = None,
        looks: LookHistory | None = None,
        history: FetchHistory | None = None,
        *,
        again: float = 300.0,
    ) -> None:
        self._dropped, self._again = dropped, again
        self._looks, self._history = looks or LookHistory(context.clock.monotonic), history
        self._context = context
        self._lots = lots
        self._replaying = replaying
        self._wanted = deque[_Wanted]()
        self._bell = Bell()
        self._begun: BoundedDict[bytes, None] = BoundedDict(1024)
        # An audit and a count may come to one step at a time, and the journal is asked and written in two visits.
        self._speaking = trio.Lock()
        self._refuted: Counter[Address] = Counter()
        self.counts: Counter[str] = Counter()
        self.undecided = ""

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        lots = place.own_lots if place.role == "validator" else None
        replaying = StepReplay(place.context, place.directory / "audit", place.starter)
        history = place.policies.history if lots is not None else None
        return cls(place.context, lots, replaying, place.dropped[1], place.looks, history)

    def routes(self) -> list[Route]:
        async def by_hand(request: Request) -> Response:
            return await self._by_hand(int(request.path_params["step"]))

        return [Route("/audit/step/{step:int}", by_hand, methods=["POST"])]

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear_accusations)
            if self._lots is not None:
                nursery.start_soon(self._draw, self._lots)
                nursery.start_soon(self._hear_objections)
                nursery.start_soon(partial(every, self._again, self._try_again, at_once=False))
                if self._dropped is not None:
                    nursery.start_soon(self._say_dropped, self._dropped)
            while True:
                await self._bell.wait()
                while self._wanted:
                    await self._judge(self._wanted.popleft())

    def status(self) -> dict[str, Any]:
        rate = self._context.state.lots.steps_rate(self._context.key.address) if self._lots else None
        why = self._why_not(rate)
        done = {name: self.counts[name] for name in ("held", "bad", "undecided")}
        return {"step_audits": StepAuditsPart(rate, why, done, self.undecided)}

    def beat(self) -> dict[str, Any]:
        """Of policies after a drawn step that could not be looked at this validator says that it holds none: so no
        clock goes further than a standby can take back (ADR 126). Where nobody stands by it says what is here."""
        terms, newest = self._context.membership.terms, self._context.policy_cache.newest
        sound = self._looks.sound(terms.now.number) if len(terms.trainers) > 1 else None
        return {} if sound is None or newest is None else {"policy_step": min(newest.step, sound)}

    def _why_not(self, rate: float | None) -> str:
        """Why this validator audits no steps, if it does not."""
        if self._lots is None:
            return ""
        if rate == 0:
            return "not enough free memory to replay a step"
        last, newest = max(self._replaying.offered(), default=0), self._context.state.policies.newest_step
        if newest - last <= MOST_REPLAYED:
            return ""
        return f"the newest checkpoint, of step {last}, is {newest - last} back: over {MOST_REPLAYED} are not replayed"

    # which steps

    async def _draw(self, lots: OwnLots) -> None:
        # A policy that is taken back is not audited any more: `_tried` finds that it is not announced here.
        async for policy in self._context.facts.subscribe(PolicyFollowed):
            await lots.prepared.wait()
            if policy.step < 1:
                continue
            pledge = lots.draws_step(policy.statement.struct_hash, policy.step)
            if pledge is not None or self._is_severed(policy):
                self._want(_Wanted(policy.statement, pledge))

    def _is_severed(self, policy: PolicyFollowed) -> bool:
        """Whether it goes on from another policy than the one that is followed before it. Its manifest breaks a rule
        then, which one lot in eight would tell; every step after it is as its own parent and state say."""
        before = self._context.state.policies.of_step(policy.step - 1)
        return before is not None and before.root != policy.message.parent

    async def _hear_objections(self) -> None:
        async for one in self._context.facts.subscribe(StepObjected):
            announced = self._context.state.policies.of_step(one.message.step)
            if announced is not None and announced.author != one.author:
                self._look_into(announced.statement, one.author)

    async def _hear_accusations(self) -> None:
        """Another validator found a step bad: a quorum needs others who look, wherever their lots fell."""
        async for one in self._context.facts.subscribe(StepVerdict):
            if one.message.reason != Reason.LEFT_OUT:  # no replay tells that: each validator counts for itself
                self._look_into(one.message.statement, one.author)

    def _look_into(self, statement: PolicyStatement, accuser: Address) -> None:
        """One that accuses in vain is heeded a few times."""
        pledged = self._context.state.lots.steps_rate(self._context.key.address)
        if self._lots is not None and pledged and self._refuted[accuser] < REFUTED:
            self._want(_Wanted(statement, accuser=accuser))

    async def _say_dropped(self, dropped: trio.MemoryReceiveChannel[Dropped]) -> None:
        """The trainer drops a worker, as far as this validator counts. It says so where another one stands by to lead:
        in a pool with one trainer that would end the run."""
        async for statement, how in dropped:
            alone = len(self._context.membership.terms.trainers) < 2
            if alone or not self._context.membership.may_validate(self._context.key.address):
                continue
            if self._is_party(statement):
                continue
            announced = self._context.state.policies.of_step(statement.step)
            if announced is not None and announced.message.statement == statement:
                ruled = AuditRuling(VerdictOutcome.REJECT, Reason.LEFT_OUT, how[:MAX_DETAIL])
                await self._say(_Wanted(statement), ruled, "")

    def _try_again(self) -> None:
        """Drawn steps that could not be looked at; none of a term that another one took back."""
        lots = self._lots
        if lots is None:
            return None
        vain = self._looks.to_try_again()
        followed = [self._context.state.policies.of_step(one.step) for one in vain]
        if any(of is None or of.statement != one for of, one in zip(followed, vain, strict=True)):
            return self._looks.forget()
        for one in vain:
            self._begun.pop(one.struct_hash, None)
            self._want(_Wanted(one, lots.draws_step(one.struct_hash, one.step)))
        return None

    def _want(self, wanted: _Wanted) -> None:
        name = wanted.statement.struct_hash
        if name in self._begun or self._is_party(wanted.statement):
            return
        waiting = 16  # steps that wait to be looked at
        drawn = self._is_drawn(wanted.statement)
        if len(self._wanted) >= waiting:
            self.counts["skipped"] += 1
            if not drawn:
                return
            # Accusations cost their author nothing, and must not keep a lot from being drawn in time.
            self._begun.pop(self._wanted.pop().statement.struct_hash, None)
        # Marked only once it found room: an accuser may still want a step that was skipped. The newest of those that
        # were drawn goes first: of that the trainer must still have all.
        self._begun[name] = None
        self._wanted.appendleft(wanted) if drawn else self._wanted.append(wanted)
        self._bell.ring()

    def _is_drawn(self, statement: PolicyStatement) -> bool:
        return self._lots is not None and self._lots.draws_step(statement.struct_hash, statement.step) is not None

    def _is_party(self, statement: PolicyStatement) -> bool:
        """Whether nobody would count what this validator says of a step: it is its own, or its provider's."""
        announced, members = self._context.state.policies.of_step(statement.step), self._context.membership
        return announced is not None and members.hands.is_party(members.own, announced.author)

    def _want_earlier(self, audit: Audit | None) -> None:
        """An earlier step since the checkpoint came out otherwise: no lot need draw that one."""
        for finding in audit.findings if audit else ():
            if "first" in finding.figures:
                self._want(_Wanted(self._replaying.statement(int(finding.figures["first"]) + 1)))

    async def _judge(self, wanted: _Wanted) -> None:
        """Say what an audit finds, once and for ever."""
        journal, slot = self._context.journal, wanted.statement.struct_hash
        known = await journal.do(journal.said, KIND, slot)
        # The same signed word again: it may have been lost, and a new one could differ.
        if known is not None:
            return await self._context.board.post_raw(known)
        if self._context.journal.fence.covers(wanted.statement.step):
            return None  # another daemon may have judged it with this key
        found = await self._tried(wanted.statement)
        return await self._conclude(wanted, *found) if found is not None else None

    async def _tried(self, statement: PolicyStatement) -> Found | None:
        """What an audit finds; None, and why, where it cannot be made."""
        began = self._context.clock.monotonic()
        if self._context.state.distrust or not self._context.membership.may_validate(self._context.key.address):
            return None
        try:
            # An accuser names the statement. What is replayed must be the one that was announced here.
            if self._replaying.statement(statement.step) != statement:
                raise Unavailable("what was judged is not what the trainer announced")
            again = statement in self._looks.vain
            # Seconds for the next checkpoint, where the same class came to other bits: it says how far they are apart.
            found = await self._replaying.audited(statement, 300.0, hurries=again)
            # Nobody's accusation ends a row, as none makes one: an accomplice's would come in time.
            if self._is_drawn(statement):
                self._looks.came(statement)
            return found
        except (IntellectError, OSError) as error:  # a full disk passes
            if isinstance(error, OwnFailure | OSError):
                self._looks.forget()
            elif self._speaks_against_the_leader(error, statement, began):
                self._looks.withheld(statement)
            why = error.why if isinstance(error, IntellectError) else str(error)
            self.counts["undecided"] += 1
            self.undecided = f"step {statement.step - 1}: {why}"
            return log.info("step.undecided", step=statement.step - 1, why=why)

    def _speaks_against_the_leader(self, error: IntellectError, statement: PolicyStatement, began: float) -> bool:
        """Whether a look in vain does: at a drawn step, of which all was still owed, by who hears others. What came in
        part does only where the last policy, from whomever, came here at the run's rate: else the own line is slow."""
        if not isinstance(error, Withheld | Overdue) or not self._is_drawn(statement):
            return False
        # Who has just started hears of many policies at once, the oldest first.
        owed = _owed_until(self._context.state.policies, statement.step) - began
        if owed <= 3.0 or not hears_a_quorum(self._context):
            return False
        last, rules = self._history.last if self._history is not None else None, self._context.run.spec.chair
        own_line_does = last is not None and last[1] <= rules.handover_seconds(last[0])
        return isinstance(error, Withheld) or (own_line_does and owed >= error.line_seconds)

    async def _conclude(self, wanted: _Wanted, ruled: AuditRuling | None, audit: Audit | None) -> None:
        if wanted.accuser is not None and (ruled is None or ruled.outcome == VerdictOutcome.ACCEPT):
            self._refuted[wanted.accuser] += 1
        if ruled is None:
            self.counts["undecided"] += 1
            told = [f"{one.test}: {one.text}" for one in audit.findings if one.says is not Says.HOLDS] if audit else []
            self.undecided = f"step {wanted.statement.step - 1}: {'; '.join(told)}"
            return self._want_earlier(audit)
        self.counts["held" if ruled.outcome == VerdictOutcome.ACCEPT else "bad"] += 1
        return await self._say(wanted, ruled, audit.own if audit else "")

    async def _say(self, wanted: _Wanted, ruled: AuditRuling, arithmetic: str) -> None:
        """Unless something is said of the step already: two words on one are two lies."""
        async with self._speaking:
            journal, slot = self._context.journal, wanted.statement.struct_hash
            if await journal.do(journal.said, KIND, slot) is None:
                await self._say_first(wanted, ruled, arithmetic)

    async def _say_first(self, wanted: _Wanted, ruled: AuditRuling, arithmetic: str) -> None:
        context, statement = self._context, wanted.statement
        announced = self._replaying.announced(statement.step)
        draft = StepVerdict(
            pool=context.pool,
            statement=statement,
            trainer=announced.author,
            word=announced.message.signature,
            outcome=int(ruled.outcome),
            reason=int(ruled.reason),
            signature=b"",
            detail=ruled.detail,
            window=wanted.pledge.window if wanted.pledge else -1,
            rate=wanted.pledge.steps if wanted.pledge else 0,
            arithmetic=arithmetic,
        )
        signature = sign(context.key, context.domain, draft.verdict)
        raw = context.board.sealed(msgspec.structs.replace(draft, signature=signature))
        slot = statement.struct_hash
        await context.journal.promise(context.journal.say, KIND, slot, raw, step=statement.step)
        level = log.info if ruled.outcome == VerdictOutcome.ACCEPT else log.warning
        level("step.judged", step=statement.step - 1, outcome=ruled.outcome.name, why=ruled.detail)
        await context.board.post_raw(raw)

    # one audit

    async def _by_hand(self, step: int) -> Response:
        """What `intellect-node audit step K --state-dir` asks of a running node."""
        try:
            ruled, audit = await self._replaying.audited(self._replaying.statement(step + 1))
        except IntellectError as error:
            return JSONResponse({"what": error.what, "why": error.why, "remedy": error.remedy}, status_code=400)
        outcome = {"outcome": ruled.outcome.name.lower(), "detail": ruled.detail} if ruled else None
        told = msgspec.json.encode({"audit": audit, "verdict": outcome})
        return Response(told, media_type="application/json")


def _owed_until(policies: PolicyIndex, step: int) -> float:
    """When a trainer need not hand over any more what a step was made of: four policies may come meanwhile
    (`CheckpointServer`). Infinite where that is not so yet."""
    later = policies.of_step(step + 5)
    known = policies.find(later.root) if later is not None else None
    return known.at if known is not None else math.inf
