"""kill -9 in the middle of building a policy."""

import os
import signal
import time
from pathlib import Path

import trio

from tests.node.training.forks import end_of, fork
from tests.node.weights import slow_builder
from tests.node.weights.little_swarm import bytes_of, disk, until


async def test_a_follower_killed_while_it_builds_goes_on_afterwards(run, origin, peer, wire, tmp_path) -> None:
    trainer = origin(snapshot_every=1)
    for step in range(2):
        held = await trainer.publish(step, run.step())
        (tmp_path / f"announcement-{step}").write_bytes(held.announcement)
    await trio.to_thread.run_sync(_kill_while_building, tmp_path)
    assert disk(tmp_path / "follower")

    again = peer("follower", trainer.key.address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(again.follower.run)
        await until(
            lambda: again.policy_cache.newest is not None and again.policy_cache.newest.step == 0
        )  # restored, not fetched
        assert disk(again.directory) == []
        wire.say(held.announcement)
        await until(lambda: again.policy_cache.newest.step == 1)
        nursery.cancel_scope.cancel()
    assert bytes_of(again.policy_cache.newest) == bytes_of(held)
    assert again.follower.counts == {"patches": 1}
    assert disk(again.directory) == []


def _kill_while_building(directory: Path) -> None:
    child = fork(slow_builder.run, directory, [directory / f"announcement-{step}" for step in range(2)])
    try:
        limit = time.monotonic() + 60
        while not disk(directory / "follower"):
            assert not os.waitpid(child, os.WNOHANG)[0] and time.monotonic() < limit, "it never began to build"
            time.sleep(0.01)
    finally:
        os.kill(child, signal.SIGKILL)
        assert end_of(child) == -signal.SIGKILL
