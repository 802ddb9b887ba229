"""Claims of GPUs, shown and checked: a node with a GPU multiplies when it is asked; validators and the trainer ask.

They ask those whose heartbeats name an engine on a GPU, one at a time. What came of it stands in their status; who
passed with most of those who asked counts its GPU's memory when it says how long its answers may be
(node.recipe.capacity).
"""

from functools import partial
from typing import Any, Self

import structlog
import trio

from node.changes import every, side_by_side
from node.member import Participant
from node.services.base import Service
from node.services.workplace import Workplace
from node.swarm.claims import claims_gpu
from protocol.errors import IntellectError
from protocol.identity import Address

log = structlog.get_logger()


class HardwareProver(Service):
    """asks: whether it is this node's business to challenge."""

    name = "hardware-prover"

    def __init__(self, member: Participant, *, asks: bool) -> None:
        self._member = member
        self._asks = asks

    @classmethod
    async def open(cls, place: Workplace) -> Self | None:
        """None for a node that has neither a GPU nor anybody to challenge."""
        asks = place.role in ("validator", "trainer")
        return cls(place.member, asks=asks) if place.member.claims.prover is not None or asks else None

    async def run(self) -> None:
        prover, challenge = self._member.claims.prover, partial(every, 30.0, self._challenge, at_once=False)
        await side_by_side(*([prover.run] if prover is not None else []), *([challenge] if self._asks else []))

    def status(self) -> dict[str, Any]:
        claims = self._member.claims
        return {"node": {"gpu_believed": claims.believed, "gpu_tried_by": len(claims.told)}}

    async def _challenge(self) -> None:
        for member in self.due():
            try:
                await self._member.claims.challenge(member)
            except IntellectError as error:  # gone, or of another version
                log.debug("claim.not_asked", peer=member, why=error.why)

    def due(self) -> list[Address]:
        """Who claims a GPU, is alive, and is to be challenged now."""
        own, beats = self._member.key.address, self._member.membership.beats(trio.current_time())
        claimants = [node for node, beat in beats.items() if node != own and claims_gpu(beat.engine)]
        return [node for node in claimants if self._member.claims.due(node)]
