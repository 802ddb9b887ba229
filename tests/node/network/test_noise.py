"""Our Noise session, with itself and with the library's, over a connection in memory."""

from typing import Any

import pytest
import trio
import trio.testing
from cryptography.exceptions import InvalidTag
from libp2p.crypto.secp256k1 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.io.exceptions import IncompleteReadError
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH
from libp2p.security.noise.transport import Transport

from node.network import noise
from node.network.noise import LENGTH, TAG, Cipher, LeanNoise, NoiseBroken, NoiseSession

LAST_NONCE = (1 << 64) - 2

SIZES = (1, 2, 1000, MAX_PLAINTEXT_LENGTH, MAX_PLAINTEXT_LENGTH + 1, 5 * MAX_PLAINTEXT_LENGTH + 7)


class Pipe:
    """One end in memory; `step`: bytes read at once, at most; `kept`: what was written is kept instead of sent."""

    def __init__(self, stream: Any, step: int = 1 << 20) -> None:
        self.stream, self.step = stream, step
        self.kept: list[bytes] | None = None

    async def read(self, n: int | None = None) -> bytes:
        return await self.stream.receive_some(min(n or self.step, self.step))

    async def write(self, data: bytes) -> None:
        if self.kept is None:
            await self.stream.send_all(data)
        else:
            self.kept.append(data)

    async def close(self) -> None:
        await self.stream.aclose()

    def get_remote_address(self) -> tuple[str, int]:
        return "127.0.0.1", 1


async def pair(dials: type[Transport], listens: type[Transport], step: int = 1 << 20) -> tuple[Any, Any, Pipe, Pipe]:
    """Two sessions after a real handshake, and what is below them."""
    left, right = (Pipe(each, step) for each in trio.testing.memory_stream_pair())
    keys = [create_new_key_pair(bytes([number]) * 32) for number in (1, 2)]
    one, two = (
        kind(own, noise_privkey=create_noise_key_pair().private_key)
        for kind, own in zip((dials, listens), keys, strict=True)
    )
    ends: list[Any] = [None, None]

    async def inbound() -> None:
        ends[1] = await two.secure_inbound(RawConnection(right, False))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(inbound)
        ends[0] = await one.secure_outbound(RawConnection(left, True), ID.from_pubkey(keys[1].public_key))
    return ends[0], ends[1], left, right


