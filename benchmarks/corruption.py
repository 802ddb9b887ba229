"""What one wrong byte costs: two sources, one of which flips one byte of one piece once.

    python -m benchmarks.corruption [--quick] [--mib 256] [--json FILE]

Nodes talk over libp2p on loopback inside one process, first with two honest sources, then with the corrupting one.
Prints the bytes fetched beyond the blob, the time beyond the honest run, and who was blamed.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import structlog
import trio

from node.blobs import wire as wire
from node.blobs.exchange import BlobExchange
from node.blobs.store import BlobStore
from node.network.host import Libp2pNetwork
from node.network.interface import Answer
from protocol.identity import Address, NodeKey

MIB = 1024**2
ROUNDS = 3


class Source:
    """A node with the blob. corrupt: how many answers still get one wrong byte."""

    def __init__(self, folder: Path, quota: int) -> None:
        self.network = Libp2pNetwork(NodeKey.generate(), "/ip4/127.0.0.1/tcp/0")
        self.store = BlobStore(folder, quota)
        self.exchange = BlobExchange(self.network, self.store)
        self.corrupt = 0
        self.network.serve(wire.PROTOCOL, self._answer, max_request=wire.MAX_REQUEST)

    async def _answer(self, asker: Address, request: bytes) -> bytes | Answer:
        answer = await self.exchange._answer(asker, request)
        if self.corrupt and isinstance(answer, Answer):
            self.corrupt -= 1
            body = bytearray(answer.body)
            body[-1] ^= 1
            return Answer(bytes(body), answer.sent)
        return answer


async def fetch(folder: Path, size: int, *, corrupt: int) -> dict[str, float]:
    """One fetch from two sources by a fresh node."""
    one, two, own = (Source(folder / name, 2 * size) for name in ("one", "two", "own"))
    async with trio.open_nursery() as nursery:
        for node in (one, two, own):
            await nursery.start(node.network.run)
        contacts = {node.network.address: node.network.contacts()[0] for node in (one, two, own)}
        for node in (one, two, own):
            node.network.set_contacts(contacts)
        while len(own.network.connected()) < 2:  # noqa: ASYNC110
            await trio.sleep(0.05)
        data = await trio.to_thread.run_sync(os.urandom, size)
        info = [await node.store.add(data) for node in (one, two)][0]
        two.corrupt = corrupt
        started = trio.current_time()
        await own.exchange.fetch(info.root, [one.network.address, two.network.address], timeout=600)
        seconds = trio.current_time() - started
        scores = own.exchange.scores()
        sent = sum(node.exchange.scores()[own.network.address].sent for node in (one, two))
        nursery.cancel_scope.cancel()
    return {
        "seconds": seconds,
        "extra_bytes": sent - size,
        "extra_pieces": (sent - size) / info.piece_size,
        "liar_blamed": scores[two.network.address].lies,
        "honest_blamed": scores[one.network.address].lies,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="32 MiB, one round")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(40), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    size = (32 if options.quick else options.mib) * MIB
    rows = []
    print("round  source 2   seconds   bytes beyond the blob (pieces)   liar blamed   honest blamed")
    for number in range(1 if options.quick else ROUNDS):
        for name, corrupt in (("honest", 0), ("corrupts", 1)):
            with tempfile.TemporaryDirectory() as folder:
                row = trio.run(lambda at=Path(folder), bad=corrupt: fetch(at, size, corrupt=bad))
            rows.append({"round": number, "source": name, "mib": size / MIB, **row})
            print(
                f"{number:5d}  {name:8s} {row['seconds']:9.2f} {row['extra_bytes']:15.0f} ({row['extra_pieces']:.1f})"
                f" {row['liar_blamed']:19.0f} {row['honest_blamed']:15.0f}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
