"""Noise's messages after the handshake, which stays the library's: the same bytes on the wire, at a third of the cost.

The library asks for two bytes, then for a message, copies each three times and checks twice what it was given. Here
messages are cut out of whatever the socket had, and many leave in one write. A message is u16be length | ciphertext
with its tag, sealed with ChaCha20-Poly1305 under a counter (Noise, revision 34, 5.1 and 12.3; libp2p specs/noise).

Knows bytes and keys; knows nothing of streams.
"""

from typing import Any

import trio
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from libp2p.abc import IRawConnection, ISecureConn
from libp2p.connection_types import ConnectionType
from libp2p.io.exceptions import IncompleteReadError
from libp2p.peer.id import ID
from libp2p.security.base_session import BaseSession
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH
from libp2p.security.noise.transport import Transport
from multiaddr import Multiaddr

from node.network.sockets import LeanSocket, Prompt, Tcp, prompt, unbuffered

LENGTH = 2
TAG = 16
MAX_RUN = 32
"""Messages that are read without letting others run: as many as are here, else each takes four coroutines upwards."""


class NoiseBroken(Exception):
    """The peer sent what is no Noise message of this session, or the session's numbers are used up."""


class Cipher:
    """One direction: a key and the number of the next message."""

    def __init__(self, key: bytes, number: int = 0) -> None:
        self._aead = ChaCha20Poly1305(key)
        self.number = number

    def seal_into(self, plain: memoryview, sealed: memoryview) -> None:
        """`sealed`: room for `plain` and its tag. Raises NoiseBroken once every number was used."""
        self._aead.encrypt_into(self._next_nonce(), plain, None, sealed)

    def open(self, sealed: memoryview) -> bytes:
        """Raises InvalidTag for what was not sealed as this session's next message, NoiseBroken as `seal_into` does."""
        return self._aead.decrypt(self._next_nonce(), sealed, None)

    def _next_nonce(self) -> bytes:
        if self.number > (1 << 64) - 2:  # of one key; the number after it is reserved (Noise, 5.1)
            raise NoiseBroken("all numbers of this session are used up")
        # Noise writes the nonce little-endian here, and lengths big-endian (12.3).
        nonce = bytes(4) + self.number.to_bytes(8, "little")
        # Never used twice with one key: two messages under one nonce give away the difference of their plain texts.
        self.number += 1
        return nonce


def _end(data: memoryview | bytearray, at: int) -> int:
    """Where the message ends that begins at `at`, its length included; the length alone where that is not whole."""
    if len(data) - at < LENGTH:
        return at + LENGTH
    size = data[at] << 8 | data[at + 1]
    if size < TAG:
        raise NoiseBroken("a message is shorter than its tag")
    return at + LENGTH + size


