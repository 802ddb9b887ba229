"""The trainer: verified rollouts in, one batch per step to the learner, one policy per step out.

One run is one stint after the other: a stint lasts until the run is over, or until another trainer's term takes back
what was made here. Each of its stories stands by itself: files in (ingest), groups (groups), batches in (feeding, or
standing_by where another one leads), policies out (publishing), what is on record (record), whose turn it is (leading).
"""

from functools import partial
from typing import Any, Self

import trio

from node.metrics.observer import Observer, open_observer
from node.services.base import Service
from node.services.context import Context
from node.services.leader_lease import OnChain
from node.services.training.feeding import Feeding
from node.services.training.groups import Groups
from node.services.training.ingest import Ingest
from node.services.training.leading import Leading, Shared
from node.services.training.publishing import PolicyPublisher
from node.services.training.record import Record
from node.services.training.stage_timings import StageTimings
from node.services.training.standing_by import StandingBy
from node.services.training.values import OwnLook
from node.services.workplace import Workplace
from node.status_schema import ProcessPart
from node.swarm.facts import PolicyFollowed, Undone
from node.training import adoption
from node.training.client import EvaluatorProcess, TrainerProcess
from node.training.evaluations import Evaluations
from node.training.settings import read_settings
from node.training.spool import Spool
from node.training.watch import SpoolWatch
from node.weights.publish import Publisher
from protocol.messages import CheckpointOffered, StepVerdict


