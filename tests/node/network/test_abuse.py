"""What one peer may cost us below the level of messages: frames, handshakes, connections."""

import socket
import struct
from typing import Any

import pytest
import trio
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedStreamError
from multiaddr import Multiaddr

from node.network import hardening, host, links, yamux
from node.network.host import Libp2pNetwork
from node.network.yamux import YamuxSession
from tests.node.networks import know


async def _pair(real) -> tuple[Libp2pNetwork, Libp2pNetwork]:
    one, two = real.make(), real.make()
    await real.start(one, two)
    await real.introduce(one, two)
    return one, two


def _connection(one: Libp2pNetwork, two: Libp2pNetwork):
    return one._swarm.get_connections(ID.from_base58(two.peer_id))[0].muxed_conn


def paced(*frames: float) -> type[YamuxSession]:
    """Sessions that read so many frames, per second and at once."""

    class Paced(YamuxSession):
        def __init__(self, *given: Any, **told: Any) -> None:
            super().__init__(*given, **told, frames=frames)

    return Paced


async def _pinged(asker: Libp2pNetwork, asked: Libp2pNetwork) -> float:
    started = trio.current_time()
    await asker.request(asked.address, host.PING, b"x", max_response=1, timeout=10)
    return trio.current_time() - started


async def test_frames_that_ask_for_nothing_are_read_at_a_rate_and_delay_nobody_else(
    real, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardening, "YamuxSession", paced(100.0, 500.0))
    one, two = await _pair(real)
    other = real.make()
    await real.start(other)
    know(other, {two.address: two.contacts()[0]})
    await real.until(lambda: other.connected())
    unasked = struct.pack("!BBHII", 0, 2, 2, 0, 7) * 5000
    await _connection(one, two).secured_conn.write(unasked)
    assert await _pinged(other, two) < 2
    with pytest.raises(host.RequestTimedOut):
        await one.request(two.address, host.PING, b"x", max_response=1, timeout=1)
    assert one.connected()


async def test_data_pays_for_its_frames(real, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardening, "YamuxSession", paced(1.0, 400.0))
    one, two = await _pair(real)

    async def big(asker, request: bytes) -> bytes:
        return bytes(2**20)

    two.serve("/big/1", big, max_request=10)
    for _ in range(12):
        with trio.fail_after(60):
            await one.request(two.address, "/big/1", b"", max_response=2**20, timeout=10)


async def test_silent_handshakes_from_many_addresses_give_way_to_new_ones(
    real, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardening, "MAX_HANDSHAKES", 8)
    node, newcomer = real.make(), real.make()
    await real.start(node, newcomer)
    port = int(node.contacts()[0].split("/")[4])
    silent = []
    for number in range(12):
        raw = socket.socket()
        raw.bind((f"127.0.1.{number + 1}", 0))
        raw.connect(("127.0.0.1", port))
        silent.append(raw)
    await real.until(lambda: len(node._swarm._upgrading) == 8)
    know(newcomer, {node.address: node.contacts()[0]})
    await real.until(lambda: newcomer.connected(), seconds=8)
    for raw in silent:
        raw.close()


async def test_silent_handshakes_from_one_address_delay_nobody_behind_it(real) -> None:
    node, newcomer = real.make(), real.make()
    await real.start(node, newcomer)
    port = int(node.contacts()[0].split("/")[4])
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(hardening.MAX_HANDSHAKES_PER_IP)]
    await real.until(lambda: len(node._swarm._upgrading) == hardening.MAX_HANDSHAKES_PER_IP)
    know(newcomer, {node.address: node.contacts()[0]})
    await real.until(lambda: newcomer.connected(), seconds=5)
    assert len(node._swarm._upgrading) < hardening.MAX_HANDSHAKES_PER_IP
    for raw in silent:
        raw.close()


async def test_a_stranger_that_closes_one_of_its_connections_is_still_counted(
    real, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MAX_STRANGERS", 2)
    node, stranger, other = real.make(), real.make(), real.make()
    await real.start(node, stranger, other)
    know(stranger, {node.address: node.contacts()[0]})
    await real.until(lambda: stranger.connected())
    (first,) = node._links._strangers
    again = type("Connection", (), {"muxed_conn": first.muxed_conn})()
    node._links.arrived(again)
    node._links.left(again)
    assert list(node._links._strangers) == [first]


@pytest.mark.parametrize("bounded", [True, False])
async def test_a_peer_that_opens_all_connections_it_may_and_reads_a_byte_a_second_harms_nobody_else(
    real, monkeypatch: pytest.MonkeyPatch, bounded: bool
) -> None:
    many = 8
    monkeypatch.setattr(links, "MAX_WITH_ONE", many // 2 if bounded else 2 * many)
    abuser, node = await _pair(real)
    other = real.make()
    await real.start(other)
    know(node, {each.address: each.contacts()[0] for each in (abuser, other)})
    know(other, {node.address: node.contacts()[0]})
    await real.until(lambda: len(node.connected()) == 2)
    asked = set()

    async def big(asker, request: bytes) -> bytes:
        asked.add(asker)
        return bytes(2**22)

    node.serve("/big/1", big, max_request=10)
    for _ in range(many):
        connection = await abuser._swarm.dial_addr(Multiaddr(node.contacts()[0]), ID.from_base58(node.peer_id))
        await _read_slowly(connection.muxed_conn, "/big/1")
    most = many // 2 - 1
    await real.until(
        lambda: (
            abuser.address in asked
            and (node.lanes(abuser.address) == most if bounded else node.lanes(abuser.address) >= many)
        )
    )
    for _ in range(4):
        assert len(await other.request(node.address, "/big/1", b"", max_response=2**22, timeout=30)) == 2**22
    await _pinged(other, node)
    assert other.connected() and (node.lanes(abuser.address) <= most) == bounded


async def _read_slowly(session: yamux.YamuxSession, protocol: str) -> None:
    """Ask for much on several streams of a connection, of which one byte a second is read from now on."""
    source = session.secured_conn._source
    read = source.read
    for _ in range(4):
        try:
            stream = await session.open_stream()
            await stream.widen(2**22)
            for said in ("/multistream/1.0.0\n", f"{protocol}\n"):
                await stream.write(bytes([len(said)]) + said.encode())
            await stream.write((0).to_bytes(4))
        except MuxedStreamError:
            return  # the other side has closed it: one too many

    async def slowly(n: int | None = None) -> bytes:
        await trio.sleep(1)
        return await read(1)

    source.read = slowly
