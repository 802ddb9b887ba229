"""Members in the local network: found without the chain's contacts, bootnodes or anybody else's word.

Where one says it is, is a claim: of a member only, an address of this node's own network only, and dialled as seldom as
any other; the handshake settles who is there.
"""

from typing import Any

import structlog
import trio

from node.member import Member
from node.network.contacts import CIRCUIT, ip_of, near, parse_bootnode
from node.network.errors import BadContact
from node.network.lan import neighbourhood
from node.services.base import Service
from protocol.identity import Address

log = structlog.get_logger()
PAUSE = 0.25
"""Seconds between two claims that are looked at."""
AGAIN = 60.0
"""Until multicast is tried again where it failed, or only this machine was listened on."""


class Lan(Service):
    """found: members that were heard here, as long as this node runs."""

    name = "lan"

    def __init__(self, member: Member) -> None:
        self._member = member
        self.found: set[Address] = set()

    async def run(self) -> None:
        while True:
            try:
                if own := self._own():
                    await self._listen(own)
            except OSError as error:
                log.info("lan.no_multicast", why=str(error))
            await trio.sleep(AGAIN)

    def status(self) -> dict[str, Any]:
        return {"node": {"lan": len(self.found)}}

    def _own(self) -> list[str]:
        """Contacts that mean something to machines in the same network."""
        peer = self._member.network.peer_id
        listening = [(address, ip_of(address)) for address in self._member.network.listening()]
        return [f"{address}/p2p/{peer}" for address, ip in listening if ip and ip.is_private and not ip.is_loopback]

    async def _listen(self, own: list[str]) -> None:
        async with neighbourhood(own) as heard:
            async for text in heard:
                self.hear(text)
                await trio.sleep(PAUSE)

    def hear(self, text: str) -> None:
        """Dial whom a claim names, if it may be a member in this network."""
        try:
            contact = parse_bootnode(text)
        except BadContact:
            return
        ip, membership = ip_of(contact.address), self._member.membership
        here = [mine for each in self._member.network.listening() if (mine := ip_of(each))]
        known = membership.is_member(contact.member) and contact.member != membership.own
        if CIRCUIT in text or not known or ip is None or not ip.is_private or not any(near(ip, one) for one in here):
            return
        if membership.is_near(contact.member, text):
            self.found.add(contact.member)
            log.info("lan.found", peer=contact.member, contact=text)