class TrainerService(Service):
    """Drives one learner until the run's last step. groups, watch: of this spool; chain: None at a desk."""

    name = "trainer"

    def __init__(
        self,
        context: Context,
        learner: TrainerProcess,
        evaluator: EvaluatorProcess,
        spool: Spool,
        watch: SpoolWatch,
        groups: Groups,
        publisher: Publisher,
        observer: Observer,
        look: OwnLook | None = None,
        chain: OnChain | None = None,
        plan: str = "",
    ) -> None:
        """plan: in words."""
        self._plan = plan
        self._context, self._spool, self._watch, self._observer = context, spool, watch, observer
        self._learner, self._evaluator = learner, evaluator
        self.groups = groups
        evaluations, timings = Evaluations(spool, context.run.spec), StageTimings(context.clock.monotonic)
        self.record = Record(context, spool, watch, evaluations, observer)
        self.others = StandingBy(context, spool, watch, groups, self.record)
        self.leading = Leading(context, spool, groups, self.record, self.others, chain)
        shared = Shared(context, spool, watch, self.record, evaluations, timings, self.others, self.leading)
        self._feeding, self._publishing = Feeding(shared, groups), PolicyPublisher(shared, publisher)
        self.ingest = Ingest(
            context,
            fresh=groups.fresh,
            taken_in=groups.take_in,
            taken_back=groups.forget,
            to_judge=groups.label_queue.put,
            timings=timings,
            asks=self.leading.leads_next,
            look=look,
            hopeless=self.record.give_up,
        )
        # The chain may give a lease back that had run out here; who waits for its turn looks again.
        context.membership.terms.follow(watch.tell)

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        """Raises TrainingError if the spool is another run's, or for settings that are none or that no validator
        could audit, and ConfigError for sinks that are none."""
        context, config, spool = place.context, place.config, place.spool
        read_settings(config.trainer).check_auditable()
        plan = await trio.to_thread.run_sync(lambda: place.plan)
        await trio.to_thread.run_sync(spool.prepare, context.run.encoded, context.run.assets)
        publisher = Publisher(
            place.store,
            context.board,
            context.journal,
            context.run.root,
            context.pool,
            workshop=place.workshop,
            snapshot_every=context.run.spec.weights.snapshot_every,
            records=place.records,
            policy_cache=context.policy_cache,
        )
        observing = partial(open_observer, context.run.spec, place.directory, config.metrics_log, spool.answers_path)
        observer = await trio.to_thread.run_sync(observing)
        learner = TrainerProcess(spool, plan.settings, place.starter, plan.learners)
        evaluator = EvaluatorProcess(spool, context.run.spec, plan.settings, place.starter, plan.evaluators)
        look = OwnLook(context, place.engine, spool.policy_path, place.scratch)
        shared = spool, place.watch, place.groups
        return cls(context, learner, evaluator, *shared, publisher, observer, look, place.chain, plan.line)

    async def start(self, nursery: trio.Nursery) -> None:
        """The chair first: it is held as long as this node is there, also when the run is over."""
        if self.leading.chair is not None:
            nursery.start_soon(self.leading.chair.run)
        nursery.start_soon(self.run)

    async def run(self) -> None:
        """Until the run is over: one stint after the other, each without what another trainer's term took back."""
        try:
            await self.leading.returning.tick()
            while not self.record.done:
                await self.leading.handle()
                await self._stint()
        finally:
            self._observer.close()

    async def _stint(self) -> None:
        first_batch = self._spool.next_batch()
        self._context.progress.enter("engine", "the learner loads its libraries and the model")
        self.ingest.take_again(await self.groups.recall())
        await trio.to_thread.run_sync(adoption.end, self._spool)
        await self.others.settle_adopted()
        self.groups.ready.recall(await self.record.recall())
        async with trio.open_nursery() as nursery:
            for story in (self._watch.run, self._learner.run, self._evaluator.run, self.ingest.run, self._feeding.run):
                nursery.start_soon(story)
            # What others say of policies is waited for together with what the learner writes.
            told = PolicyFollowed, CheckpointOffered, StepVerdict, Undone
            nursery.start_soon(self._context.handle, self._watch.tell, *told)
            nursery.start_soon(self._until_lost, nursery.cancel_scope)
            nursery.start_soon(self.leading.returning.run, self.leading.nothing_leads_on)
            async with trio.open_nursery() as until_over:
                until_over.start_soon(self._publishing.run, first_batch)
                await self.record.run()
                # The records end the run, not the publisher: a target is reached only once its evaluation is in.
                until_over.cancel_scope.cancel()
            self.record.finish()
            self._learner.finish()
            self._evaluator.finish()

    async def _until_lost(self, stint: trio.CancelScope) -> None:
        await self.leading.until_lost()
        stint.cancel()

    # as a service

    def activity(self) -> str:
        """What this trainer does now, in words."""
        if self.record.done:
            return f"the run is over: {self.record.ended_by or 'its last step is done'}"
        if not self.leading.leads_next():
            return self.others.activity()
        ready = self.groups.ready
        barren = f"; {ready.barren} batches had no signal" if ready.barren else ""
        waiting = f"{ready.rollouts} verified rollouts wait for the next batch{barren}"
        return f"policy {self.record.step} is published; {waiting}"

    def status(self) -> dict[str, Any]:
        record, told = self.record, self.record.status()
        # Rollouts that were too old when their turn came, and files that could not be had or used.
        dropped = self.groups.ready.stale_rollouts + self.ingest.lost + self._feeding.lost
        told["staleness"] |= {"dropped": dropped}
        run = {"over": record.done, "final_reward": record.reward if record.done else None, "reward": record.reward}
        processes = [ProcessPart(one.name, one.pid, one.restarts) for one in (self._learner, self._evaluator)]
        chair = self.leading.chair.status() if self.leading.chair is not None else {}
        chair = {name: part | self.others.status() for name, part in chair.items()}
        learner = {"plan": self._plan, "memory": self._learner.memory}
        training = {**told, **self.groups.status(), **self.ingest.status(), **learner}
        return {"run": run, "training": training, "processes": processes, **chair}

    def beat(self) -> dict[str, Any]:
        rate = round(self.groups.rate.per_second, 1)
        told = {"rate": rate, "engine": self._learner.engine_name, "finished": self.record.done}
        return told | {"reward": self.record.reward}
