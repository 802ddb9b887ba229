"""Peers in the local network, by multicast DNS as libp2p's other implementations speak it (_p2p._udp.local).

Says where this node is, and hears where others say they are. What is heard is nobody's signed word: it is bounded here,
and believed by nobody. The library works in threads of its own.
"""

import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import structlog
import trio
from zeroconf import ServiceBrowser, ServiceInfo, ServiceStateChange, Zeroconf

from node.network.contacts import MAX_CONTACT, MAX_CONTACTS_EACH, ip_of, place_of

log = structlog.get_logger(__name__)

SERVICE = "_p2p._udp.local."
TEXT = b"dnsaddr="
MAX_HEARD = 64
"""Contacts that wait to be looked at; of more, the newest are dropped."""
ASK_MILLISECONDS = 1000


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
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(opened.close)


class _Ear:
    """Called in the library's thread for every service that appears or changes."""

    def __init__(self, send: trio.MemorySendChannel[str], token: trio.lowlevel.TrioToken) -> None:
        self._send = send
        self._token = token

    def __call__(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        if state_change is ServiceStateChange.Removed:
            return
        info = ServiceInfo(service_type, name)
        if not info.request(zeroconf, ASK_MILLISECONDS):
            return
        try:
            for contact in contacts_in(info.text or b""):
                self._token.run_sync_soon(self._take, contact)
        except trio.RunFinishedError:
            log.debug("lan.over")

    def _take(self, contact: str) -> None:
        try:
            self._send.send_nowait(contact)
        except (trio.WouldBlock, trio.BrokenResourceError):
            log.debug("lan.dropped")


def _open(contacts: list[str], ear: _Ear) -> Zeroconf:
    hosts = sorted({str(ip) for contact in contacts if (ip := ip_of(contact)) is not None})
    zeroconf = Zeroconf(interfaces=hosts)
    try:
        zeroconf.register_service(service_of(contacts[0]), cooperating_responders=True)  # no other has that name
        ServiceBrowser(zeroconf, SERVICE, handlers=[ear])
    except BaseException:
        zeroconf.close()
        raise
    return zeroconf


def service_of(contact: str) -> ServiceInfo:
    """What is announced. contact: host, port and peer id, by number."""
    place = place_of(contact.partition("/p2p/")[0])
    if place is None:
        raise ValueError(f"{contact} names no host by number")
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
