"""A follower in a process of its own that builds very slowly, to be killed: `slow_builder.py DIRECTORY RAW_FILE...`.

DIRECTORY holds the trainer's store under origin/ and the follower's state under follower/.
"""

import sys
import time
from pathlib import Path

import trio

from node.blobs.store import BlobStore
from node.inference import layers
from protocol.identity import NodeKey
from protocol.messages import open_envelope
from tests.node.weights.little_swarm import DOMAIN, POOL, QUOTA, Peer, Wire

honest = layers.patched


def slowly(*arguments, **options):
    time.sleep(0.3)
    return honest(*arguments, **options)


async def main(directory: Path, announcements: list[Path]) -> None:
    wire = Wire()
    key = NodeKey.generate()
    wire.stores[key.address] = BlobStore(directory / "origin" / "blobs", QUOTA)
    trainer = open_envelope(DOMAIN, POOL, announcements[0].read_bytes()).author
    follower = Peer(wire, directory / "follower", trainer)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.follower.run)
        for path in announcements:
            wire.say(path.read_bytes())
            while follower.policy_cache.newest is None:
                await trio.sleep(0.01)


if __name__ == "__main__":
    layers.patched = slowly
    trio.run(main, Path(sys.argv[1]), [Path(path) for path in sys.argv[2:]])
