"""Whether others can dial a node, and where they see it: a member that is asked tries, and tells.

Who asks names the address, which is a claim. It is dialled where the asker's own connection comes from that host, or
where it is an address of the internet and one of the asker's contacts; so that nobody can make a member knock at other
machines, or look into its network. Seldom for each asker.
"""

from collections.abc import Awaitable, Callable

import msgspec
import trio

from node.addresses import may_call
from node.clock import Seconds
from node.network.budget import Budgets
from node.network.contacts import Multiaddrs, Place, address_set, place_of
from node.network.errors import PeerMisbehaved
from node.network.interface import Network
from protocol.identity import Address

PROTOCOL = "/intellect-node/dialback/2"
REACHED, MISSED, UNTRIED = b"y", b"n", b"?"
MAX_ADDRESS = 100
Dial = Callable[[str, int], Awaitable[bool]]


class DialbackAnswer(msgspec.Struct, frozen=True):
    """A member's answer. reached: whether it could dial, None where it did not try; seen: host and port that our
    connection comes from, in its eyes, or None."""

    reached: bool | None
    seen: Place | None = None


class DialBack:
    """Asks and answers. contacts_of: a member's multiaddrs, none of who is no member; dial: whether a port of a host
    accepts a connection."""

    def __init__(
        self,
        network: Network,
        contacts_of: Callable[[Address], Multiaddrs],
        dial: Dial | None = None,
        clock: Seconds = trio.current_time,
    ) -> None:
        self._network = network
        self._clock = clock
        self._contacts_of = contacts_of
        self._dial = dial or accepts
        self._tries = Budgets(1 / 30.0, 1)  # for one asker
        network.serve(PROTOCOL, self._answer, max_request=MAX_ADDRESS)

    async def ask(self, member: Address, address: str) -> DialbackAnswer:
        """Whether `member` can dial this node at a multiaddr without peer id. Raises NetworkError."""
        question, longest = address.encode()[:MAX_ADDRESS], 1 + MAX_ADDRESS
        answer = await self._network.request(member, PROTOCOL, question, max_response=longest, timeout=10.0)
        if answer[:1] not in (REACHED, MISSED, UNTRIED) or not answer.isascii():
            raise PeerMisbehaved(member, "its answer to whether it can dial us is none")
        return DialbackAnswer({REACHED: True, MISSED: False}.get(answer[:1]), place_of(answer[1:].decode()))

    async def _answer(self, asker: Address, request: bytes) -> bytes:
        seen = self._network.seen_at(asker) or ""
        claimed, source = place_of(request.decode("ascii", "replace")), place_of(seen)
        return await self._verdict(asker, claimed, source) + seen.encode()[:MAX_ADDRESS]

    async def _verdict(self, asker: Address, claimed: Place | None, source: Place | None) -> bytes:
        if claimed is None or source is None:
            return UNTRIED
        if not may_call(claimed[0], private=True):
            return MISSED  # no machine's, or one's under another name
        if claimed[0] != source[0]:
            if not may_call(claimed[0], private=False):
                return MISSED  # an address of its own network, of which we are none
            if claimed not in self._announced(asker):
                return UNTRIED
        # Spent before the dial, which takes seconds: each question meanwhile would make another one.
        if not self._tries.take(asker, 1, self._clock()):
            return UNTRIED
        return REACHED if await self._dial(*claimed) else MISSED

    def _announced(self, asker: Address) -> set[Place | None]:
        where = address_set(asker, self._contacts_of(asker))
        return {place_of(each.address) for each in where.contacts if each.relay is None} if where else set()


async def accepts(host: str, port: int) -> bool:
    """Whether a TCP connection is accepted within five seconds."""
    with trio.move_on_after(5.0):
        try:
            await (await trio.open_tcp_stream(host, port)).aclose()
        except OSError:
            return False
        return True
    return False
