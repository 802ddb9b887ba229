"""Who is in the pool: the chain says who may be, heartbeats say who is.

Where they are is for `places.py`.
"""

from collections.abc import Iterable, Mapping
from itertools import islice

import structlog
import trio

from contracts.bindings import Slashed
from node.clock import Seconds
from node.network.interface import Network
from node.swarm.board import Board
from node.swarm.hands import Hands
from node.swarm.peer_addresses import PeerAddresses
from node.swarm.terms import LeaderTerms
from protocol.identity import Address
from protocol.liveness import MISSED_UNHEALTHY, MemberState, MemberTable
from protocol.messages import Heartbeat

log = structlog.get_logger()


class Membership:
    """The table of members, and the rights that the pool gives. clock: monotonic seconds; bootnodes: who is dialled
    whatever the chain says, which gives them no other right; quorum: validators that must agree."""

    def __init__(
        self,
        own: Address,
        network: Network,
        trainer: Address,
        validators: tuple[Address, ...],
        clock: Seconds = trio.current_time,
        bootnodes: Mapping[Address, str] | None = None,
        quorum: int = 1,
    ) -> None:
        self._clock = clock
        self.table = MemberTable()
        self.slashed: list[Slashed] = []
        self.own = own
        self.terms = LeaderTerms(trainer, clock)
        self.hands = Hands(lambda: (self._validators, self.quorum))
        self._validators = dict.fromkeys(validators)
        self.quorum = quorum
        self.places = PeerAddresses(own, network, self.table, (trainer, validators), bootnodes or {}, clock)
        # A new leader must be among those that this node stays connected with.
        self.terms.follow(lambda: self.places.want(self.trainer, self._validators))
        self._leases: dict[Address, int] = {}
        """Until when each is a member, unix seconds of the chain's time; 0 if unknown."""
        self._awaited: dict[Address, trio.Event] = {}
        self.evicted = trio.Event()

    # rights

    def is_member(self, address: Address) -> bool:
        return address in self.table

    def is_evicted(self, address: Address) -> bool:
        """Whether the chain has thrown it out. Who left by itself still answers for what it signed before."""
        member = self.table.get(address)
        return member is not None and member.gone is MemberState.EVICTED

    @property
    def validators(self) -> tuple[Address, ...]:
        """Those in office, in the pool at this moment or not."""
        return tuple(self._validators)

    def live_validators(self) -> list[Address]:
        now = self._clock()  # without a look at everybody else
        return [one for one in self._validators if self.table.is_live(one, now)]

    def appoint(self, validators: Iterable[Address], quorum: int) -> None:
        """Others take office. What those before them said in theirs stays said."""
        self._validators, self.quorum = dict.fromkeys(validators), quorum
        self.places.want(self.trainer, self._validators)

    def is_validator(self, address: Address) -> bool:
        # In office and in the pool: one that left still has its seat on chain.
        return address in self._validators and address in self.table

    def may_validate(self, address: Address) -> bool:
        """Whether the pool names it a validator, in the pool at this moment or not."""
        return address in self._validators

    def must_know(self, address: Address) -> bool:
        """Whether it counts where this is even without a lease: this node, the trainer, a validator."""
        return address == self.own or self.is_trainer(address) or self.may_validate(address)

    def beats(self, now: float, role: str | None = None) -> dict[Address, Heartbeat]:
        """What each member that is alive said last."""
        members = (self.table.get(address) for address in self.table.live(now, role))
        return {one.address: one.beat for one in members if one is not None and one.beat is not None}

    @property
    def trainer(self) -> Address:
        """Who leads now, as far as the chain has told."""
        return self.terms.now.holder

    def is_trainer(self, address: Address) -> bool:
        """Whether it leads, led, or stands by."""
        return self.terms.is_trainer(address)

    def in_office(self, address: Address) -> bool:
        """Whether it is a trainer now: seated, or leading."""
        return self.terms.in_office(address)

    def addresses(self) -> list[Address]:
        """The other members, the ones heard of lately first."""
        now = self._clock()
        members = [member for member in self.table.all() if member.gone is None and member.address != self.own]
        # Those heard of lately answer: blobs are asked for in this order.
        members.sort(key=lambda member: now - (member.seen_at or -1e9))
        return [member.address for member in members]

    def registered(self, node: Address) -> tuple[str, int] | None:
        """Of a member: its contact as the chain has it, and until when it is one (as `joined` was told)."""
        return (self.places.registered(node) or "", self._leases.get(node, 0)) if self.is_member(node) else None

    # from the chain

    def joined(self, node: Address, contact: str, lease_until: int = 0) -> None:
        """A Joined event or a row of the member list. lease_until: unix seconds of the chain's time; 0 if unknown."""
        known = node in self.table and self.places.registered(node) == contact
        # A full table gives up its longest silent member, so that ghosts cannot keep newcomers out.
        displaced = self.table.admit(node, self.places.looked_at)
        if displaced is not None:
            self._part(displaced)
        self._leases[node] = lease_until or self._leases.get(node, 0)
        if not known:  # else a lease was renewed, as most events say; and a heartbeat may have told a newer place
            self.places.register(node, contact)

    def left(self, node: Address) -> None:
        self.table.remove(node, MemberState.LEFT)
        self._part(node)
        self.places.draw()

    def expire(self, chain_now: float) -> bool:
        """Part with members whose lease has run out by the chain's time; whether there may be more. While the chain is
        silent its time stands still, and nobody's lease runs out. This node itself renews its own."""
        over = (node for node, until in self._leases.items() if 0 < until < chain_now and node != self.own)
        # In parts: after a silent hour thousands may run out with one block, and the event loop must not stand still.
        expired_at_once = 200  # members whose leases ran out, in one stretch of the event loop
        gone = list(islice(over, expired_at_once))
        for node in gone:
            self.table.remove(node, MemberState.LEFT)
            self._part(node)
        if gone:
            log.info("members.leases_over", members=len(gone))
            self.places.draw()
        return len(gone) == expired_at_once

    def _part(self, node: Address) -> None:
        """Where the trainer and the validators were stays known: without them there is no pool to come back to."""
        self._leases.pop(node, None)
        self.places.forget(node, keep=not self.is_evicted(node) and self.must_know(node))

    def slash(self, record: Slashed) -> None:
        """The node is out for good."""
        if any(known.transaction == record.transaction and known.node == record.node for known in self.slashed):
            return
        self.slashed.append(record)
        self.evict(record.node)
        log.warning("member.slashed", node=record.node, reason=record.reason, transaction=record.transaction)

    def unslash(self, node: Address, transaction: str) -> None:
        """The block of a slash was replaced. A node that has already stopped over it must be started again."""
        self.slashed = [known for known in self.slashed if (known.node, known.transaction) != (node, transaction)]
        if all(known.node != node for known in self.slashed):
            self.table.pardon(node)

    def pardoned(self) -> None:
        """This node is not out, by the chain's own word; an event may say so anew."""
        self.evicted = trio.Event()

    def evict(self, node: Address) -> None:
        # Admitted first, for a node that is slashed before its Joined event was read: it must be known as evicted.
        self.table.admit(node)
        self.table.remove(node, MemberState.EVICTED)
        self._part(node)
        if node == self.own:
            self.evicted.set()
        self.places.draw()

    # heartbeats

    async def follow(self, board: Board) -> None:
        """Take heartbeats from the board until cancelled."""
        async for signed in board.subscribe(Heartbeat):
            beat = signed.message
            if self.table.beat(signed.author, beat, self._clock()):
                self.places.moved(signed.author, beat)
                if (waiting := self._awaited.pop(signed.author, None)) is not None:
                    waiting.set()

    async def heard_from(self, node: Address) -> Heartbeat:
        """The newest heartbeat of a member, once there is one."""
        while (member := self.table.get(node)) is None or member.beat is None:
            await self._awaited.setdefault(node, trio.Event()).wait()
        return member.beat