class NoiseSession(BaseSession, Prompt):
    """A connection after its handshake. Reads as a socket does: b"" at the end, between two messages."""

    def __init__(self, done: Any, raw: IRawConnection) -> None:
        """done: the library's session, of which nothing was read or written yet."""
        super().__init__(
            local_peer=done.local_peer,
            local_private_key=done.local_private_key,
            remote_peer=done.remote_peer,
            remote_permanent_pubkey=done.remote_permanent_pubkey,
            is_initiator=done.is_initiator,
        )
        states = done.conn.noise_state.noise_protocol
        self._raw = raw
        self._source, self._ahead = unbuffered(getattr(raw, "stream", raw))
        self._sink = prompt(self._source)
        self._out = Cipher(states.cipher_state_encrypt.k, states.cipher_state_encrypt.n)
        self._in = Cipher(states.cipher_state_decrypt.k, states.cipher_state_decrypt.n)
        self._begun = bytearray()
        self._plain = b""
        self._run = 0

    # reading

    async def read(self, n: int | None = None) -> bytes:
        """1 to n bytes; the next message, or what is left of it, where n is None. Raises what `Cipher.open` does, and
        IncompleteReadError for an end within a message: after either, the connection is of no use."""
        while not self._plain:
            ready = await self._ready(1)
            if not ready:
                return b""
            self._plain = ready[0]
        if n is None or n >= len(self._plain):
            data, self._plain = self._plain, b""
        else:
            data, self._plain = self._plain[:n], self._plain[n:]
        return data

    async def read_ready(self) -> list[bytes]:
        """The next messages: one at least, and as many as are here whole, up to MAX_RUN; none at the end. Raises as
        `read` does."""
        if self._plain:
            return [await self.read()]
        return await self._ready(MAX_RUN)

    async def _ready(self, most: int) -> list[bytes]:
        # Data that is always there would never let the loop turn: the others of this process wait meanwhile.
        if self._run >= MAX_RUN:
            self._run = 0
            await trio.lowlevel.checkpoint()
        ready = self._open(most)
        while not ready:
            # Four messages of the largest kind: as much as one system call should bring.
            more = await self._source.read(256 * 1024)
            if not more and self._begun:
                raise IncompleteReadError("the connection ended within a message")
            if not more:
                return []
            self._ahead = memoryview(more)
            ready = self._open(most)
        self._run += len(ready)
        return ready

    def _open(self, most: int) -> list[bytes]:
        """Messages that are here whole, `most` at most. One that two reads share is put together by itself."""
        ready: list[bytes] = []
        if self._begun:
            if (sealed := self._put_together()) is None:
                return ready
            ready.append(self._in.open(sealed))
        ahead, at = self._ahead, 0
        while len(ready) < most and at < len(ahead) and (end := _end(ahead, at)) <= len(ahead):
            ready.append(self._in.open(ahead[at + LENGTH : end]))
            at = end
        self._ahead = ahead[at:]
        # A begun message is copied aside; otherwise what is ahead stays a view, and is cut at the next call.
        if self._ahead and len(ready) < most:
            self._begun += self._taken(len(ahead))
        return ready

    def _put_together(self) -> memoryview | None:
        while len(self._begun) < (end := _end(self._begun, 0)):
            part = self._taken(end - len(self._begun))
            if not part:
                return None
            self._begun += part
        sealed, self._begun = memoryview(self._begun)[LENGTH:], bytearray()
        return sealed

    def _taken(self, n: int) -> memoryview:
        """n bytes of what was read ahead, or what is left."""
        data, self._ahead = self._ahead[:n], self._ahead[n:]
        return data

    # writing

    async def write(self, data: bytes | memoryview) -> None:
        """All of `data`, in one write and as many messages as it takes."""
        await self.finish_write(self.begin_write(data))

    def begin_write(self, data: bytes | memoryview) -> memoryview:
        return self._sink.begin_write(self._sealed(memoryview(data)))

    async def finish_write(self, rest: memoryview) -> None:
        await self._sink.finish_write(rest)

    def keep_short(self, size: int) -> None:
        self._sink.keep_short(size)

    def _sealed(self, data: memoryview) -> memoryview:
        """One message after another, each sealed where it is sent from."""
        count = -(-len(data) // MAX_PLAINTEXT_LENGTH)
        # One buffer for all messages, sealed in place: no copy between the cipher and the socket.
        sealed = room = memoryview(bytearray(len(data) + count * (LENGTH + TAG)))
        for start in range(0, len(data), MAX_PLAINTEXT_LENGTH):
            plain = data[start : start + MAX_PLAINTEXT_LENGTH]
            end = LENGTH + len(plain) + TAG
            room[:LENGTH] = (end - LENGTH).to_bytes(LENGTH)
            self._out.seal_into(plain, room[LENGTH:end])
            room = room[end:]
        return sealed

    def tcp(self) -> Tcp | None:
        """What the system says of the socket below; None where there is none."""
        return self._source.tcp() if isinstance(self._source, LeanSocket) else None

    # what the library asks of a connection

    async def close(self) -> None:
        await self._raw.close()

    def get_remote_address(self) -> tuple[str, int] | None:
        return self._raw.get_remote_address()

    def get_transport_addresses(self) -> list[Multiaddr]:
        return self._raw.get_transport_addresses()

    def get_connection_type(self) -> ConnectionType:
        return self._raw.get_connection_type()


class LeanNoise(Transport):
    """The library's Noise, whose sessions are ours after the handshake."""

    async def secure_inbound(self, conn: IRawConnection) -> ISecureConn:
        return NoiseSession(await super().secure_inbound(conn), conn)

    async def secure_outbound(self, conn: IRawConnection, peer_id: ID) -> ISecureConn:
        return NoiseSession(await super().secure_outbound(conn, peer_id), conn)
