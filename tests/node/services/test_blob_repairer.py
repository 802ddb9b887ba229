"""The blobs of a node stay whole: what nobody asks for is looked at, own open files first, and damage is mended."""

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog.testing
import trio
from trio.testing import MockClock

from node.blobs.errors import BlobUnavailable
from node.blobs.files import info_path
from node.blobs.store import BlobStore
from node.services.blob_repairer import RATE, BlobRepairer
from node.state.journal import Journal
from tests.node.blobs.test_proof import flip


@pytest.fixture
def autojump_clock() -> MockClock:
    """It waits for threads, which look at files."""
    return MockClock(autojump_threshold=0.05)


WEEK = 7 * 24 * 3600.0


class Home:
    """A node's store, its journal, and what others hold."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = BlobStore(directory / "blobs", 10**8)
        self.journal = Journal(directory / "journal.sqlite")
        self.others: dict[bytes, bytes] = {}
        self.asked: list[bytes] = []
        self.context: Any = SimpleNamespace(
            blobs=self, journal=self.journal, membership=SimpleNamespace(addresses=lambda: ["0x1"])
        )

    async def fetch(self, root: bytes, sources: Sequence[str], *, max_size: int, timeout: float) -> Path:
        self.asked.append(root)
        await trio.sleep(1)
        if root not in self.others:
            raise BlobUnavailable(root, "nobody has it")
        await self.store.add(self.others[root])
        return self.store.path(root)

    async def add(self, data: bytes, *, seen: float = 0.0) -> bytes:
        """A blob that was looked at then, in Unix seconds."""
        root = (await self.store.add(data)).root
        os.utime(info_path(self.store.path(root)), (seen, seen))
        return root

    def mending(self, **times: float) -> BlobRepairer:
        return BlobRepairer(self.context, self.store, **times)


async def run(service: BlobRepairer, seconds: float) -> dict[str, Any]:
    with trio.move_on_after(seconds):
        await service.run()
    return service.status()["blobs"]


async def test_damage_that_nobody_asks_for_is_found_and_fetched_again(tmp_path: Path, autojump_clock: Any) -> None:
    home = Home(tmp_path)
    whole, broken = await home.add(os.urandom(500_000)), await home.add(b"lesson" * 9000)
    home.others[broken] = home.store.path(broken).read_bytes()
    flip(home.store.path(broken), 8 * 3000)
    told = await run(home.mending(), 3600)
    assert home.store.path(broken).read_bytes() == home.others[broken]
    assert home.asked == [broken] and home.store.has(whole)
    assert (told["damaged"], told["fetched_again"], told["not_fetched_again"]) == (1, 1, 0)


async def test_what_was_looked_at_within_a_week_is_left_alone_and_all_the_rest_is_slow(
    tmp_path: Path, autojump_clock: Any
) -> None:
    home = Home(tmp_path)
    root = await home.add(os.urandom(1_000_000))
    fresh = (await home.store.add(os.urandom(2_000_000))).root
    times = home.store.proof.proven_at()
    start = trio.current_time()
    told = await run(home.mending(every=WEEK), 0.5 * 1_000_000 / RATE[0])
    assert 0 < told["bytes_looked_at"] < 1_000_000, "a pace of its own"
    assert home.store.proof.proven_at()[root] == 0, "not all of it yet"
    told = await run(home.mending(every=WEEK), 3 * 1_000_000 / RATE[0])
    assert trio.current_time() - start < 1000 and told["bytes_looked_at"] == 1_000_000
    assert home.store.proof.proven_at()[fresh] == times[fresh]


async def test_own_files_that_wait_for_a_verdict_are_looked_at_at_once(tmp_path: Path, autojump_clock: Any) -> None:
    home = Home(tmp_path)
    data = [os.urandom(50_000) for _ in range(3)]
    roots = [(await home.store.add(one)).root for one in data]
    for place, root in enumerate(roots):
        home.journal.files.add_file(root, b"p" * 32, place, 1, float(place))
    home.journal.files.judge_file(roots[2], "accepted")
    for root in roots[1:]:
        flip(home.store.path(root), 4321)
    again = Home(tmp_path)
    again.others = dict(zip(roots, data, strict=True))
    told = await run(again.mending(), 30)
    assert again.asked == [roots[1]] and told["fetched_again"] == 1
    assert roots[2] in again.store.proof.unproven, "the control: its pay hangs on it no more"


async def test_what_nobody_has_any_more_is_told(tmp_path: Path, autojump_clock: Any) -> None:
    home = Home(tmp_path)
    root = await home.add(b"only here" * 5000)
    flip(home.store.path(root), 77)
    with structlog.testing.capture_logs() as logs:
        told = await run(home.mending(), 600)
    assert told["not_fetched_again"] == 1 and len(home.asked) == 3
    (line,) = [entry for entry in logs if entry["event"] == "blob.not_fetched_again"]
    assert line["root"] == root.hex() and line["why"] == "nobody has it"


async def test_damage_is_mended_whoever_met_it(tmp_path: Path, autojump_clock: Any) -> None:
    """Here, by an answer to a peer."""
    home = Home(tmp_path)
    roots = [(await home.store.add(os.urandom(60_000))).root for _ in range(3)]
    for root in roots:
        home.others[root] = home.store.path(root).read_bytes()
        flip(home.store.path(root), 555)
    home.store._fresh.clear()  # as after others have come: what came last is answered from memory
    service = home.mending()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        await trio.sleep(1)
        for root in roots:
            with pytest.raises(BlobUnavailable):
                await home.store.read_pieces(root, [0])
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert all(home.store.has(root) for root in roots)
    assert service.status()["blobs"]["fetched_again"] == 3
