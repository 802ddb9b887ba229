"""What counts for pay, certified: accepted files, verdicts that the pool decided likewise, policies.

A validator signs, for each work that counts, one certificate for ever; it is in the journal before anybody hears it. A
file is certified by those who accepted it themselves: nobody can be shown a rejection of its own beside that. A verdict
counts once the pool has decided as it says and its report was looked at, by lot; a policy once as many groups were
accepted as its step needs; a standby's window once an audit came to the state that it told. What a node shows that it
lacks is said again. A file that was accepted in time is certified until a table covers its epoch: all validators may
have been away.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Self

import msgspec
import structlog
import trio

from node.recent import Recent
from node.services.base import Service
from node.services.context import Context
from node.swarm.ballots import FileState
from node.swarm.facts import PolicyFollowed
from node.swarm.register import BACKLOG_SECONDS, Work, WorkId
from protocol.earnings import of_file, of_judgement, of_policy, policy_units
from protocol.errors import ProtocolError
from protocol.identity import Address
from protocol.lots import unpack_groups
from protocol.messages import (
    DIGEST,
    MAX_ENTRIES,
    Certificate,
    VerdictIssued,
    VerdictRechecked,
)
from protocol.statements import Accepted, Outcome, sign, work_id

log = structlog.get_logger()
POLL = 4.0
"""Seconds between two rounds, or a tenth of the epoch where that is less: nobody needs a certificate before the epoch
is over. Waiting unsigned loses nothing to a restart."""
WAITING = 512
"""Files of one worker, verdicts of one validator, policies of one trainer that wait to be decided."""
MOST = 3 * MAX_ENTRIES
"""Certificates that are said in one POLL. They go with the next words of this validator, or by themselves after two."""
AT_ONCE = 64
"""Certificates that are signed while others wait for the journal."""
TO_SAY = 2048
"""Certificates of one node that wait to be posted, or posted again."""
BURST = 8.0
"""Policies that may come at once beside those of the run's staleness: groups of theirs were accepted long before."""


class Claim(msgspec.Struct, frozen=True, eq=False):
    """A validator's verdict on a work, and what is to be signed for it. at: when it was decided so, unix seconds."""

    validator: Address
    work: Work
    statement: Accepted
    at: float


Claims = dict[Address, Recent[WorkId, Claim]]


