"""All checks at once, as far as each can go: for `doctor`, and for `join --dry-run`. Writes nothing on chain.

What cannot be asked (no profile, no chain, no key) is a finding by itself, and the others are made all the same.
"""

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import trio

from contracts.bindings import NOBODY, PoolInfo
from node.chain.client import ChainClient
from node.chain.faucet import is_devnet
from node.chain.invitations import InvitationCheck, admission
from node.chain.profile import NetworkProfile, load_profile
from node.chain.simulate import SimulatedStep
from node.config import NodeConfig, Role, default_home
from node.guest.earning import by_speed
from node.hardware import Hardware, choose_role, inspect_hardware, reason_for
from node.preflight.chain import (
    against_chain,
    check_contracts,
    check_gas,
    check_invitation,
    check_pool,
    check_rpc,
    check_stake,
    check_witnesses,
    look,
    look_at_bond,
    look_at_door,
    read_powers,
    who_takes_what,
)
from node.preflight.engines import check_class, check_engine, check_engines
from node.preflight.finding import CheckFinding, PreflightFailed, failure, ok, worst
from node.preflight.guest import capped, check_guest, refuse_guest
from node.preflight.machine import (
    check_disk,
    check_gpu,
    check_keys,
    check_lock,
    check_machine,
    check_memory,
    check_quota,
    check_sandbox,
    check_versions,
    policy_bytes,
    speed_finding,
)
from node.preflight.reach import (
    announced,
    ask_for_spec,
    check_all_announced,
    check_listen,
    choose_listen,
    is_public,
    visit,
)
from node.preflight.settings import check_settings
from node.processes.forkserver import Starter
from node.recipe.speed import measured, recall
from node.run.assets import Run
from node.state.locks import holder_of
from node.training.planning import machine_of
from node.training.sizing import DecoderShape, shape_of
from protocol.economics import daily_gas
from protocol.errors import IntellectError
from protocol.identity import Address, parse_address
from protocol.run import MODEL, RunSpec

CODES = {
    "rpc": 4,
    "network": 4,
    "contracts": 4,
    "pool": 4,
    "invitation": 4,
    "stake": 4,
    "gas": 4,
    "join": 4,
    "memory": 3,
    "engine": 6,
    "engines": 6,
    "class": 6,
    "peers": 5,
}
"""The program's exit code for a failed check; 3 for the others."""


class Scope(msgspec.Struct, frozen=True):
    """What to look at. joining: this program would join now, so a running daemon is in its way; deep: how far back
    logs can be asked; visit: dial the members; engine: start the engine with the run."""

    joining: bool = False
    deep: bool = False
    visit: bool = False
    engine: bool = False


OnFinding = Callable[[CheckFinding], object]


