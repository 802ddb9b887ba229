"""One node: which services run, in which order, and how they stop.

The order is the story of joining: lock the state, open the key, ask the chain for the pool, be reachable, join,
learn who else is there, obtain the run, play the role. SIGTERM or Ctrl-C drains; a second one cuts.
"""

import gc
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, closing
from functools import partial
from importlib import import_module
from pathlib import Path

import structlog
import trio

from contracts.bindings import PoolInfo
from node.blobs.exchange import ExchangeLimits
from node.blobs.headway import describe, fraction
from node.blobs.http.sources import parse_source
from node.chain.client import ChainClient
from node.chain.errors import Reverted, RpcUnreachable
from node.chain.faucet import is_devnet
from node.chain.follower import DEVNET_HEAD_SECONDS, HEAD_SECONDS, EventFollower
from node.chain.invitations import InvitationCheck
from node.chain.ledger import Ledger
from node.chain.profile import NetworkProfile, load_profile, spelled
from node.config import NodeConfig, Role
from node.errors import EvictedError
from node.hardware import Hardware, choose_role, inspect_hardware, reason_for
from node.hardware.multiplier import Multiplier
from node.limits import allow_open_files
from node.logs import set_up_logging
from node.member import Participant, open_member
from node.network.circuit.rules import RelayLimits
from node.network.host import Libp2pNetwork
from node.preflight.chain import check_invitation, look_at_bond, look_at_door
from node.preflight.early import check_metrics_log, chosen_pool
from node.preflight.finding import PreflightFailed
from node.preflight.guest import capped, refuse_guest
from node.preflight.reach import announced, choose_listen, remember_port
from node.preflight.survey import admit, check_before_stake
from node.processes.forkserver import ForkServer
from node.processes.launch import LaunchedServer
from node.processes.opening import Opening, patient_opening
from node.processes.supervision import Supervision, give_back_memory
from node.progress import ProgressRecord
from node.recipe.requirements import check_requirements
from node.recipe.speed import check_speed, measured
from node.run.assets import Run, obtain_run, offer_run
from node.run.file import CompiledRun, compile_run
from node.services.answer_server import AnswerServer
from node.services.auditing.step_auditor import StepAuditor
from node.services.base import Service, ServiceManager
from node.services.blob_repairer import BlobRepairer
from node.services.certifier import Certifier
from node.services.checkpoint_server import CheckpointServer
from node.services.claim_carrier import ClaimCarrier
from node.services.claimer import Claimer
from node.services.context import PoolTime, make_context
from node.services.continuity import Continuity
from node.services.counter_keeper import CounterKeeper
from node.services.court.earnings_tabler import EarningsTabler
from node.services.departure import Departure
from node.services.earnings_reporter import EarningsReporter
from node.services.engine import EngineService, PolicySync
from node.services.environment_catalogue import EnvironmentCatalogue
from node.services.gateway import GatewayService
from node.services.hardware_prover import HardwareProver
from node.services.heartbeat import HeartbeatSender
from node.services.judging.judge import Validator
from node.services.jury import VoteCounter
from node.services.leader_lease import LeaderLease
from node.services.leaf_reader import LeafReader
from node.services.membership.events import Events
from node.services.membership.lan import Lan
from node.services.membership.participant import LeaseRenewal, ensure_participant, needs_no_join
from node.services.membership.peers import PeerDialler, forget, recall, remember
from node.services.membership.reach import Reach
from node.services.pool_keeper import PoolKeeper
from node.services.rest_keeper import RestKeeper
from node.services.rollout_worker import RolloutWorker
from node.services.rounds.applying import Rounds
from node.services.rounds.judging import ContributionValidator
from node.services.rounds.publishing import StatePublisher
from node.services.rounds.replica_trainer import ReplicaTrainer
from node.services.rounds.round_closer import RoundCloser
from node.services.rounds.round_worker import RoundWorker
from node.services.run_progress import RunProgress
from node.services.tasking.task_scheduler import TaskScheduler
from node.services.tasking.working import TaskWorker
from node.services.training.trainer import TrainerService
from node.services.usage_tracker import ReplicaUsageTracker, UsageTracker
from node.services.workplace import Workplace
from node.state.bundle import check_moved
from node.state.directory import JOURNAL_NAME, StateDir, check_owner, journal_of
from node.state.journal import Journal
from node.state.keystore import load_or_create, read_password
from node.state.leave import LEAVING, leaves
from node.state.pen import Pen, mark_place
from node.status import StatusPage
from node.swarm.membership import Membership
from node.web.front import Front
from protocol.checks import reason_name
from protocol.errors import IntellectError
from protocol.identity import Address, NodeKey
from protocol.statements import Domain

