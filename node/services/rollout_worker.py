"""The worker: draw, generate, commit, publish, and hear what becomes of it.

Its own rewards are for its log only. What it has committed to is in the journal before anybody hears of it.
"""

import math
import time
from functools import partial
from pathlib import Path
from typing import Any, Self

import structlog
import trio

from node.changes import seen
from node.guest.rest import DOING, PAUSED, GuestRest
from node.inference.client import EngineChild
from node.inference.wire import Produce, Produced, RequestProgress, SaidToken
from node.recipe.capacity import CapacityGauge, measure
from node.recipe.speed import measured
from node.services.base import Service
from node.services.committing import OwnWorks, commit
from node.services.context import Context, Rate
from node.services.workplace import Workplace
from node.swarm.batch_usage import BatchUsage
from node.swarm.facts import RunTold
from node.swarm.files_ahead import ActiveWorkers, FilesAhead, UnclaimedShare, WorkFate
from node.swarm.membership import is_cut_off, voices
from node.swarm.register import RegisteredWork, WorkId
from node.swarm.vote_set import FileState
from node.weights.policy_cache import HeldPolicy
from protocol.earnings import most_files
from protocol.errors import IntellectError

log = structlog.get_logger()
SHORTEST_PATIENCE = 0.5
PRODUCE_DEADLINE = 600.0
CATCHING_UP = 5.0
"""Seconds that a newer policy has to arrive, once somebody is heard again."""


