"""Whoever waits for a spool is woken by what another process writes into it, however close two files are."""

import os
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from node.state.files import write_whole
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
        await watch.until(path.exists)
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
