"""Judging, as a service: the judge at a workplace, with its engine, its policies and its way to the chain."""

from typing import Self

from node.audit.order import memory_for
from node.chain.keeper import CaseKeeper
from node.hardware import Hardware
from node.run.assets import image_limit
from node.services.base import Service
from node.services.judging.judge import Validator
from node.services.station import Station
from node.services.workplace import Workplace


class Judging(Validator, Service):
    @classmethod
    async def open(cls, place: Workplace) -> Self:
        cases = CaseKeeper(place.chain, place.directory / "cases")
        own = (place.scratch, place.tally, place.stock)
        return cls(
            place.station, place.engine, place.policies, cases, *own, steps=step_share(place.station, place.hardware)
        )


STEP_SHARE = 1 / 8
"""Of the trainer's steps, each of which costs an auditor about what it cost the trainer."""


def step_share(station: Station, hardware: Hardware) -> float:
    """The share of the trainer's steps that a validator pledges to audit: none without the memory for one."""
    spec = station.run.spec
    needed = memory_for(image_limit(spec) // 4, spec.rollout.prompts_per_step)  # two bytes each, twice the model
    return STEP_SHARE if needed <= hardware.free else 0.0
