"""Whether the others can dial this node, asked of a few of them now and again."""

import random
from typing import Any

import structlog
import trio

from node.member import Member
from node.progress import ProgressRecord
from node.services.base import Service
from protocol.errors import IntellectError

log = structlog.get_logger()
ASKED = 3
FIRST = 10.0
"""Seconds that connections have to come up, and the chain's news to get around."""
AGAIN = (60.0, 900.0)
"""Seconds until the next round, where nobody could dial this node, and where somebody could."""


class Reach(Service):
    """tried: members that dialled in the last round that any did; reached: how many of them got through."""

    name = "reach"

    def __init__(self, member: Member, contact: str, progress: ProgressRecord) -> None:
        self._member = member
        self._contact = contact
        self._progress = progress
        self.tried = 0
        self.reached = 0

    async def run(self) -> None:
        await trio.sleep(FIRST)
        while True:
            await self.ask_around()
            await trio.sleep(AGAIN[1] if self.reached else AGAIN[0])

    def status(self) -> dict[str, Any]:
        return {"node": {"reach": {"tried": self.tried, "reached": self.reached}}}

    async def ask_around(self) -> None:
        """One round."""
        connected = sorted(self._member.network.connected())
        answers: list[bool] = []
        for member in random.sample(connected, min(ASKED, len(connected))):  # a choice, not a secret
            try:
                answer = await self._member.dialback.ask(member)
            except IntellectError as error:  # of another version, or gone
                log.debug("reach.not_asked", peer=member, why=error.why)
                continue
            answers += [] if answer is None else [answer]
        if answers:
            self.tried, self.reached = len(answers), sum(answers)
            log.info("reach.known", tried=self.tried, reached=self.reached)
        if answers and not self.reached:
            self._progress.trouble(f"{self.tried} members could not dial {self._contact}: intellect-node doctor")
