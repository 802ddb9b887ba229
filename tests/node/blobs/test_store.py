"""Blobs on disk."""

import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from node.blobs import files, wire
from node.blobs.errors import BlobUnavailable, StoreFull
from node.blobs.files import read_pieces
from node.blobs.store import BlobStore
from protocol.blobs import describe
from tests.counts import Counts

PIECE = 256 * 1024


async def test_bytes_and_files_come_back_and_survive_a_restart(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "store", quota=10**7)
    small, large = b"small", os.urandom(3 * PIECE + 5)
    source = tmp_path / "large"
    source.write_bytes(large)
    infos = [await store.add(small), await store.add(source), await store.add(b"")]
    assert store.written == len(small) + len(large)
    assert infos[1] == describe(large)
    again = BlobStore(tmp_path / "store", quota=10**7)
    assert [again.path(info.root).read_bytes() for info in infos] == [small, large, b""]
    assert [again.info(info.root) for info in infos] == infos
    assert await again.read_pieces(infos[1].root, [1]) == large[PIECE : 2 * PIECE]
    assert source.exists()
    assert again.used == len(small) + len(large)


async def test_a_small_blob_that_just_came_is_handed_on_from_memory_until_it_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, read = BlobStore(tmp_path / "store", quota=10**7), list[Path]()

    def from_disk(path: Path, *given: Any) -> bytes:
        read.append(path)
        return read_pieces(path, *given)

    monkeypatch.setattr(files, "read_pieces", from_disk)
    mine, large = await store.add(b"mine"), await store.add(os.urandom(wire.INLINE + 1))
    small, big = tmp_path / "small", tmp_path / "big"
    small.write_bytes(b"a file")
    big.write_bytes(os.urandom(wire.INLINE + 1))
    copied, copied_large = await store.add(small), await store.add(big)
    small.write_bytes(b"another")
    told = describe(b"a peer's")
    assert await store.take_whole(told, memoryview(b"a peer's"))
    assert not await store.take_whole(describe(b"another"), memoryview(b"tampered"))
    assert await store.read_pieces(mine.root, [0], b"head ") == b"head mine"
    assert await store.read_pieces(copied.root, [0]) == b"a file"
    assert await store.read_pieces(told.root, [0]) == b"a peer's" and not read
    for one in (large, copied_large):
        await store.read_pieces(one.root, [0])
    assert len(read) == 2, "only small ones are kept"
    store.evict(mine.root)
    with pytest.raises(BlobUnavailable):
        await store.read_pieces(mine.root, [0])
    for number in range(64):
        await store.add(bytes([number]))
    assert await store.read_pieces(told.root, [0]) == b"a peer's" and len(read) == 3, "and only the newest"
    patch = await store.add(small, move=True)
    for _ in range(17):  # four megabytes of all of them
        newest = await store.add(os.urandom(wire.INLINE))
    assert len(await store.read_pieces(newest.root, range(len(newest.pieces)))) == wire.INLINE and len(read) == 3
    assert await store.read_pieces(patch.root, [0]) == b"another" and len(read) == 4


async def test_a_large_file_that_is_here_already_takes_no_room_again(tmp_path: Path) -> None:
    """A checkpoint is offered anew after each start, and may have half of the store."""
    store, source = BlobStore(tmp_path / "store", quota=10**7), tmp_path / "source"
    for _ in range(2):
        source.write_bytes(b"x" * 6_000_000)
        info = await store.add(source, move=True)
        store.pin(info.root)
    assert store.used == 6_000_000


async def test_a_moved_file_is_taken_over_without_a_copy(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "store", quota=10**7)
    source = tmp_path / "source"
    source.write_bytes(b"x" * 100_000)
    number = source.stat().st_ino
    info = await store.add(source, move=True)
    assert not source.exists()
    assert store.path(info.root).stat().st_ino == number


async def test_a_file_of_the_same_disk_is_moved_though_nothing_more_fits_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlobStore(tmp_path / "store", quota=10**7)
    source = tmp_path / "source"
    source.write_bytes(b"x" * 100_000)
    full = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.raises(StoreFull):
        await store.add(source)
    assert store.has((await store.add(source, move=True)).root)


