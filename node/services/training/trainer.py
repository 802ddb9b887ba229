"""The trainer: publish each policy, gather verified rollouts, hand the learner one batch per step. A step is put on
record when its policy is evaluated, which nobody waits for unless the evaluator falls far behind.

Which files may be used is the intake's to say, which groups make a batch node.recipe's; staleness is counted from
the policy that made the tokens. Publishing and batching are journaled, so a restart neither repeats nor loses anything.
"""

from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Self

import msgspec
import structlog
import trio

from node.metrics.journal import ends_of
from node.metrics.observer import Observer, open_observer
from node.recipe.batch_log import BatchLog, Entry
from node.recipe.docket import Docket
from node.recipe.lessons import Lessons
from node.recipe.pool import Group, Key, RolloutPool, Selection, group_id, key_of
from node.recipe.requirements import hopeless, reached_target, spent
from node.recipe.stats import describe
from node.services.base import Service
from node.services.chairing import Chairing, OnChain, Ready
from node.services.context import Context, Rate
from node.services.training.adopting import Adopting
from node.services.training.following import (
    Compared,
    compare,
    entry_of,
    object_to,
    remember_term,
    settled_by,
    stated_manifest,
    term_known,
)
from node.services.training.intake import Intake
from node.services.training.journeys import Journeys
from node.services.training.stating import make, make_batch, metrics_of, word_on
from node.services.training.values import OwnLook
from node.services.workplace import Workplace
from node.swarm.facts import PolicyFollowed, TermBegan, Undone, WorkId
from node.training import adoption
from node.training.batch import Batch, encode_batch
from node.training.client import EvaluatorProcess, TrainerProcess
from node.training.computed_by import arithmetic_in
from node.training.evaluations import Evaluations
from node.training.settings import read_settings
from node.training.spool import Spool
from node.weights.keeper import HeldPolicy
from node.weights.publish import Publisher
from protocol.earnings import most_files
from protocol.errors import IntellectError, ProtocolError
from protocol.manifest import FED, BatchManifest, ComposedBatch, decode_composed, encode_manifest

log = structlog.get_logger()
POLL = 0.05
# Steps that the learner may be ahead of what is published: batch K+1 is made while policy K is announced.
AHEAD = 1
FOLLOW_AGAIN = 1.0
"""Seconds before what could not be had of another trainer's step is asked for again."""
PATIENCE = 5
"""Times in a row after which a standby goes on from a checkpoint instead, if one is offered."""
FAR = 8
"""Steps that a standby would rather replay than skip."""
TAKES_BACK = 32
"""Policies that a standby may take back, which could not replay them. Who is further behind does not lead: its turn
would cost more than waiting for another trainer."""
HISTORY = 400
NO_POLICY = "no policy is made of such a batch, and others are waited for"


class StepMetrics(msgspec.Struct):
    """What the learner says of one step; further fields are ignored here and kept in the spool's file."""

    step: int
    eval_reward: float | None = None
    reward_mean: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    entropy: float | None = None


