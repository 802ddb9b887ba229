"""Who is in the swarm: heartbeats in, member states out. Pure; time is an argument (seconds, monotonic).

    joining -> healthy <-> unhealthy -> dead -> (healthy again on a beat)      left, evicted: final until they rejoin

A member is unhealthy after `MISSED_UNHEALTHY` of its own announced intervals without a beat, dead after `MISSED_DEAD`.
"""

from enum import StrEnum
from itertools import islice

import msgspec

from protocol.identity import Address
from protocol.messages import Heartbeat

# Three: one lost beat and a late one are an ordinary evening; eight are two minutes for a swarm of 300.
MISSED_UNHEALTHY = 3.0
MISSED_DEAD = 8.0
# The chain may list more: whoever pays for many leases must not choose how much memory every node spends.
MAX_MEMBERS = 16_384
"""In the table at once."""
MAX_LEFT = 1024
"""Who left that is still known: the newest."""
BEATS_PER_SECOND = 20.0
"""What all members together may send per second: intervals stretch with the swarm."""
# What replaces an older message is ordered by its author's time: one from years ahead would stand for years.
AHEAD = 300.0
"""Seconds that an author's clock may be ahead of ours: what is from further on is refused."""


class MemberState(StrEnum):
    JOINING = "joining"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DEAD = "dead"
    LEFT = "left"
    EVICTED = "evicted"


def heartbeat_interval(members: int, shortest: float = 1.0) -> float:
    """Seconds between two heartbeats of one node so that the swarm's total stays bounded."""
    # Linear in the members: each node hears all of them, so what a node hears in a second stays the same.
    return max(shortest, members / BEATS_PER_SECOND)


class LiveMember(msgspec.Struct, gc=False, eq=False):
    """What is known of one member."""

    address: Address
    beat: Heartbeat | None = None
    seen_at: float | None = None
    gone: MemberState | None = None
    _dead_at: float = float("-inf")

    def heard(self, beat: Heartbeat, now: float) -> None:
        self.beat, self.seen_at = beat, now
        self._dead_at = now + MISSED_DEAD * beat.interval

    def is_live(self, now: float) -> bool:
        """Whether it is healthy or unhealthy: asked of everybody at once."""
        return now < self._dead_at and self.gone is None

    def state(self, now: float) -> MemberState:
        if self.gone is not None:
            return self.gone
        if self.beat is None or self.seen_at is None:
            return MemberState.JOINING
        if now >= self._dead_at:
            return MemberState.DEAD
        missed = (now - self.seen_at) / self.beat.interval
        return MemberState.UNHEALTHY if missed >= MISSED_UNHEALTHY else MemberState.HEALTHY


class MemberTable:
    """The table of all members of a pool, fed by the chain (who may be here) and by heartbeats (who is)."""

    def __init__(self) -> None:
        self._members: dict[Address, LiveMember] = {}
        self._left: dict[Address, None] = {}
        """Who left, in that order."""
        self._spoken: dict[Address, LiveMember] = {}
        """Those that were heard: all that is asked every second, however many ghosts there are."""
        self._quiet: dict[Address, None] = {}
        """Members by their last sign of life, the oldest first."""

    def admit(self, address: Address, now: float = 0.0) -> Address | None:
        """The chain says that `address` joined (again). If the table is full, it takes the place of who left first, or
        of the member that has been silent for longest: returns that one."""
        displaced = self._make_room(now) if address not in self._members else None
        if address not in self._members and len(self._members) < MAX_MEMBERS:
            self._members[address] = LiveMember(address)
            self._quiet[address] = None
        member = self._members.get(address)
        if member and member.gone is MemberState.LEFT:
            member.gone = None
            del self._left[address]
            self._quiet[address] = None
        return displaced

    def _make_room(self, now: float) -> Address | None:
        """Of those who never spoke, or are dead, the first one goes: a lease alone is no right to a place."""
        if len(self._members) < MAX_MEMBERS:
            return None
        if self._left:
            first = next(iter(self._left))
            del self._left[first]
            self._forget(first)
            return None
        # A bound on the search: with a full table of living members each newcomer would otherwise walk all of it.
        # Members that have been silent for longest, of which the first that is not alive gives its place to a newcomer.
        first = next((one for one in islice(self._quiet, 64) if not self.is_live(one, now)), None)
        if first is not None:
            del self._quiet[first]
            self._forget(first)
        return first

    def _forget(self, address: Address) -> None:
        del self._members[address]
        self._spoken.pop(address, None)

    def remove(self, address: Address, how: MemberState) -> None:
        """The chain says that it left or was evicted. Eviction is final."""
        member = self._members.get(address)
        # Leaving must not wash off an eviction: who was thrown out could leave, and join again.
        if member and member.gone is not MemberState.EVICTED:
            member.gone = how
            self._left.pop(address, None)
            self._quiet.pop(address, None)
            if how is MemberState.LEFT:
                self._left[address] = None
            while len(self._left) > MAX_LEFT:
                first = next(iter(self._left))
                del self._left[first]
                self._forget(first)

    def pardon(self, address: Address) -> None:
        """The chain took an eviction back (a replaced block)."""
        member = self._members.get(address)
        if member and member.gone is MemberState.EVICTED:
            member.gone = None
            self._quiet[address] = None

    def beat(self, address: Address, beat: Heartbeat, now: float) -> bool:
        """Take a heartbeat; False if the author is no member, or it is no newer than the last one."""
        member = self._members.get(address)
        if member is None or member.gone is not None:
            return False
        # An old beat that somebody repeats would make a dead member look alive.
        if member.beat is not None and beat.number <= member.beat.number:
            return False
        member.heard(beat, now)
        self._spoken[address] = member
        self._quiet.pop(address, None)
        self._quiet[address] = None
        return True

    def __contains__(self, address: object) -> bool:
        member = self._members.get(address)  # type: ignore[arg-type]
        return member is not None and member.gone is None

    def all(self) -> list[LiveMember]:
        """Every member, and those lately gone."""
        return list(self._members.values())

    def get(self, address: Address) -> LiveMember | None:
        return self._members.get(address)

    def present(self) -> int:
        """How many there may be: admitted and not gone, heard of or not."""
        return sum(member.gone is None for member in self._members.values())

    def is_live(self, address: Address, now: float) -> bool:
        """Whether it is healthy or unhealthy."""
        member = self._members.get(address)
        return member is not None and member.is_live(now)

    def is_inactive(self, address: Address, now: float) -> bool:
        """Whether it is gone, or has missed so many heartbeats that others may do what it had begun."""
        member = self._members.get(address)
        return member is None or member.state(now) not in (MemberState.JOINING, MemberState.HEALTHY)

    def live(self, now: float, role: str | None = None) -> list[Address]:
        """Addresses of the healthy and unhealthy members, of one role if given."""
        return [
            member.address
            for member in self._spoken.values()
            if member.is_live(now) and member.beat and role in (None, member.beat.role)
        ]
