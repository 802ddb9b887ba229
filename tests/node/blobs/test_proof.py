"""A disk that changes what it holds: nothing of it is used or handed on, all of it is told and fetched again."""

import os
import random
from pathlib import Path

import pytest
import structlog.testing
import trio
from trio.testing import MockClock

from benchmarks.flips import Flips
from node.blobs import files
from node.blobs.errors import BlobUnavailable, StoreFailed
from node.blobs.store import BlobStore
from tests.node.blobs.test_exchange import Node

QUOTA = 10**8


@pytest.fixture
def autojump_clock() -> MockClock:
    """It waits for threads."""
    return MockClock(autojump_threshold=0.05)


def flip(path: Path, bit: int) -> None:
    """Another bit, and the file's times as they were: a disk changes no date."""
    stat = path.stat()
    data = bytearray(path.read_bytes())
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    path.write_bytes(bytes(data))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


async def test_no_flipped_bit_of_many_files_is_used_or_handed_on(tmp_path: Path) -> None:
    found = await Flips(tmp_path, random.Random(1)).blobs(24)
    assert (found.tried, found.silent) == (24, 0)
    assert found.noticed == 24


async def test_the_control_reads_files_as_they_are_and_sees_wrong_bytes(tmp_path: Path) -> None:
    found = await Flips(tmp_path, random.Random(1)).blobs(24, checked=False)
    assert found.silent > 12


async def test_a_blob_that_another_start_left_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = (await BlobStore(tmp_path, QUOTA).add(b"x" * 300_000)).root
    store, looks = BlobStore(tmp_path, QUOTA), []
    check = files.check_pieces
    monkeypatch.setattr(files, "check_pieces", lambda *a, **k: looks.append(a) or check(*a, **k))
    assert await store.whole(root) and await store.whole(root)
    assert len(looks) == 1


async def test_a_damaged_blob_is_fetched_again_and_nobody_is_blamed(swarm, folders, tmp_path: Path) -> None:
    one, two = Node(swarm, tmp_path / "one"), Node(swarm, tmp_path / "two")
    await swarm.start(one.network, two.network)
    await swarm.introduce(one.network, two.network)
    data = os.urandom(700_000)
    root = (await one.store.add(data)).root
    path = await two.exchange.fetch(root, [one.address], timeout=30)
    flip(path, 8 * 400_000)
    two.store.proof.unproven.add(root)  # as after a start
    with structlog.testing.capture_logs() as logs:
        again = await two.exchange.fetch(root, [one.address], timeout=30)
    assert again.read_bytes() == data
    assert [entry["event"] for entry in logs].count("blob.damaged_on_this_disk") == two.store.proof.damaged == 1
    assert not two.exchange.reputation.liars()


@pytest.mark.parametrize("size", [5_000, 700_000])
async def test_a_holder_whose_disk_flips_sends_nothing_wrong(swarm, folders, tmp_path: Path, size: int) -> None:
    """The small one goes with its list. Whoever asks has it of another holder, and blames neither."""
    bad, good = (Node(swarm, tmp_path / name) for name in ("bad", "good"))
    await swarm.start(bad.network, good.network)
    await swarm.introduce(bad.network, good.network)
    data = os.urandom(size)
    for node in (bad, good):
        root = (await node.store.add(data)).root
        for number in range(64):  # what came last is not read from the disk
            await node.store.add(bytes([number]))
    flip(bad.store.path(root), 8 * (size // 2))
    for number in range(20):  # which of them is asked for the broken piece depends on who is quicker
        asker = Node(swarm, tmp_path / f"asker-{number}")
        await swarm.start(asker.network)
        await swarm.introduce(bad.network, good.network, asker.network)
        path = await asker.exchange.fetch(root, [bad.address, good.address], timeout=30)
        assert path.read_bytes() == data
        assert not asker.exchange.reputation.liars()
        if bad.store.proof.damaged:
            break
    assert bad.store.proof.damaged == 1 and not bad.store.has(root)


async def test_of_a_store_in_which_every_tenth_blob_is_wrong_all_are_had_again(swarm, folders, tmp_path: Path) -> None:
    holder, mender = Node(swarm, tmp_path / "holder"), Node(swarm, tmp_path / "mender")
    await swarm.start(holder.network, mender.network)
    await swarm.introduce(holder.network, mender.network)
    blobs = [os.urandom(20_000) for _ in range(40)]
    for data in blobs:
        await holder.store.add(data)
    roots = [(await mender.store.add(data)).root for data in blobs]
    for root in roots[::10]:
        flip(mender.store.path(root), 12_345)
    mender.store.proof.unproven.update(roots)
    told: list[bytes] = []
    mender.store.proof.follow(lambda root, size: told.append(root))
    for root, data in zip(roots, blobs, strict=True):
        assert (await mender.exchange.fetch(root, [holder.address], timeout=30)).read_bytes() == data
    assert told == roots[::10]


async def test_a_store_that_cannot_be_read_now_forgets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """No descriptor is left: that says nothing of the blob."""
    root = (await BlobStore(tmp_path, QUOTA).add(b"x" * 300_000)).root
    store = BlobStore(tmp_path, QUOTA)
    store.info(root)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", _no_descriptor)
        with pytest.raises(StoreFailed):
            await store.whole(root)
        with pytest.raises(BlobUnavailable):
            await store.read_pieces(root, [0])
    assert await store.whole(root) and not store.proof.damaged


async def test_a_store_waits_until_files_may_be_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    store = BlobStore(tmp_path / "store", QUOTA)
    image = tmp_path / "image"
    image.write_bytes(b"i" * 300_000)
    with monkeypatch.context() as patched, structlog.testing.capture_logs() as logs:
        patched.setattr(os, "open", _no_descriptor)
        patched.setattr(Path, "open", _no_descriptor)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.add, b"small")
            nursery.start_soon(lambda: store.add(image, move=True))
            await trio.sleep(20)
            assert not store.roots()
            patched.undo()
    assert len(store.roots()) == 2
    told = [entry for entry in logs if entry["event"] == "blob.store_waits"]
    assert 2 < len(told) < 20 and "ulimit -n" in told[0]["remedy"]


def _no_descriptor(*_: object, **__: object) -> None:
    raise OSError(24, "Too many open files")


async def test_a_slow_look_reads_every_byte_at_its_pace(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, QUOTA)
    root = (await store.add(os.urandom(600_000))).root
    taken: list[int] = []

    async def pace(size: int) -> None:
        taken.append(size)
        await trio.lowlevel.checkpoint()

    await store.proof.prove(root, pace)
    assert taken == [262_144, 262_144, 75_712]
    flip(store.path(root), 8 * 599_999)
    await store.proof.prove(root, pace)
    assert not store.has(root) and store.proof.damaged == 1


async def test_when_a_blob_was_looked_at_last_outlives_a_start(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, QUOTA)
    old, new = [(await store.add(data)).root for data in (b"old", b"new")]
    os.utime(files.info_path(store.path(old)), (1000, 1000))
    again = BlobStore(tmp_path, QUOTA)
    times = again.proof.proven_at()
    assert times[old] == 1000 < times[new]
    await again.whole(old)
    assert again.proof.proven_at()[old] > 1000