class Trainer(Service):
    """Drives one learner until the run's last step."""

    name = "training"

    def __init__(
        self,
        context: Context,
        learner: TrainerProcess,
        evaluator: EvaluatorProcess,
        spool: Spool,
        publisher: Publisher,
        observer: Observer,
        docket: Docket | None = None,
        look: OwnLook | None = None,
        chain: OnChain | None = None,
        lessons: Lessons | None = None,
    ) -> None:
        self._context = context
        self._term = 0
        self.compared = self.equal = 0
        self.apart: Compared | None = None
        self.differences: tuple[str, ...] = ()
        """In what the leader computes otherwise, in words: then its bits cannot be replayed here."""
        self._class_of: tuple[bytes, BatchManifest] | None = None
        self._in_vain = 0
        self._adopting = Adopting(context, spool, context.progress.trouble)
        self._learner = learner
        self._evaluator = evaluator
        self._spool = spool
        self._publisher = publisher
        self._observer = observer
        self._spec = context.run.spec
        self._batch_log = BatchLog(spool.root)
        self._evaluations = Evaluations(spool, self._spec)
        self._announced: dict[int, float] = {}
        self._pool = RolloutPool(self._spec)
        # `Offering` has this docket and these lessons, and was opened before: they hear only here whom they serve.
        self._docket = Docket(self._spec) if docket is None else docket  # an empty one is one, too
        self._docket.fresh, self._docket.taken_in = self._fresh, self._take_in
        self._lessons = Lessons(self._spec) if lessons is None else lessons
        self._lessons.fresh, self._lessons.taken_in = self._fresh, self._take_taught
        self._used: dict[int, set[bytes]] = {}
        self._tokens = self._lost = self._barren = 0
        self._journeys = Journeys(context.clock.monotonic)
        self._intake = Intake(
            context,
            fresh=self._fresh,
            taken_in=self._take_in,
            taken_back=self._take_back,
            to_judge=self._docket.put,
            journeys=self._journeys,
            asks=lambda: self.leads(self.step + 1),
            look=look,
            hopeless=self._give_up,
        )
        self.rate = Rate(30.0, context.clock.monotonic)
        self.step = -1
        self.done = False
        self.staleness: Counter[int] = Counter()
        self.ended_by: str | None = None
        self.metrics: deque[StepMetrics] = deque(maxlen=HISTORY)
        self._first_batch = 0
        self.began_at: float | None = None
        self.seconds = 0.0
        # Without a chain, as at a desk, nobody else leads.
        self.chair = Chairing(context, chain, self) if chain is not None else None

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        """Raises TrainingError if the spool is another run's, or for settings that are none or that no validator
        could audit, and ConfigError for sinks that are none."""
        context, config = place.context, place.config
        settings = read_settings(config.trainer)
        settings.check_auditable()
        spool = Spool(place.directory / "spool", settings.milestones)
        await trio.to_thread.run_sync(spool.prepare, context.run.encoded, context.run.assets)
        publisher = Publisher(
            place.member.stock.store,
            context.board,
            context.journal,
            context.run.root,
            context.pool,
            workshop=place.workshop,
            anchor_every=context.run.spec.weights.anchor_every,
            records=place.records,
            shelf=context.shelf,
        )
        observing = partial(open_observer, context.run.spec, place.directory, config.metrics_log)
        observer = await trio.to_thread.run_sync(observing)
        learner = TrainerProcess(spool, settings=settings, starter=place.starter)
        evaluator = EvaluatorProcess(spool, context.run.spec, settings, place.starter)
        look = OwnLook(context, place.engine, spool.policy_path, place.scratch)
        return cls(
            context, learner, evaluator, spool, publisher, observer, place.docket, look, place.chain, place.lessons
        )

    @property
    def queued(self) -> int:
        """Verified rollouts that wait for a batch."""
        return self._pool.rollouts

    @property
    def dropped(self) -> int:
        """Rollouts that were too old when their turn came, and files that could not be had or used."""
        return self._pool.stale_rollouts + self._intake.lost + self._lost

    @property
    def invalidated(self) -> int:
        """Files that trained a step and were rejected afterwards."""
        return self._intake.invalidated

    @property
    def reward(self) -> float | None:
        """Mean of the last evaluations."""
        found = ends_of([m.eval_reward for m in self.metrics if m.eval_reward is not None])
        return round(found.last, 4) if found.last is not None else None

    @property
    def latest(self) -> dict[str, Any]:
        """The newest step's record."""
        return self._observer.latest

    async def start(self, nursery: trio.Nursery) -> None:
        """The chair first: it is held as long as this node is there, also when the run is over."""
        if self.chair is not None:
            nursery.start_soon(self.chair.run)
        nursery.start_soon(self.run)

    async def run(self) -> None:
        """Until the run is over: one stint after the other, each without what another trainer's term took back."""
        try:
            going = True
            while going:
                await self._heed_terms()
                going = await self._stint()
        finally:
            self._observer.close()

    async def _stint(self) -> bool:
        """Whether there is another one to come."""
        journal = self._context.journal
        self._first_batch = self._spool.next_batch()
        self._context.progress.enter("engine", "the learner loads its libraries and the model")
        # Groups that were journaled for a batch which was never written are free again.
        freed = await journal.do(journal.forget_consumed, self._first_batch)
        consumed = await journal.do(journal.consumed, self._first_batch - self._spec.recipe.max_staleness)
        self._used = {}
        for name, step in consumed.items():
            self._used.setdefault(step, set()).add(name)
        self._intake.take_again({name[:-4] for name in freed})
        await trio.to_thread.run_sync(adoption.end, self._spool)
        await self._settle_adopted()
        await self._recall()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._learner.run)
            nursery.start_soon(self._evaluator.run)
            nursery.start_soon(self._intake.run)
            nursery.start_soon(self._feed)
            nursery.start_soon(self._watch_terms, nursery.cancel_scope)
            async with trio.open_nursery() as until_over:
                until_over.start_soon(self._publish)
                await self._put_on_record()
                # The records end the run, not the publisher: a target is reached only once its evaluation is in.
                until_over.cancel_scope.cancel()
            self._finish()
        return not self.done

    # terms

    def leads(self, step: int) -> bool:
        """Whether policy `step` is this trainer's to make and publish."""
        return self.chair is None or self.chair.leads(step)

    def _lost_from(self) -> int | None:
        """The first policy here that somebody else's later term decides, or that a term of this trainer decides anew,
        since its leader was convicted of it; None where there is none. Policy 0 follows from the start model, whoever
        says it."""
        own, terms = self._context.key.address, self._context.membership.terms
        first = terms.taken_back(own, self._term, self.apart.step if self.apart else -1)
        # Policies that no batch here has reached yet are not lost: there is nothing to take back.
        return max(first, 1) if first is not None and self._spool.next_batch() >= max(first, 1) else None

    async def _heed_terms(self) -> None:
        """Drop what this trainer made or replayed beyond the start of a term, as if it had never been."""
        self._term = await trio.to_thread.run_sync(term_known, self._spool)
        first = self._lost_from()
        if first is not None:
            log.warning("trainer.cut_back", step=first, term=self._context.membership.terms.now.number)
            who = "this" if self._context.membership.terms.now.holder == self._context.key.address else "another"
            text = f"{who} trainer leads: policies from {first} on that were made here before are dropped"
            self._context.progress.tell("chair", text)
            # Metrics go first (`Spool._beyond`): what a crash leaves behind is no complete step.
            await trio.to_thread.run_sync(self._spool.cut, first)
            if not self._spool.goes_on:  # what it had taken over lies beyond the cut
                await trio.to_thread.run_sync(self._spool.cut, 0)
            # Followers go by it; what was announced beyond is no policy any more.
            self.step = min(self.step, first - 1)
            if self.apart is not None and first <= self.apart.step:
                self.apart = None  # it is equal to the leader's up to there
            self._pool.forget_made_with(self._context.state.policies.is_orphan)
        await self._remember_term()

    async def _remember_term(self) -> None:
        self._term = self._context.membership.terms.now.number
        await trio.to_thread.run_sync(remember_term, self._spool, self._term)

    async def _watch_terms(self, stint: trio.CancelScope) -> None:
        """End the stint where a later term takes something back."""
        # Whichever term it is about: what counts is the one that stands by now.
        async for _ in self._context.facts.subscribe(TermBegan, Undone):
            if self.done or self._term == self._context.membership.terms.now.number:
                continue
            self._pool.forget_made_with(self._context.state.policies.is_orphan)
            if self._lost_from() is not None:
                stint.cancel()
            else:
                await self._remember_term()

    def ready(self) -> Ready | None:
        """What this trainer could lead from now: everything announced is replayed here, and came out equal. Who cannot
        replay it leads from the checkpoint that it has taken over, where that is not too far back. Who came to another
        state in the very step that a quorum found bad leads from the policy before."""
        if self.done or self.ended_by:
            return None
        if self.apart is not None:
            return self._ready_before(self.apart.step)
        newest = self._spool.newest_step()
        # In the middle of a step there is no whole state to lead from.
        if newest < 0 or self._spool.next_batch() != newest:
            return None
        policies, terms = self._context.state.policies, self._context.membership.terms
        behind = policies.newest_step - newest
        # Otherwise a standby that has just started would lead from policy 0 and undo the run.
        if policies.newest_step < 0 and terms.reached > 0:
            return None  # nothing was heard of the run yet
        if behind > TAKES_BACK or (behind > 0 and (not self._stuck or self._adopting.best(newest) is not None)):
            return None
        if policies.of_step(newest) is None:
            before = policies.of_step(newest - 1)
            return Ready(newest, before.message.policy_root if before else bytes(32)) if before or not newest else None
        announced = policies.of_step(newest)
        return Ready(newest + 1, announced.message.policy_root) if announced and self.step >= newest else None

    def _ready_before(self, step: int) -> Ready | None:
        """Where the holder of the term was convicted of this step: whatever it made after it does not count."""
        context = self._context
        said = context.jury.step_verdicts(context.domain, context.membership.terms.now.number).values()
        before = context.state.policies.of_step(step - 1)
        if before is None or not any(one.statement.step == step for one in said):
            return None
        return Ready(step, before.message.policy_root)

    def at(self) -> tuple[int, bytes]:
        announced = self._context.state.policies.of_step(self.step)
        return max(self.step, 0), announced.message.policy_root if announced else bytes(32)

    def _compared(self) -> dict[str, Any]:
        apart = f"step {self.apart.step}: {self.apart.differs}" if self.apart else ""
        taken, refused = (self._adopting.counts[name] for name in ("taken", "refused"))
        other = {"differences": list(self.differences), "checkpoints": taken, "checkpoints_refused": refused}
        return {"replayed": self.compared, "equal": self.equal, "apart": apart, **other}

    # policies out

    async def _publish(self) -> None:
        """Publish each completed step in order; the newest ones again after a restart."""
        # The newest are said again, since a crash may have come between writing and announcing one of them.
        first = max(0, self._spool.newest_step() - self._spec.recipe.max_staleness)
        # Their images may have made way for later policies, which a term has taken back.
        while self._spool.is_complete(first) and not self._spool.policy_path(first).exists():
            first += 1
        step = first - 1
        while step < self._spec.recipe.steps:
            step += 1
            while not self._spool.is_complete(step):
                await trio.sleep(POLL)
                step = max(step, self._spool.adopted()) if self._spool.was_skipped(step) else step
            if self._context.state.distrust:  # a second daemon with this key, or a copied state directory
                fork = self._context.state.policies.fork
                self.ended_by = f"this trainer is not believed any more: {fork.what if fork else ''}"
                return
            began = self._context.clock.monotonic()
            held = await self._bring_out(step)
            if self.apart is not None:
                return
            if held is None:
                continue
            self._announced[step] = self._context.clock.monotonic() - began
            self._journeys.published(step)
            self._context.shelf.put(held)
            await self._count_time()
            # Kept as long as a group of it may be trained on, and until the evaluator has scored it.
            self._spool.forget_policies(step - self._spec.recipe.max_staleness - 1, keep=self._evaluations.waiting())
            self.step = step
            self._tell_of_policy(step)

    async def _bring_out(self, step: int) -> HeldPolicy | None:
        """Publish a policy that is this trainer's; compare and hold one that is another's. None where the two are
        apart, and then this trainer follows no further until a term begins before that; and where a later state was
        taken over, of a policy that is not announced any more."""
        own, policies = self._context.key.address, self._context.state.policies
        taken = bool((await trio.to_thread.run_sync(metrics_of, self._spool, step)).get("adopted"))
        while taken or step >= self._spool.adopted():
            signed = policies.of_step(step)
            if signed is not None and (taken or signed.author != own) and self.chair is not None:
                return await self._compare(step, signed, taken=taken)
            if not taken and (signed is not None or self.leads(step)):
                word = await word_on(self._context, self._spool, step, self._context.membership.terms.of(step).number)
                return await self._publisher.publish(step, self._spool.policy_path(step), word)
            await trio.sleep(POLL)
        return None

    async def _compare(self, step: int, signed: PolicyFollowed, *, taken: bool = False) -> HeldPolicy | None:
        """taken: over from a checkpoint, which counts for no replay."""
        found = await compare(self._spool, signed)
        self.compared += not taken
        if found.differs:
            # For good: a state that differs by one bit differs in every later step, too.
            self.apart = found
            text = f"replaying step {step} gave another {found.differs} than {signed.author} stated"
            self._context.progress.trouble(f"{text}: it follows no further")
            if not taken and step > 0:
                await object_to(self._context, signed.message)
            return None
        self.equal += not taken
        return await self._publisher.hold(step, self._spool.policy_path(step), signed.raw)

    async def _put_on_record(self) -> None:
        """Each published step in order, once its evaluation is there, until the run ends by what the records say."""
        recorded = self._observer.newest
        await self._until(lambda: self.step >= recorded)
        self.ended_by = self.ended_by or self._reason_to_end()
        for step in range(recorded + 1, self._spec.recipe.steps + 1):
            await self._until(lambda step=step: self._recordable(step))
            if self.ended_by:
                return
            if not self._spool.is_complete(step):
                continue
            self.metrics.append(await trio.to_thread.run_sync(self._observe, step))  # nobody reads it at this moment
            # `_give_up` may have ended the run meanwhile, and its reason stays
            self.ended_by = self.ended_by or self._reason_to_end()
            if self.ended_by:
                log.info("run.ended_early", step=step, why=self.ended_by)

    def _recordable(self, step: int) -> bool:
        skipped = self._spool.was_skipped(step)
        return skipped or (self.step >= step and self._evaluations.complete(step))

    async def _until(self, true: Callable[[], bool]) -> None:
        """Or until the run ends."""
        while not (self.ended_by or true()):  # noqa: ASYNC110 - other processes write the spool
            await trio.sleep(POLL)

    def _finish(self) -> None:
        self.done = True
        self._learner.finish()
        self._evaluator.finish()
        self._context.progress.tell("over", f"the run is over at step {self.step}: {self.ended_by or 'its last step'}")
        log.info("run.finished", step=self.step, seconds=round(self.seconds, 1))

    def _tell_of_policy(self, step: int) -> None:
        """The first policy shows that the learner is ready; the first from a batch of this daemon, that it learns."""
        progress = self._context.progress
        if progress.name == "engine":
            progress.tell("engine", "the learner is ready")
            progress.enter("first-contribution", self.doing)
        tell = progress.contributed if step > self._first_batch else progress.tell
        tell("policy", f"policy {step} is {'published' if self.leads(step) else 'replayed, equal to the leader'}")

    def doing(self) -> str:
        """What this trainer does now, in words."""
        if self.done:
            return f"the run is over: {self.ended_by or 'its last step is done'}"
        if not self.leads(self.step + 1):
            if self.differences:
                return f"stands by with the leader's checkpoint of step {self.step}: it computes otherwise"
            return f"stands by: {self.equal} of {self.compared} replayed steps are equal to the leader's"
        barren = f"; {self._pool.barren} batches had no signal" if self._pool.barren else ""
        return f"policy {self.step} is published; {self.queued} verified rollouts wait for the next batch{barren}"

    async def _recall(self) -> None:
        """After a restart: the curve so far, when training began, and what was counted."""
        journal = self._context.journal
        began = await journal.do(journal.recall, "training_began")
        self.began_at = float(began) if began else None
        last = self._observer.newest
        for step in range(max(0, last + 1 - HISTORY), last + 1):
            if self._spool.is_complete(step):  # it may have been skipped, or taken back by another trainer's term
                record = await trio.to_thread.run_sync(self._spool.record, step)
                self.metrics.append(msgspec.convert(record, StepMetrics))
        done = self._spool.next_batch()
        self._tokens = await trio.to_thread.run_sync(self._batch_log.tokens, done)
        self.staleness = await trio.to_thread.run_sync(self._batch_log.staleness, done)
        entry = await trio.to_thread.run_sync(self._batch_log.read, done - 1) if done else None
        self._pool.recall(int(entry.metrics.get("stale_rollouts", 0)) if entry else 0)

    async def _count_time(self) -> None:
        """Training time runs from the first policy, through restarts."""
        now = self._context.clock.wall()
        if self.began_at is None:
            self.began_at = now
            journal = self._context.journal
            await journal.do(journal.remember, "training_began", repr(now).encode())
        self.seconds = now - self.began_at

    def _observe(self, step: int) -> StepMetrics:
        """Put the step on record, with what its batch was made of, and the seconds from image to announcement."""
        learner = self._spool.record(step)
        entry = self._batch_log.read(step - 1) if step > 0 else None
        done = max(self.seconds - self._spool.age(step), float(self._observer.latest.get("elapsed") or 0.0))
        told = {**(entry.metrics if entry else {}), "elapsed": round(done, 3)}
        announced = self._announced.pop(step, None)
        self._observer.observe(learner, told, {} if announced is None else {"announce": announced})
        return msgspec.convert(learner, StepMetrics)

    def _reason_to_end(self) -> str | None:
        """Why the run ends here, before its last step; None if it goes on."""
        target = self._spec.recipe.target_reward
        if reached_target(self._spec, [m.eval_reward for m in self.metrics if m.eval_reward is not None]):
            return f"the goal is reached: recipe.target_reward = {target:g}"
        if self._spec.alarms.stop and self._observer.alarms:
            return f"an alarm rings: {self._observer.alarms[0].text}"
        return spent(self._spec, self.seconds, self._tokens)

    def _give_up(self, why: str) -> None:
        """Nothing is trained on any more: there is nobody whose values can be believed."""
        log.error("run.stopped", why=why)
        self.ended_by = self.ended_by or why

    # verdicts in

    def _take_in(self, groups: list[Group]) -> None:
        """Accepted groups: into the pool, or to the teacher first."""
        # After a restart the intake takes in files again whose groups have trained a step.
        unused = [group for group in groups if not self._is_used(_key_name(group.key))]
        (self._lessons.put if self._lessons.wanted else self._gather)(unused)

    def _take_taught(self, groups: list[Group]) -> None:
        """As the intake does, since a term may have taken their policy back meanwhile."""
        orphan = self._context.state.policies.is_orphan
        self._gather([one for one in groups if one.origin and not orphan(one.origin.commitment.policy_root)])

    def _gather(self, groups: list[Group]) -> None:
        self._pool.add(group for group in groups if not self._is_used(_key_name(group.key)))
        self.rate.add(sum(sample.length for group in groups for sample in group.samples))

    def _is_used(self, name: bytes) -> bool:
        return any(name in names for names in self._used.values())

    def _use(self, names: list[bytes], step: int) -> None:
        """Remember what trained `step`, for as long as it is fresh enough to be taken for a later one."""
        self._used[step] = set(names)
        # names of all steps would be GBs in a long run; a group that is staler leaves the pool whatever its name
        for old in [at for at in self._used if at < step - self._spec.recipe.max_staleness]:
            del self._used[old]

    def _take_back(self, work: WorkId) -> None:
        self._pool.forget(work)
        self._docket.forget(work)
        self._lessons.forget(work)

    # batches in

    async def _feed(self) -> None:
        """Hand the learner batch N as soon as it has policy N (or is about to), from fresh files, oldest first."""
        while not (self.done or self.ended_by):
            step = self._spool.next_batch()
            if step >= self._spec.recipe.steps:
                return
            if not self.leads(step + 1):
                if self.apart is None and await self._stand_by(step):
                    continue
            # At most AHEAD of what is published: a batch made sooner would miss the rollouts of the newest policies.
            elif self.apart is None and step <= self.step + AHEAD and not self._evaluations.behind:
                full = self._pool.missing(step) == 0
                # From manifests on disk, which are read only once there is a batch to order.
                fed = await trio.to_thread.run_sync(self._fed, step) if full else None
                selection = self._pool.take(step, fed)
                if selection is not None:
                    await self._hand_over(selection)
                    continue
                await self._heed_barren(step)
            await trio.sleep(POLL)

    async def _heed_barren(self, step: int) -> None:
        """Say that whole batches had no signal, so that no policy is made of them, and end a run that goes on so."""
        barren = self._pool.barren
        if barren == self._barren:
            return
        self._barren = barren
        if not barren:
            return
        log.warning("batch.barren", step=step, batches=barren)
        self._context.progress.trouble(f"step {step}: all answers to each problem got the same reward: {NO_POLICY}")
        self._observer.wait(step, barren)
        await self._count_time()
        one_worker = most_files(self._spec) // self._spec.files_per_policy
        if why := hopeless(self._spec, step, barren, one_worker) or self._reason_to_end():
            self._give_up(why)

    @property
    def _stuck(self) -> bool:
        """Whether nothing leads on from here but a checkpoint."""
        return bool(self.differences) or self._in_vain >= PATIENCE

    async def _stand_by(self, step: int) -> bool:
        """Replay another trainer's step, or go on from a checkpoint where that is too far behind, cannot be had, or
        would give other bits; False where there is nothing to do now."""
        newest, policies = self._spool.newest_step(), self._context.state.policies
        offer = self._adopting.best(newest)
        lost = policies.of_step(step + 1) is None and policies.newest_step > step
        if newest >= 0 and offer and (self._stuck or lost or offer.message.step - newest > FAR):
            if await self._adopting.adopt(offer):
                self._in_vain = 0
                await self._settle_adopted()
                return True
            await trio.sleep(FOLLOW_AGAIN)
            return False
        return newest >= 0 and await self._follow(step)

    async def _settle_adopted(self) -> None:
        """The groups that the state which was taken over has learnt from are used up here, too."""
        consumed = await trio.to_thread.run_sync(self._spool.consumed_by, self._spool.adopted())
        by_step: dict[int, list[Key]] = {}
        for name, step in sorted(consumed.items(), key=lambda one: one[1]):
            if (key := key_of(name)) is not None and not self._is_used(_key_name(key)):
                by_step.setdefault(step, []).append(key)
        for step, keys in by_step.items():
            self._pool.settle(keys)
            await self._settle([_key_name(key) for key in keys], step)

    async def _manifest(self, signed: PolicyFollowed) -> BatchManifest:
        """Raises IntellectError. Notes in what the leader computes otherwise."""
        root = signed.message.batch_root
        if self._class_of is None or self._class_of[0] != root:
            manifest = await stated_manifest(self._context, signed)
            own = await trio.to_thread.run_sync(metrics_of, self._spool, self._spool.newest_step())
            differences = tuple(arithmetic_in(own).differences(manifest.arithmetic))
            if differences and not self.differences:
                text = (
                    f"the leader computes otherwise ({'; '.join(differences)}): its checkpoints are taken over instead"
                )
                self._context.progress.tell("chair", text)
            self.differences = differences
            self._class_of = root, manifest
        return self._class_of[1]

    async def _follow(self, step: int) -> bool:
        """Hand the learner what another trainer composed; False where that is not announced, or cannot be had now, or
        gives other bits here."""
        signed = self._context.state.policies.of_step(step + 1)
        if signed is None:
            return False
        try:
            manifest = await self._manifest(signed)
            if self.differences:
                return False
            composed, batch = manifest.batch, await make(self._context, manifest.batch, (signed.author,))
        except IntellectError as error:
            self._in_vain += 1
            log.warning("step.not_followed", step=step, why=error.why)
            self._context.progress.trouble(f"step {step} cannot be replayed yet: {error.why}")
            if self._in_vain == PATIENCE and isinstance(error, ProtocolError):  # by what was signed, not for want of it
                await object_to(self._context, signed.message)
            await trio.sleep(FOLLOW_AGAIN)
            return False
        self._in_vain = 0
        keys = settled_by(self._spec.rollout.prompts_per_file, self._context.pool, composed)
        # What the leader used is used here too, or this trainer would train on it again as soon as it leads.
        self._pool.settle(keys)
        for work in composed.works:
            if work.judged:
                self._docket.forget(work.name(self._context.pool))
                self._lessons.forget(work.name(self._context.pool))
        await self._settle([_key_name(key) for key in keys], step)
        entry = entry_of(composed, batch)
        await trio.to_thread.run_sync(self._write, entry, composed, batch)
        self._tokens += entry.metrics["output_tokens"]
        return True

    def _fed(self, step: int) -> set[bytes]:
        """Workers of whom the last batches before this one named a work."""
        found = set[bytes]()
        for at in range(max(step - FED, 0), step):
            with suppress(OSError, IntellectError):  # of a checkpoint that was taken over
                composed = decode_composed(self._spool.works_path(at).read_bytes())
                found.update(work.node for work in composed.works)
        return found

    async def _settle(self, names: list[bytes], step: int) -> None:
        await self._context.journal.do(self._context.journal.consume, names, step)
        self._use(names, step)

    def _fresh(self, policy_step: int) -> bool:
        return self._spool.next_batch() - policy_step <= self._spec.recipe.max_staleness

    async def _hand_over(self, selection: Selection) -> None:
        """Journal what is used up, then the batch log, then the batch: a crash in between frees the groups again. What
        cannot be made again from its names is not learnt from."""
        step = selection.step
        try:
            composed, batch = await make_batch(self._context, selection)
        except IntellectError as error:
            log.error("batch.not_made", step=step, why=error.why)
            self._lost += sum(len(group.rows) for group in selection.settled)
            return
        await self._settle([_key_name(group.key) for group in selection.settled], step)
        stats = describe(selection, waiting=self._pool.rollouts, stale=self._pool.stale_rollouts)
        stats["file_seconds"] = self._journeys.means(selection.groups)
        entry = Entry(step, stats, [group_id(group) for group in selection.groups])
        await trio.to_thread.run_sync(self._write, entry, composed, batch)
        self._tokens += stats["output_tokens"]
        for age, count in stats["staleness"].items():
            self.staleness[int(age)] += count
        log.info("batch.written", step=step, groups=len(selection.groups), flat=stats["groups_flat"])

    def _write(self, entry: Entry, composed: ComposedBatch, batch: Batch) -> None:
        # The batch last: the learner starts on it at once, and log and manifest must be there by then.
        self._batch_log.write(entry)
        self._spool.write_works(entry.step, encode_manifest(composed))
        self._spool.write_batch(entry.step, encode_batch(batch))

    # as a service

    def status(self) -> dict[str, Any]:
        last = self.metrics[-1] if self.metrics else None
        staleness = {str(age): self.staleness[age] for age in sorted(self.staleness)}
        training = {
            "step": self.step,
            "reward_eval": [[m.step, m.eval_reward] for m in self.metrics if m.eval_reward is not None],
            "reward_train": [[m.step, m.reward_mean] for m in self.metrics if m.reward_mean is not None],
            "staleness": {**staleness, "dropped": self.dropped},
            "queued_rollouts": self.queued,
            "seconds_per_step": round(self.seconds / self.step, 3) if self.step > 0 else None,
            "tokens_per_second": round(self.rate.per_second, 1),
            "loss": last.loss if last else None,
            "grad_norm": last.grad_norm if last else None,
            "entropy": last.entropy if last else None,
            "alarms": [msgspec.to_builtins(alarm) for alarm in self._observer.alarms],
            "latest": self.latest,
            "ended_by": self.ended_by,
            "done": self.done,
            "seconds": round(self.seconds, 2),
            "invalidated_files": self.invalidated,
            "values": self._intake.values.status(),
            "judging": {"files": len(self._docket), **self._docket.counts},
            "teaching": {"files": len(self._lessons), **self._lessons.counts},
        }
        children = [
            {"name": one.name, "pid": one.pid, "restarts": one.restarts} for one in (self._learner, self._evaluator)
        ]
        run = {"over": self.done, "final_reward": self.reward if self.done else None, "reward": self.reward}
        chair = self.chair.status() if self.chair is not None else {}
        chair = {name: part | self._compared() for name, part in chair.items()}
        return {"run": run, "training": training, "processes": children, **chair}

    def beat(self) -> dict[str, Any]:
        rate = round(self.rate.per_second, 1)
        beat = {"rate": rate, "engine": self._learner.engine_name, "finished": self.done}
        return beat | {"reward": self.reward}


def _key_name(key: Key) -> bytes:
    """What the journal calls a group: its work's id (at a desk its file's root) and its number."""
    root, number = key
    return root + number.to_bytes(4, "big")
