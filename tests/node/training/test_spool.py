import os
import resource
from pathlib import Path

from node.training.evaluations import Evaluations
from node.training.spool import Spool
from protocol.run import EnvironmentSpec, EvaluationSpec, Recipe, RunSpec


def test_what_a_killed_writer_left_goes_with_the_next_start(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.prepare(b"run", tmp_path)
    spool.write_batch(0, b"batch")
    halves = [path.with_name(f".{path.name}.0123abcd") for path in (spool.batch_path(1), spool.policy_path(1))]
    for half in halves:
        half.write_bytes(b"ha")
    spool.prepare(b"run", tmp_path)
    assert [half.exists() for half in halves] == [False, True]  # the other is the trainer's, which may still live
    spool.forget_halves("out")
    assert not halves[1].exists() and spool.batch_path(0).read_bytes() == b"batch"


def test_a_step_that_waits_for_its_evaluation_knows_when_it_was_done(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    path = spool.metrics_path(3)
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    os.utime(path, (0, path.stat().st_mtime - 100))
    assert spool.age(3) >= 100
    os.utime(path, (0, path.stat().st_mtime + 10_000))  # a clock that was set back
    assert spool.age(3) == 0


def test_what_another_trainer_decides_is_cut_and_what_led_to_it_stays(tmp_path: Path) -> None:
    """Batch 4 made policy 5: both go, and a checkpoint of step 6; policy 4 and its batch stay."""
    spool = Spool(tmp_path / "spool")
    spool.prepare(b"{}", tmp_path)
    for step in range(8):
        spool.write_works(step, b"works")
        spool.write_batch(step, b"batch")
        for path in (spool.policy_path(step), spool.metrics_path(step), spool.evaluation_path(step)):
            path.write_bytes(b"{}")
    for step in (3, 6):
        (spool.checkpoints / f"step-{step:06d}").mkdir()
    (spool.root / "stats").mkdir()
    (spool.root / "stats" / "batch-000004.json").write_bytes(b"{}")
    assert (spool.newest_step(), spool.next_batch()) == (7, 8)
    spool.cut(5)
    assert (spool.newest_step(), spool.next_batch()) == (4, 4)
    assert spool.policy_path(4).exists() and not spool.policy_path(5).exists()
    assert spool.batch_path(3).exists() and not spool.batch_path(4).exists() and not spool.works_path(4).exists()
    assert spool.evaluation_path(4).exists() and not spool.evaluation_path(5).exists()
    assert not (spool.root / "stats" / "batch-000004.json").exists()
    assert spool.checkpoint_steps() == [3]


def test_a_cut_takes_metrics_first_so_that_a_crash_in_it_leaves_no_complete_step_without_its_policy(
    tmp_path: Path,
) -> None:
    spool = Spool(tmp_path / "spool")
    spool.prepare(b"{}", tmp_path)
    for step in range(3):
        for path in (spool.policy_path(step), spool.metrics_path(step)):
            path.write_bytes(b"{}")
    names = [path.name for path in spool._beyond(1)]
    assert names.index("step-000002.json") < names.index("policy-000001.safetensors")


def test_what_was_evaluated_and_is_cut_is_due_again_for_whoever_had_counted_beyond(tmp_path: Path) -> None:
    run = RunSpec(
        name="r", environment=EnvironmentSpec(name="sort"), recipe=Recipe(steps=12), evaluation=EvaluationSpec(every=5)
    )
    ours, theirs = Spool(tmp_path / "spool"), Spool(tmp_path / "spool")
    ours.prepare(b"{}", tmp_path)
    for step in range(12):
        for path in (ours.policy_path(step), ours.metrics_path(step), ours.evaluation_path(step)):
            path.write_bytes(b"{}")
    left = Evaluations(theirs, run)
    assert left.next() == 12
    ours.cut(4)
    assert left.next() == 5
    ours.cut(0)
    assert left.next() == 0


def test_a_backup_that_followed_the_link_to_the_assets_is_used_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "assets" / "model").mkdir(parents=True)
    spool = Spool(tmp_path / "spool")
    spool.prepare(b"run", tmp_path / "assets")
    spool.assets.unlink()
    (spool.assets / "model").mkdir(parents=True)
    spool.prepare(b"run", tmp_path / "assets")
    assert spool.assets.is_symlink() and spool.assets.resolve() == (tmp_path / "assets").resolve()


def test_what_is_asked_again_and_again_opens_no_file(tmp_path: Path) -> None:
    """On the event loop, which cannot wait until one may be opened."""
    spool = Spool(tmp_path / "spool")
    spool.prepare(b"{}", tmp_path)
    spool.remember_adopted(2)
    for step in (2, 3):
        spool.metrics_path(step).write_text("{}")
    assert (spool.newest_step(), spool.next_batch(), spool.adopted()) == (3, 3, 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert (spool.newest_step(), spool.next_batch(), spool.adopted()) == (3, 3, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    spool.remember_adopted(5)
    spool.metrics_path(5).write_text("{}")
    assert (spool.newest_step(), spool.adopted()) == (5, 5)
