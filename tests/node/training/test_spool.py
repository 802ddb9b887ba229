import os
from pathlib import Path

from node.training.spool import Spool


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
