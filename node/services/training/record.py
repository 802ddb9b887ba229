"""How far a trainer is, what is on record of it, and why its run ends.

A step counts as published first. It comes on record once its evaluation is there, which nobody waits for unless the
evaluator falls far behind. What the records say ends the run: a target is reached only when its evaluation is in.
"""

from collections import Counter, deque
from typing import Any

import msgspec
import structlog
import trio

from node.metrics.journal import ends_of
from node.metrics.observer import Observer
from node.recipe.batch_log import BatchEntry, BatchLog
from node.recipe.requirements import hopeless, reached_target, spent
from node.services.context import Context
from node.state.kept import cached
from node.training.batch import Batch, encode_batch
from node.training.evaluations import Evaluations
from node.training.spool import Spool
from node.training.watch import SpoolWatch
from protocol.earnings import most_files
from protocol.manifest import ComposedBatch, encode_manifest

log = structlog.get_logger()
NO_POLICY = "no policy is made of such a batch, and others are waited for"


class StepMetrics(msgspec.Struct):
    """What the learner says of one step; further fields are ignored here and kept in the spool's file."""

    step: int
    eval_reward: float | None = None
    reward_mean: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    entropy: float | None = None


class Record:
    """Of one trainer. step: its newest policy that is published, or replayed as another published it; done: whether
    the run is over; ended_by: why, where that is not its last step."""

    def __init__(
        self,
        context: Context,
        spool: Spool,
        watch: SpoolWatch,
        evaluations: Evaluations,
        observer: Observer,
    ) -> None:
        self._context, self._spool, self._watch = context, spool, watch
        self._evaluations, self._observer = evaluations, observer
        self._spec = context.run.spec
        self._batch_log = BatchLog(spool.root)
        self.step = -1
        self.done = False
        self.ended_by: str | None = None
        self._history = 400  # steps whose figures are told
        self.metrics: deque[StepMetrics] = deque(maxlen=self._history)
        self.staleness: Counter[int] = Counter()
        self._announced: dict[int, float] = {}
        self._began_at: float | None = None
        self._seconds = 0.0
        self._tokens = self._barren = 0

    @property
    def reward(self) -> float | None:
        """Mean of the last evaluations."""
        found = ends_of([m.eval_reward for m in self.metrics if m.eval_reward is not None])
        return round(found.last, 4) if found.last is not None else None

    @property
    def latest(self) -> dict[str, Any]:
        """The newest step's record."""
        return self._observer.latest

    @property
    def ends(self) -> bool:
        """Whether nothing more is learnt."""
        return self.done or self.ended_by is not None

    async def recall(self) -> int:
        """After a restart: the curve so far, when training began, and what was counted; how many rollouts had gone
        stale."""
        journal = self._context.journal
        began = await journal.do(journal.recall, "training_began")
        self._began_at = cached("the journal's training_began", lambda: float(began)) if began else None
        last = self._observer.newest
        for step in range(max(0, last + 1 - self._history), last + 1):
            if self._spool.is_complete(step):  # it may have been skipped, or taken back by another trainer's term
                record = await trio.to_thread.run_sync(self._spool.record, step)
                self.metrics.append(msgspec.convert(record, StepMetrics))
        done = self._spool.next_batch()
        self._tokens = await trio.to_thread.run_sync(self._batch_log.tokens, done)
        self.staleness = await trio.to_thread.run_sync(self._batch_log.staleness, done)
        entry = await trio.to_thread.run_sync(self._batch_log.read, done - 1) if done else None
        return int(entry.metrics.get("stale_rollouts", 0)) if entry else 0

    # what happens

    async def batch(self, entry: BatchEntry, composed: ComposedBatch, batch: Batch) -> None:
        """Give the learner a batch."""
        await trio.to_thread.run_sync(self._write, entry, composed, batch)
        self._tokens += entry.metrics["output_tokens"]
        for age, count in entry.metrics["staleness"].items():
            self.staleness[int(age)] += count

    def _write(self, entry: BatchEntry, composed: ComposedBatch, batch: Batch) -> None:
        # The batch last: the learner starts on it at once, and log and manifest must be there by then.
        self._batch_log.write(entry)
        self._spool.write_works(entry.step, encode_manifest(composed))
        self._spool.write_batch(entry.step, encode_batch(batch))

    async def barren(self, step: int, batches: int) -> None:
        """So many whole batches in a row had no signal by now: no policy is made of them, and a run that goes on so
        ends."""
        before, self._barren = self._barren, batches
        if batches in (0, before):
            return
        log.warning("batch.barren", step=step, batches=batches)
        self._context.progress.trouble(f"step {step}: all answers to each problem got the same reward: {NO_POLICY}")
        self._observer.wait(step, batches)
        await self._count_time()
        one_worker = most_files(self._spec) // self._spec.files_per_policy
        if why := hopeless(self._spec, step, batches, one_worker) or self._reason_to_end():
            self.give_up(why)

    async def published(self, step: int, seconds: float) -> None:
        """seconds: from the image to the announcement."""
        self._announced[step] = seconds
        await self._count_time()
        self.step = step
        self._watch.tell()

    def cut_back(self, first: int) -> None:
        """Policies from `first` on are none any more."""
        self.step = min(self.step, first - 1)

    def give_up(self, why: str) -> None:
        """Nothing is trained on any more."""
        log.error("run.stopped", why=why)
        self.ended_by = self.ended_by or why
        self._watch.tell()

    def finish(self) -> None:
        self.done = True
        self._context.progress.tell("over", f"the run is over at step {self.step}: {self.ended_by or 'its last step'}")
        log.info("run.finished", step=self.step, seconds=round(self._seconds, 1))

    # on record

    async def run(self) -> None:
        """Put each published step on record in order, until the run ends by what the records say."""
        recorded = self._observer.newest
        await self._watch.until(lambda: self.ended_by is not None or self.step >= recorded)
        self.ended_by = self.ended_by or self._reason_to_end()
        for step in range(recorded + 1, self._spec.recipe.steps + 1):
            # The disk is asked only about what was published, or passed over by it.
            await self._watch.until(lambda step=step: self.ended_by is not None or self.step >= step)
            await self._watch.until_there(lambda step=step: self._is_over(step), lambda: self.ended_by is not None)
            if self.ended_by:
                return
            if not self._spool.is_complete(step):
                continue
            self.metrics.append(await trio.to_thread.run_sync(self._observe, step))  # nobody reads it at this moment
            # `give_up` may have ended the run meanwhile, and its reason stays
            self.ended_by = self.ended_by or self._reason_to_end()
            if self.ended_by:
                log.info("run.ended_early", step=step, why=self.ended_by)

    def _is_over(self, step: int) -> bool:
        """Whether nothing more comes of a step."""
        return self._spool.was_skipped(step) or self._evaluations.complete(step)

    async def _count_time(self) -> None:
        """Training time runs from the first policy, through restarts."""
        now = self._context.clock.wall()
        if self._began_at is None:
            self._began_at = now
            journal = self._context.journal
            await journal.do(journal.remember, "training_began", repr(now).encode())
        self._seconds = now - self._began_at

    def _observe(self, step: int) -> StepMetrics:
        """Put the step on record, with what its batch was made of, and the seconds from image to announcement."""
        learner = self._spool.record(step)
        entry = self._batch_log.read(step - 1) if step > 0 else None
        done = max(self._seconds - self._spool.age(step), float(self._observer.latest.get("elapsed") or 0.0))
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
        return spent(self._spec, self._seconds, self._tokens)

    # what is told

    def status(self) -> dict[str, Any]:
        """Of training."""
        last = self.metrics[-1] if self.metrics else None
        return {
            "step": self.step,
            "reward_eval": [[m.step, m.eval_reward] for m in self.metrics if m.eval_reward is not None],
            "reward_train": [[m.step, m.reward_mean] for m in self.metrics if m.reward_mean is not None],
            "staleness": {str(age): self.staleness[age] for age in sorted(self.staleness)},
            "seconds_per_step": round(self._seconds / self.step, 3) if self.step > 0 else None,
            "loss": last.loss if last else None,
            "grad_norm": last.grad_norm if last else None,
            "entropy": last.entropy if last else None,
            "alarms": [msgspec.to_builtins(alarm) for alarm in self._observer.alarms],
            "latest": self.latest,
            "ended_by": self.ended_by,
            "done": self.done,
            "seconds": round(self._seconds, 2),
        }
