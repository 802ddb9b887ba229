"""What counts for pay, named once an epoch: accepted files, verdicts that the pool decided likewise, policies.

Each work that counts is a leaf, in the journal, of the one root that a validator signs when the epoch is over; what
comes late is in roots with higher numbers. A file is named by those who accepted it themselves: nobody can be shown a
rejection of its own beside that. A verdict counts once the pool has decided as it says and its report was looked at, by
lot; a policy once as many groups were accepted as its step needs; a standby's window once an audit came to the state
that it told. A file that was accepted in time is named until a table covers its epoch: all validators may have been
away.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import msgspec
import structlog
import trio

from node.bounded_dict import BoundedDict
from node.changes import every
from node.services.base import Service
from node.services.context import Context
from node.swarm.facts import PolicyFollowed
from node.swarm.register import BACKLOG_SECONDS, RegisteredWork, WorkId
from node.swarm.vote_set import FileState
from protocol.earnings import Accepted, leaves_of, of_file, of_judgement, of_policy, own_line, policy_units
from protocol.errors import ProtocolError
from protocol.identity import Address
from protocol.lots import unpack_groups
from protocol.messages import DIGEST, EpochRootSigned, VerdictIssued, VerdictRechecked, seal
from protocol.pages import PAGE_ROWS
from protocol.statements import EpochRoot, VerdictOutcome, sign, work_id

log = structlog.get_logger()
MOST_NAMED = 64 * PAGE_ROWS
"""Works of one root."""
ROOT = "root"
"""The journal's kind of an own root; its slot: epoch and number."""


class RootEntry(msgspec.Struct, frozen=True, eq=False):
    """A validator's verdict on a work, and what is to be signed for it. at: when it was decided so, unix seconds."""

    validator: Address
    work: RegisteredWork
    statement: Accepted
    at: float


class Wanted(NamedTuple):
    """What is to be named. at: when it was found so, unix seconds; None for what the journal knows; once: in one epoch,
    also after that is tabled."""

    statement: Accepted
    at: float | None = None
    once: bool = False


Claims = dict[Address, BoundedDict[WorkId, RootEntry]]


