from pathlib import Path

import pytest
import structlog

from node.recipe.batch_log import BatchEntry, BatchLog
from node.recipe.pool import PoolSample, Selection
from node.recipe.stats import describe


def test_what_a_batch_was_made_of(make_group) -> None:
    chosen = (make_group(0, [0.0, 1.0], policy_step=3), make_group(1, [1.0, 1.0], policy_step=4, label="reverse"))
    flat = (make_group(2, [0.0, 0.0], policy_step=4),)
    seen = describe(Selection(5, chosen, flat), waiting=7, stale=2)
    assert seen["reward_mean"] == seen["pass_rate"] == pytest.approx(0.5)
    assert seen["reward_by_environment"] == {"reverse": 1.0, "sort": 0.25}
    assert seen["staleness"] == {"1": 2, "2": 2}  # what was left out is not learnt from
    assert (seen["groups_seen"], seen["groups_flat"], seen["groups_filtered"]) == (3, 2, 1)
    assert (seen["rollouts"], seen["surplus_rollouts"], seen["stale_rollouts"]) == (4, 7, 2)
    assert seen["output_tokens"] == 12 and seen["length_error"] is None


def test_a_length_target_is_missed_by_its_distance(make_group) -> None:
    group = make_group(0, [0.0])
    samples = (PoolSample(8, 0.9, 1.0, True, target=10), PoolSample(14, 0.0, 0.0, False, target=10))
    group = type(group)(group.key, 0, group.rows, samples, "sort", (0, 0))
    seen = describe(Selection(0, (group,)), waiting=0, stale=0)
    assert seen["length_error"] == 3.0 and seen["pass_rate"] == 0.5 and seen["finished_share"] == 0.5


def test_an_empty_batch_has_numbers_too() -> None:
    assert describe(Selection(0, ()), waiting=0, stale=0)["reward_mean"] == 0.0


def test_an_entry_of_a_batch_that_is_damaged_is_told_and_one_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    entries = BatchLog(tmp_path)
    assert entries.read(3) is None
    entries.write(BatchEntry(3, {}, ["a"]))
    assert entries.settled(4) == {"a"}
    path = next((tmp_path / "stats").iterdir())
    path.write_bytes(b"{")
    with structlog.testing.capture_logs() as told:
        assert entries.read(3) is None
    assert [one["event"] for one in told] == ["batch.entry_damaged"]
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError):
        entries.read(3)
