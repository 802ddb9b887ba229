"""Whether others can dial a node, and where they see it: a member that is asked tries, and tells.

Who asks names the address, which is a claim. It is dialled where the asker's own connection comes from that host, or
where it is an address of the internet and the asker's contact; so that nobody can make a member knock at other
machines, or look into its network. Seldom for each asker.
"""

import ipaddress
from collections.abc import Awaitable, Callable

import msgspec
import trio
from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from node.clock import Seconds
from node.network.errors import PeerMisbehaved
from node.network.interface import Network
from node.network.redial import parse_contact
from node.recent import Recent
from protocol.identity import Address

PROTOCOL = "/intellect-node/dialback/2"
REACHED, MISSED, UNTRIED = b"y", b"n", b"?"
DIAL_SECONDS = 5.0
ANSWER_SECONDS = 10.0
PAUSE = 30.0
"""Seconds between two tries for one asker."""
ASKERS = 1024
MAX_ADDRESS = 100
Dial = Callable[[str, int], Awaitable[bool]]
Place = tuple[str, int]


class Look(msgspec.Struct, frozen=True):
    """A member's answer. reached: whether it could dial, None where it did not try; seen: host and port that our
    connection comes from, in its eyes, or None."""

    reached: bool | None
    seen: Place | None = None


class DialBack:
    """Asks and answers. contact_of: a member's multiaddr, None of who is no member; dial: whether a port of a host
    accepts a connection."""

    def __init__(
        self,
        network: Network,
        contact_of: Callable[[Address], str | None],
        dial: Dial | None = None,
        clock: Seconds = trio.current_time,
    ) -> None:
        self._network = network
        self._clock = clock
        self._contact_of = contact_of
        self._dial = dial or accepts
        self._tried = Recent[Address, float](ASKERS, refresh=True)
        network.serve(PROTOCOL, self._answer, max_request=MAX_ADDRESS)

    async def ask(self, member: Address, address: str) -> Look:
        """Whether `member` can dial this node at a multiaddr without peer id. Raises NetworkError."""
        question, longest = address.encode()[:MAX_ADDRESS], 1 + MAX_ADDRESS
        answer = await self._network.request(member, PROTOCOL, question, max_response=longest, timeout=ANSWER_SECONDS)
        if answer[:1] not in (REACHED, MISSED, UNTRIED) or not answer.isascii():
            raise PeerMisbehaved(member, "its answer to whether it can dial us is none")
        return Look({REACHED: True, MISSED: False}.get(answer[:1]), place_of(answer[1:].decode()))

    async def _answer(self, asker: Address, request: bytes) -> bytes:
        seen = self._network.seen_at(asker) or ""
        claimed, source = place_of(request.decode("ascii", "replace")), place_of(seen)
        return await self._verdict(asker, claimed, source) + seen.encode()[:MAX_ADDRESS]

    async def _verdict(self, asker: Address, claimed: Place | None, source: Place | None) -> bytes:
        if claimed is None or source is None:
            return UNTRIED
        if claimed[0] != source[0]:
            if not ipaddress.ip_address(claimed[0]).is_global:
                return MISSED  # an address of its own network, of which we are none
            if claimed != self._announced(asker):
                return UNTRIED
        now = self._clock()
        if now - self._tried.get(asker, -PAUSE) < PAUSE:
            return UNTRIED
        self._tried[asker] = now
        return REACHED if await self._dial(*claimed) else MISSED

    def _announced(self, asker: Address) -> Place | None:
        contact = parse_contact(asker, self._contact_of(asker) or "")
        return place_of(contact.address) if contact and contact.relay is None else None


def place_of(address: str) -> Place | None:
    """Host and port of /ip4|ip6/../tcp/..; None for names and for what is no such address."""
    try:
        parsed = Multiaddr(address)
        host = str(parsed.value_for_protocol("ip6" if address.startswith("/ip6/") else "ip4"))
        return str(ipaddress.ip_address(host)), int(parsed.value_for_protocol("tcp") or "")
    except (MultiaddrError, ValueError, LookupError):
        return None


async def accepts(host: str, port: int) -> bool:
    """Whether a TCP connection is accepted within DIAL_SECONDS."""
    with trio.move_on_after(DIAL_SECONDS):
        try:
            await (await trio.open_tcp_stream(host, port)).aclose()
        except OSError:
            return False
        return True
    return False
