"""At which addresses nobody was: several members that name one machine do not make a node knock there several times.

Pure: the clock is an argument. What one member's own failures cost it, the redialer knows.
"""

from node.network.contacts import Contact
from node.recent import Recent
from protocol.identity import Address

PAUSE = 30.0
"""Seconds for which an address that was not its member's is left alone on another member's word."""
MAX_KEPT = 4096


class Knocks:
    """Who was not at which address, and when."""

    def __init__(self) -> None:
        self._missed: Recent[str, tuple[Address, float]] = Recent(MAX_KEPT, refresh=True)

    def may(self, contact: Contact, now: float) -> bool:
        """Whether this member's word is reason enough to dial the address now."""
        missed = self._missed.get(contact.address)
        return missed is None or missed[0] == contact.member or now - missed[1] >= PAUSE

    def missed(self, contact: Contact, now: float) -> None:
        self._missed[contact.address] = (contact.member, now)

    def answered(self, contact: Contact) -> None:
        self._missed.pop(contact.address, None)