@pytest.mark.parametrize("move", [True, False])
async def test_what_is_written_of_a_blob_on_its_way_in_is_promised_no_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, move: bool
) -> None:
    store = BlobStore(tmp_path / "store", quota=10**7)
    source, fsync = tmp_path / "source", os.fsync
    source.write_bytes(os.urandom(400 * 1024))
    began, may_end = threading.Event(), threading.Event()

    def slow(descriptor: int) -> None:
        began.set()
        assert may_end.wait(20)
        fsync(descriptor)

    usage = shutil.disk_usage(tmp_path)
    async with trio.open_nursery() as nursery:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", slow)
            nursery.start_soon(lambda: store.add(source, move=move))
            assert await trio.to_thread.run_sync(began.wait, 20)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100 * 1024))
        try:
            assert store.has((await store.add(b"a small one")).root)
        finally:
            may_end.set()


async def test_the_quota_evicts_what_was_used_longest_ago_and_never_a_pinned_blob(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, quota=350)
    one, two, three = [(await store.add(bytes([n]) * 100)).root for n in range(3)]
    store.pin(two)
    store.path(one)
    four = (await store.add(b"4" * 100)).root
    assert [store.has(root) for root in (one, two, three, four)] == [True, True, False, True]
    store.pin(one)
    store.pin(four)
    with pytest.raises(StoreFull):
        await store.add(b"5" * 100)
    store.unpin(two)
    await store.add(b"5" * 100)
    assert not store.has(two)
    with pytest.raises(BlobUnavailable):
        store.path(two)
    with pytest.raises(StoreFull):
        await store.add(bytes(351))


async def test_the_order_of_use_survives_a_restart(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, quota=250)
    one, two = [(await store.add(bytes([n]) * 100)).root for n in range(2)]
    os.utime(tmp_path / "complete" / two.hex(), (1, 1))
    again = BlobStore(tmp_path, quota=250)
    await again.add(b"3" * 100)
    assert again.has(one) and not again.has(two)


async def test_a_torn_blob_is_dropped_at_the_start(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, quota=10**6)
    one, two = [(await store.add(bytes([n]) * 1000)).root for n in range(2)]
    os.truncate(tmp_path / "complete" / one.hex(), 10)
    (tmp_path / "complete" / f"{two.hex()}.info").write_bytes(b"garbage")
    assert BlobStore(tmp_path, quota=10**6).roots() == ()


async def test_after_another_boot_what_was_not_synced_is_hashed_or_forgotten_and_no_damage_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlobStore(tmp_path, quota=10**6)
    small, torn, zeros = [(await store.add(bytes([n]) * 1000)).root for n in range(3)]
    complete = tmp_path / "complete"
    for root in (small, torn, zeros):
        (complete / f"{root.hex()}.info").write_bytes(b"")  # as file systems leave what was never written out
    os.truncate(complete / torn.hex(), 0)
    (complete / zeros.hex()).write_bytes(bytes(1001))
    monkeypatch.setattr("node.blobs.store.boot_id", lambda: "another one")
    again = BlobStore(tmp_path, quota=10**6)
    assert (again.roots(), again.proof.damaged) == ((small,), 0)
    assert await again.whole(small) and again.path(small).read_bytes() == bytes(1000)
    os.truncate(complete / small.hex(), 10)  # and within one boot it is the disk's fault
    assert BlobStore(tmp_path, quota=10**6).proof.damaged == 1