def may_challenge(membership: Membership, address: Address) -> bool:
    """Whether it may ask members to prove their hardware: what strangers say of it would count as much."""
    return membership.in_office(address) or membership.is_validator(address)


# Whether a node still hears those it works for. A connection is no voice: a dead line stays open for half a minute and
# more. What counts is what they signed and what came here.


def is_cut_off(voices: Iterable[tuple[float, float]], now: float) -> bool:
    """Whether all of them have been silent for three of their own intervals; true where nobody was ever heard."""
    # One voice is enough, since a trainer that restarts is no reason to stop. A connection is none: a dead line stays
    # open for a while. In a partition of 45 s an honest worker made twelve files of an old policy, all lost as stale.
    shortest_silence = 5.0
    return all(now - heard > max(shortest_silence, MISSED_UNHEALTHY * interval) for heard, interval in voices)


def who_uses_work(membership: Membership) -> list[Address]:
    """The trainers, who leads first, and the validators that are in the pool."""
    validators = (one for one in membership.validators if membership.is_validator(one))
    return list(dict.fromkeys((membership.trainer, *membership.terms.trainers, *validators)))


def voices(board: Board, membership: Membership) -> list[tuple[float, float]]:
    """(when it was heard last, seconds between its heartbeats as it says) of the trainer and the validators."""
    found: list[tuple[float, float]] = []
    for author in who_uses_work(membership):
        heard, member = board.heard.get(author), membership.table.get(author)
        if heard is not None and member is not None and author != membership.own:
            found.append((heard, member.beat.interval if member.beat else 0.0))
    return found
