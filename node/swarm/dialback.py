"""Whether others can dial a node: a member that is asked tries, at the address that the asker has on chain.

Answers about addresses of the internet only: who tried a private one for a stranger would tell him which ports of its
own network are open. Seldom for each asker, and never about anybody else's address.
"""

import ipaddress
from collections.abc import Awaitable, Callable

import trio
from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from node.clock import Seconds
from node.network.interface import Network
from node.network.redial import Contact, parse_contact
from node.recent import Recent
from protocol.identity import Address

PROTOCOL = "/intellect-node/dialback/1"
REACHED, MISSED, UNTRIED = b"y", b"n", b"?"
DIAL_SECONDS = 5.0
ANSWER_SECONDS = 10.0
PAUSE = 30.0
"""Seconds between two tries for one asker."""
ASKERS = 1024
Dial = Callable[[str, int], Awaitable[bool]]


class DialBack:
    """Asks and answers. contact_of: a member's multiaddr on chain, None of who is no member; dial: whether a port of a
    host accepts a connection."""

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
        network.serve(PROTOCOL, self._answer, max_request=1)

    async def ask(self, member: Address) -> bool | None:
        """Whether `member` could dial this node; None where it did not try. Raises NetworkError."""
        answer = await self._network.request(member, PROTOCOL, b"", max_response=1, timeout=ANSWER_SECONDS)
        return {REACHED: True, MISSED: False}.get(answer)

    async def _answer(self, asker: Address, _: bytes) -> bytes:
        contact = parse_contact(asker, self._contact_of(asker) or "")
        place = public_place(contact) if contact else None
        now = self._clock()
        if place is None or now - self._tried.get(asker, -PAUSE) < PAUSE:
            return UNTRIED
        self._tried[asker] = now
        return REACHED if await self._dial(*place) else MISSED


def public_place(contact: Contact) -> tuple[str, int] | None:
    """Host and port of a contact on the internet; None for names and for other addresses."""
    try:
        address = Multiaddr(contact.address)
        host = str(address.value_for_protocol("ip6" if contact.address.startswith("/ip6/") else "ip4"))
        port = int(address.value_for_protocol("tcp") or "")
        return (host, port) if ipaddress.ip_address(host).is_global else None
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
