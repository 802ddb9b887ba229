"""A follower in a process of its own that builds very slowly, to be killed.

Its directory holds the trainer's store under origin/ and the follower's state under follower/.
"""

import time
import warnings
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


def run(directory: Path, announcements: list[Path]) -> None:
    """In a fork."""
    warnings.simplefilter("default")  # trio's own wakeup of the process before is still set
    layers.patched = slowly
    trio.run(main, directory, announcements)