class PreflightSurvey:
    """One look. on_progress: hears each finding as it is made; starter: starts what imports an engine's libraries."""

    def __init__(
        self, config: NodeConfig, scope: Scope, on_progress: OnFinding = lambda _: None, starter: Starter | None = None
    ) -> None:
        self._config = config
        self._scope = scope
        self._told = on_progress
        self._starter = starter
        self._directory = config.directory.resolve()
        # Until it has been looked at; no check reads it before.
        self._hardware = Hardware(0, 0, ())
        self._node: Address = NOBODY
        self.findings: list[CheckFinding] = []

    async def run(self) -> list[CheckFinding]:
        # From what costs nothing to what costs most: whoever watches sees the cheap answers at once.
        await self._thread(self._look_at_files)
        self._hardware = await trio.to_thread.run_sync(inspect_hardware, abandon_on_cancel=True)
        await self._thread(self._look_at_hardware)
        await self._look_at_speed()
        profile = await self._profile()
        if profile is not None:
            await self._thread(lambda: check_rpc(profile, time.time(), deep=self._scope.deep))
            if self.findings[-1].name == "rpc" and self.findings[-1].level == "failure":
                return self.findings  # none of them answers: all else on chain would say the same
            with closing(ChainClient(profile)) as chain:
                try:
                    await self._look_at_pool(chain)
                except IntellectError as error:
                    # Whatever cannot be asked is a finding.
                    self._add(failure("rpc", f"{error.what}: {error.why}"[:500], error.remedy))
        return self.findings

    # parts

    def _look_at_files(self) -> list[CheckFinding]:
        config = self._config
        keys = check_keys(self._directory, config.password, config.password_file)
        self._node = next((parse_address(one.data["address"]) for one in keys if one.data.get("address")), NOBODY)
        return [
            check_versions(),
            check_sandbox(),
            *check_settings(default_home() / "config.toml", os.environ),
            check_lock(self._directory, joining=self._scope.joining),
            *keys,
        ]

    def _look_at_hardware(self) -> list[CheckFinding]:
        config, hardware = self._config, self._hardware
        engines = check_engines(config.engine, gpu=bool(hardware.gpus), own=config.engine_command)
        return [check_machine(hardware), check_gpu(hardware), engines]

    async def _look_at_speed(self) -> None:
        """What was measured earlier; measured now where the engine is to be tried."""
        config, hardware = self._config, self._hardware
        if self._scope.engine and not config.engine_command:
            self._add(
                speed_finding(await measured(config.home, hardware, config.engine_options, starter=self._starter))
            )
        else:
            await self._thread(lambda: [speed_finding(recall(config.home, hardware))])

    async def _profile(self) -> NetworkProfile | None:
        try:
            return await trio.to_thread.run_sync(lambda: load_profile(self._config.network, home=self._config.home))
        except IntellectError as error:
            self._add(failure("network", f"{error.what}: {error.why}", error.remedy))
            return None

    async def _look_at_pool(self, chain: ChainClient) -> None:
        number = self._config.pool if self._config.pool is not None else chain.profile.pool
        block = await chain.block()
        self._add(against_chain(block.timestamp, time.time(), rehearsal=not is_public(chain.profile)))
        if number is None:
            self._add(failure("pool", "neither --pool nor the network profile names a pool", "give --pool N"))
            return
        pool = await chain.pool(number, agreed=True)
        self._add(check_contracts(chain.profile, chain.other_code, chain.astray))
        self._add(check_pool(pool, await chain.earnings(number)))
        role = self._role(pool)
        if role is None:
            return
        door = await look_at_door(chain, pool, self._node, self._config)
        if pool.invited:
            self._add(check_invitation(door))
        powers = await chain.ask("read the parameters", read_powers)
        self._add(ok("powers", "; ".join(who_takes_what(pool, powers))))
        await self._look_at_stake(chain, pool, door)
        await self._thread(lambda: self._look_at_port(chain.profile, role))
        await self._look_at_run(chain, pool, role)

    def _role(self, pool: PoolInfo) -> Role | None:
        asked = self._config.role
        try:
            role = choose_role(asked, self._node, pool.trainers, pool.validators, self._hardware)
        except IntellectError as error:
            self._add(failure("role", f"{error.what}: {error.why}", error.remedy))
            return None
        self._add(ok("role", f"{role}: {reason_for(asked, role, self._hardware)}", role=role))
        return role

    async def _look_at_stake(self, chain: ChainClient, pool: PoolInfo, door: InvitationCheck) -> None:
        config, directory = self._config, self._directory
        standing, steps = await look(chain, self._node, pool, config, directory)
        if not standing.registered and config.auto_setup and is_devnet(chain.profile):
            self._add(ok("stake", "a devnet: join funds, stakes and registers this node by itself"))
            return
        if self._node == NOBODY:
            # The steps need an address, so the key comes before them.
            steps.insert(0, f"intellect-node keys new --state-dir {directory}")
        self._add(check_stake(standing, steps))
        self._add(check_gas(standing))
        if (bond := await look_at_bond(chain, self._node, pool, config)) is not None:
            self._add(bond)
        # Before it is ready the contract says no in any case, for a reason that was told already.
        if standing.ready and self._scope.joining and not door.shut:
            await self._rehearse(chain, pool, door)

    async def _rehearse(self, chain: ChainClient, pool: PoolInfo, door: InvitationCheck) -> None:
        """Whether the contract would let this node in, asked of the contract itself: where it comes by an invitation,
        of that one first, since the other call would build on it."""
        if door.by is not None:
            enter = admission(chain.contracts, chain.domain, self._node, door.by)
            step = SimulatedStep(f"enter pool {pool.id} by invitation", enter)
        else:
            step = SimulatedStep(f"join pool {pool.id}", chain.contracts.join(pool.id, "/ip4/127.0.0.1/tcp/4001"))
        try:
            simulation = await chain.simulate([step], self._node)
        except IntellectError as error:
            self._add(failure("join", f"{error.what}: {error.why}", error.remedy))
            return
        self._add(ok("join", f"the contract admits this node, for {simulation.gas:,} gas", gas=simulation.gas))

    def _look_at_port(self, profile: NetworkProfile, role: Role) -> list[CheckFinding]:
        config = self._config
        running = holder_of(self._directory / "lock") is not None
        listen = choose_listen(config.listen, profile, self._directory, running=running)
        where = announced(listen, config.announce)
        reach = check_all_announced(where, role, is_public(profile), chosen=bool(config.announce))
        return [*map(check_listen, listen), reach] if self._scope.joining else [reach]

    async def _look_at_run(self, chain: ChainClient, pool: PoolInfo, role: Role) -> None:
        with tempfile.TemporaryDirectory(prefix="intellect-preflight-") as folder:
            run = await self._visit(chain, pool, Path(folder)) if self._scope.visit else None
            spec = run.spec if run else None
            shape = shape_of(run.assets / MODEL) if run else None
            image = policy_bytes(spec, shape) if spec else 0
            await self._thread(lambda: [check_disk(self._directory, self._config.quota, image)])
            await self._thread(lambda: check_guest(self._config, role, self._hardware, spec))
            if spec is not None and role == "worker":
                self._add(await self._estimate(chain, pool, spec))
            await self._thread(lambda: [self._fits(spec, shape, role)])
            if spec is not None and role != "trainer" and not self._config.engine_command:
                self._add(await check_class(spec.verification, role, self._config.engine_options, self._starter))
            if run is not None and self._scope.engine and role != "trainer":
                self._add(await check_engine(self._config.engine_argv, run.spec, run.assets, self._starter))

    def _fits(self, spec: RunSpec | None, shape: DecoderShape | None, role: Role) -> CheckFinding:
        hardware = capped(self._hardware, self._config.limits)
        return check_memory(spec, role, hardware, machine_of(hardware), shape, self._config.trainer)

    async def _estimate(self, chain: ChainClient, pool: PoolInfo, spec: RunSpec) -> CheckFinding:
        """What a day would come to, as far as anybody can say before."""
        try:
            gas = daily_gas(0) * await chain.gas_price()
        except IntellectError:
            gas = None
        speed = await trio.to_thread.run_sync(recall, self._config.home, self._hardware)
        if speed is None or not pool.reward_per_unit:
            why = "this machine's speed is not measured" if speed is None else "the pool pays nothing for a unit"
            return ok("earning", f"what a day comes to is unknown: {why}")
        share = self._config.limits.hours.share(time.time())
        # Of the weights that a run begins with.
        day = by_speed(speed.expected(spec.weight_bytes() // 2), pool.reward_per_unit, share, gas)
        told = {"most_wei": str(day.most), "gas_wei": None if gas is None else str(gas), "share": round(share, 3)}
        return ok("earning", day.text, **told)

    async def _visit(self, chain: ChainClient, pool: PoolInfo, folder: Path) -> Run | None:
        visited = await visit(chain, pool, folder)
        self._add(visited.finding)
        return visited.run

    # frame

    def _add(self, finding: CheckFinding) -> None:
        self.findings.append(finding)
        self._told(finding)

    async def _thread(self, check: Callable[[], list[CheckFinding]]) -> None:
        # Abandoned on Ctrl-C: an endpoint that does not answer must not hold the terminal.
        for finding in await trio.to_thread.run_sync(check, abandon_on_cancel=True):
            self._add(finding)


def exit_code(findings: list[CheckFinding]) -> int:
    """0, or the code of the first failure."""
    failed = next((finding for finding in findings if finding.level == "failure"), None)
    return 0 if failed is None else CODES.get(failed.name, 3)


# What a daemon looks at before it joins: everything that would fail later, or would fail others.
# The stake is not among it: that is waited for (node.services.membership.participant).
async def admit(
    chain: ChainClient,
    pool: PoolInfo,
    config: NodeConfig,
    directory: Path,
    role: Role,
    hardware: Hardware,
    listen: tuple[str, ...],
) -> list[CheckFinding]:
    """The warnings. listen: multiaddrs. Raises PreflightFailed for a failure, ChainError."""

    def examine_machine() -> list[CheckFinding]:
        return [check_disk(directory, config.quota), check_gpu(hardware), *map(check_listen, listen)]

    block = await chain.block()
    public = is_public(chain.profile)
    found = [against_chain(block.timestamp, time.time(), rehearsal=not public)]
    found.append(check_witnesses(chain.profile))
    found.append(check_pool(pool, await chain.earnings(pool.id)))
    found += await trio.to_thread.run_sync(examine_machine)
    where = announced(listen, config.announce)
    found.append(check_all_announced(where, role, public, chosen=bool(config.announce)))
    if worst(found) == "failure":
        raise PreflightFailed(found)
    return [finding for finding in found if finding.level == "warning"]


async def check_before_stake(
    chain: ChainClient,
    pool: PoolInfo,
    node: Address,
    config: NodeConfig,
    role: Role,
    hardware: Hardware,
    starter: Starter | None = None,
) -> None:
    """Before a stake is put up for a node: raise PreflightFailed where the pool's run, if its members tell it, was not
    calibrated for how this machine computes, or needs more than it has or its owner grants. Raises ChainError.

    Who is registered has a stake, and hears it from the engine; on a devnet it is play money.
    """
    play_money = config.auto_setup and is_devnet(chain.profile)
    if role == "trainer" or play_money or (await chain.node_info(node)).provider:
        return
    with tempfile.TemporaryDirectory(prefix="intellect-preflight-") as folder:
        spec = await ask_for_spec(chain, pool, Path(folder))
    if spec is None:
        return
    await trio.to_thread.run_sync(refuse_guest, config, role, hardware, spec)
    if (store := check_quota(config.quota, policy_bytes(spec))).level == "failure":
        raise PreflightFailed([store])
    machine = await trio.to_thread.run_sync(machine_of, hardware)
    if (memory := check_memory(spec, role, hardware, machine)).level == "failure":
        raise PreflightFailed([memory])
    if spec.pretraining is None and not config.engine_command:  # no engine samples in the former
        finding = await check_class(spec.verification, role, config.engine_options, starter)
        if finding.level == "failure":
            raise PreflightFailed([finding])