log = structlog.get_logger()

Services = tuple[type[Service], ...]
EVERYBODY: Services = (
    RestKeeper,
    CounterKeeper,
    BlobRepairer,
    VoteCounter,
    HeartbeatSender,
    Continuity,
    UsageTracker,
    GatewayService,
    RunProgress,
    HardwareProver,
    EnvironmentCatalogue,
)
PAID: Services = (LeafReader, Claimer, Departure)
FOLLOWING: Services = (EngineService, PolicySync, AnswerServer)
ROLES: dict[Role, Services] = {
    "worker": (*EVERYBODY, *FOLLOWING, RolloutWorker, TaskWorker, StepAuditor, *PAID, EarningsReporter),
    "validator": (
        *EVERYBODY,
        *FOLLOWING,
        Validator,
        StepAuditor,
        Certifier,
        EarningsTabler,
        *PAID,
        ClaimCarrier,
        LeaderLease,
    ),
    "trainer": (
        *EVERYBODY,
        *PAID,
        ClaimCarrier,
        PoolKeeper,
        TaskScheduler,
        CheckpointServer,
        StepAuditor,
        TrainerService,
    ),
}
"""What a node of each role does. What stays in a node that leaves starts first, then what works, in this order; each is
ready before the next one is made."""
PRETRAINING_ROLES: dict[Role, Services] = {
    "worker": (*EVERYBODY, Rounds, RoundWorker, *PAID, EarningsReporter),
    "validator": (
        *EVERYBODY,
        Rounds,
        ContributionValidator,
        RoundCloser,
        Certifier,
        EarningsTabler,
        *PAID,
        ClaimCarrier,
    ),
    "trainer": (*EVERYBODY, Rounds, *PAID, ClaimCarrier, PoolKeeper, StatePublisher),
}
"""The same in a run that pre-trains: nobody leads it, and the trainer is its owner, who looks on."""
REPLICATED: Services = (*EVERYBODY, Rounds, ReplicaUsageTracker)
REPLICA_ROLES: dict[Role, Services] = {
    "worker": (*REPLICATED, EngineService, RolloutWorker, *PAID, EarningsReporter),
    "validator": (
        *REPLICATED,
        EngineService,
        ContributionValidator,
        RoundCloser,
        Certifier,
        EarningsTabler,
        *PAID,
        ClaimCarrier,
    ),
    "trainer": (*REPLICATED, ReplicaTrainer, *PAID, ClaimCarrier, PoolKeeper, StatePublisher),
}
"""And where the trainers of such rounds learn from rollouts: workers sample."""
STAYING = {*EVERYBODY, *PAID, Certifier, EarningsTabler, PoolKeeper} - {HardwareProver}
"""What goes on in a node that leaves: it takes no new work, and what it did is judged, certified, tabled and paid."""

ALONE: dict[str, tuple[str, ...]] = {"trainer": ("node.run.problems", "protocol.arrow_writer")}
"""What daemons of one role alone import: a trainer looks through its run's environments, and writes batches."""

Companion = Callable[[ProgressRecord], Awaitable[None]]
"""Runs beside the daemon until it ends, and may show how far it is; must never block."""


def import_for(role: str) -> None:
    """Import what a configured role needs beside this module: before a guardian forks, so that a daemon which it starts
    again has that too, and no event loop waits for it."""
    for name in ALONE.get(role, ()):
        import_module(name)


def run(
    config: NodeConfig,
    server: LaunchedServer | None = None,
    companion: Companion | None = None,
    up: Callable[[], object] = bool,
) -> None:
    """Be a node until stopped. server: starts its children (`for_role`), None to start them anew; up: called once it
    does what it came for.

    Raises IntellectError for what a user can mend, KeyboardInterrupt on Ctrl-C.
    """
    gc.freeze()  # what is imported stands for good: looking through it for garbage stops the event loop for 0.1 s
    try:
        trio.run(Daemon(config, server, companion, up).main)
    except BaseExceptionGroup as group:
        raise _first_cause(group) from group


