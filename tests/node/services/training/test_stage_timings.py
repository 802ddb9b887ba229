"""What the trainer knows of its files' way, by its own clock."""

import pytest
import trio
import trio.testing

from node.recipe.pool import Group
from node.services.training import stage_timings
from node.services.training.stage_timings import StageTimings

A, B = b"a" * 32, b"b" * 32


def group(root: bytes, number: int = 0, step: int = 0) -> Group:
    return Group(key=(root, number), policy_step=step, rows=(), samples=())


async def test_stages_are_means_over_files_and_not_over_groups(autojump_clock: trio.testing.MockClock) -> None:
    known = StageTimings()
    known.published(0)
    for root, pauses in ((A, (1.0, 2.0, 3.0)), (B, (3.0, 0.0, 1.0))):  # B is committed to ten seconds after the policy
        for stage, pause in zip(("commit", "verify", "fetch"), pauses, strict=True):
            await trio.sleep(pause)
            known.reached(root, stage)
    known.reached(A, "commit")  # said again after a restart of its worker
    await trio.sleep(4.0)
    found = known.means([group(A, 0), group(A, 1), group(B)])
    assert found == {"commit": (1 + 9) / 2, "verify": (2 + 0) / 2, "fetch": (3 + 1) / 2, "queue": (8 + 4) / 2}


async def test_what_was_before_a_restart_is_left_out(autojump_clock: trio.testing.MockClock) -> None:
    known = StageTimings()
    known.reached(A, "commit")
    await trio.sleep(2.0)
    known.reached(A, "verify")
    assert known.means([group(A)]) == {"verify": 2.0}
    assert known.means([group(B)]) == {} == known.means([])


async def test_the_oldest_files_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_timings, "REMEMBERED", 1)
    known = StageTimings()
    for root in (A, B):
        for stage in ("commit", "verify"):
            known.reached(root, stage)
    assert known.means([group(A)]) == {} and set(known.means([group(B)])) == {"verify"}
