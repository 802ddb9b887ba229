"""Before joining: is this node registered, does a stake answer for it, can it pay for gas? On a devnet, make it so.

The provider's key stakes and is never needed by a running daemon. On a devnet a provider key is made and kept
beside the node's own, so that one command is enough there. Elsewhere what is missing is waited for.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
import trio

from contracts.bindings import PoolInfo
from node.chain.client import ChainClient
from node.chain.errors import (
    ChainError,
    DevnetError,
    FeeTooHigh,
    InsufficientFunds,
    InsufficientStake,
    Reverted,
    RpcUnreachable,
    tokens,
)
from node.chain.faucet import DevnetFaucet, is_devnet
from node.chain.setup import prepare_participant
from node.changes import every
from node.config import NodeConfig
from node.preflight.chain import ChainStanding, check_gas, check_stake, look, read_powers, who_takes_what
from node.preflight.finding import CheckFinding
from node.progress import ProgressRecord
from node.services.base import Service
from node.state.keystore import load_key, load_or_create, read_password
from node.swarm.membership import Membership
from protocol.errors import IntellectError
from protocol.identity import Address, NodeKey
from protocol.upkeep import Patience, look_every, margin, renewal_due

log = structlog.get_logger()


async def ensure_participant(
    chain: ChainClient, key: NodeKey, config: NodeConfig, directory: Path, pool: PoolInfo, progress: ProgressRecord
) -> None:
    """Return once the node may join. Where it may not yet and nobody waits, raises ChainError (no stake, not
    registered, no gas) with the command that helps."""
    told: list[str] = []
    pause = 3.0  # seconds between two looks whether the stake has come
    while True:
        try:
            standing, steps = await look(chain, key.address, pool, config, directory)
        except RpcUnreachable as error:
            # Of a first question in vain the owner is told by a refusal. Who has waited already goes on waiting.
            if not told:
                raise
            progress.trouble(f"{error.what}: {error.why}")  # somebody who waits for hours outlasts that
            await trio.sleep(pause)
            continue
        if not standing.registered and config.auto_setup and is_devnet(chain.profile) and not told:
            try:
                await _set_up(chain, key, config, directory)
                return
            except DevnetError as error:  # its number is a devnet's, and it gives no coin away
                progress.trouble(f"{error.what}: {error.why}")
        if standing.ready or (standing.staked and is_devnet(chain.profile)):
            return
        lacking = check_gas(standing) if standing.staked else check_stake(standing, steps)
        if not told and not standing.staked:  # before anybody stakes anything
            for power in who_takes_what(pool, await chain.ask("read the parameters", read_powers)):
                progress.tell("powers", power)
        if not config.wait:
            for step in steps:  # the refusal names them in one line; here each can be copied
                progress.tell("do", step)
            raise _refusal(standing, lacking)
        _tell(lacking.what, [step for step in steps if _named(step) not in told], progress)
        told = [_named(step) for step in steps]
        progress.enter("stake", f"waiting: {lacking.what}")
        await trio.sleep(pause)


def _tell(what: str, steps: list[str], progress: ProgressRecord) -> None:
    """Each step as an event of its own, to be copied."""
    if steps:
        log.warning("node.waits", what=what, steps=steps)
        progress.tell("needs", what)
    for step in steps:
        progress.tell("do", step)


def _named(step: str) -> str:
    """A step without the amount of coin to send, which follows the price of gas from block to block."""
    return step.partition(" of the chain's coin ")[2] or step


def _refusal(standing: ChainStanding, lacking: CheckFinding) -> ChainError:
    if not standing.registered:
        return ChainError(f"the node {standing.node} has no stake", lacking.what, lacking.remedy)
    if not standing.staked and standing.provider is not None:
        return InsufficientStake(standing.provider, standing.bonded, standing.required)
    return InsufficientFunds("the node cannot pay for joining", lacking.what, lacking.remedy)


async def _set_up(chain: ChainClient, key: NodeKey, config: NodeConfig, directory: Path) -> None:
    """On a devnet: fund, stake and register."""
    provider = await trio.to_thread.run_sync(_provider_key, config, directory)
    await prepare_participant(chain, DevnetFaucet(chain), provider, key, stake=config.stake, units=config.units)
    log.info("node.set_up", provider=provider.address, stake=tokens(config.stake))


def _provider_key(config: NodeConfig, directory: Path) -> NodeKey:
    password = read_password(config.password, config.password_file, directory)
    if config.provider_key_file is not None:
        return load_key(config.provider_key_file, password)
    # On a devnet only; elsewhere a provider's key never lies beside its node's.
    return load_or_create(directory / "provider-key.json", password)


async def needs_no_join(chain: ChainClient, pool: PoolInfo, node: Address) -> bool:
    """Whether a start sends nothing: the lease runs, and is not due yet. Those whom everybody seeks tell where they
    are. Raises ChainError."""
    if node in (*pool.trainers, *pool.validators):
        return False
    known, now = await chain.standing(pool.id, node), (await chain.block()).timestamp
    return now < renewal_due(known.lease_until, pool.lease_seconds)


RETRY = 20.0
"""Seconds after which a renewal that failed is tried again: the last eighth of a lease is time for many. The second,
at most, where the chain answers: a paused pool takes nobody in, and gas stays dear for a while."""


class LeaseRenewal(Service):
    """Keeps this node a member: one renewal a lease, when the chain says that it is time.

    contact: where others reach this node now, as the chain tells them; joined: False for a node that came back while
    the chain was silent, or in doubt, which joins again once the chain answers and it is ready; clock: unix seconds of
    a chain that makes no blocks without work, 0 where its blocks tell the time.
    """

    name = "lease"

    def __init__(
        self,
        chain: ChainClient,
        pool: int,
        membership: Membership,
        contact: Callable[[], str],
        progress: ProgressRecord | None = None,
        *,
        joined: bool = True,
        ready: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._chain = chain
        self._pool = pool
        self._membership = membership
        self._contact = contact
        self._progress = progress or ProgressRecord()
        self._joined = joined
        self._ready = ready
        self._clock = clock
        self._every = RETRY
        """Seconds between two looks, as the pool's lease has it."""
        self._place = ""
        """Where the chain says that this node is, as far as this daemon told it."""

    async def run(self) -> None:
        await self._ready()
        while not self._joined:
            await self._join_again()
        self._place = self._contact()
        # Seconds at most where the chain answers: a paused pool takes nobody in, and gas stays dear for a while.
        refused = 300.0
        pause = 0.0

        async def renew() -> None:
            nonlocal pause
            try:
                pause = await self._tick()
            except FeeTooHigh as error:
                # No owner need do anything: the price may fall, and what may be paid rises.
                log.info("lease.waits", why=error.why)
                pause = min(self._every, refused)
            except IntellectError as error:
                log.warning("lease.not_renewed", why=error.why)
                self._progress.trouble(f"the membership was not renewed: {error.why}")
                pause = min(self._every, refused if isinstance(error, Reverted) else RETRY)

        await every(lambda: pause, renew)

    async def _tick(self) -> float:
        """Renew if it is time; returns the seconds until the next look."""
        lease = (await self._chain.pool(self._pool)).lease_seconds
        every = self._every = look_every(lease)
        if not self._membership.is_member(self._membership.own):
            return every
        now = max((await self._chain.block()).timestamp, self._clock())
        # By the chain's word, whatever this daemon or one before it has sent: no start renews what runs.
        until = (await self._chain.standing(self._pool, self._membership.own)).lease_until
        due = renewal_due(until, lease)
        if self._has_moved() and now >= until - lease + margin(lease):
            due = int(now)
        if now < due:
            return min(every, due - now)
        contact = self._contact()
        await self._chain.join(self._pool, contact, patience=Patience(due, until))
        self._place = contact
        return every

    def _has_moved(self) -> bool:
        """Whether newcomers look for this node in the wrong place. Of members whom nobody seeks, heartbeats say it."""
        own, members = self._membership.own, self._membership
        sought = members.is_trainer(own) or members.may_validate(own)
        return sought and self._contact() != self._place

    async def _join_again(self) -> None:
        try:
            await self._chain.connect()
            if not await needs_no_join(self._chain, await self._chain.pool(self._pool), self._membership.own):
                await self._chain.join(self._pool, self._contact())
        except IntellectError as error:
            log.info("pool.not_rejoined", why=error.why)
            await trio.sleep(5.0)  # seconds between two tries of a node that is no member yet
        else:
            self._joined = True
            told = f"the chain answers again: in pool {self._pool}, reached at {self._contact()}"
            self._progress.tell("joined", told)
