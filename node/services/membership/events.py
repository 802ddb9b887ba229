"""The pool's events on chain, turned into membership and books; and whether the chain answers."""

from collections import deque
from typing import Any

import msgspec
import trio

from contracts.bindings import (
    ChainEvent,
    Joined,
    Left,
    Slashed,
    SlashOverturned,
    TermEnded,
    TermHeld,
    TermTaken,
    TrainersSeated,
    ValidatorsSet,
    ValidatorStruck,
)
from node.bounded_dict import BoundedDict
from node.chain.follower import GRACE, EventFollower, RolledBack
from node.chain.ledger import Ledger
from node.changes import every
from node.progress import TROUBLE, ProgressRecord
from node.services.base import Service
from node.swarm.membership import Membership
from protocol.identity import Address


class Events(Service):
    """Ready once the pool's history is known, or has been waited for long enough."""

    name = "events"

    def __init__(self, follower: EventFollower, membership: Membership, progress: ProgressRecord | None = None) -> None:
        self._follower = follower
        self._progress = progress or ProgressRecord()
        self._membership = membership
        self.ledger = Ledger(membership.own, self._read_until, lambda: follower.now, lambda time: follower.around(time))
        remembered = 1024  # joinings and leavings of which it is known what they changed, the newest; and benches
        self._stood: BoundedDict[ChainEvent, tuple[str, int]] = BoundedDict(remembered)
        """Where its node was and until when, before a member joined again or left."""
        self._benches: deque[tuple[tuple[Address, ...], int]] = deque(maxlen=remembered)
        """Who was in office before each change, and their quorum."""

    async def start(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self.run)
        await nursery.start(self._follower.run)
        with trio.move_on_after(60.0):
            # Once the chain was asked in vain, what is known of the pool from before is gone on with, if that is more
            # than ourselves.
            known = self._membership.addresses
            while self._follower.block is None and not (self._follower.unanswered and known()):
                with trio.move_on_after(1.0):  # members that are known from before may come a little later
                    await self._follower.looked.wait()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            # The chain's silence and the end of leases are told by no event.
            nursery.start_soon(self._watch)
            await self._take_in()
            nursery.cancel_scope.cancel()

    async def _watch(self) -> None:
        """Tell of a chain that answers no more, and of one that answers again."""
        healthy = True

        async def watch() -> None:
            nonlocal healthy
            await self._end_leases()
            if self._follower.healthy != healthy and self._follower.block is not None:
                healthy = self._follower.healthy
                if healthy:
                    self._progress.tell("chain", "the chain answers again")
                else:
                    self._progress.tell(TROUBLE, "the chain does not answer: no pay and no membership until it does")

        await every(2.0, watch, at_once=False)

    def _read_until(self) -> int:
        """The chain's time up to which its events were taken in; 0 while some wait in the channel."""
        return 0 if self._follower.events.statistics().current_buffer_used else self._follower.read_until

    async def _end_leases(self) -> None:
        """Once all renewals of before are known."""
        # A renewal that waits in the channel would come too late for a member that was just ended.
        if until := self._read_until():
            while self._membership.expire(until - GRACE):
                await trio.lowlevel.checkpoint()

    async def _take_in(self) -> None:
        async for delivery in self._follower.events:
            if isinstance(delivery, RolledBack):
                # The newest first: each is taken back from what it left.
                for event in reversed(delivery.events):
                    self._undo(event)
            else:
                self._apply(delivery)

    def status(self) -> dict[str, Any]:
        block = self._follower.block
        endpoints = [msgspec.structs.asdict(one) for one in self._follower.endpoints()]
        told = {"checked": len(endpoints) > 1, "endpoints": endpoints}
        return {"network": {"block": block.number if block else 0, "rpc_ok": self._follower.healthy, **told}}

    def _apply(self, event: ChainEvent) -> None:
        # First: what membership makes of a pardon depends on the ledger.
        self.ledger.apply(event)
        match event:
            case Joined(node=node, contact=contact, lease_until=until):
                self._membership.hands.joined(node, event.provider)  # of a long past, too
                if until + GRACE >= self._follower.now or self._membership.must_know(node):
                    self._note(event, node)
                    self._membership.joined(node, contact, until)  # most of a long past is over
            case Left(node=node):
                self._note(event, node)
                self._membership.left(node)
            case Slashed():
                self._membership.slash(event)
            case SlashOverturned(node=node):
                pardoned = node not in self.ledger.slashed  # a conviction by its own signatures stays
                for record in [known for known in self._membership.slashed if known.node == node and pardoned]:
                    self._membership.unslash(node, record.transaction)
            case ValidatorsSet(validators=validators, threshold=threshold):
                self._appoint(validators, threshold)
            case TrainersSeated():
                self._membership.terms.seat(event.trainers, event.lease_seconds, event.grace_seconds)
            case TermTaken():
                self._membership.terms.take(event.term, event.holder, event.from_step, event.parent, event.until)
            case TermHeld(term=term, until=until, step=step):
                self._membership.terms.hold(term, until, step)
            case TermEnded(term=term, ended_at=ended_at):
                self._membership.terms.end(term, ended_at)
            case ValidatorStruck(validator=struck):
                left = tuple(one for one in self._membership.validators if one != struck)
                self._appoint(left, self._membership.quorum)

    def _note(self, event: ChainEvent, node: Address) -> None:
        stood = self._membership.registered(node)
        if stood is not None:
            self._stood[event] = stood

    def _appoint(self, validators: tuple[Address, ...], quorum: int) -> None:
        self._benches.append((self._membership.validators, self._membership.quorum))
        self._membership.appoint(validators, quorum)

    def _undo(self, event: ChainEvent) -> None:
        """A replaced block took an event back."""
        self.ledger.undo(event)
        match event:
            case Joined(node=node) | Left(node=node) if event in self._stood:
                self._membership.joined(node, *self._stood.pop(event))
            case Joined(node=node):
                self._membership.left(node)
            case Left(node=node):
                # Where it was reached stood in an older event; peers know it (`Peers`).
                self._membership.joined(node, "")
            case Slashed(node=node, transaction=transaction):
                self._membership.unslash(node, transaction)
            case SlashOverturned(node=node) if node in self.ledger.slashed:
                self._membership.slash(self.ledger.slashed[node])
            case TrainersSeated() | TermTaken() | TermHeld() | TermEnded():
                self._membership.terms.undo()
            case ValidatorsSet() | ValidatorStruck() if self._benches:
                self._membership.appoint(*self._benches.pop())