class Certifying(Service):
    """One per validator."""

    name = "certifying"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._own = context.key.address
        self._journal = context.journal
        self._run = context.run.spec
        self._files: dict[Address, Recent[WorkId, Work]] = {}
        self._verdicts: dict[Address, Recent[WorkId, tuple[bool, Accepted]]] = {}
        self._claims: Claims = {}
        self._shown: Claims = {}
        """Before and after somebody looked whether they are so (`judging/peer_audit.py`)."""
        self._policies: dict[Address, Recent[bytes, Accepted]] = {}
        self._most_steps = self._run.recipe.max_staleness + BURST
        # A budget of policies: accepted files fill it, announced policies draw on it. So a trainer is not paid for
        # steps that there was no work for.
        self._steps = self._most_steps
        self._opened = context.clock.monotonic()  # nobody here knows what was accepted before
        self._to_say: OrderedDict[Address, Recent[WorkId, Certificate]] = OrderedDict()
        self.certified = 0
        context.state.register.follow(self._wait_for)

    @classmethod
    async def open(cls, place: Any) -> Self:
        return place.certifying

    def status(self) -> dict[str, Any]:
        return {"audit": {"certified": self.certified}}

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear_verdicts)
            nursery.start_soon(self._hear_policies)
            while True:
                await self.decide()
                pause = min(POLL, self._context.time.epoch_seconds / 10)
                self._context.board.say(self._next(), within=2 * pause)
                await trio.sleep(pause)

    async def decide(self) -> None:
        """Sign everything that has come to count since the last time."""
        found = [one for waiting in self._files.values() for one in self._decided_files(waiting)]
        for validator, verdicts in self._verdicts.items():
            self._decided_as_said(validator, verdicts)
        await self._sign([(one, None) for one in found])
        await self._sign([(one, None) for one in self._trained()], once=True)
        await self._sign([(one.statement, one.at) for one in self._to_be_paid()])

    def claims(self) -> list[list[Claim]]:
        """What waits to be looked at, by validator; taken out. Only what `shown` is given is paid."""
        # Handed over whole: who looks at them takes seconds, in which new ones come.
        waiting, self._claims = self._claims, {}
        return [list(claims.values()) for claims in waiting.values()]

    def shown(self, claims: Sequence[Claim]) -> None:
        """Nothing speaks against these."""
        for claim in claims:
            self._shown.setdefault(claim.validator, Recent(WAITING))[claim.work.id] = claim

    async def answer(self, lacking: Sequence[Accepted]) -> None:
        """A node shows works without this validator's certificate: say it again, or sign what was accepted before a
        restart."""
        # Asked for all at once: a node shows hundreds, and each visit to the journal's thread costs a turn.
        kept = await self._journal.do(
            lambda: [self._journal.pay.certificate(self._own, self._context.pool, one.work) for one in lacking]
        )
        for statement, before in zip(lacking, kept, strict=True):
            if before is not None:
                self._queue(*before)
            elif await self._accepted_before(statement):
                await self._sign([(statement, None)])

    # what is heard

    def _wait_for(self, work: Work) -> None:
        self._files.setdefault(work.node, Recent(WAITING))[work.id] = work

    async def _hear_verdicts(self) -> None:
        """The first word counts; another one is evidence, and no work."""
        async for said in self._context.facts.subscribe(VerdictIssued):
            message, author = said.message, said.author
            groups = len(message.rewards) // DIGEST or self._run.groups_per_file
            checked = len(unpack_groups(message.checked, groups) or ())
            statement = of_judgement(self._run, author, message.verdict, checked, groups)
            if statement.units:
                waiting = self._verdicts.setdefault(author, Recent(WAITING))
                # The outcome is kept beside the statement, as the pool may decide otherwise than this validator said.
                waiting.setdefault(message.verdict.work, (message.verdict.outcome == Outcome.ACCEPT, statement))

    async def _hear_policies(self) -> None:
        """All but the first, which is what the run began with."""
        # One that is taken back is found an orphan when its turn comes (`_trained`).
        async for policy in self._context.facts.subscribe(PolicyFollowed):
            step, root, author = policy.step, policy.root, policy.author
            if step > 0 and policy_units(self._run):
                waiting = self._policies.setdefault(author, Recent(WAITING))
                waiting[root] = of_policy(self._run, self._context.pool, author, step, root, policy.message.epoch)

    # what counts

    def _decided_files(self, waiting: Recent[WorkId, Work]) -> list[Accepted]:
        state, found = self._context.state, list[Accepted]()
        for id, work in list(waiting.items()):
            # Too old to be judged; so it will never be decided.
            if state.register.get(id) is None:
                del waiting[id]
            elif state.ballots.state(id) is FileState.ACCEPTED and self._is_decided(id):
                del waiting[id]
                rollout = self._run.rollout
                if work.task is None:
                    share = rollout.prompts_per_file / rollout.prompts_per_step
                    self._steps = min(self._steps + share, self._most_steps)
                # Signed only for what this validator saw itself: others' votes decide, but do not make it a witness.
                own = state.ballots.verdict_of(id, self._own)
                if own is not None and own.message.verdict.outcome == Outcome.ACCEPT:
                    found.append(of_file(work.commitment))
        return found

    def _decided_as_said(self, validator: Address, verdicts: Recent[WorkId, tuple[bool, Accepted]]) -> None:
        """Verdicts that the pool has decided likewise. What rests on a report is paid when somebody has looked at it:
        not a rejection, the own word, or what everybody makes again to the byte."""
        ballots = self._context.state.ballots
        for id, (accepts, statement) in list(verdicts.items()):
            state, work = ballots.state(id), self._context.state.register.get(id)
            if state in (FileState.ACCEPTED, FileState.REJECTED) and self._is_decided(id):
                del verdicts[id]
                sealed = self._context.state.seals.was_sealed(id, validator)
                if (state is FileState.ACCEPTED) == accepts and work and sealed:
                    reported = accepts and validator != self._own and work.task is None
                    waiting = self._claims if reported else self._shown
                    claim = Claim(validator, work, statement, self._context.time.now())
                    waiting.setdefault(validator, Recent(WAITING))[id] = claim

    def _to_be_paid(self) -> list[Claim]:
        """Of validators that are believed; not what they judged in a window in which they said what is not so. One that
        took a verdict back unasked waits until a dispute is told that asked it; one that is behind with showing what it
        sealed, until it is not."""
        state, found = self._context.state, list[Claim]()
        for validator, shown in self._shown.items():
            # A seal that stays closed tells nobody anything, so its verdict earns nothing.
            if validator in state.disputes.quarantined or state.seals.leaves_unopened(validator):
                shown.clear()
            if not shown or state.seals.is_behind(validator):
                continue
            turned = state.seals.turned(validator)
            for id, claim in list(shown.items()):
                if state.lots.window_of(claim.work) not in turned:
                    del shown[id]
                    if not state.seals.is_withheld(validator, claim.work):
                        found.append(claim)
        return found

    def _is_decided(self, id: WorkId) -> bool:
        """A silent validator is waited for as long as the pool's window allows: the pay of the others is due in it."""
        return self._context.state.ballots.undisputed(id, self._context.time.certified_after)

    def _trained(self) -> list[Accepted]:
        """Policies that the clock knows as this trainer's and that enough was accepted for; none of a trainer that
        contradicts itself, nor one that a later term took back, nor one that another trainer announced before: a
        standby knows all roots."""
        clock, found = self._context.state.policies, list[Accepted]()
        if clock.fork is not None:
            # Of a trainer that signed two things that cannot both be true nothing is certified, the earlier policies
            # included.
            self._policies.clear()
        for trainer, waiting in self._policies.items():
            for root in list(waiting):
                # The policy clock decides what is a policy; an announcement alone is only somebody's word.
                if clock.find(root) is None:
                    continue  # of a term that the chain has not told yet, or nobody's
                said = clock.announcement(root)
                if said is None or said.author != trainer or clock.is_orphan(root):
                    del waiting[root]
                    continue
                if self._steps < 1.0 and self._context.clock.monotonic() >= self._opened + BACKLOG_SECONDS:
                    return found
                self._steps = max(self._steps - 1.0, 0.0)
                found.append(waiting.pop(root))
        return found

    async def _accepted_before(self, statement: Accepted) -> bool:
        """Whether this validator accepted just this work, as its journal remembers."""
        raw = await self._journal.do(self._journal.said, "verdict", statement.work)
        again = await self._journal.do(self._journal.said, "recheck", statement.work)
        if raw is None or self._context.state.ballots.state(statement.work) in (FileState.REJECTED, FileState.DISPUTED):
            return False
        try:
            verdict = self._context.board.opened(raw, VerdictIssued).message.verdict
            found = self._context.board.opened(again, VerdictRechecked).message.verdict if again else verdict
        except ProtocolError as error:
            log.warning("verdict.unreadable", why=error.why)
            return False
        # Compared whole, units and epoch too: a node must not have more certified than was judged.
        said = Accepted(verdict.pool, verdict.node, verdict.epoch, work_id(verdict), verdict.units)
        return verdict.outcome == found.outcome == Outcome.ACCEPT and said == statement

    # saying

    async def _sign(self, wanted: Sequence[tuple[Accepted, float | None]], *, once: bool = False) -> None:
        """Once for ever, and never what its own word contradicts, or what nobody can be paid for any more. With each:
        when it was found so, None for what the journal knows. once: in one epoch, also after that is tabled."""
        members = self._context.membership
        # Who is no member, a trainer as anybody, has no stake that answers for what it did.
        known = [each for each in wanted if members.is_member(each[0].node)]
        fit = [each for each in known if not members.is_evicted(each[0].node)]
        for start in range(0, len(fit), AT_ONCE):
            for statement, signature in await self._journal.promise(self._signed, fit[start : start + AT_ONCE], once):
                self.certified += 1
                self._queue(statement, signature)

    def _signed(self, wanted: Sequence[tuple[Accepted, float | None]], once: bool) -> list[tuple[Accepted, bytes]]:
        """In the journal's thread."""
        journal, found = self._journal, list[tuple[Accepted, bytes]]()
        with journal.at_once():
            for one, at in wanted:
                found_at = journal.said_at("verdict", one.work) if at is None else at
                if not self._context.time.may_certify(one.epoch, found_at) or not one.units:
                    log.info("work.not_certified", node=one.node, epoch=one.epoch, why="it is not of this time")
                elif once and journal.said("paid policy", one.work) not in (None, one.epoch.to_bytes(8)):
                    log.warning("policy.announced_again", node=one.node, work=one.work.hex()[:16], epoch=one.epoch)
                # An own rejection stands in the journal, though the quorum said otherwise.
                elif not journal.earned.is_refused(one.work):
                    # The journal has the last word: there are never two different statements of this validator for one
                    # work.
                    kept = journal.pay.certify(self._own, one, sign(self._context.key, self._context.domain, one))
                    if kept is None:
                        log.warning("work.certified_otherwise", work=one.work.hex()[:16])
                    else:
                        found.append((one, kept))
                        if once:
                            journal.say("paid policy", one.work, one.epoch.to_bytes(8))
        return found

    def _queue(self, statement: Accepted, signature: bytes) -> None:
        certificate = Certificate(statement.node, statement.epoch, statement.work, statement.units, signature)
        self._to_say.setdefault(statement.node, Recent(TO_SAY))[statement.work] = certificate

    def _next(self) -> list[Certificate]:
        """Of every node one in turn: who lacks thousands delays its own."""
        batch: list[Certificate] = []
        while self._to_say and len(batch) < MOST:
            node, waiting = self._to_say.popitem(last=False)
            batch.append(waiting.popitem(last=False)[1])
            if waiting:
                self._to_say[node] = waiting
        return batch
