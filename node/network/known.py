"""Who is behind a raw peer id, and whether that is a member.

Knows identities; nothing of connections.
"""

from collections.abc import Callable

from libp2p.peer.id import ID

from node.recent import Recent
from protocol.errors import InvalidIdentity
from protocol.identity import Address, address_of_peer
from protocol.liveness import MAX_MEMBERS


class Known:
    """is_member: whether a node is one, wherever it is."""

    def __init__(self, is_member: Callable[[Address], bool]) -> None:
        self.is_member = is_member
        self._addresses: Recent[bytes, Address] = Recent(2 * MAX_MEMBERS)

    def address_of(self, peer: bytes) -> Address | None:
        """The address of a raw peer id, None if it is not a node's."""
        if peer not in self._addresses:
            try:
                self._addresses[peer] = address_of_peer(ID(peer).to_base58())
            except InvalidIdentity:
                return None
        return self._addresses[peer]

    def is_members(self, peer: bytes) -> bool:
        """Whether a raw peer id is a member's."""
        address = self.address_of(peer)
        return address is not None and self.is_member(address)
