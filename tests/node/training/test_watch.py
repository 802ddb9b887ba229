"""Whoever waits for a spool is woken by what another process writes into it, however close two files are."""

import os
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from node.state.files import write_whole
from node.training.bells import ring
from node.training.spool import Spool
from node.training.watch import SpoolWatch


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    spool = Spool(tmp_path / "spool")
    spool.prepare(b"{}", tmp_path)
    return spool


async def test_a_file_that_appears_wakes_all_who_wait_for_it_and_nobody_else(spool: Spool) -> None:
    watch, woken = SpoolWatch(spool, 0.01), list[str]()

    async def wait(name: str, path: Path) -> None:
        await watch.until_there(path.exists)
        woken.append(name)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            nursery.start_soon(wait, "first", spool.metrics_path(0))
            nursery.start_soon(wait, "first, too", spool.metrics_path(0))
            nursery.start_soon(wait, "second", spool.evaluation_path(0))
            write_whole(spool.metrics_path(0), b"{}")
            while len(woken) < 2:
                await trio.sleep(0.005)
            assert "second" not in woken
            write_whole(spool.evaluation_path(0), b"{}")
            while len(woken) < 3:
                await trio.sleep(0.005)
            nursery.cancel_scope.cancel()


async def test_a_second_file_within_one_tick_of_the_file_systems_clock_is_told(
    spool: Spool, mock_clock: MockClock
) -> None:
    watch, folder = SpoolWatch(spool), spool.root / "out"
    write_whole(spool.metrics_path(0), b"{}")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await watch.next.wait()
        seen, told = folder.stat().st_mtime_ns, watch.next
        write_whole(spool.metrics_path(1), b"{}")
        os.utime(folder, ns=(seen, seen))
        while not told.is_set():
            await trio.testing.wait_all_tasks_blocked(0.01)
            mock_clock.jump(1)
        nursery.cancel_scope.cancel()
    assert spool.newest_step() == 1


async def test_who_waits_is_woken_by_a_ring_without_a_look_between(spool: Spool, autojump_clock: MockClock) -> None:
    """Looks would be a thousand seconds apart, and the clock is the test's."""
    watch, asked = SpoolWatch(spool, 1000.0), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)

        async def write() -> None:
            await watch.next.wait()
            for step in range(3):
                write_whole(spool.metrics_path(step), b"{}")
                ring(spool.root)
                await trio.sleep(10.0)

        def is_third() -> bool:
            asked.append(spool.newest_step())
            return spool.is_complete(2)

        nursery.start_soon(write)
        await watch.until_there(is_third)
        assert trio.current_time() < 500 and len(asked) <= 6
        nursery.cancel_scope.cancel()


async def test_a_wait_that_is_over_by_what_memory_knows_asks_the_disk_once(spool: Spool) -> None:
    watch, asked, over = SpoolWatch(spool, 1000.0), list[int](), False

    def never() -> bool:
        asked.append(0)
        return False

    async def end() -> None:
        nonlocal over
        for over in (False, False, True):  # noqa: B007 - what the wait looks at
            await trio.testing.wait_all_tasks_blocked(0.01)
            watch.tell()

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            await watch.until_there(never, lambda: over)
    assert len(asked) == 1