class Certifier(Service):
    """One per validator."""

    name = "certifier"

    def __init__(self, context: Context, *, waiting: int = 512, round_seconds: float = 4.0) -> None:
        # Files of one worker, verdicts of one validator, policies of one trainer that wait to be decided.
        self._waiting = waiting
        # Between two rounds, or a tenth of the epoch where that is less: nobody needs a root before the epoch is over.
        self._round_seconds = min(round_seconds, context.time.epoch_seconds / 10)
        self._context = context
        self._own = context.key.address
        self._journal = context.journal
        self._run = context.run.spec
        self._files: dict[Address, BoundedDict[WorkId, RegisteredWork]] = {}
        self._verdicts: dict[Address, BoundedDict[WorkId, tuple[bool, Accepted]]] = {}
        self._claims: Claims = {}
        self._shown: Claims = {}
        """Before and after somebody looked whether they are so (`judging/peer_audit.py`)."""
        self._policies: dict[Address, BoundedDict[bytes, Accepted]] = {}
        # Policies that may come at once beside those of the run's staleness: groups of theirs were accepted long
        # before.
        self._most_steps = self._run.recipe.max_staleness + 8.0
        # A budget of policies: accepted files fill it, announced policies draw on it. So a trainer is not paid for
        # steps that there was no work for.
        self._steps = self._most_steps
        self._opened = context.clock.monotonic()  # nobody here knows what was accepted before
        self._said_at: dict[int, float] = {}
        """Epoch -> when its roots were said last."""
        self._all_signed: tuple[int, int] | None = None
        """The epoch, and how much was certified, when the journal had nothing that no root names."""
        self._rooted: set[int] | None = None
        """Epochs with roots of this validator's that no table covers, as the journal had them last."""
        self.certified = 0
        context.state.register.follow(self._wait_for)
        context.state.register.follow_closed(self._close)

    @classmethod
    async def open(cls, place: Any) -> Self:
        return place.certifier

    def status(self) -> dict[str, Any]:
        return {"earnings_table": {"certified": self.certified}}

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear_verdicts)
            nursery.start_soon(self._hear_policies)
            await self._recall()

            async def look() -> None:
                await self.decide()
                await self.root()

            await every(self._round_seconds, look)

    async def decide(self) -> None:
        """Note everything that has come to count since the last time."""
        found = [one for waiting in self._files.values() for one in self._decided_files(waiting)]
        for validator, verdicts in self._verdicts.items():
            self._decided_as_said(validator, verdicts)
        wanted = [Wanted(one) for one in found]
        wanted += [Wanted(one, once=True) for one in self._trained()]
        wanted += [Wanted(one.statement, one.at) for one in self._to_be_paid()]
        await self._name(wanted)

    def claims(self) -> list[list[RootEntry]]:
        """What waits to be looked at, by validator; taken out. Only what `shown` is given is paid."""
        # Handed over whole: who looks at them takes seconds, in which new ones come.
        waiting, self._claims = self._claims, {}
        return [list(claims.values()) for claims in waiting.values()]

    def put_off(self, claims: Sequence[RootEntry]) -> None:
        """Nobody could look at these now: they wait for the next round."""
        for claim in claims:
            waiting = self._claims.setdefault(claim.validator, BoundedDict(self._waiting))
            waiting.setdefault(claim.work.id, claim)

    def shown(self, claims: Sequence[RootEntry]) -> None:
        """Nothing speaks against these."""
        for claim in claims:
            self._shown.setdefault(claim.validator, BoundedDict(self._waiting))[claim.work.id] = claim

    # what is heard

    def _wait_for(self, work: RegisteredWork) -> None:
        self._files.setdefault(work.node, BoundedDict(self._waiting))[work.id] = work

    def _close(self, work: RegisteredWork) -> None:
        """It will never be decided any more; what was is a leaf already."""
        for verdicts in self._verdicts.values():
            verdicts.pop(work.id, None)
        if (files := self._files.get(work.node)) is not None:
            files.pop(work.id, None)
            if not files:
                del self._files[work.node]

    async def _hear_verdicts(self) -> None:
        """The first word counts; another one is evidence, and no work."""
        async for said in self._context.facts.subscribe(VerdictIssued):
            message, author = said.message, said.author
            groups = len(message.rewards) // DIGEST or self._run.groups_per_file
            checked = len(unpack_groups(message.checked, groups) or ())
            statement = of_judgement(self._run, author, message.verdict, checked, groups)
            if statement.units:
                waiting = self._verdicts.setdefault(author, BoundedDict(self._waiting))
                # The outcome is kept beside the statement, as the pool may decide otherwise than this validator said.
                waiting.setdefault(message.verdict.work, (message.verdict.outcome == VerdictOutcome.ACCEPT, statement))

    async def _hear_policies(self) -> None:
        """All but the first, which is what the run began with."""
        # One that is taken back is found an orphan when its turn comes (`_trained`).
        async for policy in self._context.facts.subscribe(PolicyFollowed):
            step, root, author = policy.step, policy.root, policy.author
            if step > 0 and policy_units(self._run):
                waiting = self._policies.setdefault(author, BoundedDict(self._waiting))
                waiting[root] = of_policy(self._run, self._context.pool, author, step, root, policy.message.epoch)

    # what counts

    def _decided_files(self, waiting: BoundedDict[WorkId, RegisteredWork]) -> list[Accepted]:
        state, found = self._context.state, list[Accepted]()
        for id, work in list(waiting.items()):
            if state.vote_set.state(id) is FileState.ACCEPTED and self._is_decided(id):
                del waiting[id]
                rollout = self._run.rollout
                if work.task is None:
                    share = rollout.prompts_per_file / rollout.prompts_per_step
                    self._steps = min(self._steps + share, self._most_steps)
                # Signed only for what this validator saw itself: others' votes decide, but do not make it a witness.
                own = state.vote_set.verdict_of(id, self._own)
                if own is not None and own.message.verdict.outcome == VerdictOutcome.ACCEPT:
                    found.append(of_file(work.commitment))
        return found

    def _decided_as_said(self, validator: Address, verdicts: BoundedDict[WorkId, tuple[bool, Accepted]]) -> None:
        """Verdicts that the pool has decided likewise. What rests on a report is paid when somebody has looked at it:
        not a rejection, the own word, or what everybody makes again to the byte."""
        vote_set = self._context.state.vote_set
        for id, (accepts, statement) in list(verdicts.items()):
            state, work = vote_set.state(id), self._context.state.register.get(id)
            if state in (FileState.ACCEPTED, FileState.REJECTED) and self._is_decided(id):
                del verdicts[id]
                sealed = self._context.state.seals.was_sealed(id, validator)
                if (state is FileState.ACCEPTED) == accepts and work and sealed:
                    reported = accepts and validator != self._own and work.task is None
                    waiting = self._claims if reported else self._shown
                    claim = RootEntry(validator, work, statement, self._context.time.now())
                    waiting.setdefault(validator, BoundedDict(self._waiting))[id] = claim

    def _to_be_paid(self) -> list[RootEntry]:
        """Of validators that are believed; not what they judged in a window in which they said what is not so. One that
        took a verdict back unasked waits until a dispute is told that asked it; one that is behind with showing what it
        sealed, until it is not."""
        state, found = self._context.state, list[RootEntry]()
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
        return self._context.state.vote_set.undisputed(id, self._context.time.certified_after)

    def _trained(self) -> list[Accepted]:
        """Policies that the clock knows as this trainer's and that enough was accepted for; none of a trainer that
        contradicts itself, nor one that a later term took back, nor one that another trainer announced before: a
        standby knows all roots."""
        clock, found = self._context.state.policies, list[Accepted]()
        if clock.equivocation is not None:
            # Of a trainer that signed two things that cannot both be true nothing is certified, the earlier policies
            # included.
            self._policies.clear()
        for trainer, waiting in self._policies.items():
            for root in list(waiting):
                # The policy index decides what is a policy; an announcement alone is only somebody's word.
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

    async def _recall(self) -> None:
        """What this validator had accepted when it ended, and had not noted."""
        found = list[Wanted]()
        # Own verdicts of before this start that are looked at: what was accepted and never noted.
        for raw, again in await self._journal.do(self._journal.pay.unnamed, self._own, 2_048):
            await trio.lowlevel.checkpoint()  # a signature each
            try:
                verdict = self._context.board.opened(raw, VerdictIssued).message.verdict
                looked = self._context.board.opened(again, VerdictRechecked).message.verdict if again else verdict
            except ProtocolError as error:
                log.warning("verdict.unreadable", why=error.why)
                continue
            if verdict.outcome == looked.outcome == VerdictOutcome.ACCEPT:
                named = (verdict.pool, verdict.node, verdict.epoch, work_id(verdict), verdict.units)
                found.append(Wanted(Accepted(*named)))
        await self._name(found)

    # saying

    async def _name(self, wanted: Sequence[Wanted]) -> None:
        """Once for ever, and never what its own word contradicts, or what nobody can be paid for any more."""
        members = self._context.membership
        # Who is no member, a trainer as anybody, has no stake that answers for what it did.
        known = [one for one in wanted if members.is_member(one.statement.node)]
        fit = [one for one in known if not members.is_evicted(one.statement.node)]
        at_once = 64  # works that are noted while others wait for the journal
        for start in range(0, len(fit), at_once):
            self.certified += await self._journal.do(self._named, fit[start : start + at_once])

    def _named(self, wanted: Sequence[Wanted]) -> int:
        """In the journal's thread."""
        journal, found = self._journal, list[Accepted]()
        with journal.at_once():
            for one, at, once in wanted:
                found_at = journal.said_at("verdict", one.work) if at is None else at
                if not self._context.time.may_certify(one.epoch, found_at) or not one.units:
                    log.info("work.not_certified", node=one.node, epoch=one.epoch, why="it is not of this time")
                elif once and journal.said("paid policy", one.work) not in (None, one.epoch.to_bytes(8)):
                    log.warning("policy.announced_again", node=one.node, work=one.work.hex()[:16], epoch=one.epoch)
                # An own rejection stands in the journal, though the quorum said otherwise.
                elif not journal.earned.is_refused(one.work):
                    found.append(one)
                    if once:
                        journal.say("paid policy", one.work, one.epoch.to_bytes(8))
            return len(journal.pay.name(self._own, found))

    async def root(self) -> None:
        """Sign what is not named yet of epochs that are over, and say again what was signed of those that no table
        covers."""
        time = self._context.time
        pay, earned = self._journal.pay, self._journal.earned
        # The journal is asked when it can have an answer, not at each look.
        present = time.epoch(), self.certified
        if present != self._all_signed:
            waiting = await self._journal.do(pay.unsigned, self._own, self._context.pool, present[0])
            for epoch, works in waiting.items():
                if self._is_due(epoch):
                    await self._sign(epoch, works[:MOST_NAMED])
                    self._rooted = None
            self._all_signed = None if waiting else present
        if self._rooted is not None and not any(map(self._is_due, self._rooted)):
            return
        own = await self._journal.do(earned.roots_of, self._own)
        self._rooted = set(own)
        for epoch in [epoch for epoch in own if self._is_due(epoch)]:
            self._said_at[epoch] = self._context.clock.monotonic()
            for raw in own[epoch]:
                await self._context.board.post_raw(raw)

    def _is_due(self, epoch: int) -> bool:
        """Whether its roots have not been said lately."""
        at = self._said_at.get(epoch)
        return at is None or self._context.clock.monotonic() - at >= self._context.time.shown_every

    async def _sign(self, epoch: int, works: Sequence[Accepted]) -> None:
        leaves, files = await trio.to_thread.run_sync(leaves_of, works)
        for file in files:
            await self._context.blobs.add(file)
        info = await self._context.blobs.add(msgspec.msgpack.encode(leaves))
        # By the clock: a daemon with an older journal signs no other root of a number that its key has used.
        newest = await self._journal.do(self._journal.earned.newest_number, self._own, epoch)
        number = max(int(self._context.time.now()), newest + 1)
        total = sum(one.units for one in works)
        said = EpochRoot(self._context.pool, epoch, number, leaves.root(), total, info.root)
        message = EpochRootSigned(
            pool=said.pool, statement=said, signature=sign(self._context.key, self._context.domain, said)
        )
        raw = seal(self._context.key, self._context.domain, message)
        own = await trio.to_thread.run_sync(own_line, leaves, works, self._own)
        await self._journal.promise(self._signed, said, works, raw, own)
        log.info("epoch.rooted", epoch=epoch, number=number, works=len(works), total=total)

    def _signed(
        self, said: EpochRoot, works: Sequence[Accepted], raw: bytes, own: tuple[int, tuple[bytes, ...]] | None
    ) -> None:
        """In the journal's thread, before anybody hears it."""
        self._journal.say(ROOT, said.epoch.to_bytes(8) + said.number.to_bytes(8), raw)
        self._journal.pay.signed(self._own, works, said.number)
        self._journal.earned.note_root(said.epoch, self._own, said.number, said.root, raw, whole=False)
        if own is not None:
            self._journal.earned.note_line(said.epoch, self._own, said.number, *own, raw)
