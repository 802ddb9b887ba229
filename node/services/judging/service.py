"""Judging, as a service: the judge at a workplace, with its engine, its policies and its way to the chain."""

from typing import Self

from node.chain.keeper import CaseKeeper
from node.services.base import Service
from node.services.judging.judge import Validator
from node.services.workplace import Workplace


class Judging(Validator, Service):
    @classmethod
    async def open(cls, place: Workplace) -> Self:
        cases = CaseKeeper(place.chain, place.directory / "cases")
        own = (place.scratch, place.tally, place.stock)
        return cls(place.station, place.engine, place.policies, cases, *own)
