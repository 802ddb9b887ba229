"""MB/s of one blob from one node to another over loopback, each in its own process.

    python -m benchmarks.blob_throughput [MiB]

Prints the best and the median of five fetches, and the round trip of gossip at idle.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import structlog
import trio

from node.blobs.exchange import BlobExchange
from node.blobs.store import BlobStore
from node.network.host import PING, Libp2pNetwork
from protocol.identity import Address, NodeKey

ROUNDS = 5
MESSAGES = 100


async def serve(folder: Path, size: int, member: str, contact: str) -> None:
    """Offer ROUNDS blobs, and echo gossip. Says on stdout where and what, ends with stdin."""
    network = Libp2pNetwork(NodeKey.generate(), "/ip4/127.0.0.1/tcp/0")
    store = BlobStore(folder, quota=2 * ROUNDS * size)
    BlobExchange(network, store)
    pings = network.subscribe("ping", lambda publisher, data: True)
    async with trio.open_nursery() as nursery:
        await nursery.start(network.run)
        network.set_contacts({Address(member): contact})  # a stranger would be throttled
        roots = [(await store.add(os.urandom(size))).root.hex() for _ in range(ROUNDS)]
        print(json.dumps([network.address, network.contacts()[0], roots]), flush=True)
        nursery.start_soon(_end_with_stdin, nursery.cancel_scope)
        async for _, data in pings:
            await network.publish("pong", data)


async def _end_with_stdin(scope: trio.CancelScope) -> None:
    await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
    scope.cancel()


async def fetch(folder: Path, size: int) -> None:
    """Start the other process, fetch its blobs, measure."""
    network = Libp2pNetwork(NodeKey.generate(), "/ip4/127.0.0.1/tcp/0")
    exchange = BlobExchange(network, BlobStore(folder / "b", quota=2 * ROUNDS * size))
    pongs = network.subscribe("pong", lambda publisher, data: True)
    async with trio.open_nursery() as nursery:
        await nursery.start(network.run)
        arguments = ["--serve", str(folder / "a"), str(size), network.address, network.contacts()[0]]
        command = [sys.executable, "-m", "benchmarks.blob_throughput", *arguments]
        child = await trio.lowlevel.open_process(command, stdin=-1, stdout=-1)
        if child.stdin is None or child.stdout is None:
            raise RuntimeError("the other process has no pipes")
        line = b""
        while not line.endswith(b"\n"):
            line += await child.stdout.receive_some()
        peer, contact, roots = json.loads(line)
        network.set_contacts({Address(peer): contact})
        await network.request(Address(peer), PING, b"", max_response=1, timeout=30)
        rates = []
        spent = time.process_time()
        for root in roots:
            start = time.perf_counter()
            await exchange.fetch(bytes.fromhex(root), [Address(peer)], timeout=300)
            rates.append(size / (time.perf_counter() - start) / 1e6)
        spent = (time.process_time() - spent) / ROUNDS
        print(f"blob of {size / 2**20:.0f} MiB: best {max(rates):.0f} MB/s, median {statistics.median(rates):.0f} MB/s")
        print(f"receiver, hashing and writing included: {size / spent / 1e6:.0f} MB per CPU second")
        await trio.sleep(2)
        trips = []
        for number in range(MESSAGES):
            start = time.perf_counter()
            await network.publish("ping", str(number).encode().ljust(1024))
            await pongs.receive()
            trips.append((time.perf_counter() - start) * 1000)
            await trio.sleep(0.05)
        trips.sort()
        print(f"gossip, 1 KiB, there and back: median {statistics.median(trips):.1f} ms, p99 {trips[-2]:.1f} ms")
        await child.stdin.aclose()
        await child.wait()
        nursery.cancel_scope.cancel()


def main() -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(40), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    if sys.argv[1:2] == ["--serve"]:
        trio.run(serve, Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
        return
    size = int(sys.argv[1] if len(sys.argv) > 1 else 64) * 2**20
    with tempfile.TemporaryDirectory() as folder:
        trio.run(fetch, Path(folder), size)


if __name__ == "__main__":
    main()
