"""Training at a desk: a trainer and engines, no chain, no peers; the same learner, spool, engines and recipe.

Batch k is made by policy max(0, k - async_level) exactly, and the draws follow from the policy (its step and its
weights) and the seed: the same run file and seed give the same curve, however fast the machine is and however often it
was interrupted. Rollouts stay on disk until they are stale, so a restart finds them; the batch log says which of them
are used up.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog
import trio
from blake3 import blake3

from node.inference.client import EngineProcess
from node.inference.errors import EngineCrashed, EngineError
from node.inference.wire import Inspect, LoadPolicy, Produce
from node.metrics.alarms import Alarm
from node.metrics.journal import read_records
from node.metrics.observer import Observer
from node.recipe.batch_log import BatchEntry, BatchLog
from node.recipe.desk import desk_blobs, desk_paths, desk_root
from node.recipe.join import join
from node.recipe.manifest import compose, materialise
from node.recipe.pool import Group, Origin, RolloutPool, Selection
from node.recipe.requirements import hopeless, reached_target, spent
from node.recipe.stats import describe as describe_selection
from node.training.batch import encode_batch
from node.training.bells import ring
from node.training.client import EvaluatorProcess, SpoolProcess, TrainerProcess
from node.training.evaluations import Evaluations
from node.training.length import same_but_for_length
from node.training.spool import Spool
from node.training.watch import SpoolWatch
from protocol.blobs import describe
from protocol.budgets import highest_capacity
from protocol.identity import Address, address_bytes, address_from_bytes
from protocol.manifest import encode_manifest
from protocol.rollout import decode, decode_report
from protocol.run import RunSpec
from protocol.statements import VerdictOutcome, WorkCommitment

log = structlog.get_logger()
_NODE = "intellect-node local node v1"
OnRecord = Callable[[dict[str, Any]], None]
Activity = Callable[[str], None]
"""Hears in words what goes on, between the records: with a large model that takes minutes."""


class LocalRun:
    """What every run at a desk has: one directory, its processes, a record of each step, and reasons to end early."""

    def __init__(
        self,
        run: RunSpec,
        encoded: bytes,
        assets: Path,
        *,
        learner: TrainerProcess,
        spool: Spool,
        observer: Observer,
        others: Sequence[SpoolProcess | EngineProcess] = (),
        on_progress: OnRecord = lambda record: None,
        activity: Activity = lambda text: None,
    ) -> None:
        """on_progress: hears every new step's record, in order, and of batches without signal, of which none is made;
        activity: what goes on meanwhile."""
        self._run, self._encoded, self._assets = run, encoded, assets
        self._learner, self._spool, self._observer = learner, spool, observer
        self._watch = SpoolWatch(spool)
        self._processes = (learner, *others)
        self._told, self._activity = on_progress, activity
        self._tokens = 0
        self._before = self._began = 0.0
        self.ended_by: str | None = None

    @property
    def rung(self) -> list[Alarm]:
        """Alarms that rang, in this process's life."""
        return self._observer.rung

    @property
    def queued(self) -> int:
        """Rollouts that wait for a batch."""
        return 0

    def status(self) -> dict[str, Any]:
        """What /metrics is made of (node.metrics.prometheus)."""
        latest = self._observer.latest
        return {
            "run": {"step": self._observer.newest, "steps_total": self._run.recipe.steps},
            "processes": [{"name": one.name, "pid": one.pid, "restarts": one.restarts} for one in self._processes],
            "training": {
                "step": self._observer.newest,
                "seconds": float(latest.get("elapsed", 0.0)),
                "queued_rollouts": self.queued,
                "latest": latest,
                "memory": self._learner.memory,
                "alarms": [msgspec.to_builtins(alarm) for alarm in self._observer.alarms],
            },
        }

    def _prepare(self) -> None:
        """Find the spool and what earlier processes recorded."""
        self._spool.prepare(self._encoded, self._assets, same_but_for_length)
        for record in read_records(self._observer.path):
            self._before = max(self._before, float(record.get("elapsed", 0.0)))
            self._recall(record)

    def _recall(self, record: dict[str, Any]) -> None:
        """Take in one record of before this start."""

    def _reason_to_end(self, record: dict[str, Any]) -> str | None:
        return self._why_now(float(record["elapsed"]))

    def _why_now(self, seconds: float) -> str | None:
        """Why the run ends after so many seconds, whatever its last step was."""
        if self._run.alarms.stop and self._observer.alarms:
            return f"an alarm rings: {self._observer.alarms[0].text}"
        return spent(self._run, seconds, self._tokens)


