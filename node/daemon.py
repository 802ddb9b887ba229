"""One node: which services run, in which order, and how they stop.

The order is the story of joining: lock the state, open the key, ask the chain for the pool, be reachable, join,
learn who else is there, obtain the run, play the role. SIGTERM or Ctrl-C drains; a second one cuts.
"""

import os
import signal
from functools import partial
from pathlib import Path

import structlog
import trio

from node.api.server import ApiServer
from node.blobs.door import BlobDoor
from node.blobs.exchange import BlobExchange, Limits
from node.blobs.http.certificate import own_certificate
from node.blobs.http.errors import BadSource
from node.blobs.http.fetch import HttpBlobs
from node.blobs.http.server import Gateway, ServedPolicy
from node.blobs.http.sources import HttpSource, parse_source
from node.blobs.interface import Blobs
from node.blobs.store import BlobStore
from node.chain.client import ChainClient
from node.chain.follower import EventFollower
from node.chain.keeper import CaseKeeper
from node.chain.profile import NetworkProfile, load_profile
from node.config import NodeConfig, Role, api_socket_path
from node.errors import ConfigError, EvictedError
from node.hardware import Hardware, choose_role, inspect_hardware
from node.inference.client import EngineProcess
from node.logs import set_up_logging
from node.metrics.observer import open_observer
from node.network.host import Libp2pNetwork
from node.recipe.capacity import CapacityGauge, measure
from node.recipe.requirements import check_requirements
from node.run.assets import Run, image_limit, obtain_run, offer_run
from node.run.file import compile_run
from node.run.problems import check_run
from node.services.generating import Worker
from node.services.judging.judge import Validator
from node.services.membership.events import PoolEvents
from node.services.membership.participant import ensure_participant
from node.services.station import Station
from node.services.training.trainer import Trainer
from node.state.directory import StateDir
from node.state.journal import Journal
from node.state.keystore import load_or_create, read_password
from node.status import StatusPage
from node.swarm.board import Board
from node.swarm.jury import Jury
from node.swarm.membership import Membership
from node.training.client import TrainerProcess
from node.training.settings import read_settings
from node.training.spool import Spool
from node.weights.fetch import PolicyFollower
from node.weights.keeper import PolicyShelf
from node.weights.publish import Publisher
from node.weights.records import PolicyRecords
from protocol.errors import IntellectError
from protocol.identity import Address, NodeKey
from protocol.messages import Heartbeat, PolicyAnnounced
from protocol.statements import Domain

log = structlog.get_logger()
LEAVE_DEADLINE = 6.0
KEPT_POLICIES_EXTRA = 3


def run(config: NodeConfig) -> None:
    """Be a node until stopped. Raises IntellectError for what a user can mend, KeyboardInterrupt on Ctrl-C."""
    try:
        trio.run(Daemon(config).main)
    except BaseExceptionGroup as group:
        raise _first_cause(group) from group


def _first_cause(group: BaseExceptionGroup) -> BaseException:
    """The error that a person should see: ours before anybody else's."""
    leaves = list(_leaves(group))
    ours = [error for error in leaves if isinstance(error, IntellectError)]
    unexpected = [error for error in leaves if not isinstance(error, (IntellectError, trio.Cancelled))]
    return unexpected[0] if unexpected else (ours or leaves)[0]


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]


