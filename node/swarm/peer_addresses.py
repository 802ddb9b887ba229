"""Where the members of a pool are, and whom this node stays connected with.

Feeds the network with the contacts of the members, so that the chain is the only meeting point that a newcomer needs.
"""

from collections.abc import Iterable, Mapping, Set

import msgspec

from node.changes import every
from node.clock import Seconds
from node.network.interface import Network
from node.swarm.neighbours import Neighbours
from protocol.identity import Address
from protocol.liveness import MemberTable
from protocol.messages import Heartbeat


class _Place(msgspec.Struct, gc=False):
    """told: a member's contacts; registered: as the chain has it; near: what somebody in the local network claims;
    number: of the heartbeat that told its contacts."""

    told: tuple[str, ...] = ()
    registered: str | None = None
    near: str = ""
    number: tuple[int, int] = (-1, 0)


_NOWHERE = _Place()


class PeerAddresses:
    """table: of members; wanted: the trainer and the validators; bootnodes: who is dialled whatever the chain says;
    clock: monotonic seconds."""

    def __init__(
        self,
        own: Address,
        network: Network,
        table: MemberTable,
        wanted: tuple[Address, Iterable[Address]],
        bootnodes: Mapping[Address, str],
        clock: Seconds,
    ) -> None:
        self._own, self._network, self._table, self._clock = own, network, table, clock
        self._places: dict[Address, _Place] = {}
        self._bootnodes = {node: (contact,) for node, contact in bootnodes.items()}
        self._neighbours = Neighbours(own, *wanted)
        self._dialled: Set[Address] = frozenset()
        self.looked_at = 0.0
        """A full table is searched by what was true at this look."""
        for node in self._bootnodes:
            self._dial(node)

    def want(self, trainer: Address, validators: Iterable[Address]) -> None:
        """Who is dialled for what it is."""
        self._neighbours.want(trainer, validators)
        self.draw()

    # what is known

    def contacts_of(self, node: Address) -> tuple[str, ...]:
        """Where a member says that it can be dialled."""
        return self._places.get(node, _NOWHERE).told

    def registered(self, node: Address) -> str | None:
        """A member's contact as the chain has it; None where it was not told."""
        return self._places.get(node, _NOWHERE).registered

    def gateways(self) -> list[str]:
        """Where members serve blobs by HTTP, as they say in their heartbeats."""
        beats = [member.beat for member in self._table.all() if member.gone is None and member.address != self._own]
        return [beat.gateway for beat in beats if beat and beat.gateway]

    # what is said

    def register(self, node: Address, contact: str) -> None:
        """The chain says where a member is; empty where it does not know."""
        place = self._places.setdefault(node, _Place())
        place.registered = contact
        if contact:
            place.told = (contact,)
        self._dial(node)

    def is_near(self, node: Address, claim: str) -> bool:
        """Somebody claims that a member is in the local network; whether that was news. Tried before what it says."""
        if node not in self._table or self._places.get(node, _NOWHERE).near == claim:
            return False
        self._places.setdefault(node, _Place()).near = claim
        self._dial(node)
        return True

    def moved(self, node: Address, beat: Heartbeat) -> None:
        """Where a member says that it is, in its own signed words. A word older than the last one changes nothing."""
        # Numbers come from the member's own journal: an old heartbeat that is replayed moves nobody back.
        if node not in self._table or beat.number <= self._places.get(node, _NOWHERE).number:
            return
        place = self._places.setdefault(node, _Place())
        place.number = beat.number
        self._neighbours.heard(node)
        told = (beat.contact, *beat.also)
        if beat.contact and place.told != told:
            place.told = told
            self._dial(node)
            self._neighbours.heard(node)

    def forget(self, node: Address, *, keep: bool) -> None:
        """A member is gone. keep: whether its contacts are remembered, without their number: what it says when it comes
        back counts again."""
        place = self._places.pop(node, None)
        if keep and place is not None and place.told:
            self._places[node] = _Place(place.told)
        self._place(node)

    # whom to dial

    def _dial(self, node: Address) -> None:
        """Tell the network where one member is now, and draw again."""
        self._place(node)
        self.draw()

    def _place(self, node: Address) -> None:
        """Tell the network where one member is now, or that it is gone; it costs the same however many there are."""
        if node == self._own:
            return
        place = self._places.get(node, _NOWHERE)
        told = place.told or self._bootnodes.get(node, ())
        told = (place.near, *told) if place.near else told
        # What a neighbour claims is tried first, and the registered place stays.
        self._network.set_contact(node, told or None)
        (self._neighbours.add if told else self._neighbours.discard)(node)

    def draw(self) -> None:
        # Told only when it differs: this runs with each heartbeat that moves somebody, and walks all dial loops.
        dialled = (self._neighbours.chosen() | dict.fromkeys(self._bootnodes)).keys()
        if dialled != self._dialled:
            self._dialled = dialled
            self._network.stay_with(dialled)

    async def maintain(self) -> None:
        """Draw again until cancelled, as dials fail and members are heard."""
        await every(1.0, self.look_after)

    def look_after(self) -> None:
        """Draw again, by who is connected, who did not answer, and how many are heard."""
        now = self.looked_at = self._clock()
        alive = frozenset(self._table.live(now))
        self._neighbours.note(self._network.connected(), self._network.failures(), alive, now)
        self.draw()
