"""The jury: a pool's validators as every member sees them. Counts their verdicts, watches their lots, hears disputes.

A service over the board, and the one place where policies, commitments and verdicts meet: the policy clock and the
register of work are kept here. Whoever needs a decision about a work asks `ballots`; whoever wants to know when to ask
again watches. Raises disputes that it is the first to see (validators and the trainer only: others may not).
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import msgspec
import structlog
import trio

from node.clock import Seconds
from node.recent import Recent
from node.state.journal import Journal
from node.swarm.ballots import Ballots, Dispute, FileState, Quarantined
from node.swarm.board import Board
from node.swarm.lotbook import BrokenPromise, LotBook
from node.swarm.membership import Membership
from node.swarm.policies import Fork, PolicyClock
from node.swarm.register import Register, Work, WorkId
from node.swarm.stepbook import StepBook
from node.swarm.taskbook import TaskBook
from protocol.checks import reason_name
from protocol.errors import ProtocolError
from protocol.identity import Address
from protocol.messages import (
    DisputeRaised,
    Heartbeat,
    LotsRevealed,
    Message,
    PolicyAnnounced,
    RolloutCommitted,
    Signed,
    StepJudged,
    TaskClaimed,
    TaskOffered,
    ValidatorSaid,
    VerdictIssued,
    VerdictRechecked,
    open_envelope,
    seal_of,
)
from protocol.run import RunSpec
from protocol.statements import Domain, work_id

log = structlog.get_logger()
WATCHED = 1024
QUARANTINE = "quarantined_validators"
FORKS = "forked_trainers"
DISPUTES = "open_disputes"
RESULTS = 512
"""Undecided results of one member."""
EARLY = 64
"""Works of which one validator may speak before this node has heard of them."""
TO_RAISE = 64
WITHHELD = 1024
"""Windows of validators that are not paid for, the newest; and works of one window whose verdict one took back."""
TURNED = 64
"""Windows in which one validator took verdicts back, the newest."""
SEALS = 4096
"""Works that one validator has sealed a verdict on and that are remembered. It loses its pay for those forgotten."""
SEAL_SECONDS = 3.0
"""So long a verdict that the quorum has sealed waits for slower validators."""
OPENING_GRACE = 5.0
"""Seconds that a verdict may travel after its time to be shown."""
UNOPENED, UNOPENED_SECONDS = 4, 600.0
"""Seals of this time that a validator may leave unopened. One that has seen others' verdicts could show its own only
where they agree: with more it is neither awaited nor paid. A restart with many seals costs an honest one ten minutes'
pay at most; verdicts that it shows late count. One that let a single seal's time pass is not counted on for as long."""


class _Seal(msgspec.Struct):
    """A verdict's way to be shown. seal: empty where it was shown without one, and not as the last that was awaited;
    at: when the seal came, or the verdict without one; shown: when the verdict did."""

    seal: bytes
    at: float
    shown: float = math.inf


class _Sealer(msgspec.Struct):
    """One validator's seals by work. unopened: when those came whose verdicts are not shown, oldest first; late: when
    the first came that was not opened in its time, of the last UNOPENED_SECONDS."""

    seals: Recent[WorkId, _Seal]
    unopened: Recent[WorkId, float]
    late: float = -math.inf