class Daemon:
    """A node's life, from lock to leave."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.status = StatusPage()
        self._interrupted = False

    async def main(self) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._heed_signals, nursery.cancel_scope)  # before there is anything to clean up
            await self._hold_state()
            nursery.cancel_scope.cancel()
        if self._interrupted:
            raise KeyboardInterrupt

    async def _hold_state(self) -> None:
        state = StateDir(self.config.directory.resolve())
        journal: Journal | None = None
        try:
            set_up_logging(state.path / "logs", self.config.log_level)
            journal = Journal(state.path / "journal.sqlite")
            await self._live(state, journal)
        finally:
            if journal:
                journal.close()
            state.close()

    async def _heed_signals(
        self, scope: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for number in signals:
                if scope.cancel_called:
                    os._exit(130)
                log.info("node.draining", signal=signal.Signals(number).name)
                self.status.state = "draining"
                self._interrupted = number == signal.SIGINT
                scope.cancel()

    async def _live(self, state: StateDir, journal: Journal) -> None:
        key = await trio.to_thread.run_sync(self._open_key, state.path)
        self.status.identify(key, state.path)
        async with trio.open_nursery() as nursery:
            api = ApiServer(api_socket_path(state.path), self.status.render, self.config.metrics_address)
            await nursery.start(api.run)
            profile = await trio.to_thread.run_sync(lambda: load_profile(self.config.network, home=self.config.home))
            chain = ChainClient(profile, key, outbox=state.path / "outbox.sqlite")
            await self._join_swarm(nursery, state, journal, key, profile, chain)
            nursery.cancel_scope.cancel()

    def _open_key(self, directory: Path) -> NodeKey:
        password = read_password(self.config.password, self.config.password_file, directory)
        return load_or_create(directory / "node-key.json", password)

    async def _join_swarm(
        self,
        nursery: trio.Nursery,
        state: StateDir,
        journal: Journal,
        key: NodeKey,
        profile: NetworkProfile,
        chain: ChainClient,
    ) -> None:
        await chain.connect()
        number = self.config.pool if self.config.pool is not None else profile.pool
        if number is None:
            raise ConfigError("no pool to join", "neither --pool nor the network profile names one", "give --pool N")
        pool = await chain.pool(number)
        hardware = await trio.to_thread.run_sync(inspect_hardware)
        log.info("hardware.found", summary=hardware.summary)
        role = choose_role(self.config.role, key.address, pool.manager, pool.validators, hardware)
        self.status.place(profile, number, role)
        network = Libp2pNetwork(key, self.config.listen)
        membership = Membership(key.address, network, pool.manager, pool.validators)
        domain = Domain(profile.chain_id, profile.contracts.swarm)
        board = Board(network, key, domain, number, membership)
        store = await trio.to_thread.run_sync(BlobStore, state.path / "blobs", self.config.store_quota)
        limits = Limits(self.config.upload_limit, self.config.download_limit, self.config.upload_slots)
        exchange = BlobExchange(network, store, limits)
        await nursery.start(network.run)
        contact = self.config.announce or network.contacts()[0]
        await ensure_participant(chain, key, self.config, state.path)
        await chain.join(number, contact)
        log.info("pool.joined", pool=number, role=role, contact=contact)
        follower = EventFollower(chain, number, state.path / "chain.sqlite", poll=self.config.chain_poll)
        events = PoolEvents(follower, chain, number, membership, contact)
        await nursery.start(events.run)
        nursery.start_soon(board.run)
        nursery.start_soon(membership.follow, board)
        self.status.connect(network, membership, board, events)
        first = [parse_source(text) for text in self.config.http_sources]
        blobs = BlobDoor(store, exchange, HttpBlobs(store), first, lambda: _gateways(membership))
        run_ = await self._obtain_run(role, pool.run_root, blobs, membership, key.address, state.path)
        keep = run_.spec.recipe.max_staleness + KEPT_POLICIES_EXTRA
        jury = Jury(board, membership, run_.spec, number, pool.threshold, journal)
        nursery.start_soon(jury.run)
        station = Station(
            key, domain, number, run_, board, blobs, journal, membership, PolicyShelf(keep, store), pool.threshold, jury
        )
        self.status.work_for(station)
        gateway = await self._open_gateway(nursery, station, store, state.path)
        nursery.start_soon(membership.beat, board, self.config.heartbeat, self._beat(station, role, contact, gateway))
        try:
            with trio.CancelScope() as scope:
                nursery.start_soon(self._stop_when_evicted, membership, scope)
                await self._play(role, hardware, station, store, exchange, chain, state.path)
        finally:
            await self._leave(chain, number, membership)

    async def _obtain_run(
        self, role: Role, root: bytes, blobs: Blobs, membership: Membership, own: Address, directory: Path
    ) -> Run:
        self.status.state = "syncing"
        if role == "trainer" and self.config.run_file is not None:
            compiled = await trio.to_thread.run_sync(compile_run, self.config.run_file)
            await trio.to_thread.run_sync(check_run, compiled)
            return await offer_run(compiled, root, blobs, directory / "run")

        def members() -> list[Address]:
            return [address for address in membership.addresses() if address != own]

        return await obtain_run(root, blobs, members, directory / "run")

    async def _play(
        self,
        role: Role,
        hardware: Hardware,
        station: Station,
        store: BlobStore,
        exchange: BlobExchange,
        chain: ChainClient,
        path: Path,
    ) -> None:
        """Play the role until cancelled."""
        check_requirements(station.run.spec, role, hardware)
        if role == "trainer":
            await self._train(station, store, path)
            return
        engine = EngineProcess(self.config.engine_argv, station.run.encoded, station.run.assets)
        policies = PolicyFollower(
            station.board.subscribe(PolicyAnnounced),
            station.blobs,
            store,
            station.shelf,
            station.run.root,
            lambda author: [author, *station.membership.addresses()],
            image_limit(station.run.spec),
            workshop=path / "weights" / "building",
            records=PolicyRecords(path / "weights" / "held"),
            repeat=station.board.post_raw,
            blame=lambda author, _why: exchange.reputation.lied(author, trio.current_time()),
        )
        scratch = path / "tmp"
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            nursery.start_soon(policies.run)
            if role == "worker":
                engine.check_permitted(station.run.spec.verification)
                machine = await trio.to_thread.run_sync(measure, station.run.assets, hardware.gpus)
                actor = Worker(station, engine, chain, scratch, CapacityGauge(station.run.spec, machine))
            else:
                actor = Validator(station, engine, policies, CaseKeeper(chain, path / "cases"), scratch)
            self.status.play(actor, [engine])
            nursery.start_soon(actor.run)

    async def _train(self, station: Station, store: BlobStore, path: Path) -> None:
        spool = Spool(path / "spool")
        await trio.to_thread.run_sync(spool.prepare, station.run.encoded, station.run.assets)
        learner = TrainerProcess(spool, settings=read_settings(self.config.trainer))
        publisher = Publisher(
            store,
            station.board,
            station.journal,
            station.run.root,
            station.pool,
            workshop=path / "weights" / "building",
            anchor_every=station.run.spec.weights.anchor_every,
            records=PolicyRecords(path / "weights" / "held"),
            shelf=station.shelf,
        )
        open_ = partial(open_observer, station.run.spec, path, self.config.metrics_log)
        observer = await trio.to_thread.run_sync(open_)
        trainer = Trainer(station, learner, spool, publisher, observer)
        self.status.play(trainer, [learner])
        try:
            await trainer.run()
        finally:
            observer.close()

    async def _open_gateway(self, nursery: trio.Nursery, station: Station, store: BlobStore, path: Path) -> str:
        """Serve by HTTP if that was asked for; returns what the heartbeat says of it."""
        if self.config.gateway is None:
            return ""
        certificate = None
        if self.config.gateway_tls:
            certificate = await trio.to_thread.run_sync(own_certificate, path, station.key)
        gateway = Gateway(self.config.gateway, store, lambda: _served(station.shelf), certificate)
        await nursery.start(gateway.run)
        return gateway.source(self.config.gateway_announce)

    def _beat(self, station: Station, role: Role, contact: str, gateway: str):  # noqa: ANN202
        def describe(sequence: int, interval: float) -> Heartbeat:
            newest = station.shelf.newest
            return Heartbeat(
                pool=station.pool,
                sequence=sequence,
                role=role,
                state=self.status.state,
                contact=contact,
                policy_step=newest.step if newest else -1,
                interval=interval,
                rate=self.status.rate,
                engine=self.status.engine,
                finished=self.status.finished,
                gateway=gateway,
                lots=self.status.pledges,
            )

        return describe

    async def _stop_when_evicted(self, membership: Membership, scope: trio.CancelScope) -> None:
        await membership.evicted.wait()
        self.status.state = "evicted"
        record = next((record for record in membership.slashed if record.node == membership.own), None)
        why = f"reason {record.reason_name}, {record.amount / 1e18:g} tokens, {record.transaction}" if record else ""
        raise EvictedError(
            "this node was evicted from the pool",
            f"its stake was slashed: {why}" if record else "the pool's quorum ended its membership",
            "read the validators' verdicts (intellect-node status on another member); a slashed node cannot rejoin",
        )

    async def _leave(self, chain: ChainClient, pool: int, membership: Membership) -> None:
        """Tell the chain that this node leaves; a node that cannot is dropped when its heartbeats stop."""
        if membership.evicted.is_set():
            return
        with trio.move_on_after(LEAVE_DEADLINE, shield=True):
            try:
                await chain.leave(pool)
            except IntellectError as error:
                log.info("pool.not_left", why=error.why)


def _gateways(membership: Membership) -> list[HttpSource]:
    """The HTTP sources that members announce; a text that is none is somebody else's mistake."""
    found: list[HttpSource] = []
    for text in membership.gateways():
        try:
            found.append(parse_source(text))
        except BadSource as error:
            log.debug("gateway.announcement_refused", why=error.why)
    return found


def _served(shelf: PolicyShelf) -> list[ServedPolicy]:
    return [
        ServedPolicy(held.step, held.root, held.manifest.image_root, held.manifest.image_size, held.path)
        for held in shelf.held
    ]
