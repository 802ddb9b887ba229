"""The trainer: it learns, and a crash at any write changes nothing of what it publishes."""
# ruff: noqa: ASYNC110, ASYNC240 - a test may poll files that another process writes

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
import trio

from node.training import checkpoint, spool, trainer
from node.training.batch import Batch, BatchHeader, BatchRow, decode_batch, encode_batch
from node.training.client import TrainerProcess
from node.training.errors import TrainingError
from node.training.settings import TrainerSettings
from node.training.spool import Spool
from node.training.trainer import Trainer
from protocol.run import RunSpec, encode_run

STEPS = 7


def batch(step: int) -> bytes:
    """Made-up rollouts that reward the token 5."""
    random = np.random.default_rng(step)
    rows = []
    for i in range(16):
        output = [*random.integers(2, 12, size=int(random.integers(1, 6))).tolist(), 1]
        logprobs = (-2.5 + random.normal(size=len(output)) * 0.1).tolist()
        rows.append(BatchRow(i // 4, [3, 4, 12], output, logprobs, float(5 in output), max(0, step - i % 3)))
    return encode_batch(Batch(BatchHeader(step), tuple(rows)))


@pytest.fixture
def make_spool(tiny_assets: Path, tiny_run: RunSpec, tmp_path: Path) -> Callable[[str], Spool]:
    def make(name: str) -> Spool:
        made = Spool(tmp_path / name)
        made.prepare(encode_run(tiny_run), tiny_assets)
        for step in range(STEPS):
            made.write_batch(step, batch(step))
        return made

    return make


def work(where: Spool, **settings: object) -> None:
    worker = Trainer(Spool(where.root), TrainerSettings(checkpoint_every=2, **settings))
    try:
        worker.train()
    finally:
        worker.close()


def outcome(where: Spool) -> list[dict]:
    """What was published: all of it but what a clock measured."""
    steps = [json.loads(where.metrics_path(step).read_bytes()) for step in range(STEPS + 1)]
    return [
        {key: value for key, value in metrics.items() if key not in ("seconds", "performance")} for metrics in steps
    ]


def images(where: Spool) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (where.root / "out").glob("policy-*.safetensors")}


def test_a_crash_at_any_write_changes_nothing(
    make_spool: Callable[[str], Spool], monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = make_spool("straight")
    work(straight)
    expected = outcome(straight)
    assert len({metrics["policy_root"] for metrics in expected}) == STEPS + 1

    real = spool.write_whole
    crashing = make_spool("crashing")
    for crash_at in (0, 1, 2, 3, 5, 6, 8, 2, 9, 1, 4):
        writes = 0

        def write(path: Path, data: bytes, at: int = crash_at) -> None:
            nonlocal writes
            if writes == at:
                path.with_name(path.name + ".partial").write_bytes(data[: len(data) // 2])
                raise KeyboardInterrupt
            writes += 1
            real(path, data)

        for module in (trainer, checkpoint):
            monkeypatch.setattr(module, "write_whole", write)
        try:
            work(crashing, async_checkpoints=False)
        except KeyboardInterrupt:
            continue
    for module in (trainer, checkpoint):
        monkeypatch.setattr(module, "write_whole", real)
    work(crashing)
    assert outcome(crashing) == expected
    assert images(crashing) == images(straight) and len(images(straight)) > 5
    assert not crashing.batch_path(0).exists() and crashing.batch_path(STEPS - 1).exists()


def test_a_rotten_checkpoint_is_passed_over(make_spool: Callable[[str], Spool]) -> None:
    where = make_spool("spool")
    work(where)
    expected = outcome(where)
    newest = max(where.checkpoints.glob("step-*"))
    tensors = next(newest.glob("*.safetensors"))
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"\0")
    where.metrics_path(STEPS).unlink()
    work(where)
    assert outcome(where) == expected


def test_a_replay_that_differs_from_what_was_published_is_an_error(make_spool: Callable[[str], Spool]) -> None:
    where = make_spool("spool")
    work(where)
    for path in where.checkpoints.glob("step-*"):
        (path / "state.json").unlink()
    for step in range(STEPS):
        where.write_batch(step, batch(step))
    other = tuple(msgspec.structs.replace(row, reward=1 - row.reward) for row in decode_batch(batch(3)).rows)
    where.write_batch(3, encode_batch(Batch(BatchHeader(3), other)))
    with pytest.raises(TrainingError, match="step 4"):
        work(where)


def test_numbers_that_are_not_finite_stop_the_training(make_spool: Callable[[str], Spool]) -> None:
    where = make_spool("spool")
    rows = decode_batch(batch(0)).rows
    poisoned = [BatchRow(r.group_key, r.prompt, r.output, [float("nan")] * len(r.output), r.reward, 0) for r in rows]
    where.write_batch(0, encode_batch(Batch(BatchHeader(0), tuple(poisoned))))
    with pytest.raises(TrainingError, match="learnt from"):
        work(where)


def test_a_batch_that_is_none_is_an_error() -> None:
    whole = batch(0)
    for broken in (b"", whole[:-50], b"\0" * 100):
        with pytest.raises(TrainingError):
            decode_batch(broken)


def test_a_spool_belongs_to_one_run(make_spool: Callable[[str], Spool], tiny_assets: Path) -> None:
    where = make_spool("spool")
    assert (where.newest_step(), where.next_batch()) == (-1, STEPS)
    with pytest.raises(TrainingError, match="another run"):
        where.prepare(b"{}", tiny_assets)


async def test_the_process_is_restarted_after_a_kill_and_leaves_nobody_behind(
    make_spool: Callable[[str], Spool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
    where = make_spool("spool")
    where.batch_path(STEPS - 1).unlink()
    process = TrainerProcess(where)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.run)
        while where.newest_step() < 2:
            await trio.sleep(0.02)
        assert process.pid
        family = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
        os.kill(process.pid, signal.SIGKILL)
        while process.restarts == 0:
            await trio.sleep(0.02)
        where.write_batch(STEPS - 1, batch(STEPS - 1))
        while not where.is_complete(STEPS):
            await trio.sleep(0.02)
    with trio.fail_after(10):
        while any(psutil.pid_exists(pid) for pid in family):
            await trio.sleep(0.05)
    assert [metrics["step"] for metrics in outcome(where)] == list(range(STEPS + 1))
