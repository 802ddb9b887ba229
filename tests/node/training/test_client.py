"""The supervisor of a learner's child, with a child that ends as it is asked to, and takes its time for it."""

import sys
from pathlib import Path

import trio
import trio.testing

from node.training.client import SpoolProcess
from node.training.spool import Spool

SLOW_TO_END = "import sys, time; sys.stdin.read(); time.sleep(0.5)"


def supervised(directory: Path, program: str) -> SpoolProcess:
    spool = Spool(directory)
    command = [sys.executable, "-c", program]
    return SpoolProcess(
        "learner", spool, command, None, None, part="out", error_path=spool.error_path, progress=spool.newest_step
    )


async def test_one_that_is_woken_while_its_child_still_ends_goes_on(tmp_path: Path) -> None:
    """A pause of a moment: the child that ends for it ends as one does whose work is done."""
    learner, ended = supervised(tmp_path, SLOW_TO_END), trio.Event()

    async def run() -> None:
        await learner.run()
        ended.set()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            while (first := learner.pid) is None:
                await trio.sleep(0.01)
            learner.sleep()
            await trio.testing.wait_all_tasks_blocked()  # it waits for the end of its child
            learner.wake()
            while learner.pid in (None, first) and not ended.is_set():
                await trio.sleep(0.01)
            assert not ended.is_set() and learner.restarts == 0
            learner.finish()


async def test_one_whose_work_is_done_is_not_started_again(tmp_path: Path) -> None:
    """The control."""
    learner = supervised(tmp_path, "")
    with trio.fail_after(60):
        await learner.run()
    assert learner.restarts == 0
