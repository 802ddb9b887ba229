"""Where the services of a node are made: its context, and what some of them share.

What only some need is made when the first of them asks for it: a trainer has no engine, a worker no learner.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import msgspec
import structlog
import trio
from starlette.routing import BaseRoute

from node.audit.looks import LookHistory
from node.blobs.store import BlobStore
from node.chain.client import ChainClient
from node.chain.faucet import is_devnet
from node.chain.ledger import Ledger
from node.config import NodeConfig, Role
from node.guest.rest import GuestRest
from node.guest.settings import read_guest
from node.hardware import Hardware
from node.inference.client import EngineProcess
from node.member import Participant
from node.processes.forkserver import Starter
from node.run.assets import image_limit
from node.services.base import ServiceManager
from node.services.certifier import Certifier
from node.services.claimer import Claimer
from node.services.context import Context
from node.services.judging.lots import OwnLots, step_share
from node.services.pool_accounting import PoolAccounting
from node.services.rounds.applying import Rounds
from node.services.rounds.batches import Batches
from node.services.training.groups import Groups
from node.state.tally import LifetimeCounters
from node.swarm.batch_usage import BatchUsage
from node.swarm.register import WorkId
from node.swarm.vote_set import FileState
from node.tasks.task_inputs import TaskInputs
from node.training.client import TrainerProcess
from node.training.jobs import JobDirectory
from node.training.planner import TrainingPlan
from node.training.planning import machine_of, plan_here
from node.training.settings import read_settings
from node.training.spool import Spool
from node.training.watch import SpoolWatch
from node.web.host import HttpHost
from node.weights.fetch import PolicyFollower
from node.weights.records import PolicyRecords
from protocol.manifest import PolicyStatement

log = structlog.get_logger()


class Control(Protocol):
    """The part of `node.web.front` that services open."""

    def mount(self, routes: Sequence[BaseRoute]) -> None: ...


def usage_of(context: Context) -> BatchUsage:
    """The book of what becomes of accepted works; whoever keeps it reads the trainer's manifests."""
    state, spec = context.state, context.run.spec

    def is_usable(id: WorkId) -> bool:
        work = state.register.get(id)
        if work is None or state.register.is_contested(work) or state.vote_set.state(id) is FileState.REJECTED:
            return False
        return not state.policies.is_orphan(work.commitment.policy_root)

    return BatchUsage(
        state.policies,
        context.membership,
        spec.recipe.max_staleness,
        context.clock.monotonic,
        is_usable,
        keep_surplus=spec.filters.keep_surplus,
    )


Dropped = tuple[PolicyStatement, str]
"""A step after which its trainer was seen to drop a worker, and how, in words."""


