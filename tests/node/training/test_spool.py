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
