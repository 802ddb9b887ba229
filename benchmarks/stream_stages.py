"""What each stage of a stream costs per MB, from memory, in one process: where a core's time goes at line rate.

    python -m benchmarks.stream_stages [--json FILE]

Each stage alone, best of five: CPU milliseconds per MB (10^6 bytes), and the share of a core that 1 and 10 Gbit/s take.
`noise` includes `open`, `yamux` includes `noise`, `send` includes `seal`: the rest of each is Python. What a daemon
needs beside them (requests, threads, page faults, wakeups): `python -m benchmarks.blob_throughput` less their sum.
"""

import argparse
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio
from blake3 import blake3

from node.network import yamux
from node.network.heap import keep_freed_blocks
from node.network.noise import LENGTH, TAG, Cipher, NoiseSession
from node.network.yamux import BODY_BYTES, DATA, HEADER, SYN, WINDOW, Session, Stream

KEY = bytes(range(32))
MESSAGES = 512
PIECE = 256 * 1024
REQUEST = 2 * 1024**2
TIMES = 5
PEER: Any = None


class Memory:
    """A connection that has been told everything already, and forgets what it is told."""

    def __init__(self, data: bytes = b"") -> None:
        self._data, self._at = memoryview(data), 0

    async def read(self, n: int) -> bytes:
        await trio.lowlevel.checkpoint()
        if self._at == len(self._data):
            await trio.sleep_forever()
        part = bytes(self._data[self._at : self._at + n])
        self._at += len(part)
        return part

    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()

    async def close(self) -> None:
        return None


def session(raw: Memory) -> NoiseSession:
    state = SimpleNamespace(k=KEY, n=0)
    states = SimpleNamespace(cipher_state_encrypt=state, cipher_state_decrypt=state)
    done = SimpleNamespace(conn=SimpleNamespace(noise_state=SimpleNamespace(noise_protocol=states)), is_initiator=False)
    for name in ("local_peer", "local_private_key", "remote_peer", "remote_permanent_pubkey"):
        setattr(done, name, None)
    return NoiseSession(done, raw)  # type: ignore[arg-type]


def sealed_bulk() -> bytes:
    """A stream's opening and MESSAGES full frames, as they travel."""
    cipher, body = Cipher(KEY), os.urandom(BODY_BYTES)
    plains = [HEADER.pack(0, WINDOW, SYN, 1, 0), *[HEADER.pack(0, DATA, 0, 1, BODY_BYTES) + body] * MESSAGES]
    return b"".join(len(each).to_bytes(LENGTH) + each for each in (sealed(cipher, plain) for plain in plains))


def sealed(cipher: Cipher, plain: bytes) -> bytearray:
    message = bytearray(len(plain) + TAG)
    cipher.seal_into(memoryview(plain), memoryview(message))
    return message


async def by_noise(data: bytes) -> float:
    reader, start = session(Memory(data)), time.process_time()
    left = MESSAGES + 1
    while left:
        left -= len(await reader.read_ready())
    return time.process_time() - start


async def by_yamux(data: bytes) -> float:
    muxed, left = Session(session(Memory(data)), PEER), MESSAGES * BODY_BYTES
    start = time.process_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(muxed.start)
        stream = await muxed.accept_stream()
        while left:
            left -= len(await stream.read_exactly(min(left, REQUEST)))
        nursery.cancel_scope.cancel()
    return time.process_time() - start


async def by_send(data: bytes) -> float:
    muxed = Session(session(Memory()), PEER)
    stream = muxed.streams[1] = Stream(muxed, 1)
    start = time.process_time()
    for at in range(0, MESSAGES * BODY_BYTES, REQUEST):
        await stream.write(memoryview(data)[at : at + REQUEST], head=b"12345")
    return time.process_time() - start


def by_cipher(data: bytes, work: str) -> float:
    cipher, plain = Cipher(KEY), os.urandom(BODY_BYTES)
    whole = memoryview(sealed(Cipher(KEY), plain))
    start = time.process_time()
    for _ in range(MESSAGES):
        if work == "seal":
            sealed(cipher, plain)
        else:
            cipher.number = 0
            cipher.open(whole)
    return time.process_time() - start


def by_hash(data: bytes) -> float:
    start = time.process_time()
    for at in range(0, MESSAGES * BODY_BYTES, PIECE):
        blake3(memoryview(data)[at : at + PIECE]).digest()
    return time.process_time() - start


def by_file(data: bytes) -> float:
    with tempfile.TemporaryFile() as file:
        start = time.process_time()
        for at in range(0, MESSAGES * BODY_BYTES, PIECE):
            os.pwrite(file.fileno(), memoryview(data)[at : at + PIECE], at)
        return time.process_time() - start


def by_socket(data: bytes) -> float:
    """Receiving alone: the sender is another thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(listener.getsockname())
    receiver, _ = listener.accept()
    thread = threading.Thread(target=lambda: (sender.sendall(data), sender.close()))
    thread.start()
    start = time.thread_time()
    while receiver.recv(256 * 1024):
        continue
    seconds = time.thread_time() - start
    thread.join()
    receiver.close()
    listener.close()
    return seconds


STAGES: dict[str, Callable[[bytes], float]] = {
    "socket": by_socket,
    "open": lambda data: by_cipher(data, "open"),
    "noise": lambda data: trio.run(by_noise, data),
    "yamux": lambda data: trio.run(by_yamux, data),
    "hash": by_hash,
    "file": by_file,
    "seal": lambda data: by_cipher(data, "seal"),
    "send": lambda data: trio.run(by_send, data),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    keep_freed_blocks()
    yamux.WINDOW_BYTES, yamux.MAX_BUFFERED = 1 << 30, 1 << 30  # all of it is here at once
    data, megabytes = sealed_bulk(), MESSAGES * BODY_BYTES / 1e6
    found: dict[str, float] = {}
    for name, stage in STAGES.items():
        found[name] = min(stage(data) for _ in range(TIMES)) * 1000 / megabytes
        share = found[name] / 1000 * 125
        print(f"{name:8s}{found[name]:6.2f} ms per MB   1 Gbit/s {share:5.1%}   10 Gbit/s {10 * share:5.0%} of a core")
    result = {"schema_version": 1, "ms_per_mb": found, "load": os.getloadavg()}
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