async def test_the_loop_waits_for_no_disk_and_only_what_nobody_else_has_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, fsync = list[bool](), os.fsync
    loop = threading.get_ident()

    def counted(descriptor: int) -> None:
        synced.append(threading.get_ident() == loop)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    store, source = BlobStore(tmp_path / "store", quota=10**8), tmp_path / "image"
    source.write_bytes(os.urandom(PIECE + 1))

    async def cost(*work: object) -> int:
        before = len(synced)
        for one in work:
            await one  # type: ignore[misc]
        return len(synced) - before

    assert await cost(store.add(b"ours, and small")) == 2, "bytes and directory"
    assert await cost(store.add(source)) == 3, "and the list of a large one"
    assert await cost(store.add(source, move=True, synced=False)) == 0, "made again from base and patches"
    data, written = b"fetched in one go", store.written
    assert await cost(store.take_whole(describe(data), memoryview(data))) == 0
    assert store.written == written + len(data)
    fetched = os.urandom(2 * PIECE)
    partial = await store.open_partial(describe(fetched, PIECE))
    assert await cost(partial.write(0, fetched), store.finish(partial)) == 0
    partial.close()
    assert not await store.take_whole(describe(b"another"), memoryview(b"AnotheR"))
    counts = Counts(monkeypatch)
    each = await store.add_each([b"one", b"another", b"one"], synced=False)
    assert each[0] == each[2] == describe(b"one") and await store.read_pieces(each[1].root, [0]) == b"another"
    (tmp_path / "patch").write_bytes(b"a patch")
    await store.add(tmp_path / "patch", move=True)
    assert counts.jobs.total() == 2, "what comes at once is one job, and what is moved another"
    assert not any(synced), "on the loop"


async def test_a_partial_blob_keeps_the_pieces_that_verify(tmp_path: Path) -> None:
    data = os.urandom(4 * PIECE)
    info = describe(data, PIECE)
    store = BlobStore(tmp_path, quota=10**8)
    partial = await store.open_partial(info)
    assert await partial.write(0, data[: 2 * PIECE]) == 2
    assert await partial.write(2, bytes(PIECE)) == 0
    assert await partial.write(3, data[3 * PIECE :]) == 1
    partial.close()
    with (tmp_path / "partial" / info.root.hex()).open("r+b") as file:
        file.write(b"flip")
    again = BlobStore(tmp_path, quota=10**8)
    assert again.partial_info(info.root) == info
    partial = await again.open_partial(info)
    assert partial.have == {1, 3}
    for piece in (0, 2):
        await partial.write(piece, data[piece * PIECE : (piece + 1) * PIECE])
    assert (await again.finish(partial)).read_bytes() == data
    partial.close()
    assert again.has(info.root) and again.used == info.size


async def test_a_blob_of_which_nothing_came_gives_its_room_back(tmp_path: Path) -> None:
    """Else one member that names files near the limit pushes everybody else's out of the quota."""
    store = BlobStore(tmp_path, quota=3 * PIECE)
    kept = await store.add(os.urandom(PIECE))
    for _ in range(3):
        info = describe(os.urandom(2 * PIECE), PIECE)
        partial = await store.open_partial(info)
        assert await partial.write(0, bytes(PIECE)) == 0
        partial.close()
        assert store.used == PIECE and store.has(kept.root)
    assert not list((tmp_path / "partial").iterdir())


async def test_a_full_disk_is_a_named_error_and_keeps_what_was_written_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlobStore(tmp_path, quota=10**8)
    data = os.urandom(3 * PIECE)
    partial = await store.open_partial(describe(data, PIECE))
    write = os.pwrite

    def full(descriptor: int, part: memoryview, offset: int) -> int:
        if offset >= 2 * PIECE:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, part, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreFull):
        await partial.write(0, data)
    assert partial.have == {0, 1}
    partial.close()


async def test_a_reader_may_finish_after_the_transfer_closed_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(2 * PIECE)
    store = BlobStore(tmp_path, quota=10**8)
    partial = await store.open_partial(describe(data, PIECE))
    await partial.write(0, data)
    reading, closed, read = trio.Event(), threading.Event(), os.pread
    token = trio.lowlevel.current_trio_token()

    def slow(*args: int) -> bytes:
        trio.from_thread.run_sync(reading.set, trio_token=token)
        closed.wait(10)
        return read(*args)

    monkeypatch.setattr(os, "pread", slow)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial.read_pieces, [0])
        await reading.wait()
        partial.close()
        closed.set()
    with pytest.raises(BlobUnavailable):
        await partial.read_pieces([0])
