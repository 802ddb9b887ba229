"""What bytes cost: one blob from one node to another over loopback, each in its own process.

    python -m benchmarks.blob_throughput [MiB] [--beside TREE] [--rounds N] [--json FILE]

MB per CPU second of the receiver (hashing and writing included) and of the sender, MB/s, each the median of N rounds
of five blobs, and the round trip of gossip at idle. TREE: another checkout, measured by turns with this one: on a
machine that has other work, only such rates may be compared.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import structlog
import trio

from node.blobs.exchange import BlobExchange
from node.blobs.store import BlobStore
from node.network.host import PING, Libp2pNetwork
from protocol.identity import Address, NodeKey

ROUNDS = 5
"""Blobs of one round."""
MESSAGES = 100
ANSWER_SECONDS = 10.0
"""After which a message is given up."""
ROOT = Path(__file__).resolve().parent.parent


async def serve(folder: Path, size: int, member: str, contact: str) -> None:
    """Offer ROUNDS blobs, and echo gossip. Says on stdout where and what; then its CPU seconds for each line on stdin,
    with which it ends."""
    network = Libp2pNetwork(NodeKey.generate(), "/ip4/127.0.0.1/tcp/0")
    store = BlobStore(folder, quota=2 * ROUNDS * size)
    BlobExchange(network, store)
    pings = network.subscribe("ping", lambda publisher, data: True)
    async with trio.open_nursery() as nursery:
        await nursery.start(network.run)
        network.set_contacts({Address(member): contact})  # a stranger would be throttled
        roots = [(await store.add(os.urandom(size))).root.hex() for _ in range(ROUNDS)]
        print(json.dumps([network.address, network.contacts()[0], roots]), flush=True)
        nursery.start_soon(_say_seconds, nursery.cancel_scope)
        async for _, data in pings:
            await network.publish("pong", data)


async def _say_seconds(scope: trio.CancelScope) -> None:
    while await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
        print(time.process_time(), flush=True)
    scope.cancel()


class Child:
    """The other process."""

    def __init__(self, process: trio.Process) -> None:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the other process has no pipes")
        self.process, self.stdin, self._stdout = process, process.stdin, process.stdout

    async def line(self) -> Any:
        said = b""
        while not said.endswith(b"\n"):
            part = await self._stdout.receive_some()
            if not part:
                raise RuntimeError("the other process has ended")
            said += part
        return json.loads(said)

    async def seconds(self) -> float:
        await self.stdin.send_all(b"\n")
        return await self.line()


async def fetch(folder: Path, size: int) -> dict[str, float]:
    """Start the other process, fetch its blobs, measure."""
    network = Libp2pNetwork(NodeKey.generate(), "/ip4/127.0.0.1/tcp/0")
    exchange = BlobExchange(network, BlobStore(folder / "b", quota=2 * ROUNDS * size))
    pongs = network.subscribe("pong", lambda publisher, data: True)
    async with trio.open_nursery() as nursery:
        await nursery.start(network.run)
        arguments = ["--serve", str(folder / "a"), str(size), network.address, network.contacts()[0]]
        command = [sys.executable, __file__, *arguments]
        child = Child(await trio.lowlevel.open_process(command, stdin=-1, stdout=-1))
        peer, contact, roots = await child.line()
        network.set_contacts({Address(peer): contact})
        await network.request(Address(peer), PING, b"", max_response=1, timeout=30)
        theirs, ours, start = await child.seconds(), time.process_time(), time.perf_counter()
        for root in roots:
            await exchange.fetch(bytes.fromhex(root), [Address(peer)], timeout=300)
        megabytes = ROUNDS * size / 1e6
        found = {
            "receiver": megabytes / (time.process_time() - ours),
            "rate": megabytes / (time.perf_counter() - start),
            "sender": megabytes / (await child.seconds() - theirs),
        }
        await trio.sleep(2)
        trips = []
        for number in range(MESSAGES):
            start, said = time.perf_counter(), str(number).encode().ljust(1024)
            with trio.move_on_after(ANSWER_SECONDS):  # gossip promises nothing: one lost message would end all
                await network.publish("ping", said)
                while (await pongs.receive())[1] != said:
                    continue
                trips.append((time.perf_counter() - start) * 1000)
            await trio.sleep(0.05)
        await child.stdin.aclose()
        await child.process.wait()
        nursery.cancel_scope.cancel()
    return {**found, "trip_ms": statistics.median(trips), "lost": MESSAGES - len(trips)}


def once(tree: Path, size: int) -> dict[str, float]:
    """One round with the code of `tree`."""
    command = [sys.executable, __file__, "--once", str(size)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    said = subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(said.splitlines()[-1])


def measure(trees: list[Path], size: int, rounds: int) -> list[dict[str, Any]]:
    """Round by round, the trees by turns."""
    found: dict[Path, list[dict[str, float]]] = {tree: [] for tree in trees}
    for _ in range(rounds):
        for tree in trees:
            found[tree].append(once(tree, size))
    rows: list[dict[str, Any]] = []
    for tree, each in found.items():
        middle = {key: statistics.median(round[key] for round in each) for key in each[0]}
        rows.append({"tree": str(tree), **middle, "rounds": each})
        print(
            f"{tree}: MB per CPU second: receiver {middle['receiver']:.0f}, sender {middle['sender']:.0f}; "
            f"{middle['rate']:.0f} MB/s; gossip there and back {middle['trip_ms']:.1f} ms",
            file=sys.stderr,
        )
    return rows


def main() -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(40), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    if sys.argv[1:2] == ["--serve"]:
        trio.run(serve, Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
        return
    if sys.argv[1:2] == ["--once"]:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(trio.run(fetch, Path(folder), int(sys.argv[2]))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", nargs="?", type=int, default=64, metavar="MiB")
    parser.add_argument("--beside", type=Path, metavar="TREE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    trees = [ROOT, *([options.beside.resolve()] if options.beside else [])]
    rows = measure(trees, options.size * 2**20, options.rounds)
    found = {"schema_version": 1, "bytes": options.size * 2**20, "load": os.getloadavg(), "trees": rows}
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
