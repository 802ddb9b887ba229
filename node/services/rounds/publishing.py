"""The owner's eyes on a run with rounds: each outer state evaluated, its image written, its figures on record.

Rounds do not need it: they go on while it is away, and it takes up the newest one when it is back.
"""

from functools import partial
from typing import Any, Self

import msgspec
import structlog
import trio

from node.metrics.journal import ends_of
from node.metrics.observer import Observer, open_observer
from node.services.base import Service
from node.services.context import Context
from node.services.rounds.applying import Rounds
from node.services.workplace import Workplace
from node.training.client import EvaluatorProcess, SpoolProcess
from node.training.evaluations import Evaluations
from node.training.jobs import Publish
from node.training.spool import Spool
from node.training.watch import SpoolWatch
from protocol.errors import IntellectError

log = structlog.get_logger()


class StatePublisher(Service):
    """One, at the run's owner."""

    name = "state-publisher"

    def __init__(
        self,
        context: Context,
        rounds: Rounds,
        spool: Spool,
        watch: SpoolWatch,
        observer: Observer,
        evaluator: SpoolProcess | None = None,
    ) -> None:
        """evaluator: of a run with rollouts."""
        self._context, self._rounds, self._spool, self._observer = context, rounds, spool, observer
        self._watch = watch
        self._evaluator, self._evaluations = evaluator, Evaluations(spool, context.run.spec)
        self._began = context.clock.monotonic()
        self._rewards: list[tuple[int, float]] = []
        self.done = False

    @classmethod
    async def open(cls, place: Workplace) -> Self | None:
        context, spool = place.context, place.rounds.spool
        if context.membership.trainer != context.key.address:
            return None
        observing = partial(open_observer, context.run.spec, place.directory, place.config.metrics_log)
        evaluator = None
        if context.run.spec.replicas:
            plan = await trio.to_thread.run_sync(lambda: place.plan)
            evaluator = EvaluatorProcess(spool, context.run.spec, plan.settings, place.starter, plan.evaluators)
        return cls(context, place.rounds, spool, place.watch, await trio.to_thread.run_sync(observing), evaluator)

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                if self._evaluator is not None:
                    nursery.start_soon(self._evaluator.run)
                while self._observer.newest < self._rounds.last:
                    outer = await self._rounds.newer_than(self._observer.newest)
                    await self._publish(outer.round)
                self.done = True
                nursery.cancel_scope.cancel()
        finally:
            self._observer.close()

    async def _publish(self, round_: int) -> None:
        before = self._rounds.figures.get(round_ - 1)
        figures = msgspec.to_builtins(before) if before else {}
        told = {"bits_per_parameter": figures.pop("bits", None), **figures}
        metrics = {
            name: value for name, value in told.items() if value is not None and name not in ("round", "batches")
        }
        if self._evaluator is not None:
            metrics |= {"rollouts": metrics.pop("tokens", 0)}
            self._spool.remember_adopted(round_)  # the evaluator waits for none that was passed over
        try:
            await self._rounds.jobs.ask(f"publish-{round_:06d}", Publish(round_, metrics))
        except IntellectError as error:
            log.warning("round.not_published", round=round_, why=error.why)
            self._context.progress.trouble(f"round {round_} is not evaluated: {error.what}: {error.why}")
            # Not tried again at once: the learner failed, and rounds go on without a record of this one.
            if round_ < self._rounds.last:
                await self._rounds.newer_than(round_)
            else:
                # Seconds until the last round is evaluated once more, where that failed.
                await trio.sleep(10.0)  # none is newer, and the run has not ended without it
            return
        if self._evaluator is not None:
            await self._watch.until_there(lambda: self._evaluations.complete(round_))
        elapsed = round(self._context.clock.monotonic() - self._began, 3)
        record = await trio.to_thread.run_sync(self._spool.record, round_)
        await trio.to_thread.run_sync(self._observer.observe, record, {"elapsed": elapsed}, {})
        if isinstance(reward := record.get("eval_reward"), float):
            self._rewards.append((round_, reward))
        self._spool.forget_policies(round_)

    def beat(self) -> dict[str, Any]:
        reward = ends_of([reward for _, reward in self._rewards]).last
        return {"finished": self.done} | ({"reward": reward} if reward is not None else {})

    def status(self) -> dict[str, Any]:
        latest = self._observer.latest
        numbers = {name: latest.get(name) for name in ("eval_loss", "perplexity", "eval_loss_by_data")}
        training = {
            "step": self._observer.newest,
            "loss": latest.get("loss"),
            "tokens_per_second": latest.get("tokens_per_second"),
            "seconds": float(latest.get("elapsed", 0.0)),
            "reward_eval": self._rewards,
            "latest": latest,
            "alarms": [msgspec.to_builtins(alarm) for alarm in self._observer.alarms],
            "done": self.done,
        }
        return {"training": training, "pretraining": numbers}
