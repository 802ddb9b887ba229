"""Who is in the pool: the chain says who may be, heartbeats say who is.

Feeds the network with the contacts of the members, so that the chain is the only meeting point that a newcomer needs.
"""

from collections.abc import Container, Iterable, Mapping, Set
from itertools import islice

import msgspec
import structlog
import trio

from node.clock import Seconds
from node.network.interface import Network
from node.swarm.board import Board
from node.swarm.neighbours import Neighbours
from node.swarm.terms import Terms
from protocol.checks import reason_name
from protocol.identity import Address
from protocol.liveness import MISSED_UNHEALTHY, Members, MemberState
from protocol.messages import Heartbeat

log = structlog.get_logger()
EXPIRED_AT_ONCE = 200
"""Members whose leases ran out, in one stretch of the event loop."""
LOOK_EVERY = 1.0
"""Seconds between two looks at who is connected."""


class SlashRecord(msgspec.Struct, frozen=True):
    """A slash seen on chain. amount: wei; reason: checks.Reason."""

    node: Address
    provider: Address
    amount: int
    reason: int
    transaction: str
    block: int
    file_root: str

    @property
    def reason_name(self) -> str:
        """The name of the reason, whatever number the chain holds."""
        return reason_name(self.reason)


class _Place(msgspec.Struct, gc=False):
    """What is known of where a node is. told: its contacts; registered: as the chain has it; near: what somebody in the
    local network claims; number: of the heartbeat that told its contacts; lease: until when it is a member, unix
    seconds of the chain's time, 0 if unknown."""

    told: tuple[str, ...] = ()
    registered: str | None = None
    near: str = ""
    number: tuple[int, int] = (-1, 0)
    lease: int = 0


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
        self.table = Members()
        self.slashed: list[SlashRecord] = []
        self.own = own
        self._network = network
        self.terms = Terms(trainer, clock)
        self._validators = dict.fromkeys(validators)
        self.quorum = quorum
        self._places: dict[Address, _Place] = {}
        self._bootnodes = {node: (contact,) for node, contact in (bootnodes or {}).items()}
        self._neighbours = Neighbours(own, trainer, validators)
        # A new leader must be among those that this node stays connected with.
        self.terms.follow(self._want)
        self._dialled: Set[Address] = frozenset()
        self._looked_at = 0.0
        self._awaited: dict[Address, trio.Event] = {}
        self.evicted = trio.Event()
        for node in self._bootnodes:
            self._dial(node)

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

    def appoint(self, validators: Iterable[Address], quorum: int) -> None:
        """Others take office. What those before them said in theirs stays said."""
        self._validators, self.quorum = dict.fromkeys(validators), quorum
        self._want()

    def _want(self) -> None:
        self._neighbours.want(self.trainer, self._validators)
        self._draw()

    def is_validator(self, address: Address) -> bool:
        # In office and in the pool: one that left still has its seat on chain.
        return address in self._validators and address in self.table

    @property
    def has_one_validator(self) -> bool:
        """Whether the pool names one validator only, in the pool at this moment or not."""
        return len(self._validators) == 1

    def may_validate(self, address: Address) -> bool:
        """Whether the pool names it a validator, in the pool at this moment or not."""
        return address in self._validators

    def may_challenge(self, address: Address) -> bool:
        """Whether it may ask members to prove their hardware: what strangers say of it would count as much."""
        return self.in_office(address) or self.is_validator(address)

    def must_know(self, address: Address) -> bool:
        """Whether it counts where this is even without a lease: this node, the trainer, a validator."""
        return address == self.own or self.is_trainer(address) or self.may_validate(address)

    def who_uses_work(self) -> list[Address]:
        """The trainers, who leads first, and the validators that are in the pool."""
        trainers = dict.fromkeys((self.trainer, *self.terms.trainers))
        return [*trainers, *(address for address in self._validators if self.is_validator(address))]

    def beats(self, now: float, role: str | None = None) -> dict[Address, Heartbeat]:
        """What each member that is alive said last."""
        members = (self.table.get(address) for address in self.table.live(now, role))
        return {one.address: one.beat for one in members if one is not None and one.beat is not None}

    def live_validators(self, now: float) -> list[Address]:
        """Those that are alive: found without a look at everybody else."""
        return [address for address in self._validators if self.table.is_live(address, now)]

    def is_silent(self, address: Address, now: float) -> bool:
        """Whether it is gone, or has missed so many heartbeats that others may do what it had begun."""
        member = self.table.get(address)
        return member is None or member.state(now) not in (MemberState.JOINING, MemberState.HEALTHY)

    @property
    def trainer(self) -> Address:
        """Who leads now, as far as the chain has told."""
        return self.terms.now.holder

    def leads(self, address: Address) -> bool:
        return address == self.trainer

    def is_trainer(self, address: Address) -> bool:
        """Whether it leads, led, or stands by."""
        return self.terms.is_trainer(address)

    def in_office(self, address: Address) -> bool:
        """Whether it is a trainer now: seated, or leading."""
        return self.terms.in_office(address)

    def reached(self, disbelieved: Container[Address] = ()) -> int:
        """The newest step that a quorum of the believed validators hold, as they say themselves; -1 for none."""
        beats = (self.table.get(one) for one in self._validators if one not in disbelieved)
        steps = sorted((one.beat.policy_step for one in beats if one is not None and one.beat), reverse=True)
        return steps[self.quorum - 1] if 0 < self.quorum <= len(steps) else -1

    def addresses(self) -> list[Address]:
        """The other members, the ones heard of lately first."""
        now = self._clock()
        members = [member for member in self.table.all() if member.gone is None and member.address != self.own]
        # Those heard of lately answer: blobs are asked for in this order.
        members.sort(key=lambda member: now - (member.seen_at or -1e9))
        return [member.address for member in members]

    def contacts_of(self, node: Address) -> tuple[str, ...]:
        """Where a member says that it can be dialled."""
        return self._known(node).told

    def registered(self, node: Address) -> tuple[str, int] | None:
        """Of a member: its contact as the chain has it, and until when it is one (as `joined` was told)."""
        place = self._known(node)
        return (place.registered or "", place.lease) if self.is_member(node) else None

    def _known(self, node: Address) -> _Place:
        return self._places.get(node) or _Place()

    def gateways(self) -> list[str]:
        """Where members serve blobs by HTTP, as they say in their heartbeats."""
        beats = [member.beat for member in self.table.all() if member.gone is None and member.address != self.own]
        return [beat.gateway for beat in beats if beat and beat.gateway]

    def is_near(self, node: Address, claim: str) -> bool:
        """Somebody claims that a member is in the local network; whether that was news. Tried before what it says."""
        if not self.is_member(node) or self._known(node).near == claim:
            return False
        self._places.setdefault(node, _Place()).near = claim
        self._dial(node)
        return True

    # from the chain

    def joined(self, node: Address, contact: str, lease_until: int = 0) -> None:
        """A Joined event or a row of the member list. lease_until: unix seconds of the chain's time; 0 if unknown."""
        known = node in self.table and self._known(node).registered == contact
        # A full table gives up its longest silent member, so that ghosts cannot keep newcomers out.
        displaced = self.table.admit(node, self._looked_at)
        if displaced is not None:
            self._forget(displaced)
            self._place(displaced)
        place = self._places.setdefault(node, _Place())
        place.lease = lease_until or place.lease
        if known:
            return  # a lease was renewed, as most events say; and a heartbeat may have told a newer place
        place.registered = contact
        if contact:
            place.told = (contact,)
        self._dial(node)

    def left(self, node: Address) -> None:
        self._part(node)
        self._draw()

    def expire(self, chain_now: float) -> bool:
        """Part with members whose lease has run out by the chain's time; whether there may be more. While the chain is
        silent its time stands still, and nobody's lease runs out. This node itself renews its own."""
        over = (node for node, at in self._places.items() if 0 < at.lease < chain_now and node != self.own)
        # In parts: after a silent hour thousands may run out with one block, and the event loop must not stand still.
        gone = list(islice(over, EXPIRED_AT_ONCE))
        for node in gone:
            self._part(node)
        if gone:
            log.info("members.leases_over", members=len(gone))
            self._draw()
        return len(gone) == EXPIRED_AT_ONCE

    def _part(self, node: Address) -> None:
        self.table.remove(node, MemberState.LEFT)
        self._forget(node)
        self._place(node)

    def slash(self, record: SlashRecord) -> None:
        """A Slashed event: the node is out for good."""
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

    def evict(self, node: Address) -> None:
        # Admitted first, for a node that is slashed before its Joined event was read: it must be known as evicted.
        self.table.admit(node)
        self.table.remove(node, MemberState.EVICTED)
        self._forget(node)
        if node == self.own:
            self.evicted.set()
        self._dial(node)

    def _forget(self, node: Address) -> None:
        """Where the trainer and the validators were stays known: without them there is no pool to come back to."""
        place = self._places.pop(node, None)
        if place is not None and place.told and not self.is_evicted(node) and self.must_know(node):
            # Without its lease and its number: what it says when it comes back counts again.
            self._places[node] = _Place(place.told)

    def _dial(self, node: Address) -> None:
        """Tell the network where one member is now, and draw again."""
        self._place(node)
        self._draw()

    def _place(self, node: Address) -> None:
        """Tell the network where one member is now, or that it is gone; it costs the same however many there are."""
        if node == self.own:
            return
        place = self._known(node)
        told = place.told or self._bootnodes.get(node, ())
        told = (place.near, *told) if place.near else told
        # What a neighbour claims is tried first, and the registered place stays.
        self._network.set_contact(node, told or None)
        (self._neighbours.add if told else self._neighbours.discard)(node)

    def _draw(self) -> None:
        # Told only when it differs: this runs with each heartbeat that moves somebody, and walks all dial loops.
        dialled = (self._neighbours.chosen() | dict.fromkeys(self._bootnodes)).keys()
        if dialled != self._dialled:
            self._dialled = dialled
            self._network.stay_with(dialled)

    async def tend(self) -> None:
        """Draw again until cancelled, as dials fail and members are heard."""
        while True:
            self.look_after()
            await trio.sleep(LOOK_EVERY)

    def look_after(self) -> None:
        """Draw again, by who is connected, who did not answer, and how many are heard."""
        # `joined` goes by the same moment: a full table is searched by what was true at this look.
        now = self._looked_at = self._clock()
        alive = frozenset(self.table.live(now))
        self._neighbours.note(self._network.connected(), self._network.failures(), alive, now)
        self._draw()

    # heartbeats

    async def follow(self, board: Board) -> None:
        """Take heartbeats from the board until cancelled."""
        async for signed in board.subscribe(Heartbeat):
            beat = signed.message
            if self.table.beat(signed.author, beat, self._clock()):
                self.moved(signed.author, beat)
                if (waiting := self._awaited.pop(signed.author, None)) is not None:
                    waiting.set()

    async def heard_from(self, node: Address) -> Heartbeat:
        """The newest heartbeat of a member, once there is one."""
        while (member := self.table.get(node)) is None or member.beat is None:
            await self._awaited.setdefault(node, trio.Event()).wait()
        return member.beat

    def moved(self, node: Address, beat: Heartbeat) -> None:
        """Where a member says that it is, in its own signed words. A word older than the last one changes nothing."""
        # Numbers come from the member's own journal: an old heartbeat that is replayed moves nobody back.
        if not self.is_member(node) or beat.number <= self._known(node).number:
            return
        place = self._places.setdefault(node, _Place())
        place.number = beat.number
        self._neighbours.heard(node)
        told = (beat.contact, *beat.also)
        if beat.contact and place.told != told:
            place.told = told
            self._dial(node)
            self._neighbours.heard(node)


# Whether a node still hears those it works for. A connection is no voice: a dead line stays open for half a minute and
# more. What counts is what they signed and what came here.

SHORTEST_SILENCE = 5.0


def is_cut_off(voices: Iterable[tuple[float, float]], now: float) -> bool:
    """Whether all of them have been silent for three of their own intervals; true where nobody was ever heard."""
    # One voice is enough, since a trainer that restarts is no reason to stop. A connection is none: a dead line stays
    # open for a while. In a partition of 45 s an honest worker made twelve files of an old policy, all lost as stale.
    return all(now - heard > max(SHORTEST_SILENCE, MISSED_UNHEALTHY * interval) for heard, interval in voices)


def voices(board: Board, membership: Membership) -> list[tuple[float, float]]:
    """(when it was heard last, seconds between its heartbeats as it says) of the trainer and the validators."""
    found: list[tuple[float, float]] = []
    for author in membership.who_uses_work():
        heard, member = board.heard.get(author), membership.table.get(author)
        if heard is not None and member is not None and author != membership.own:
            found.append((heard, member.beat.interval if member.beat else 0.0))
    return found