# dict=True, since `cached_property` keeps its value in `__dict__`, which a Struct has not by itself.
class Workplace(msgspec.Struct, frozen=True, dict=True):
    """directory: its state; manager: of the services that run; ledger: what became of
    the pool's work on chain; web: where HTTP is served; starter: how child processes are started; control: the socket
    by which its owner speaks to the node, None where there is none."""

    config: NodeConfig
    role: Role
    hardware: Hardware
    chain: ChainClient
    member: Participant
    context: Context
    manager: ServiceManager
    directory: Path
    ledger: Ledger
    web: HttpHost
    starter: Starter
    control: Control | None = None

    @property
    def store(self) -> BlobStore:
        """Of what this node serves to others."""
        return self.member.blob_service.store

    @property
    def scratch(self) -> Path:
        """A directory for files that nobody misses."""
        return self.directory / "tmp"

    @cached_property
    def rest(self) -> GuestRest:
        """Whether this node rests now."""
        return GuestRest(read_guest(self.config.guest).patience)

    @cached_property
    def engine(self) -> EngineProcess:
        """The child process that computes."""
        run = self.context.run
        return EngineProcess(self.config.engine_argv, run.encoded, run.assets, starter=self.starter)

    @cached_property
    def policies(self) -> PolicyFollower:
        """The trainer's policies, fetched and verified."""
        context, blob_service = self.context, self.member.blob_service
        return PolicyFollower(
            context.facts,
            context.state.policies,
            context.blobs,
            self.store,
            context.policy_cache,
            context.run.root,
            lambda author: [author, *context.membership.addresses()],
            image_limit(context.run.spec),
            workshop=self.workshop,
            records=self.records,
            repeat=context.board.post_raw,
            ready=self.rest.over,
            engine=self.engine,
            blame=lambda author, _why: blob_service.exchange.reputation.lied(author, trio.current_time()),
            monotonic=context.clock.monotonic,
        )

    @cached_property
    def task_inputs(self) -> TaskInputs:
        """What the engine needs for tasks."""
        context = self.context
        members = context.membership.addresses
        place = self.directory / "tmp" / "tasks"
        task_inputs = TaskInputs(context.run, context.blobs, self.policies, context.policy_cache, members, place)
        # So that the files of a task that is over make room for those of others.
        context.state.tasks.follow(task_inputs.handle)
        return task_inputs

    @cached_property
    def plan(self) -> TrainingPlan:
        """Of this node's learner. Raises TrainingError, NothingFits among them."""
        run = self.context.run
        found = plan_here(run.spec, run.assets, self.config.trainer, machine_of(self.hardware), samples=False)
        log.info("learner.planned", plan=found.line, told=found.told)
        return found

    @cached_property
    def spool(self) -> Spool:
        """Through which this node and its learner meet. Raises TrainingError for settings that are none."""
        return Spool(self.directory / "spool", read_settings(self.config.trainer).milestones)

    @cached_property
    def watch(self) -> SpoolWatch:
        """What is new in it."""
        return SpoolWatch(self.spool)

    @cached_property
    def groups(self) -> Groups:
        """The trainer's: what waits for judges, for the run's teacher, and for a batch."""
        return Groups(self.context, self.spool.next_batch, self.watch.tell)

    @cached_property
    def certifier(self) -> Certifier:
        """What this validator certifies."""
        return Certifier(self.context)

    @cached_property
    def dropped(self) -> tuple[trio.MemorySendChannel[Dropped], trio.MemoryReceiveChannel[Dropped]]:
        """From who counts what a trainer makes of files to who says it."""
        return trio.open_memory_channel[Dropped](16)  # such steps that wait to be said

    @cached_property
    def usage(self) -> BatchUsage | None:
        """What became of accepted files; a round's contributions name their batches themselves
        (`rounds/batches.py`)."""
        return None if self.context.run.spec.diloco is not None else usage_of(self.context)

    @cached_property
    def looks(self) -> LookHistory:
        """What came of this validator's looks at steps that its lot drew."""
        return LookHistory(self.context.clock.monotonic)

    @cached_property
    def own_lots(self) -> OwnLots:
        """Of a validator: by which it looks at files, and at steps."""
        return OwnLots(self.context, step_share(self.context.run.spec, self.hardware))

    @cached_property
    def rounds(self) -> Rounds:
        """Of a run with rounds: its outer states, and the learner's process, which a worker that samples needs for the
        model's shapes only. Raises TrainingError for settings that are none."""
        # Such a worker keeps no outer state: it only turns one into an image.
        samples = bool(self.context.run.spec.replicas) and self.role == "worker"
        settings = read_settings(self.config.trainer) if samples else self.plan.settings
        cards = () if samples else self.plan.learners
        process = TrainerProcess(self.spool, settings, self.starter, cards)
        return Rounds(self.context, process, self.spool, JobDirectory(self.spool, self.watch), learns=not samples)

    @cached_property
    def batches(self) -> Batches:
        """What contributions are learnt from, in a run with rollouts."""
        return Batches(self.context, self.rounds)

    @cached_property
    def books(self) -> PoolAccounting:
        """What the chain says of the pool's money, and its tables of earnings."""
        return PoolAccounting(self.context, self.chain, self.ledger)

    @cached_property
    def claimer(self) -> Claimer:
        """What this node's work comes to."""
        # On a devnet gas costs nothing, and pay waits for no more to come.
        return Claimer(self.books, gathers=not is_devnet(self.chain.profile))

    @cached_property
    def tally(self) -> LifetimeCounters:
        """The run's counters, which outlive the daemon."""
        return LifetimeCounters(self.context.journal, self.context.run.root)

    @property
    def workshop(self) -> Path:
        """Where policies are built, on the disk of the blobs."""
        return self.directory / "weights" / "building"

    @property
    def records(self) -> PolicyRecords:
        """What is known of the policies that this node holds, for after a restart."""
        return PolicyRecords(self.directory / "weights" / "held")
