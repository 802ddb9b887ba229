"""Which way a blob comes: HTTP sources first, then the swarm, then announced gateways."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
import trio

from node.blobs.errors import BlobUnavailable, SourceFailed
from node.blobs.http.sources import HttpSource
from node.member import BlobFetcher
from protocol.blobs import BlobInfo
from protocol.identity import Address

ROOT = bytes(32)
FIRST, ANNOUNCED = HttpSource("http://first"), HttpSource("http://announced")


class Ways:
    """A store, a swarm and HTTP in one; works: the names of the ways that have the blob."""

    holding = nullcontext

    def __init__(self, *works: str) -> None:
        self.works = works
        self.tried: list[str] = []
        self.held = False

    async def whole(self, root: bytes) -> bool:
        return self.held and root == ROOT

    def arrived(self, root: bytes) -> int:
        del root
        return 0

    def path(self, root: bytes) -> Path:
        return Path("held") / root.hex()

    async def add(self, source: Path | bytes) -> BlobInfo:
        raise NotImplementedError

    async def fetch(
        self, root: bytes, sources: Sequence[object], *, max_size: int, timeout: float, priority: int = 0
    ) -> Path:
        del max_size, timeout, priority
        way = "swarm" if not sources or isinstance(sources[0], str) else str(sources[0])
        self.tried.append(way)
        await trio.lowlevel.checkpoint()
        if way in self.works:
            self.held = True
            return self.path(root)
        if way == "swarm":
            raise BlobUnavailable(root, "nobody has it")
        raise SourceFailed("no", "none")


def door(ways: Ways) -> BlobFetcher:
    return BlobFetcher(ways, ways, ways, [FIRST], lambda: [ANNOUNCED])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("works", "tried"),
    [
        ("http://first", ["http://first"]),
        ("swarm", ["http://first", "swarm"]),
        ("http://announced", ["http://first", "swarm", "http://announced"]),
    ],
)
async def test_each_way_is_tried_after_the_one_before_it_failed(works: str, tried: list[str]) -> None:
    ways = Ways(works)
    await door(ways).fetch(ROOT, [Address("0x1")], max_size=1, timeout=5)
    assert ways.tried == tried


async def test_when_every_way_fails_the_swarms_reason_is_told() -> None:
    with pytest.raises(BlobUnavailable, match="cannot be had|nobody has it|unavailable"):
        await door(Ways()).fetch(ROOT, [], max_size=1, timeout=5)


async def test_two_who_want_one_blob_fetch_it_once() -> None:
    ways = Ways("swarm")
    both = door(ways)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(lambda: both.fetch(ROOT, [], max_size=1, timeout=5))
    assert ways.tried == ["http://first", "swarm"]


class Stalling(Ways):
    """A swarm that takes its time and never delivers; gateways that do the same, until the last turn."""

    turns: list[tuple[str, float]]

    async def fetch(self, root: bytes, sources: Sequence[object], **how: float) -> Path:
        by_swarm = isinstance(sources[0], str)
        self.turns.append(("swarm" if by_swarm else "http", how["timeout"]))
        assert len(sources) <= 4
        await trio.sleep(how["timeout"])
        if by_swarm:
            raise BlobUnavailable(root, "not in time")
        if len(self.turns) < 4:
            raise SourceFailed("no", "not in time")
        return self.path(root)


async def test_gateways_that_stall_take_no_more_than_their_turn(autojump_clock) -> None:
    ways = Stalling()
    ways.turns = []
    crowd = [HttpSource(f"http://{n}") for n in range(1000)]
    door = BlobFetcher(ways, ways, ways, (), lambda: crowd)  # type: ignore[arg-type]
    await door.fetch(ROOT, [Address("0x1")], max_size=1, timeout=100)
    assert [(who, round(seconds)) for who, seconds in ways.turns] == [
        ("swarm", 30),
        ("http", 30),
        ("swarm", 30),
        ("http", 10),
    ]