class Jury:
    """One per node. journal: remembers who is not believed, with the evidence, over a restart; clock: monotonic
    seconds."""

    def __init__(
        self,
        board: Board,
        membership: Membership,
        run: RunSpec,
        pool: int,
        journal: Journal,
        clock: Seconds = trio.current_time,
    ) -> None:
        self._board = board
        self._journal = journal
        self._clock = clock
        self._judged = trio.Event()
        self.prompts_differ = 0
        """Works whose prompts two validators computed differently."""
        self._membership = membership
        self._pool = pool
        self.policies = PolicyClock(clock, membership.terms, stated=run.diloco is None)
        membership.terms.follow(self._on_terms)
        self.tasks = TaskBook(lambda node: membership.is_silent(node, clock()), clock)
        self.register = Register(run, self.policies, clock, self.tasks)
        self.ballots = Ballots(run, lambda: membership.quorum, self.register, self.validators, clock)
        self.lots = LotBook(run, pool, self.policies)
        self.steps = StepBook(lambda: membership.quorum, self.lots, pool)
        # Ballots decide and the jury remembers: so the counting itself needs no journal, and tests give it none.
        self.ballots.on_quarantine = self._tell
        self._convicting: dict[int, tuple[Fork, list[Signed[Message]]]] = {}
        """By term: the evidence against its holder, opened, since who asks for it asks twice a second."""
        self._results: dict[Address, Recent[WorkId, Work]] = {}
        """Of tasks, that the pool has not decided about; by member."""
        self.register.follow(self._on_work)
        # A rival is no work, but verdicts on it may come, and its author may be asked about it.
        self.register.follow_rivals(lambda _, rival: self._on_work(rival))
        self._watchers: list[trio.MemorySendChannel[WorkId]] = []
        self._early: dict[Address, Recent[WorkId, list[Callable[[Work], object]]]] = {}
        """What is to be done with words on works that are not known yet, by who spoke."""
        self._sealers: dict[Address, _Sealer] = {}
        self._moment = -math.inf
        self._patience = run.audit.opening_seconds
        self._opening = self._patience + OPENING_GRACE
        self._withheld: Recent[tuple[Address, int], None] = Recent(WITHHELD)
        self._turned: dict[Address, Recent[int, Recent[WorkId, None]]] = {}
        """By validator and window that this may cost it: works of which it took its word back."""
        self._to_raise: deque[Dispute] = deque(maxlen=TO_RAISE)
        self._acts: dict[type[Message], Callable[[Any], object]] = {
            # Of a run with rounds nobody announces a policy: one of a step far ahead would make all works stale.
            PolicyAnnounced: self._on_policy if run.diloco is None else lambda signed: None,
            TaskOffered: self._on_offer,
            TaskClaimed: self.tasks.claimed,
            RolloutCommitted: self.register.commit,
            Heartbeat: lambda signed: self._punish(self.lots.beat(signed)),
            LotsRevealed: self._on_reveal,
            StepJudged: self._on_step,
            DisputeRaised: self._on_dispute,
            ValidatorSaid: self._on_said,
            VerdictIssued: self._on_verdict,
            VerdictRechecked: self._on_recheck,
        }

    @property
    def distrust(self) -> bool:
        """Whether who leads is not believed any more (`policies.fork` says why) and nobody stands by to lead."""
        return self.policies.fork is not None and len(self._membership.terms.trainers) < 2

    def validators(self) -> list[Address]:
        """The validators that are alive at this moment."""
        return self._membership.live_validators(self._clock())

    def watch(self) -> trio.MemoryReceiveChannel[WorkId]:
        """Works about which something was said. A slow reader loses some: ask about old ones by the clock."""
        send, receive = trio.open_memory_channel[WorkId](WATCHED)
        self._watchers.append(send)
        return receive

    async def run(self) -> None:
        """Listen until cancelled."""
        await self._recall()
        lines = (
            self._board.subscribe(PolicyAnnounced, TaskOffered),
            self._board.subscribe(TaskClaimed, RolloutCommitted),
            self._board.subscribe(Heartbeat, by=self._membership.is_validator),
            # In the order in which they came: a seal that is read after another's verdict looks like a copier's.
            self._board.subscribe(
                ValidatorSaid, VerdictIssued, VerdictRechecked, DisputeRaised, LotsRevealed, StepJudged
            ),
        )
        async with trio.open_nursery() as nursery:
            for line in lines:
                nursery.start_soon(self._follow, line)
            nursery.start_soon(self._remember)

    async def _recall(self) -> None:
        """Whom this node did not believe before a restart, and why."""
        kept = await self._journal.do(self._journal.recall, QUARANTINE)
        if kept is not None:
            self.ballots.restore(msgspec.msgpack.decode(kept, type=list[Quarantined]))
            for one in self.ballots.quarantined.values():
                self._board.pin(one.evidence)
        # Evidence is pinned again, since the board of a node that was away has forgotten it.
        kept = await self._journal.do(self._journal.recall, FORKS)
        if kept is not None:
            self.policies.forks = msgspec.msgpack.decode(kept, type=dict[int, Fork])
            for fork in self.policies.forks.values():
                self._board.pin(fork.evidence)
                self._open_again(fork.evidence)
        kept = await self._journal.do(self._journal.recall, DISPUTES)
        for envelopes in msgspec.msgpack.decode(kept, type=list[list[bytes]]) if kept is not None else ():
            self._open_again(envelopes)

    def _open_again(self, envelopes: Sequence[bytes]) -> None:
        """A dispute that was open before a restart, which all validators may have had at once: nobody would tell of it.
        What is read here is checked as if it had just come, and the same conflict follows."""
        for raw in envelopes:
            try:
                signed = self._board.opened(raw)
            except ProtocolError as error:  # of somebody who has left
                log.info("dispute.not_opened_again", why=error.why)
                return
            self._acts[type(signed.message)](signed)

    async def _remember(self) -> None:
        """Keep the evidence against validators, and against the trainer; and what is in dispute, which others hear."""
        while True:
            await self._judged.wait()
            self._judged = trio.Event()
            while self._to_raise:
                await self._raise(self._to_raise.popleft())
            kept = msgspec.msgpack.encode(list(self.ballots.quarantined.values()))
            await self._journal.do(self._journal.remember, QUARANTINE, kept)
            await self._journal.do(self._journal.remember, DISPUTES, msgspec.msgpack.encode(self.ballots.in_dispute()))
            await self._journal.do(self._journal.remember, FORKS, msgspec.msgpack.encode(self.policies.forks))

    async def _follow(self, line: trio.MemoryReceiveChannel[Any]) -> None:
        async for signed in line:
            self._acts[type(signed.message)](signed)

    # policies and work

    def _on_policy(self, signed: Signed[PolicyAnnounced]) -> None:
        self.policies.announce(signed)  # which whoever fetches the policy may have done before us
        fork = self.policies.forks.get(signed.message.term)
        if fork is None:
            self.steps.stated(signed)
            self.register.look_again()
        elif signed.raw in fork.evidence:
            self._believe_no_more(signed.author, fork)

    def _believe_no_more(self, trainer: Address, fork: Fork) -> None:
        log.error("trainer.distrusted", trainer=trainer, what=fork.what)
        self._board.pin(fork.evidence)
        self._judged.set()

    def _on_step(self, signed: Signed[StepJudged]) -> None:
        """A quorum that found a step bad ends the trust in who stated it, for as long as that one leads. What others
        than the holder of that term stated counts for nothing: a standby's bad step would end another one's term, and
        a validator that judges steps of its own making would crowd out the trainer's."""
        of = signed.message.statement
        if not self._membership.terms.counts(signed.message.trainer, of.term, of.step, of.parent):
            return
        against = self.steps.add(signed)
        first = signed.message
        if against and first.statement.term not in self.policies.forks:
            what = f"a quorum found step {first.statement.step - 1} bad: {first.detail or reason_name(first.reason)}"
            fork = self.policies.forks[first.statement.term] = Fork(what, tuple(one.raw for one in against))
            self._believe_no_more(first.trainer, fork)

    def step_verdicts(self, domain: Domain, term: int) -> dict[Address, StepJudged]:
        """What validators said of the step for which the holder of a term is not believed, by author; nothing where it
        convicted itself. Those who convicted it are in the journal, the others came since the start."""
        fork = self.policies.forks.get(term)
        if fork is None:
            return {}
        # Opening envelopes costs a signature each, and the fork of a term never changes once it is known.
        if term not in self._convicting or self._convicting[term][0] is not fork:
            self._convicting[term] = fork, [open_envelope(domain, self._pool, raw) for raw in fork.evidence]
        said = {one.author: one.message for one in self._convicting[term][1] if isinstance(one.message, StepJudged)}
        for one in list(said.values())[:1]:
            said |= {a: of.message for a, of in self.steps.judged_by(one.statement.struct_hash).items()}
        return said

    def _on_terms(self) -> None:
        """The chain told of a term: what was said before that may count now, or count no more."""
        self.policies.begin_term()
        for signed in self._board.messages(PolicyAnnounced):
            self._acts[PolicyAnnounced](signed)

    def learn(self, step: int, root: bytes, *, outer: bool = False) -> None:
        """This node knows a policy by itself: the outer state of a round that it applied, or its image."""
        self.policies.learn(step, root, outer=outer)
        self.register.look_again()

    def _on_offer(self, signed: Signed[TaskOffered]) -> None:
        if self.tasks.offered(signed) is not None:
            self.register.look_again()

    def look_at_results(self) -> None:
        """Tell the leases of tasks what the pool thinks of results by now: some of it only time decides."""
        for work in [work for results in self._results.values() for work in results.values()]:
            state = self.ballots.state(work.id)
            if work.task is not None and state in (FileState.ACCEPTED, FileState.REJECTED):
                del self._results[work.node][work.id]
                accepted = state is FileState.ACCEPTED
                self.tasks.decided(work.task, work.commitment.index, work.id, accepted=accepted)

    def _on_work(self, work: Work) -> None:
        """A commitment is work now: what was said of it before counts."""
        self.lots.committed(work)
        if work.task is not None and not work.rival:
            self._results.setdefault(work.node, Recent(RESULTS))[work.id] = work
        for early in list(self._early.values()):
            for act in early.pop(work.id, ()):
                act(work)

    def _when_known(self, author: Address, id: WorkId, act: Callable[[Work], object]) -> None:
        """Now, or once this node has heard of the work: verdicts overtake commitments. Whoever speaks of what nobody
        committed to fills a small table of its own."""
        work = self.register.get(id)
        if work is not None:
            act(work)
            return
        # By speaker: one that makes up works crowds out its own words only.
        waiting = self._early.setdefault(author, Recent(EARLY)).setdefault(id, [])
        if len(waiting) < EARLY:
            waiting.append(act)

    # verdicts and disputes

    def _on_verdict(self, signed: Signed[VerdictIssued]) -> None:
        id = work_id(signed.message.verdict)
        # The last that was awaited: shown before the others' it is as good as sealed.
        is_last = len({signed.author, *self.sealing(id)}) >= self._membership.quorum
        self._sealed(signed.author, id, seal_of(signed.message, signed.author) if is_last else b"")
        self._is_late(signed.author)  # noted while it can be seen
        sealer = self._sealers[signed.author]
        sealer.unopened.pop(id, None)
        sealer.seals[id].shown = min(sealer.seals[id].shown, self._next_moment())
        self._when_known(signed.author, id, lambda work: self._count(work, signed))

    def _on_said(self, signed: Signed[ValidatorSaid]) -> None:
        for one in signed.message.seals:
            if self.register.get(one.work) is not None:
                self.ballots.note(one.work)
            fresh, sealer = self._sealed(signed.author, one.work, one.seal), self._sealers[signed.author]
            # Gossip may bring the verdict before its seal: that one is not left unopened.
            if fresh and sealer.seals[one.work].shown == math.inf:
                sealer.unopened[one.work] = self._clock()

    def _sealed(self, author: Address, id: WorkId, seal: bytes) -> bool:
        """Note a seal; False if there was one. The first of a work counts: another one for the same work fits nothing
        that its author will show."""
        sealer = self._sealers.setdefault(author, _Sealer(Recent(SEALS), Recent(SEALS)))
        known = sealer.seals.get(id)
        if known is None:
            sealer.seals[id] = _Seal(seal, self._next_moment())
        # The first seal binds. A second one would let its author choose, after it has seen the others.
        elif known.seal:
            return False
        else:  # gossip may bring the verdict before its seal
            known.seal = seal
        return True

    def _next_moment(self) -> float:
        """By the clock, and later than the last one: what is read one after the other came so."""
        # Seals and verdicts that come within one tick of the clock still have an order, and all of them must be
        # comparable.
        self._moment = max(self._clock(), math.nextafter(self._moment, math.inf))
        return self._moment

    def sealing(self, id: WorkId) -> set[Address]:
        """Who has shown a verdict on a work, or sealed one and may be counted on to show it."""
        late = {author for author in self._sealers if self._is_late(author)}
        # A seal whose time is over is nobody's promise any more.
        since = self._clock() - self._opening
        awaited = {author for author, one in self._sealers.items() if one.unopened.get(id, since) > since}
        return awaited - late | self.ballots.has_spoken(id)

    def has_sealed(self, id: WorkId) -> set[Address]:
        """Who has shown or sealed a verdict on a work, counted on or not."""
        return {author for author, one in self._sealers.items() if id in one.seals} | self.ballots.has_spoken(id)

    def _is_late(self, validator: Address) -> bool:
        """Whether a validator let the time of a seal pass a while ago. To open it then changes nothing: it could let
        one pass after the other."""
        leaves, now, sealer = self.leaves_unopened(validator), self._clock(), self._sealers[validator]
        oldest = next(iter(sealer.unopened.values()), now)
        if now - oldest >= self._opening and now - sealer.late > UNOPENED_SECONDS:
            sealer.late = oldest
        return leaves or now - sealer.late <= UNOPENED_SECONDS

    def _lets_pass(self, validator: Address, work: Work, way: _Seal) -> bool:
        """Whether others counted on a validator that let the time pass to show its verdict on a work. Not once they
        could have noticed, and not if it sealed before there was the work: else it could help a copier for long."""
        if not self._is_late(validator) or min(way.shown, self._clock()) - way.at < self._opening:
            return False
        late = self._sealers[validator].late
        return max(late, work.at) <= way.at <= late + self._opening

    def leaves_unopened(self, validator: Address) -> bool:
        """Whether a validator does not show what it sealed."""
        sealer = self._sealers.get(validator)
        if sealer is None:
            return False
        now = self._clock()
        while sealer.unopened and now - next(iter(sealer.unopened.values())) > UNOPENED_SECONDS:
            sealer.unopened.popitem(last=False)
        # Oldest first, so the fifth tells whether more than four are overdue, however many there are.
        overdue = list(islice(sealer.unopened.values(), UNOPENED + 1))
        full = len(sealer.unopened) >= SEALS  # newer ones would push out those that are overdue
        return full or (len(overdue) > UNOPENED and now - overdue[-1] > self._opening)

    def is_behind(self, validator: Address) -> bool:
        """Whether a validator may be one that shows what it likes of what it sealed: of more files than it has shown
        since, or of too many, a quorum has shown its verdicts for a while. It waits for its pay until it is not."""
        sealer, now = self._sealers.get(validator), self._clock()
        oldest = list(islice(sealer.unopened.items(), 4 * UNOPENED)) if sealer else []
        overdue = [at for id, at in oldest if now > self._shown_by(id, at)]
        if not sealer or not overdue:
            return False
        shown = sum(way.at >= overdue[0] and way.shown < math.inf for way in sealer.seals.values())
        return len(overdue) > min(shown, UNOPENED)

    def _shown_by(self, id: WorkId, sealed_at: float) -> float:
        """When the verdict behind a seal should have come: soon after a quorum showed theirs, as nobody waits then."""
        spoken = self.ballots.has_spoken(id)
        ways = (one.seals[id] for author, one in self._sealers.items() if author in spoken and id in one.seals)
        shown = sorted(way.shown for way in ways)[self._membership.quorum - 1 :]
        return max(shown[0], sealed_at) + SEAL_SECONDS + OPENING_GRACE if shown else sealed_at + self._opening

    def was_sealed(self, id: WorkId, validator: Address) -> bool:
        """Whether a validator is paid for its verdict on a work, as far as seals go: it sealed before anybody's was
        shown that had to be, or in the place of those who sealed and did not show; otherwise it may have copied it. And
        it did not show its own before it had to, to a copier or at the cost of whoever seals next."""
        if self._membership.has_one_validator:
            return True  # there is nobody to copy from
        said, work = self.ballots.verdict_of(id, validator), self.register.get(id)
        ways = {author: one.seals[id] for author, one in self._sealers.items() if id in one.seals}
        own = ways.pop(validator, None)
        # What was shown must be what was sealed, or the seal bound its author to nothing.
        if said is None or work is None or own is None or seal_of(said.message, validator) != own.seal:
            return False
        quorum, every = self._membership.quorum, [own, *ways.values()]

        def had_to(way: _Seal) -> bool:
            """Show, since a quorum had sealed, or nobody else for long."""
            return way.shown - way.at >= self._patience / 2 or sum(one.at <= way.shown for one in every) >= quorum

        before = {author: way for author, way in ways.items() if way.at < own.at}
        missing = {author for author, way in before.items() if self._lets_pass(author, work, way)}
        showed = {author for author, way in before.items() if way.shown < math.inf} - missing
        stands_in = missing and len(showed) < quorum
        first = not any(way.shown < own.at and had_to(way) for way in ways.values())
        return had_to(own) and bool(first or stands_in)

    def withhold(self, validator: Address, window: int) -> None:
        """This node has seen a validator say what is not so: nothing that it judged in this window is paid here."""
        self._withheld[validator, window] = None

    def is_withheld(self, validator: Address, work: Work) -> bool:
        """Whether this node has seen that a validator is not to be paid for a work, whatever it says of it."""
        return (validator, self.lots.window_of(work)) in self._withheld

    def turned(self, validator: Address) -> set[int]:
        """Windows for which a validator is not paid yet: of works whose verdict it took back in a second look that
        nobody asked for, and in which it did. Messages overtake each other: the dispute may be told yet."""
        windows = self._turned.get(validator, {})
        for works in windows.values():
            while works and not self.ballots.has_turned(next(iter(works)), validator):
                works.popitem(last=False)  # it was asked, or this is long ago
        return {window for window, works in windows.items() if works}

    def _note_turn(self, work: Work, validator: Address) -> None:
        if self.ballots.has_turned(work.id, validator):
            windows = self._turned.setdefault(validator, Recent(TURNED))
            for window in {self.lots.window_of(work), self.lots.current_window}:
                windows.setdefault(window, Recent(WITHHELD))[work.id] = None

    def _on_recheck(self, signed: Signed[VerdictRechecked]) -> None:
        id = work_id(signed.message.verdict)
        self._when_known(signed.author, id, lambda work: self._count_recheck(work, signed))

    def _count_recheck(self, work: Work, signed: Signed[VerdictRechecked]) -> None:
        open_before = self.ballots.disputes_resolved
        self.ballots.recheck(signed)
        self._note_turn(work, signed.author)
        if self.ballots.disputes_resolved > open_before:
            self._judged.set()
        self.lots.covered(work, signed.message)
        self._notify(work.id)

    def _count(self, work: Work, signed: Signed[VerdictIssued]) -> None:
        if not self.lots.is_of_its_window(work, signed.message):
            log.info("verdict.of_another_window", validator=signed.author, window=signed.message.window)
            return
        known = self.ballots.prompts_differ(work.id)
        disputes = self.ballots.add(signed)
        if not known and self.ballots.prompts_differ(work.id):
            self.prompts_differ += 1
            log.warning("validators.prompts_differ", node=work.node, work=work.id.hex()[:16])
        self._note_turn(work, signed.author)
        self._punish(self.lots.verdict(work, signed))
        if work.id in self._results.get(work.node, ()):
            self.look_at_results()
        self._notify(work.id)
        # One pair is enough: everybody who reads it looks again at the whole work.
        for dispute in disputes[:1]:
            self._judged.set()
            log.warning("validators.disagree", work=work.id.hex()[:16], what=dispute.finding.what)
            own = self._membership.own
            # Others see it by themselves as soon as they have both verdicts, and may not say it.
            if self._membership.is_trainer(own) or self._membership.may_validate(own):
                self._to_raise.append(dispute)

    async def _raise(self, dispute: Dispute) -> None:
        try:
            await self._board.post(DisputeRaised(pool=self._pool, first=dispute.first.raw, second=dispute.second.raw))
        except ProtocolError as error:  # two verdicts on a file of very many groups do not fit one message
            log.warning("dispute.not_raised", work=dispute.work.hex()[:16], why=error.why)

    def _on_dispute(self, signed: Signed[DisputeRaised]) -> None:
        try:
            first = self._board.opened(signed.message.first, VerdictIssued)
            second = self._board.opened(signed.message.second, VerdictIssued)
        except ProtocolError as error:  # the board checked it; a validator may have left since
            log.debug("dispute.refused", why=error.why)
            return
        id = work_id(first.message.verdict)
        self._when_known(signed.author, id, lambda work: self._heed(work, (first, second)))

    def _heed(self, work: Work, pair: tuple[Signed[VerdictIssued], Signed[VerdictIssued]]) -> None:
        if all(self.lots.is_of_its_window(work, one.message) for one in pair) and self.ballots.heed(pair):
            self._judged.set()
            self._notify(work.id)

    # lots

    def _on_reveal(self, signed: Signed[LotsRevealed]) -> None:
        self._punish(self.lots.reveal(signed))
        self.steps.revealed(signed)

    def _punish(self, broken: BrokenPromise | None) -> None:
        if broken is not None:
            self.ballots.quarantine(broken.validator, broken.why, broken.evidence)

    def _tell(self, one: Quarantined) -> None:
        """Somebody is not believed any more: remember it, and keep what shows it where newcomers find it."""
        log.warning("validator.quarantined", validator=one.validator, why=one.why)
        self._board.pin(one.evidence)
        self._judged.set()

    def _notify(self, id: WorkId) -> None:
        for channel in self._watchers:
            try:
                channel.send_nowait(id)
            except trio.WouldBlock:
                log.debug("jury.watcher_slow", work=id.hex()[:16])
