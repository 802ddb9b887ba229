"""The trainer's policies, as a service: the newest is always being fetched."""

from typing import Self

import trio

from node.blobs.exchange import BlobExchange
from node.blobs.transfer import describe, fraction
from node.services.base import Service
from node.services.station import Station
from node.services.workplace import Workplace
from node.weights.fetch import PolicyFollower


class Following(Service):
    name = "policies"

    def __init__(self, follower: PolicyFollower, station: Station, exchange: BlobExchange) -> None:
        self._follower = follower
        self._station = station
        self._exchange = exchange

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.policies, place.station, place.member.stock.exchange)

    async def run(self) -> None:
        """Until cancelled. Of a trainer that is not believed nothing new is announced (`PolicyClock`)."""
        self._station.membership.terms.follow(self._on_terms)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follower.run)
            nursery.start_soon(self._tell_of_the_first)

    def _on_terms(self) -> None:
        """The chain told of a term: policies that it takes back are none to work with, and others may be now."""
        for policy in self._station.shelf.held:
            if self._station.jury.policies.is_orphan(policy.root):
                self._station.shelf.orphan(policy.root)
        self._follower.look_again()

    async def _tell_of_the_first(self) -> None:
        progress = self._station.progress
        progress.enter("policy", self._waits_for, lambda: fraction(self._exchange.under_way()))
        policy = await self._station.shelf.newer_than(-1)
        progress.tell("policy", f"policy {policy.step} is here and verified")
        progress.enter("first-contribution", progress.doing)

    def _waits_for(self) -> str:
        step = self._follower.newest_step
        if step < 0:
            return "waiting for the trainer's first policy: none has been announced yet"
        members = len(self._station.membership.addresses())
        return f"fetching policy {step}: {describe(self._exchange.under_way(), members)}"