def _first_cause(group: BaseExceptionGroup) -> BaseException:
    """The error that a person should see: ours before anybody else's."""
    leaves = list(_leaves(group))
    ours = [error for error in leaves if isinstance(error, IntellectError)]
    unexpected = [error for error in leaves if not isinstance(error, (IntellectError, trio.Cancelled))]
    # A bug counts before everything: our own errors may only be what came of it.
    return unexpected[0] if unexpected else (ours or leaves)[0]


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]


class Daemon:
    """A node's life, from lock to leave."""

    def __init__(
        self,
        config: NodeConfig,
        server: LaunchedServer | None = None,
        companion: Companion | None = None,
        up: Callable[[], object] = bool,
    ) -> None:
        self.config = config
        self._up = up
        self.children = ForkServer(server)
        self._companion = companion
        self._journal: Journal | None = None
        self._opening: Opening | None = None
        self.manager = ServiceManager()
        self.progress = self.manager.progress
        self.status = StatusPage(self.manager)
        self.supervision = Supervision(lambda: self.progress.phase.text)
        self._interrupted = False

    async def main(self) -> None:
        allow_open_files()
        async with trio.open_nursery() as beside:
            if self._companion is not None:
                beside.start_soon(self._companion, self.progress)  # sees the draining, too
            async with trio.open_nursery() as nursery:
                await nursery.start(self._heed_signals, nursery.cancel_scope)  # before there is anything to clean up
                await self._hold_state()
                nursery.cancel_scope.cancel()
            # Last, so that the view has shown how the draining went.
            beside.cancel_scope.cancel()
        if self._interrupted:
            raise KeyboardInterrupt

    async def _hold_state(self) -> None:
        state = StateDir(self.config.directory.resolve())
        try:
            set_up_logging(state.path / "logs", self.config.log_level, shown=self.config.show_logs)
            with patient_opening() as self._opening:
                self.status.wait_for_files(self._opening)
                self._journal = Journal(state.path / JOURNAL_NAME, Pen(shut=True))
                await self._live(state, self._journal)
        finally:
            if self._journal:
                self._journal.close()
            state.close()

    async def _heed_signals(
        self, scope: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            draining_since = 0.0
            async for number in signals:
                if scope.cancel_called:
                    # A terminal sends Ctrl-C to the whole group, and the guardian hands it on: both are one request.
                    # Seconds within which a second signal is the first one again: a manager tells a whole group, and so
                    # a guardian too.
                    if trio.current_time() - draining_since < 0.5:
                        continue
                    # A second Ctrl-C: the owner does not want to wait, and the outbox has what was promised.
                    os._exit(130)
                draining_since = trio.current_time()
                log.info("node.draining", signal=signal.Signals(number).name)
                self.manager.become("draining")
                self.progress.enter("draining", "finishing what is under way")
                self.supervision.stopping()
                if self._opening is not None:
                    self._opening.give_up()
                self._interrupted = number == signal.SIGINT
                scope.cancel()

    async def _live(self, state: StateDir, journal: Journal) -> None:
        self.progress.enter("key", "opening the node's key")
        key = await trio.to_thread.run_sync(self._open_key, state.path, journal)
        self.status.identify(key, state.path)
        async with trio.open_nursery() as nursery:
            # First: whatever starts a child asks it.
            await nursery.start(self.children.run)
            # The C library keeps what was freed, megabytes after each load of a policy.
            nursery.start_soon(give_back_memory)
            front = Front(self.config, self.status.render, self.status.figures, state.path)
            await nursery.start(front.run)
            if front.page:
                self.progress.tell("page", f"a page shows the swarm: {front.page}")
            await nursery.start(self.supervision.run)
            # Page and control socket are up by now: `status` must also show a node whose chain does not answer.
            self.progress.enter("chain", f"asking the chain of network {self.config.network}")
            profile = await trio.to_thread.run_sync(lambda: load_profile(self.config.network, home=self.config.home))
            chain = ChainClient(profile, key, outbox=state.path / "outbox.sqlite", cases=state.path / "cases")
            with closing(chain):
                await self._join(state, journal, key, profile, chain, front)
            nursery.cancel_scope.cancel()

    def _open_key(self, directory: Path, journal: Journal) -> NodeKey:
        check_moved(directory)
        place = directory / "node-key.json"
        if not place.exists():  # a directory that was copied in part: with a new key it would be somebody else's
            check_owner(journal, None)
        key = load_or_create(place, read_password(self.config.password, self.config.password_file, directory))
        check_owner(journal, key.address)
        return key

    async def _join(
        self, state: StateDir, journal: Journal, key: NodeKey, profile: NetworkProfile, chain: ChainClient, front: Front
    ) -> None:
        number = chosen_pool(self.config, profile)
        domain = Domain(profile.chain_id, profile.contracts.swarm)
        label = f"{domain.chain_id}:{domain.contract}:{number}"
        pool, answered = await self._find_pool(chain, number, label, state.path)
        self.progress.enter("role", "looking at this machine, for the role that fits it")
        hardware = await trio.to_thread.run_sync(inspect_hardware, abandon_on_cancel=True)
        log.info("hardware.found", summary=hardware.summary)
        # The chain names trainers and validators; a key that it names has that role, whatever was asked for.
        role = choose_role(self.config.role, key.address, pool.trainers, pool.validators, hardware)
        # It only comes for its pay, whatever has become of the pool or of this machine.
        leaving = await journal.do(leaves, journal, label)
        if role == "worker" and self.config.role == "auto" and not leaving:
            self.progress.enter("role", "measuring how fast this machine's engine is, once")
            check_speed(await measured(self.config.home, hardware, self.config.engine_options, starter=self.children))
        check_metrics_log(self.config, role)
        await trio.to_thread.run_sync(refuse_guest, self.config, role, hardware)
        hardware = capped(hardware, self.config.limits)
        self.status.place(profile, number, role)
        self.progress.tell("role", f"{role}: {reason_for(self.config.role, role, hardware)}")
        listen = await trio.to_thread.run_sync(choose_listen, self.config.listen, profile, state.path)
        # Nobody who was in the pool is refused because the chain is silent.
        if self.config.preflight and answered and not leaving:
            await self._admit(chain, pool, role, hardware, listen, state.path)
            await check_before_stake(chain, pool, key.address, self.config, role, hardware, self.children)
        # A key that joins another pool gets another journal: promises are kept apart by pool.
        self._journal = journal = await trio.to_thread.run_sync(journal_of, state.path, journal, label)
        await journal.do(check_owner, journal, key.address)
        if answered and not leaving:
            await self._look_for_invitation(chain, pool, key.address)
            self.progress.enter("stake", f"looking whether a stake answers for {key.address}")
            await ensure_participant(chain, key, self.config, state.path, pool, self.progress)
            bond = await look_at_bond(chain, key.address, pool, self.config)
            if bond is not None and bond.level == "warning":
                self.progress.trouble(f"{bond.what}; {bond.remedy}")
        self.progress.enter("joining", f"listening on {' and '.join(listen)}, then joining pool {number} on chain")
        boot, here = await self._examine(journal, state.path, label, chain, number, key.address, answered)
        own = (profile, boot, bool(hardware.gpus))
        async with self._open_member(key, domain, pool, listen, state.path / "blobs", *own) as member:
            self.status.connect(member)
            contact = member.network.contacts()[0]
            await trio.to_thread.run_sync(remember_port, state.path, member.network.listening()[0])
            await journal.do(journal.remember, "network", spelled(self.config.network).encode())
            if answered:
                # In doubt the first one's contact stands: it may be another daemon's, that lives (`Continuity`).
                told = not here or await self._tell_where(chain, pool, contact, key.address, leaving=leaving)
                # Only after the join was seen in a block: see `PeerDialler`.
                await trio.to_thread.run_sync(remember, state.path, label, pool)
                if told:
                    log.info("pool.joined", pool=number, role=role, contact=contact)
                    self.progress.tell("joined", f"joined pool {number} as {role}, reachable at {contact}")
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._stop_when_evicted, member.membership, chain, number)
                    # Before the run is fetched: its files come from members, and who they are stands on chain.
                    joined = answered and here
                    ledger = await self._follow_pool(nursery, member, chain, state.path, journal.pen, joined=joined)
                    run = await self._obtain_run(role, pool.run_root, member, state.path)
                    # Now, as the run was fetched; `doctor` says it before.
                    check_requirements(run.spec, role, hardware)
                    if not leaving:
                        await trio.to_thread.run_sync(refuse_guest, self.config, role, hardware, run.spec)
                    pool_time = PoolTime(pool.started_at, pool.epoch_seconds, pool.window)
                    shared = (journal, self.progress, pool.reward_per_unit)
                    context = make_context(member, run, *shared, time=pool_time)
                    self.status.work_for(context)
                    own = (self.config, role, hardware, chain, member, context)
                    doors = (front.web, self.children, front.control)
                    place = Workplace(*own, self.manager, state.path, ledger, *doors)
                    await self._serve(nursery, place)
            finally:
                if not journal.pen.given_up:  # it is another daemon's membership
                    await self._leave(chain, number, member.membership, state.path, journal)

    async def _examine(
        self, journal: Journal, directory: Path, label: str, chain: ChainClient, pool: int, own: Address, answered: bool
    ) -> tuple[int, bool]:
        """The generation of this start, and whether it may tell the chain where it is. Whether the journal is this
        node's newest shows here; where that is not sure, `Continuity` asks the pool."""
        known = await chain.standing(pool, own) if answered else None
        first = known is not None and known.joined_block == 0
        doubt = await journal.do(partial(journal.examine, first=first), mark_place(directory, label))
        # Journaled before the first heartbeat: no later start may number one lower (membership.moved).
        boot = await journal.do(journal.booted, int(time.time()))
        if not doubt:
            await journal.do(journal.take_pen, boot)
            journal.pen.open()
        stays = known is not None and not known.left and known.lease_until > time.time()
        return boot, not (doubt and stays)

    async def _find_pool(self, chain: ChainClient, number: int, label: str, directory: Path) -> tuple[PoolInfo, bool]:
        """The pool, and whether the chain told it. A node that was in it when it stopped goes on by what it knows
        where the chain does not answer; for all others, raises ChainError."""
        try:
            pool = await chain.pool(number, agreed=True)
            await chain.connect()
            chain.require_own_code()
            return pool, True
        except RpcUnreachable as error:
            pool = await trio.to_thread.run_sync(recall, directory, label)
            if pool is None:
                raise
            log.warning("chain.unreachable", why=error.why)
            self.progress.trouble("the chain does not answer: going on as the member that this node was")
            return pool, False

    async def _look_for_invitation(self, chain: ChainClient, pool: PoolInfo, node: Address) -> InvitationCheck:
        """Raises PreflightFailed where the pool takes invited nodes only, and no invitation lets this one in."""
        door = await look_at_door(chain, pool, node, self.config)
        if door.shut:
            raise PreflightFailed([check_invitation(door)])
        return door

    async def _admit(
        self,
        chain: ChainClient,
        pool: PoolInfo,
        role: Role,
        hardware: Hardware,
        listen: tuple[str, ...],
        directory: Path,
    ) -> None:
        """Refuse to join where something would fail; put on record what may."""
        self.progress.enter("checks", "looking at everything that can fail: clock, disk, memory, GPU, port, pool")
        for finding in await admit(chain, pool, self.config, directory, role, hardware, listen):
            log.warning("node.preflight", check=finding.name, what=finding.what, remedy=finding.remedy)
            self.progress.trouble(f"{finding.what}; {finding.remedy}")

    def _open_member(
        self,
        key: NodeKey,
        domain: Domain,
        pool: PoolInfo,
        listen: Sequence[str],
        blobs: Path,
        profile: NetworkProfile,
        boot: int,
        gpus: bool,
    ) -> AbstractAsyncContextManager[Participant]:
        config = self.config
        announce = announced((), config.announce) if config.announce else ()
        relay = RelayLimits(rate=config.relay_limit, rate_each=config.relay_limit / 2)
        return open_member(
            key,
            domain,
            pool,
            Libp2pNetwork(key, listen, announce=announce, relay=relay, private=self._dials_private(profile), boot=boot),
            blobs,
            quota=config.quota,
            limits=ExchangeLimits(config.upload_rate, config.download_limit, config.upload_slots),
            sources=[parse_source(text, private=True) for text in config.http_sources],
            bootnodes=[*config.bootnodes, *profile.bootnodes],
            prover=Multiplier() if gpus else None,
        )

    def _dials_private(self, profile: NetworkProfile) -> bool:
        return self.config.lan == "on" or (self.config.lan == "auto" and profile.lan)

    async def _follow_pool(
        self, nursery: trio.Nursery, member: Participant, chain: ChainClient, directory: Path, pen: Pen, *, joined: bool
    ) -> Ledger:
        """Learn who is in and hear them; stay in ourselves. Returns the pool's books."""
        membership, contact = member.membership, lambda: member.network.contacts()[0]
        self.progress.enter("peers", "reading from the chain who else is in the pool")
        poll = self.config.chain_poll or (DEVNET_HEAD_SECONDS if is_devnet(chain.profile) else HEAD_SECONDS)
        follower = EventFollower(chain, member.pool, directory / "chain.sqlite", poll=poll)
        # A devnet makes no block without work: its blocks do not tell the time.
        clock = time.time if is_devnet(chain.profile) else lambda: 0.0
        own = (member.pool, membership, contact, self.progress)
        lease = LeaseRenewal(chain, *own, joined=joined, ready=pen.ready, clock=clock)
        events = Events(follower, membership, self.progress)
        reach = Reach(member, self.progress, self.config.relay_offer)
        peers = PeerDialler(member, directory)
        near = [Lan(member)] if self._dials_private(chain.profile) else []
        for service in (events, peers, lease, reach, *near):
            await self.manager.start(service, nursery)
        nursery.start_soon(member.listen)
        return events.ledger

    async def _serve(self, nursery: trio.Nursery, place: Workplace) -> None:
        """Start the role's services one after the other: each may count on those before it. Those that work end when
        the node begins to leave, the others when it has left."""
        run, manager, context = place.context.run.spec, self.manager, place.context
        roles = REPLICA_ROLES if run.replicas else PRETRAINING_ROLES if run.pretraining is not None else ROLES
        if await context.journal.do(context.journal.recall, LEAVING):
            manager.leave()
        nursery.start_soon(self._end_when_left, nursery.cancel_scope)
        kinds, starting = roles[place.role], trio.CancelScope()
        staying = [kind for kind in kinds if kind in STAYING]
        work = tuple(kind for kind in kinds if kind not in STAYING)
        for kind in staying:
            await self._start(kind, place, nursery)
        working: trio.Nursery = await nursery.start(self._work, work, starting)
        with starting:
            await trio.lowlevel.checkpoint()  # who leaves already starts none of them
            for kind in work:
                await self._start(kind, place, working)
        if not manager.leaving.is_set():
            manager.become("working")
        self._up()

    async def _start(self, kind: type[Service], place: Workplace, nursery: trio.Nursery) -> None:
        service = await kind.open(place)
        # What works may have been ended meanwhile, by a node that leaves.
        await trio.lowlevel.checkpoint_if_cancelled()
        # None: this node does without it, by its settings or its run.
        if service is not None:
            if place.control is not None:
                place.control.mount(service.routes())
            await self.manager.start(service, nursery)

    async def _work(
        self,
        kinds: Services,
        starting: trio.CancelScope,
        *,
        task_status: trio.TaskStatus[trio.Nursery] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """The nursery of what works, until the node leaves. starting: the scope in which it is started."""
        async with trio.open_nursery() as nursery:
            task_status.started(nursery)
            await self.manager.leaving.wait()
            starting.cancel()
            nursery.cancel_scope.cancel()
        self.manager.services[:] = [one for one in self.manager.services if type(one) not in kinds]

    async def _end_when_left(self, scope: trio.CancelScope) -> None:
        await self.manager.left.wait()
        scope.cancel()

    async def _tell_where(
        self, chain: ChainClient, pool: PoolInfo, contact: str, own: Address, *, leaving: bool
    ) -> bool:
        """Join, unless this node is a member whose lease runs: then a start needs no transaction. Those whom everybody
        seeks tell where they are in any case. Who only comes for its pay can do without: a pool that is over takes
        nobody in. Whether it is a member."""
        if await needs_no_join(chain, pool, own):
            return True
        try:
            door = await self._look_for_invitation(chain, pool, own)
            if door.by is not None:
                await chain.admit(own, door.by)
            await chain.join(pool.id, contact)
        except (Reverted, PreflightFailed) as error:
            if not leaving:
                raise
            self.progress.trouble(f"not a member while it leaves: {error.why}")
            return False
        return True

    async def _obtain_run(self, role: Role, root: bytes, member: Participant, directory: Path) -> Run:
        self.manager.become("syncing")
        if role == "trainer" and self.config.run_file is not None:
            self.progress.enter("run", f"reading {self.config.run_file}, and trying its model and its problems")
            compiled = await trio.to_thread.run_sync(_compiled, self.config, abandon_on_cancel=True)
            return await offer_run(compiled, root, member.blobs, directory / "run")
        self._tell_of_run(member)
        holders, use = member.membership.addresses, self.config.hub
        return await obtain_run(root, member.blobs, holders, directory / "run", use=use)

    def _tell_of_run(self, member: Participant) -> None:
        exchange, membership = member.blob_service.exchange, member.membership

        def waits_for() -> str:
            members = len(membership.addresses())
            return f"fetching the run's files: {describe(exchange.under_way(), members)}"

        self.progress.enter("run", waits_for, lambda: fraction(exchange.under_way()))

    async def _stop_when_evicted(self, membership: Membership, chain: ChainClient, pool: int) -> None:
        await until_evicted(membership, chain, pool)
        self.manager.become("evicted")
        record = next((record for record in membership.slashed if record.node == membership.own), None)
        reason, amount = (reason_name(record.reason), record.amount) if record else ("", 0)
        why = f"reason {reason}, {amount / 1e18:g} tokens, {record.transaction}" if record else ""
        self.progress.tell("slashed", f"this node was evicted: {why or 'by a quorum of the validators'}")
        raise EvictedError(
            "this node was evicted from the pool",
            f"its stake was slashed: {why}" if record else "the pool's quorum ended its membership",
            "read the validators' verdicts (intellect-node status on another member); a slashed node cannot rejoin",
        )

    async def _leave(
        self, chain: ChainClient, pool: int, membership: Membership, directory: Path, journal: Journal
    ) -> None:
        """Tell the chain that this node leaves. One that only stops stays a member for as long as its lease runs, and
        comes back without a transaction: others do without whoever is not heard. A trainer with a seat leaves, so that
        a standby takes its chair at once."""
        seated = membership.terms.seated and membership.in_office(membership.own)
        if membership.evicted.is_set() or not (seated or self.manager.left.is_set()):
            return
        # Shielded: this runs in the drain, when everything around it is cancelled already.
        with trio.move_on_after(6.0, shield=True):
            try:
                await chain.leave(pool)
                await trio.to_thread.run_sync(forget, directory)
            except IntellectError as error:
                log.info("pool.not_left", why=error.why)
                return
            if self.manager.left.is_set():  # last: killed before, the next start leaves once more
                await journal.do(journal.remember, LEAVING, b"")


async def until_evicted(membership: Membership, chain: ChainClient, pool: int) -> None:
    """Returns once this node is out, by the chain's own word."""
    while True:
        await membership.evicted.wait()
        try:
            # The pool's history is heard anew at each start: a slash in it may have been overturned since.
            if await chain.is_evicted(pool, membership.own):
                return
            membership.pardoned()
        except IntellectError as error:
            log.warning("pool.eviction_unknown", why=error.why)
            await trio.sleep(2.0)  # seconds until a chain that did not answer is asked again whether this node is out


def _compiled(config: NodeConfig) -> CompiledRun:
    """A trainer's run, looked through. Nobody else needs what that imports: environments and their tokenizers."""
    from node.run.problems import check_run

    assert config.run_file is not None
    compiled = compile_run(config.run_file, sets=config.run_sets)
    check_run(compiled)
    return compiled
