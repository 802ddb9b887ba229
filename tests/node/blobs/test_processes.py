"""Nodes in processes of their own, talking over loopback."""

import hashlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from node.blobs.exchange import BlobExchange
from node.blobs.store import BlobStore
from node.network.interface import Network
from node.processes.forkserver import ChildProcess, ForkServer
from node.processes.launch import launch
from protocol.identity import Address, NodeKey
from tests.node.networks import know

PEER = "tests.node.blobs.peer"
IMPORTS = ("node.blobs.exchange", "node.blobs.store", "node.network.host", "tests.node.networks")


class Peer:
    """A child process running peer.py."""

    def __init__(self, process: ChildProcess, said: dict[str, str], errors: Path) -> None:
        self.process = process
        self.address = Address(said["address"])
        self.contact = said["contact"]
        self.root = bytes.fromhex(said["root"])
        self.errors = errors

    async def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        await self.process.wait()

    async def end(self) -> None:
        """Close its stdin and wait for a clean exit."""
        assert self.process.stdin
        await self.process.stdin.aclose()
        with trio.fail_after(60):
            assert await self.process.wait() == 0, self.errors.read_text()


@pytest.fixture
async def starter() -> AsyncIterator[ForkServer]:
    """What the peers have in common is imported once."""
    children = ForkServer(launch(IMPORTS))
    async with trio.open_nursery() as nursery:
        await nursery.start(children.run)
        yield children
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def start_peer(
    starter: ForkServer,
    folder: Path,
    contacts: dict[Address, str],
    *,
    key: NodeKey | None = None,
    listen: str = "",
    blob: int = 0,
) -> AsyncIterator[Peer]:
    os.makedirs(folder, exist_ok=True)
    errors = folder / "stderr"
    settings = {
        "secret": (key or NodeKey.generate()).secret.hex(),
        "listen": listen or "/ip4/127.0.0.1/tcp/0",
        "contacts": contacts,
        "folder": str(folder / "blobs"),
        "errors": str(errors),
        "blob": blob,
    }
    process = await starter.start([sys.executable, "-m", PEER, json.dumps(settings)], os.environ, heard=True)
    assert process.stdin and process.stdout
    try:
        line = b""
        with trio.fail_after(60):
            while not line.endswith(b"\n"):
                part = await process.stdout.receive_some()
                assert part, errors.read_text()
                line += part
        yield Peer(process, json.loads(line), errors)
    finally:
        with trio.CancelScope(shield=True):
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                await process.wait()
            await process.stdout.aclose()
            await process.stdin.aclose()


async def _ready(real, received: "trio.MemoryReceiveChannel", network: Network, contacts: dict[Address, str]) -> None:
    """Connected with all, and hearing all on the topic."""
    know(network, contacts)
    heard: set[Address] = set()
    with trio.fail_after(60):
        while heard != set(contacts):
            await network.publish("chat", b"say ready?")
            with trio.move_on_after(0.3):
                while True:
                    heard.add((await received.receive())[0])


async def test_three_processes_exchange_gossip_requests_and_blobs(real, starter: ForkServer, tmp_path: Path) -> None:
    network = real.make()
    received = network.subscribe("chat", lambda publisher, data: True)
    store = BlobStore(tmp_path / "own", quota=10**9)
    exchange = BlobExchange(network, store)
    await real.start(network)
    known = {network.address: network.contacts()[0]}
    async with start_peer(starter, tmp_path / "one", known, blob=5) as one:
        known[one.address] = one.contact
        async with start_peer(starter, tmp_path / "two", known) as two:
            known[two.address] = two.contact
            del known[network.address]
            await _ready(real, received, network, known)
            reply = await network.request(one.address, "/reverse/1", b"abc", max_response=10, timeout=10)
            assert reply == b"cba"
            path = await exchange.fetch(one.root, [one.address, two.address], timeout=60)
            digest = await network.request(two.address, "/fetch/1", one.root, max_response=32, timeout=60)
            assert hashlib.sha256(path.read_bytes()).digest() == digest
            await two.end()
            await one.end()
            assert "Traceback" not in one.errors.read_text() + two.errors.read_text()


async def test_a_killed_and_restarted_peer_is_dialled_again_and_heard_at_once(
    real, starter: ForkServer, tmp_path: Path
) -> None:
    network = real.make()
    received = network.subscribe("chat", lambda publisher, data: True)
    await real.start(network)
    key = NodeKey.generate()
    async with start_peer(starter, tmp_path / "peer", {}, key=key) as peer:
        listen = peer.contact.partition("/p2p/")[0]
        await _ready(real, received, network, {peer.address: peer.contact})
        await peer.kill()
        await real.until(lambda: not network.connected())
    async with start_peer(starter, tmp_path / "peer", {}, key=key, listen=listen) as peer:
        await real.until(lambda: network.connected())
        reply = await network.request(peer.address, "/reverse/1", b"abc", max_response=10, timeout=10)
        assert reply == b"cba"
        await _ready(real, received, network, {peer.address: peer.contact})