async def whole(session: Any, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await session.read()
    return data


@pytest.mark.parametrize(("dials", "listens"), [(LeanNoise, LeanNoise), (LeanNoise, Transport), (Transport, LeanNoise)])
@pytest.mark.parametrize("step", [1 << 20, 40_001])
async def test_it_speaks_with_itself_and_with_the_librarys(
    dials: type[Transport], listens: type[Transport], step: int
) -> None:
    one, two, _, _ = await pair(dials, listens, step)
    assert one.get_remote_peer() == two.get_local_peer() and two.get_remote_peer() == one.get_local_peer()
    for sends, takes in ((one, two), (two, one)):
        for size in SIZES:
            data = (bytes(range(251)) * (size // 251 + 1))[:size]
            await sends.write(data)
            assert await whole(takes, size) == data


async def test_messages_may_come_byte_by_byte_and_be_read_byte_by_byte() -> None:
    one, two, _, below = await pair(LeanNoise, LeanNoise)
    below.step = 1
    await one.write(b"hello")
    await one.write(b"world")
    assert [await two.read(3), await two.read(3), await two.read()] == [b"hel", b"lo", b"world"]


async def sealed(*messages: bytes) -> tuple[NoiseSession, trio.testing.MemorySendStream, list[bytes]]:
    """Who receives, where its bytes are put, and the messages as they would have been sent."""
    one, two, left, _ = await pair(LeanNoise, LeanNoise)
    left.kept = []
    for message in messages:
        await one.write(message)
    return two, left.stream, left.kept


@pytest.mark.parametrize("place", [LENGTH, 10, -1])
async def test_a_message_that_was_changed_is_refused(place: int) -> None:
    two, wire, (data,) = await sealed(b"a message")
    changed = bytearray(data)
    changed[place] ^= 1
    await wire.send_all(changed)
    with pytest.raises(InvalidTag):
        await two.read()


@pytest.mark.parametrize("order", [(1,), (0, 0), (1, 0)], ids=["left-out", "repeated", "swapped"])
async def test_messages_count_so_none_may_be_left_out_repeated_or_swapped(order: tuple[int, ...]) -> None:
    two, wire, messages = await sealed(b"one", b"two")
    await wire.send_all(b"".join(messages[each] for each in order))
    with pytest.raises(InvalidTag):
        for _ in order:
            assert await two.read() == b"one"


@pytest.mark.parametrize("cut", [1, LENGTH, LENGTH + 3, -1])
async def test_an_end_within_a_message_is_no_end(cut: int) -> None:
    two, wire, (data,) = await sealed(b"a message")
    await wire.send_all(data[:cut])
    await wire.aclose()
    with pytest.raises(IncompleteReadError):
        await two.read()


async def test_an_end_between_two_messages_is_one_and_stays_one() -> None:
    two, wire, (data,) = await sealed(b"a message")
    await wire.send_all(data)
    await wire.aclose()
    assert [await two.read(), await two.read(), await two.read()] == [b"a message", b"", b""]


@pytest.mark.parametrize("size", [0, TAG - 1])
async def test_a_message_shorter_than_its_tag_is_refused(size: int) -> None:
    two, wire, _ = await sealed()
    await wire.send_all(size.to_bytes(LENGTH) + bytes(size))
    with pytest.raises(NoiseBroken):
        await two.read()


async def test_the_longest_message_that_a_length_can_name_is_read_and_nothing_longer_is_sent() -> None:
    two, wire, (data,) = await sealed(bytes(MAX_PLAINTEXT_LENGTH + 1))
    longest = 0xFFFF + LENGTH
    assert int.from_bytes(data[:LENGTH]) == 0xFFFF and len(data) == longest + LENGTH + 1 + TAG
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wire.send_all, data)
        assert len(await two.read()) == MAX_PLAINTEXT_LENGTH and await two.read() == b"\0"


async def test_a_message_of_nothing_is_not_the_end() -> None:
    two, wire, messages = await sealed(b"x", b"y")
    nothing = two._in._aead.encrypt(bytes(12), b"", None)  # one key both ways: as its peer would have sealed it
    await wire.send_all(len(nothing).to_bytes(LENGTH) + nothing + messages[1])
    assert await two.read() == b"y"


def test_a_key_seals_no_more_messages_than_there_are_numbers() -> None:
    key = bytes(range(32))
    ours, theirs = Cipher(key, LAST_NONCE), Cipher(key, LAST_NONCE)
    sealed = memoryview(bytearray(8 + TAG))
    ours.seal_into(memoryview(b"the last"), sealed)
    assert theirs.open(sealed) == b"the last"
    with pytest.raises(NoiseBroken):
        ours.seal_into(memoryview(b"one more"), sealed)
    with pytest.raises(NoiseBroken):
        theirs.open(sealed)


async def test_who_floods_with_tiny_messages_does_not_keep_others_from_running() -> None:
    one, two, left, _ = await pair(LeanNoise, LeanNoise)
    left.kept = []
    for _ in range(3 * noise.MAX_RUN):
        await one.write(b"x")
    await left.stream.send_all(b"".join(left.kept))
    turns: list[int] = []

    async def other() -> None:
        while True:
            turns.append(1)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(3 * noise.MAX_RUN):
            await two.read()
        nursery.cancel_scope.cancel()
    assert len(turns) >= 3


async def test_all_messages_that_are_here_are_read_at_once_and_no_more_than_others_may_wait_for() -> None:
    two, wire, messages = await sealed(*(bytes([number]) for number in range(noise.MAX_RUN + 2)))
    await wire.send_all(b"".join(messages))
    first = await two.read_ready()
    assert first == [bytes([number]) for number in range(noise.MAX_RUN)]
    assert await two.read() == bytes([noise.MAX_RUN]) and await two.read_ready() == [bytes([noise.MAX_RUN + 1])]
