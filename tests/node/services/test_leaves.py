"""Leaf files that are huge, doubled or somebody else's: not kept, not asked for again, and in nobody's way."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from blake3 import blake3

from node.blobs.errors import BlobTooLarge
from node.clock import Clock
from node.services.leaves import Leaves
from protocol.identity import Address, NodeKey
from protocol.messages import WorkPublished
from protocol.work import MAX_LEAVES_BYTES, Leaf, encode_leaves, merkle_root, tree_of

OWN, THIEF, HONEST = (NodeKey(bytes([n]) * 32).address for n in (1, 2, 3))
POOL, POLICY = 7, b"\x0a" * 32


class Swarm:
    """A board and everybody's blobs; asked: (root, max_size) of each fetch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._post, self._heard = trio.open_memory_channel[Any](16)
        self.asked: list[tuple[bytes, int]] = []
        self.station: Any = SimpleNamespace(
            key=SimpleNamespace(address=OWN),
            jury=SimpleNamespace(validators=lambda: ()),
            board=SimpleNamespace(subscribe=lambda _: self._heard),
            blobs=self,
            clock=Clock(),
        )

    async def fetch(self, root: bytes, sources: object, *, max_size: int, timeout: float) -> Path:
        self.asked.append((root, max_size))
        path = self._folder / root.hex()
        if path.stat().st_size > max_size:
            raise BlobTooLarge(root, path.stat().st_size, max_size)
        return path

    def publish(self, node: Address, root: bytes, data: bytes, size: int | None = None) -> bytes:
        """What a node says stands behind `root`; the name of the blob. size: as it says, None for the truth."""
        name = blake3(data).digest()
        (self._folder / name.hex()).write_bytes(data)
        told = len(data) if size is None else size
        message = WorkPublished(pool=POOL, epoch=4, root=root, leaves_root=name, leaves_size=told)
        self._post.send_nowait(SimpleNamespace(author=node, message=message))
        return name


@pytest.fixture
async def swarm(tmp_path: Path) -> AsyncIterator[Swarm]:
    yield Swarm(tmp_path)


@asynccontextmanager
async def reading(swarm: Swarm) -> AsyncIterator[Leaves]:
    leaves = Leaves(swarm.station)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leaves.run)
        yield leaves
        nursery.cancel_scope.cancel()


async def had(swarm: Swarm, leaves: Leaves) -> None:
    """Until an honest node's leaves, published after the bad ones, are had."""
    made = [Leaf(POLICY, 0, b"\x02" * 32, 5)]
    root = merkle_root(tree_of(POOL, HONEST, made))
    swarm.publish(HONEST, root, encode_leaves(made))
    with trio.fail_after(10):
        while leaves.of(HONEST, 4, root) is None:  # noqa: ASYNC110
            await trio.sleep(0.005)


@pytest.mark.parametrize("bad", ["doubled", "of another node", "of another pool", "no leaves", "nested"])
async def test_what_can_never_be_the_roots_leaves_is_dropped_for_good(
    swarm: Swarm, bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.services.leaves.RETRY_PAUSE", 0.01)
    good = [Leaf(POLICY, 0, b"\x01" * 32, 100), Leaf(POLICY, 1, b"\x02" * 32, 7)]
    doubled = [good[0], good[0]]
    root = merkle_root(tree_of(POOL, THIEF, doubled if bad == "doubled" else good))
    data = {
        "doubled": encode_leaves(doubled),
        "of another node": encode_leaves(good),
        "of another pool": encode_leaves(good),
        "no leaves": b"\xc1" * 100,
        "nested": b"\x91" * 100_000,
    }[bad]
    if bad == "of another node":  # the same bytes make the honest node's own root, and no other
        root = merkle_root(tree_of(POOL, HONEST, good))
    if bad == "of another pool":
        root = merkle_root(tree_of(POOL + 1, THIEF, good))
    async with reading(swarm) as leaves:
        name = swarm.publish(THIEF, root, data)
        await had(swarm, leaves)
        await trio.sleep(0.1)
        assert leaves.of(THIEF, 4, root) is None
    assert [one for one in swarm.asked if one[0] == name] == [(name, len(data))], "asked for once"


async def test_a_huge_leaf_file_is_not_fetched_and_holds_up_nobody(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one that is larger than its author says; an author who says so again is asked again, now and then."""
    monkeypatch.setattr("node.services.leaves.RETRY_PAUSE", 0.01)
    async with reading(swarm) as leaves:
        huge = swarm.publish(THIEF, b"\x01" * 32, bytes(MAX_LEAVES_BYTES + 1), size=2**40)
        small = swarm.publish(THIEF, b"\x02" * 32, bytes(1000), size=10)
        await had(swarm, leaves)
        with trio.fail_after(10):
            while len({one for one in swarm.asked if one[0] in (huge, small)}) < 2:  # noqa: ASYNC110
                await trio.sleep(0.005)
    assert {(huge, MAX_LEAVES_BYTES), (small, 10)} < set(swarm.asked)