class LocalRollouts(LocalRun):
    """One run of reinforcement learning in one directory."""

    def __init__(
        self,
        run: RunSpec,
        encoded: bytes,
        directory: Path,
        assets: Path,
        *,
        engines: Sequence[EngineProcess],
        evaluator: EvaluatorProcess,
        spool: Spool,
        async_level: int,
        **parts: Any,
    ) -> None:
        """engines: that sample, each a whole file at a time; at least one."""
        super().__init__(run, encoded, assets, others=(*engines, evaluator), spool=spool, **parts)
        self._engines = engines
        self._evaluator, self._evaluations = evaluator, Evaluations(spool, run)
        self._level = async_level
        self._node = local_address(run.recipe.seed)
        self._rollouts = directory / "rollouts"
        self._batch_log = BatchLog(spool.root)
        self._pool = RolloutPool(run)
        self._made: dict[int, int] = {}
        self._rewards: list[float] = []
        self._barren = 0
        self._vain: str | None = None
        self._seconds: dict[str, float] = {}

    @property
    def queued(self) -> int:
        return self._pool.rollouts

    async def run(self) -> None:
        """Train until the last step, the goal, or the end of the budget."""
        await trio.to_thread.run_sync(self._prepare)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch.run)
            nursery.start_soon(self._make_batches, nursery)
            # Learner and evaluator end by themselves after the last step. Engines do not, and are cancelled.
            async with trio.open_nursery() as inner:
                inner.start_soon(self._learner.run)
                inner.start_soon(self._evaluator.run)
                await self._follow()
            nursery.cancel_scope.cancel()

    # policies and records out

    async def _follow(self) -> None:
        """Record each step when it is learnt and evaluated; end the run where it has to end before its last step."""
        self._began = time.monotonic()
        for step in range(self._observer.newest + 1, self._run.recipe.steps + 1):
            await self._watch.until_there(lambda step=step: self._evaluations.complete(step) or self._is_vain(step))
            if self._is_vain(step):
                self.ended_by = self._vain
            else:
                record = await trio.to_thread.run_sync(self._record, step)
                self._told(record)
                self._forget_policies()
                self.ended_by = self._reason_to_end(record)
            if self.ended_by:
                self._learner.finish()
                self._evaluator.finish()
                return

    def _is_vain(self, step: int) -> bool:
        """Whether the run was given up for want of a signal, before this policy."""
        return self._vain is not None and not self._spool.is_complete(step)

    def _forget_policies(self) -> None:
        """All but those that are sampled with, the newest on record, and those after it that are evaluated."""
        recorded, newest = self._observer.newest, self._spool.newest_step()
        evaluated = [step for step in range(recorded + 1, newest) if self._evaluations.due(step)]
        self._spool.forget_policies(min(newest, self._next_step - self._level), keep=[recorded, *evaluated])

    def _record(self, step: int) -> dict[str, Any]:
        learner = self._spool.record(step)
        entry = self._batch_log.read(step - 1) if step > 0 else None
        batch, seconds = (entry.metrics, entry.seconds) if entry else ({}, {})
        done = self._before + time.monotonic() - self._began - self._spool.age(step)
        # A step that was learnt before this start would lie before the record in front of it.
        elapsed = round(max(done, float(self._observer.latest.get("elapsed") or 0.0)), 3)
        self._observer.observe(learner, {**batch, "elapsed": elapsed}, seconds)
        self._tokens += int(batch.get("output_tokens", 0))
        return self._observer.latest

    def _reason_to_end(self, record: dict[str, Any]) -> str | None:
        if isinstance(record.get("eval_reward"), float):
            self._rewards.append(record["eval_reward"])
        if reached_target(self._run, self._rewards):
            return f"the goal is reached: recipe.target_reward = {self._run.recipe.target_reward:g}"
        return super()._reason_to_end(record)

    # batches in

    async def _make_batches(self, nursery: trio.Nursery) -> None:
        self._activity("learner and engine load the model")
        if self._next_step < self._run.recipe.steps:
            async with trio.open_nursery() as starting:
                for engine in self._engines:
                    starting.start_soon(nursery.start, engine.run)
        for step in range(self._next_step, self._run.recipe.steps):
            policy = max(0, step - self._level)
            if not self._spool.is_complete(policy):
                self._activity(f"policy {policy} is being learnt")
            await self._watch.until_there(
                lambda policy=policy: self._spool.is_complete(policy) and not self._evaluations.behind
            )
            self._seconds = {}
            if not await self._make_step(step, policy):
                return
            self._forget_policies()

    @property
    def _next_step(self) -> int:
        """The first that lacks a batch."""
        return self._spool.next_batch()

    async def _make_step(self, step: int, policy: int) -> bool:
        """What `step` learns from, made with `policy`; False where the run is given up over it."""
        while (selection := self._pool.take(step)) is None:
            if self._gives_up(step, self._pool.barren):
                return False
            await self._sample(step, policy, self._run.rollout.prompts_per_step * self._run.rollout.group_size)
        self._barren = 0
        await trio.to_thread.run_sync(self._hand_over, selection)
        return True

    def _gives_up(self, step: int, barren: int) -> bool:
        """Tell of batches that had no signal; whether the run ends for them. barren: how many in a row, so far."""
        if barren <= self._barren:
            return False
        self._barren = barren
        self._observer.wait(step, barren)
        self._told({"step": step, "updates": 0, "barren_batches": barren})
        self._vain = hopeless(self._run, step, barren) or self._why_now(self._before + time.monotonic() - self._began)
        ring(self._spool.root)  # which policies are waited for changes with it
        return self._vain is not None

    async def _sample(self, step: int, policy: int, need: int) -> None:
        """Make more files with `policy`: one, or as many as engines can make at once of those that are missing, so that
        the curve is that of one engine. need: rollouts of the whole step."""
        # From 0 for each policy, as a worker counts: each file draws other problems.
        index = self._made.get(policy, 0)
        self._activity(f"sampling for step {step + 1} with policy {policy}: {self._pool.rollouts} of {need} rollouts")
        missing = -(-(need - self._pool.rollouts) // self._run.rollout.samples_per_file)
        files = range(index, index + max(1, min(len(self._engines), missing)))
        made = dict[int, list[Group]]()

        async def make(one: int) -> None:
            made[one] = await patiently(self._groups, policy, one)

        async with trio.open_nursery() as nursery:
            for one in files:
                nursery.start_soon(make, one)
        for one in files:
            self._pool.add(made[one])
        self._made[policy] = files.stop

    async def _groups(self, policy: int, index: int) -> list[Group]:
        """The groups of one file: from disk if it was made before a restart, else newly made."""
        rollout, report = self._paths(policy, index)
        # Only an accepted file has a report, which is written last: where it is, the file is there as well.
        if not report.exists():
            await self._make(policy, index, rollout, report)
        return await trio.to_thread.run_sync(self._read, policy, rollout, report)

    async def _make(
        self, policy: int, index: int, rollout: Path, report: Path, *, work_deadline: float = 3600.0
    ) -> None:
        """Sample and score a submission exactly as a worker and a validator would."""
        root = await trio.to_thread.run_sync(self._root, policy)
        load = LoadPolicy(policy_root=root, step=policy, path=str(self._spool.policy_path(policy)))
        order = Produce(
            policy_root=root,
            node=self._node,
            pool=0,
            index=index,
            out_path=str(rollout),
            capacity=highest_capacity(self._run),
        )
        engine = min(self._engines, key=lambda one: one.asking)
        produced = await engine.ask(order, timeout=work_deadline, policy=load)
        look = Inspect(
            policy_root=root,
            node=self._node,
            pool=0,
            index=index,
            units=produced.units,
            path=str(rollout),
            report_path=str(report),
        )
        inspected = await engine.ask(look, timeout=work_deadline, policy=load)
        if inspected.outcome != VerdictOutcome.ACCEPT:
            raise EngineError(
                "the engine's own rollouts do not pass its checks",
                inspected.detail,
                "the model or its tokenizer is inconsistent, or [verification] is too strict for this machine",
            )
        for name, took in (("generate", produced.seconds), ("score", inspected.seconds)):
            self._seconds[name] = self._seconds.get(name, 0.0) + took

    def _read(self, policy: int, rollout: Path, report: Path) -> list[Group]:
        limit = self._run.rollout.samples_per_file
        data, told = rollout.read_bytes(), report.read_bytes()
        root, batch = describe(data).root, decode(data, limit)
        policy_root = bytes.fromhex(batch.header.policy_root)
        commitment = WorkCommitment(0, self._node, policy_root, batch.header.index, root, batch.units)
        origin = Origin(commitment, len(data), address_bytes(self._node), describe(told).root, len(told))
        groups = join(self._run, root, policy, batch, decode_report(told, limit))
        return [msgspec.structs.replace(group, origin=origin) for group in groups]

    def _hand_over(self, selection: Selection) -> None:
        """The batch log first, then the batch: see node.recipe.batch_log."""
        self._log(selection)
        self._write_batch(selection.step, selection)
        self._forget(selection.step + 1)

    def _log(self, selection: Selection) -> None:
        metrics = describe_selection(selection, waiting=self._pool.rollouts, stale=self._pool.stale_rollouts)
        settled = [group_name(group) for group in selection.settled]
        self._batch_log.write(BatchEntry(selection.step, metrics, settled, self._seconds))

    def _write_batch(self, number: int, selection: Selection) -> None:
        """The manifest, and the batch that follows from it. number: of the batch in the spool."""
        composed = compose(self._run, desk_root(self._run), 0, selection)
        self._spool.write_works(number, encode_manifest(composed))
        batch = materialise(self._run, composed, *desk_blobs(self._rollouts, composed))
        self._spool.write_batch(number, encode_batch(batch))

    # memory

    def _recall(self, record: dict[str, Any]) -> None:
        if isinstance(record.get("eval_reward"), float):
            self._rewards.append(record["eval_reward"])

    def _prepare(self) -> None:
        """After a restart: the evaluations and the time so far, and the rollouts that are neither stale nor used."""
        super()._prepare()
        step = self._next_step
        # Up to the newest record alone: `_record` counts the batches after it.
        self._tokens = self._batch_log.tokens(self._observer.newest)
        self._rollouts.mkdir(parents=True, exist_ok=True)
        for partial in self._rollouts.glob(".*"):  # what a killed engine left
            partial.unlink()
        self._forget(step)
        settled, unknown = self._batch_log.settled(step), self._batch_log.newest_unread(step)
        last = self._batch_log.read(step - 1) if step else None
        self._pool.recall(int(last.metrics.get("stale_rollouts", 0)) if last else 0)
        for report in sorted(self._rollouts.glob("*.report")):
            policy, index = (int(part) for part in report.stem.split("-"))
            if policy < step - self._run.recipe.max_staleness:
                continue
            self._made[policy] = max(self._made.get(policy, 0), index + 1)
            if (
                policy > unknown
            ):  # of the others any may be one that a lost entry settled, and would be learnt from twice
                groups = self._read(policy, *self._paths(policy, index))
                self._pool.add(group for group in groups if group_name(group) not in settled)

    def _paths(self, policy: int, index: int) -> tuple[Path, Path]:
        return desk_paths(self._rollouts, policy, index)

    def _root(self, policy: int, name: str = "policy_root") -> bytes:
        """One of those that the learner said of a policy."""
        metrics = msgspec.json.decode(self._spool.metrics_path(policy).read_bytes(), type=dict[str, Any])
        return bytes.fromhex(metrics[name])

    def _forget(self, step: int) -> None:
        """Delete the files that no batch of `step` or later may use. An audit goes back to the oldest checkpoint, and
        needs what was learnt from since."""
        self._forget_files(min(step, self._spool.oldest_checkpoint()) - self._run.recipe.max_staleness)

    def _forget_files(self, before: int) -> None:
        """Those of policies below `before`."""
        for path in self._rollouts.glob("[0-9]*"):  # what begins with a dot is being written
            if int(path.name.partition("-")[0]) < before:
                path.unlink(missing_ok=True)


async def patiently(made: Callable[[int, int], Awaitable[list[Group]]], policy: int, index: int) -> list[Group]:
    """What `made` gives of a policy's file, from a second and third engine where one ends meanwhile."""
    for _ in range(2):  # the engine's client repeats each of a file's three tries by itself
        try:
            return await made(policy, index)
        except EngineCrashed as crash:
            log.warning("engine.gave_no_file", policy=policy, index=index, why=crash.why)
    return await made(policy, index)


def group_name(group: Group) -> str:
    """policy-index-group: the same after a restart, as files are named and not hashed here."""
    return f"{group.order[0]}-{group.order[1]}-{group.key[1]}"


def local_address(seed: int) -> Address:
    """The address that stands for this desk in the draws; another seed draws other problems."""
    place = seed.to_bytes(16, "little", signed=True)
    return address_from_bytes(blake3(place, derive_key_context=_NODE).digest(20))
