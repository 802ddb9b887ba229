"""Members in the local network: found without the chain's contacts, bootnodes or anybody else's word.

Where one says it is, is a claim: of a member only, an address of this node's own network only, and dialled as seldom as
any other; the handshake settles who is there.
"""

import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import structlog
import trio

from node.addresses import IpAddress, is_public, may_call
from node.changes import every
from node.member import Participant
from node.network.contacts import CIRCUIT, MAX_CONTACT, MAX_CONTACTS_EACH, ip_of, near, parse_bootnode, place_of
from node.network.errors import BadContact
from node.services.base import Service
from protocol.identity import Address

if TYPE_CHECKING:
    # In its threads alone, and where there are neighbours: thirty modules.
    from zeroconf import ServiceInfo, ServiceStateChange, Zeroconf

log = structlog.get_logger()
SERVICE = "_p2p._udp.local."
TEXT = b"dnsaddr="
MAX_HEARD = 64
"""Contacts that wait to be looked at; of more, the newest are dropped."""


@asynccontextmanager
async def neighbourhood(contacts: Sequence[str]) -> AsyncIterator[trio.MemoryReceiveChannel[str]]:
    """Announce own contacts, direct ones, as long as the block lasts; what others announce comes through the channel,
    as they wrote it. Raises OSError where the network cannot do multicast."""
    send, heard = trio.open_memory_channel[str](MAX_HEARD)
    ear = _Ear(send, trio.lowlevel.current_trio_token())
    opened = await trio.to_thread.run_sync(_open, list(contacts), ear)
    try:
        yield heard
    finally:
        # The library says good-bye to its neighbours; a cancel would leave its thread and sockets.
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_library()(opened.close))


class _Ear:
    """Called in the library's thread for every service that appears or changes."""

    def __init__(self, send: trio.MemorySendChannel[str], token: trio.lowlevel.TrioToken) -> None:
        self._send = send
        self._token = token

    def __call__(self, zeroconf: "Zeroconf", service_type: str, name: str, state_change: "ServiceStateChange") -> None:
        from zeroconf import ServiceInfo, ServiceStateChange

        if state_change is ServiceStateChange.Removed:
            return
        info = ServiceInfo(service_type, name)
        ask_milliseconds = 1000
        if not info.request(zeroconf, ask_milliseconds):
            return
        try:
            for contact in contacts_in(info.text or b""):
                # From the library's thread into trio's: nothing else may touch the channel.
                self._token.run_sync_soon(self._take, contact)
        except trio.RunFinishedError:
            log.debug("lan.over")

    def _take(self, contact: str) -> None:
        try:
            self._send.send_nowait(contact)
        except (trio.WouldBlock, trio.BrokenResourceError):
            log.debug("lan.dropped")


@contextmanager
def _library() -> Iterator[None]:
    """Its errors are the network's: on a busy machine its thread comes too late."""
    from zeroconf import Error as ZeroconfError

    try:
        yield
    except ZeroconfError as error:
        raise OSError(repr(error)) from error


@_library()
def _open(contacts: list[str], ear: _Ear) -> "Zeroconf":
    from zeroconf import ServiceBrowser, Zeroconf

    hosts = sorted({str(ip) for contact in contacts if (ip := ip_of(contact)) is not None})
    zeroconf = Zeroconf(interfaces=hosts)
    try:
        zeroconf.register_service(service_of(contacts[0]), cooperating_responders=True)  # no other has that name
        ServiceBrowser(zeroconf, SERVICE, handlers=[ear])
    except BaseException:
        zeroconf.close()
        raise
    return zeroconf


def service_of(contact: str) -> "ServiceInfo":
    """What is announced. contact: host, port and peer id, by number."""
    from zeroconf import ServiceInfo

    place = place_of(contact.partition("/p2p/")[0])
    if place is None:
        raise ValueError(f"{contact} names no host by number")
    # A fresh name each time: the announcement tells neighbours no more than the contact itself does.
    name = secrets.token_hex(16)
    text = TEXT + contact.encode()
    return ServiceInfo(
        SERVICE,
        f"{name}.{SERVICE}",
        port=place[1],
        properties=bytes([len(text)]) + text,
        server=f"{name}.local.",
        parsed_addresses=[place[0]],
    )


def contacts_in(text: bytes) -> Iterator[str]:
    """The multiaddrs of a TXT record, a length before each string; at most as many as a member may have."""
    found = 0
    while text and found < MAX_CONTACTS_EACH:
        line, text = text[1 : 1 + text[0]], text[1 + text[0] :]
        contact = line.removeprefix(TEXT)
        if contact != line and contact.isascii() and len(contact) <= MAX_CONTACT:
            found += 1
            yield contact.decode()


def _is_lan(ip: IpAddress) -> bool:
    return may_call(ip, private=True) and not is_public(ip)


class Lan(Service):
    """found: members that were heard here, as long as this node runs."""

    name = "lan"

    def __init__(self, member: Participant) -> None:
        self._member = member
        self.found: set[Address] = set()

    async def run(self) -> None:
        # Seconds until multicast is tried again where it failed, or only this machine was listened on.
        await every(60.0, self._try)

    async def _try(self) -> None:
        try:
            if own := self._own():
                await self._listen(own)
        except OSError as error:
            log.info("lan.no_multicast", why=repr(error))

    def status(self) -> dict[str, Any]:
        return {"node": {"lan": len(self.found)}}

    def _own(self) -> list[str]:
        """Contacts that mean something to machines in the same network."""
        peer = self._member.network.peer_id
        listening = [(address, ip_of(address)) for address in self._member.network.listening()]
        return [f"{address}/p2p/{peer}" for address, ip in listening if ip and _is_lan(ip) and not ip.is_loopback]

    async def _listen(self, own: list[str]) -> None:
        async with neighbourhood(own) as heard:
            async for text in heard:
                self.hear(text)
                await trio.sleep(0.25)  # seconds between two claims that are looked at

    def hear(self, text: str) -> None:
        """Dial whom a claim names, if it may be a member in this network."""
        try:
            contact = parse_bootnode(text)
        # Anybody in the local network may shout; a line for each would let a neighbour fill the log.
        except BadContact:
            return
        ip, membership = ip_of(contact.address), self._member.membership
        here = [mine for each in self._member.network.listening() if (mine := ip_of(each))]
        # Multicast is anybody's word: only members are dialled, and only near ones (ADR 087).
        known = membership.is_member(contact.member) and contact.member != membership.own
        if CIRCUIT in text or not known or ip is None or not _is_lan(ip) or not any(near(ip, one) for one in here):
            return
        if membership.places.is_near(contact.member, text):
            self.found.add(contact.member)
            log.info("lan.found", peer=contact.member, contact=text)