class RolloutWorker(Service):
    """Generates rollouts for every policy until the run is over."""

    name = "rollout-worker"

    def __init__(
        self,
        context: Context,
        engine: EngineChild,
        scratch: Path,
        gauge: CapacityGauge,
        rest: GuestRest | None = None,
        usage: BatchUsage | None = None,
    ) -> None:
        self._context = context
        self._journal = context.journal
        self._engine = engine
        self._scratch = scratch
        self._gauge = gauge
        self._rest = rest or GuestRest()
        self._informative, self._signal = 1.0, False
        # Steps after which a worker that made nothing has no share in the work. Who takes longer for a file makes so
        # little that the others come closer to what a step needs without it.
        makes_nothing = 2
        self._makers = ActiveWorkers(makes_nothing)
        self._leftovers = UnclaimedShare()
        self._usage = usage
        fate = partial(_fate, context, usage) if usage is not None else None
        self._ahead = FilesAhead(context.run.spec.recipe.max_staleness, fate)
        self.rate = Rate(clock=context.clock.monotonic)
        self.last_reward: float | None = None
        self.waiting: str | None = None
        self.finished = False
        self.works = OwnWorks(context)
        self.generate_seconds = 0.0
        self._arrived_step = -1
        self._arrived_at = 0.0
        self._interval = 1.5  # seconds between two files, until some were heard of
        self._file_seconds = 0.0
        self._producing = 0
        """Number of the file that is being made, from 1; 0: none."""
        self._progress: RequestProgress | None = None

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        run = place.context.run
        machine = await trio.to_thread.run_sync(measure, run.assets, place.hardware.gpus, abandon_on_cancel=True)
        gauge = CapacityGauge(run.spec, machine, await _expected_speed(place), lambda: place.member.claims.believed)
        return cls(place.context, place.engine, place.scratch, gauge, place.rest, place.usage)

    async def run(self) -> None:
        await self.works.count()
        await self.works.repeat()
        self._context.state.register.follow(self._note_work)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.works.follow, self._verdict)
            nursery.start_soon(self._watch_trainer)
            await self._generate()

    def status(self) -> dict[str, Any]:
        work = {
            **self.works.done.status(),
            "generate_seconds": round(self.generate_seconds, 2),
            "last_reward_estimate": self.last_reward,
            "waiting": self.waiting,
        }
        return {"work": work}

    def beat(self) -> dict[str, Any]:
        return {"rate": round(self.rate.per_second, 1)}

    def activity(self) -> str:
        """What this worker does now, in words."""
        if self._rest.why and not self._producing:
            return DOING
        if self.waiting or self.finished:
            return self.waiting or "the run is over: nothing is left to generate"
        newest = self._context.policy_cache.newest
        about = f"policy {newest.step}" if newest else "the first policy"
        if newest and self._journal.fence.covers(newest.step):
            # A pool whose only worker this is gets no next policy from anybody else.
            return (
                f"waits for the policy after {about}: after a start in doubt nothing new is signed for this one "
                "(the only worker of a pool is started with: join --vouch)"
            )
        if self._producing:
            sampled = f" ({self._progress.done} of {self._progress.of} answers)" if self._progress else ""
            return f"generating file {self._producing} for {about}{sampled}"
        counts = self.works.done.counts
        open_files = sum(counts.values()) - counts.get("accepted", 0) - counts.get("rejected", 0)
        waits = f"; {open_files} wait for the validators' verdicts" if open_files else ""
        return f"its share for {about} is made{waits}"

    async def _generate(self) -> None:
        while True:
            await self._wait_for_rest()
            policy, index = await self._next_file()
            if self._rest.why:
                continue
            if self._is_cut_off():
                await self._wait_for_a_voice(policy)
                continue
            self._producing = index + 1
            try:
                produced = None
                with self._rest.work():
                    produced = await self._produce(policy, index)
                if produced is not None:  # no rest has cut it short
                    await self._commit(policy, index, produced)
            except IntellectError as error:
                log.warning("rollout.failed", step=policy.step, why=error.why)
                self._context.progress.trouble(f"a file for policy {policy.step} was not made: {error.why}")
                await trio.sleep(1.0)
            finally:
                self._producing, self._progress = 0, None

    def _is_cut_off(self) -> bool:
        return is_cut_off(voices(self._context.board, self._context.membership), self._context.clock.monotonic())

    async def _wait_for_a_voice(self, policy: HeldPolicy) -> None:
        """While neither the trainer nor a validator is heard nothing more is made: it would be stale once they are.

        Then what was missed comes first; and the time that passed unheard is nobody's lack of rollouts.
        """
        began = self._context.clock.monotonic()
        self.waiting = time.strftime("hears nobody since %H:%M:%S UTC", time.gmtime(self._context.clock.wall()))
        log.warning("worker.cut_off", step=policy.step)
        self._context.progress.trouble(f"{self.waiting}: generating waits until the trainer or a validator speaks")
        await seen(lambda: not self._is_cut_off(), 1.0)  # any of many messages may end it
        log.warning("worker.reconnected", seconds=round(self._context.clock.monotonic() - began, 1))
        self.waiting = None
        await self._come_back(policy.step, began)

    async def _wait_for_rest(self) -> None:
        began, newest = self._context.clock.monotonic(), self._context.policy_cache.newest
        if not self._rest.why:
            return
        log.info("worker.rests", why=self._rest.why)
        await self._rest.over()
        log.info("worker.goes_on", seconds=round(self._context.clock.monotonic() - began, 1))
        await self._come_back(newest.step if newest else -1, began)

    async def _come_back(self, step: int, began: float) -> None:
        """What was missed comes first. step: the newest policy then; began: when nothing was made any more."""
        with trio.move_on_after(CATCHING_UP):
            await self._context.policy_cache.newer_than(step)
        now = self._context.clock.monotonic()
        # Such time is no sign that the trainer lacks rollouts.
        self._arrived_at += now - began
        self._leftovers.began(step, now)

    async def _next_file(self) -> tuple[HeldPolicy, int]:
        """The newest policy, once this worker's share of its rollouts is not yet made, and how many of them are.

        What others leave over of what the step needs is divided once nobody makes any. A trainer that does not advance
        even so lacks rollouts (somebody's were refused, or somebody left): every time that two usual intervals pass
        without a new policy, each worker makes one file more. Where nothing had a signal it lacks a whole batch, and
        a worker whose own files had none makes its share again.
        """
        while True:
            policy = self._context.policy_cache.newest or await self._context.policy_cache.newer_than(-1)
            self._note_arrival(policy)
            # From the journal and not from memory: an index that is used twice costs the stake.
            made = await self.works.made(policy.root)
            now, patience, quiet = self._context.clock.monotonic(), self._patience(), self._quiet()
            waited = now - self._arrived_at
            equivocation = self._context.state.policies.equivocation
            if equivocation is not None:
                self.waiting = f"the trainer is not believed any more: {equivocation.what}"
            more, most = 1 if self._signal else max(self._share(), 1), most_files(self._context.run.spec)
            wanted = self._share() + more * math.floor(waited / patience)
            # Files that others made too few of: this worker's part of them, once nobody makes any.
            wanted += self._leftovers.taken(self._ahead.needed, quiet, now) if made >= wanted else 0
            made = most if self._journal.fence.covers(policy.step) else made
            if not self.finished and made < min(wanted, most) and equivocation is None:
                return policy, made
            wait = min(patience - waited % patience, quiet - self._leftovers.quiet_for(now) % quiet)
            # A little longer: woken too early by a rounding, it would find that the floor above has not grown.
            with trio.move_on_after(30.0 if self.finished else wait + 0.01):
                await self._context.policy_cache.newer_than(policy.step)

    def _patience(self) -> float:
        """Seconds without a new policy after which the trainer seems to lack rollouts."""
        # Files in whose time a trainer is not slow yet: learning from them costs more than making them, and with a
        # large model both take minutes.
        files_of_patience = 3
        # A slow machine would otherwise run out of patience while it still makes its first share.
        own = files_of_patience * self._share() * self._file_seconds
        return max(SHORTEST_PATIENCE, 2 * self._interval, own)

    def _quiet(self) -> float:
        """Seconds without a file of anybody's after which none is to be expected."""
        # Files: where nobody commits to anything for as long as a worker takes for so many, each that makes any has
        # made its share.
        files_of_quiet = 2
        # Before its own first file a node does not know how long one takes.
        return max(SHORTEST_PATIENCE, files_of_quiet * (self._file_seconds or PRODUCE_DEADLINE))

    def _note_arrival(self, policy: HeldPolicy) -> None:
        """Remember when a policy came, and how long policies usually take."""
        if policy.step == self._arrived_step:
            return
        batch = self._context.run.spec.files_per_policy * self._refill()
        self._ahead.arrived(policy.step, batch, self._usage.newest if self._usage else -1)
        now = self._context.clock.monotonic()
        interval_memory = 0.8
        if self._arrived_step >= 0:
            # Policies that were passed over took their part of the time.
            took = (now - self._arrived_at) / (policy.step - self._arrived_step)
            self._interval = interval_memory * self._interval + (1 - interval_memory) * took
        self._arrived_step, self._arrived_at, self._signal = policy.step, now, False
        self._leftovers.began(policy.step, now)

    def _note_work(self, work: RegisteredWork) -> None:
        if work.is_sampled:
            self._makers.made(work.node, work.step)
            self._ahead.made(work.id, work.step)
            self._leftovers.made(work.node, work.step, self._context.clock.monotonic())

    def _share(self) -> int:
        """Files of the newest policy so that all live workers that make any together make what `FilesAhead` says."""
        beats = self._context.membership.beats(self._context.clock.monotonic(), "worker")
        living = [node for node, beat in beats.items() if beat.state != PAUSED]
        # Oneself counts as a maker from the start, or the first share would be divided among the others alone.
        self._makers.made(self._context.key.address, self._arrived_step)
        own = self._context.key.address
        makers = sorted({own, *self._makers.among(living, self._arrived_step)})
        return self._ahead.share(len(makers), makers.index(own))

    def _refill(self) -> float:
        """Files to make for each that a batch needs: with the online filter, groups without signal do not count."""
        filters = self._context.run.spec.filters
        # Bounded as the trainer's own refilling: a model that solves everything would ask for files without end.
        return min(1 / max(self._informative, 1 / filters.refill), filters.refill) if filters.online else 1.0

    async def _produce(self, policy: HeldPolicy, index: int) -> Produced:
        out = self._scratch / f"rollout-{policy.step}-{index}.arrow"
        order = Produce(
            policy_root=policy.root,
            node=self._context.key.address,
            pool=self._context.pool,
            index=index,
            out_path=str(out),
            capacity=self._gauge.capacity,
        )
        produced = await self._engine.ask(
            order, timeout=PRODUCE_DEADLINE, policy=policy.load(), on_progress=self._note_progress
        )
        self._gauge.note(produced.units, produced.seconds)
        self.generate_seconds += produced.seconds
        self._file_seconds = produced.seconds
        # Rewards that this machine cannot tell say nothing of whether groups have a signal: judges' rewards, for one.
        if produced.informative is not None:
            self._informative = 0.7 * self._informative + 0.3 * produced.informative
        if policy.step == self._arrived_step:
            self._signal |= produced.informative is None or produced.informative > 0
        return produced

    def _note_progress(self, told: RequestProgress | SaidToken) -> None:
        if isinstance(told, RequestProgress):  # of a file no token is said
            self._progress = told

    async def _commit(self, policy: HeldPolicy, index: int, produced: Produced) -> None:
        file, noted = (Path(produced.path), produced.units), partial(self.works.note, policy.root)
        commitment = await commit(self._context, policy.root, index, *file, policy.step, then=noted)
        self.rate.add(produced.tokens)
        self.last_reward = produced.reward_estimate
        log.info(
            "rollout.committed", step=policy.step, index=index, root=commitment.file_root.hex(), units=produced.units
        )

    def _verdict(self, id: WorkId) -> FileState:
        """What the pool thinks of a file of ours. While validators are away fewer than the quorum are enough to train
        on a file, but not to put it on chain: there a quorum that never heard of it would take it for invented."""
        vote_set = self._context.state.vote_set
        state = vote_set.state(id)
        enough = len(vote_set.accepting(id)) >= self._context.quorum
        return FileState.OPEN if state is FileState.ACCEPTED and not enough else state

    async def _watch_trainer(self) -> None:
        async for told in self._context.facts.subscribe(RunTold):
            self.finished = told.over


def _fate(context: Context, usage: BatchUsage, id: WorkId) -> WorkFate:
    state = context.state.vote_set.state(id)
    if state is FileState.REJECTED or usage.is_settled(id):
        return WorkFate.GONE
    return WorkFate.ACCEPTED if state is FileState.ACCEPTED else WorkFate.OPEN


async def _expected_speed(place: Workplace) -> float | None:
    """Tokens per second before the first file is made, where lengths are dealt by it: so that a fast node need not
    begin with the shortest."""
    run = place.context.run
    if not run.spec.length_budget.targets:
        return None
    speed = await measured(place.config.home, place.hardware, place.config.engine_options, starter=place.starter)
    weights = run.spec.weight_bytes()
    bytes_per_parameter = 2  # bytes of each weight that a run begins with
    return None if speed is None else speed.expected(weights // bytes_per_parameter)
