"""The pool's events on chain, turned into membership; the chain's health and this node's stake beside them."""

import structlog
import trio

from contracts.bindings import Event, Joined, Left, Slashed, SlashOverturned, WorkCommitted
from node.chain.client import ChainClient
from node.chain.follower import EventFollower, RolledBack
from node.swarm.membership import Membership, SlashRecord
from protocol.errors import IntellectError

log = structlog.get_logger()
FIRST_LOOK = 60.0
STAKE_EVERY = 5.0
RENEWALS_PER_LEASE = 3
UNKNOWN_LEASE = 20.0


class PoolEvents:
    """A service; `started` once the pool's history is known."""

    def __init__(
        self, follower: EventFollower, client: ChainClient, pool: int, membership: Membership, contact: str
    ) -> None:
        self._follower = follower
        self._client = client
        self._pool = pool
        self._membership = membership
        self._contact = contact
        self.bonded = 0
        self.work_committed = 0

    @property
    def healthy(self) -> bool:
        return self._follower.healthy

    @property
    def block(self) -> int:
        return self._follower.block.number if self._follower.block else 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._consume)
            await nursery.start(self._follower.run)
            with trio.move_on_after(FIRST_LOOK):
                while self._follower.block is None:  # noqa: ASYNC110 - asked a few times, once
                    await trio.sleep(0.05)
            task_status.started()
            nursery.start_soon(self._watch_stake)
            nursery.start_soon(self._renew_lease)

    async def _consume(self) -> None:
        async for delivery in self._follower.events:
            if isinstance(delivery, RolledBack):
                for event in delivery.events:
                    self._undo(event)
            else:
                self._apply(delivery)

    def _apply(self, event: Event) -> None:
        match event:
            case Joined(node=node, contact=contact):
                self._membership.joined(node, contact)
            case Left(node=node):
                self._membership.left(node)
            case WorkCommitted():
                self.work_committed += 1
            case Slashed():
                self._membership.slash(
                    SlashRecord(
                        event.node,
                        event.provider,
                        event.amount,
                        event.reason,
                        event.transaction,
                        event.block,
                        event.file_root.hex(),
                    )
                )
            case SlashOverturned(node=node):
                for record in [known for known in self._membership.slashed if known.node == node]:
                    self._membership.unslash(node, record.transaction)

    def _undo(self, event: Event) -> None:
        """A replaced block took an event back."""
        match event:
            case Joined(node=node):
                self._membership.left(node)
            case Left(node=node):
                self._membership.joined(node, "")
            case Slashed(node=node, transaction=transaction):
                self._membership.unslash(node, transaction)

    async def _watch_stake(self) -> None:
        while True:
            try:
                node = await self._client.node_info(self._membership.own)
                if node.provider is not None:
                    self.bonded = (await self._client.stake_of(node.provider)).bonded
            except IntellectError as error:
                log.info("stake.unknown", why=error.why)
            await trio.sleep(STAKE_EVERY)

    async def _renew_lease(self) -> None:
        """Membership is a lease: renew it well before it runs out."""
        while True:
            pause = UNKNOWN_LEASE
            try:
                pool = await self._client.pool(self._pool)
                pause = pool.lease_seconds / RENEWALS_PER_LEASE
                await trio.sleep(pause)
                if self._membership.is_member(self._membership.own):
                    await self._client.join(self._pool, self._contact)
            except IntellectError as error:
                log.warning("lease.not_renewed", why=error.why)
                await trio.sleep(min(pause, UNKNOWN_LEASE))
