"""The trainer: it learns, and a crash at any write changes nothing of what it publishes."""

import errno
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import psutil
import pytest
import torch
import trio

from node.state import files
from node.training import arithmetic, checkpoint, learner, trainer
from node.training.batch import Batch, BatchHeader, BatchRow, decode_batch, encode_batch
from node.training.checkpoint import Checkpoints, identity
from node.training.client import TrainerProcess
from node.training.errors import TrainingError
from node.training.learner import Learner
from node.training.length import same_but_for_length
from node.training.lowering import MicroBatchLimit, in_words, read_notes
from node.training.memory import WHERE
from node.training.settings import TrainerSettings
from node.training.spool import Spool
from node.training.trainer import SpoolTrainer
from node.training.world import World
from protocol.run import RunSpec, encode_run
from tests.node.training.conftest import made_up_rows
from tests.node.training.forks import Forking, die_at, end_of, fork

STEPS = 5


def batch(step: int, files: tuple[str, ...] = ()) -> bytes:
    """Made-up rollouts that reward the token 5."""
    random = np.random.default_rng(step)
    rows = []
    for i in range(19):
        output = [*random.integers(2, 12, size=int(random.integers(1, 6))).tolist(), 1]
        logprobs = (-2.5 + random.normal(size=len(output)) * 0.1).tolist()
        rows.append(BatchRow(i // 4, [3, 4, 12], output, logprobs, float(5 in output), max(0, step - i % 3)))
    return encode_batch(Batch(BatchHeader(step, files or (f"file {step}",)), tuple(rows)))


def prepared(directory: Path, run: RunSpec, assets: Path, **recipe: object) -> Spool:
    made = Spool(directory)
    changed = msgspec.structs.replace(run.recipe, **{"steps": STEPS, **recipe})
    made.prepare(encode_run(msgspec.structs.replace(run, recipe=changed)), assets)
    for step in range(STEPS):
        made.write_batch(step, batch(step))
    return made


@pytest.fixture
def make_spool(tiny_assets: Path, tiny_run: RunSpec, tmp_path: Path) -> Callable[..., Spool]:
    return lambda directory, **recipe: prepared(tmp_path / directory, tiny_run, tiny_assets, **recipe)


@pytest.fixture(scope="module")
def straight(tiny_assets: Path, tiny_run: RunSpec, tmp_path_factory: pytest.TempPathFactory) -> Spool:
    """What one life of a trainer came to: for all to read."""
    made = prepared(tmp_path_factory.mktemp("straight") / "spool", tiny_run, tiny_assets)
    work(made)
    return made


@pytest.fixture
def trained(straight: Spool, tmp_path: Path) -> Spool:
    """A copy of it."""
    return Spool(Path(shutil.copytree(straight.root, tmp_path / "trained", symlinks=True)))


def work(where: Spool, **settings: object) -> None:
    """One life of a trainer."""
    try:
        SpoolTrainer(Spool(where.root), TrainerSettings(checkpoint_every=2, **settings)).train()
    finally:
        # A process does not end before its checkpoint is written. Here the next life is in the same process: the
        # checkpoint of the one before would take away batches that it waits for then.
        for thread in threading.enumerate():
            if thread.name.startswith("AsyncCheckpoint"):
                thread.join()


def outcome(where: Spool) -> list[dict]:
    """What was published: all of it but what a clock measured."""
    steps = [json.loads(where.metrics_path(step).read_bytes()) for step in range(STEPS + 1)]
    return [
        {key: value for key, value in metrics.items() if key not in ("seconds", "performance")} for metrics in steps
    ]


def images(where: Spool) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (where.root / "out").glob("policy-*.safetensors")}


def test_a_crash_at_any_write_changes_nothing(
    straight: Spool, make_spool: Callable[[str], Spool], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = outcome(straight)
    assert len({metrics["policy_root"] for metrics in expected}) == STEPS + 1

    crashing = make_spool("crashing")
    real = files.whole_file
    for crash_at in (0, 1, 2, 3, 2, 2, 4):  # in an image or its metrics, and twice in a checkpoint
        writes = 0

        @contextmanager
        def whole_file(path: Path, at: int = crash_at, **how: Any) -> Iterator[BinaryIO]:
            nonlocal writes
            if writes == at:
                path.with_name(path.name + ".partial").write_bytes(b"half of it")
                raise KeyboardInterrupt
            writes += 1
            with real(path, **how) as file:
                yield file

        for module in (files, trainer):
            monkeypatch.setattr(module, "whole_file", whole_file)
        with pytest.raises((KeyboardInterrupt, TrainingError)):
            work(crashing, async_checkpoints=False)
    for module in (files, trainer):
        monkeypatch.setattr(module, "whole_file", real)
    work(crashing)
    assert outcome(crashing) == expected
    assert images(crashing) == images(straight) and len(images(straight)) == STEPS + 1
    assert not crashing.batch_path(0).exists() and crashing.batch_path(STEPS - 1).exists()


def test_a_trainer_that_is_killed_at_any_moment_publishes_the_same(
    straight: Spool, make_spool: Callable[[str], Spool]
) -> None:
    killed = make_spool("killed")

    def live(end: int) -> None:
        die_at(end)
        work(killed)

    lives = [end_of(fork(live, end)) for end in (1, 4, 7, 11, 8, 13, 5, 17, 2, 0)]
    assert set(lives) == {-signal.SIGKILL, 0} and lives.count(-signal.SIGKILL) >= 6 and lives[-1] == 0
    assert outcome(killed) == outcome(straight)
    assert images(killed) == images(straight)
    state = json.loads((max(killed.checkpoints.glob("step-*")) / "state.json").read_bytes())
    assert state["consumed"] == {f"file {step}": step for step in range(STEPS - 3, STEPS)}, (
        "those that could come again"
    )


def test_training_that_goes_on_for_longer_publishes_what_a_long_run_would_have(
    straight: Spool, make_spool: Callable[..., Spool], tiny_assets: Path
) -> None:
    grown = make_spool("grown", steps=3)
    work(grown)
    assert grown.newest_step() == 3
    longer = straight.run_path.read_bytes()
    with pytest.raises(TrainingError, match="another run"):
        grown.prepare(longer, tiny_assets)  # a swarm's run is its pool's, to the byte
    grown.prepare(longer, tiny_assets, same_but_for_length)
    for step in range(3, STEPS):
        grown.write_batch(step, batch(step))
    work(grown)
    assert outcome(grown) == outcome(straight)
    assert not same_but_for_length(longer, longer[:-1]) and not same_but_for_length(b"{}", longer)


async def test_a_killed_pair_leaves_nobody_behind_and_one_process_goes_on_in_its_place(
    make_spool: Callable[..., Spool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sharded processes, killed after two steps; they are restarted as one plain process. The losses agree to
    1e-5."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
    straight, moved = (make_spool(name, name="dppo", reference_kl=0.01) for name in ("straight", "moved"))
    work(straight)
    later = {step: moved.batch_path(step).read_bytes() for step in range(2, STEPS)}
    for step in later:
        moved.batch_path(step).unlink()
    # A checkpoint of the newest policy: a step made again by another kind of AdamW may round otherwise, and is refused.
    pair = TrainerSettings(world_size=2, checkpoint_every=1, micro_batch_tokens=1)  # 19 passes: one is empty
    process = TrainerProcess(moved, settings=pair)
    process._starter = Forking()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.run)
        while not (moved.is_complete(2) and (moved.checkpoints / "step-000002" / "state.json").exists()):
            await trio.sleep(0.05)
        assert len(list((moved.checkpoints / "step-000002").glob("*.safetensors"))) == 2, "a file of each rank's shards"
        assert process.pid
        family = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
        process._settings = TrainerSettings(checkpoint_every=2)
        os.kill(process.pid, signal.SIGKILL)
        with trio.fail_after(60):
            while any(psutil.pid_exists(pid) for pid in family):
                await trio.sleep(0.05)
        for step, data in later.items():
            moved.write_batch(step, data)
    assert process.restarts == 1 and len(family) == 3
    for mine, theirs in zip(outcome(moved)[1:], outcome(straight)[1:], strict=True):
        close = 1e-6 if mine["step"] == 1 else 1e-5  # the first step begins with the same weights
        for name in ("loss", "grad_norm", "entropy", "mismatch_kl", "kl"):
            assert mine[name] == pytest.approx(theirs[name], abs=close), (mine["step"], name)
        assert mine["trained_tokens"] == theirs["trained_tokens"]


def test_a_checkpoint_holds_the_moment_at_which_it_was_asked_for(
    make_learner: Callable[..., Learner], tmp_path: Path
) -> None:
    """It is written while training goes on: later steps must not leak into it."""
    learner, rows = make_learner(), made_up_rows()
    learner.step(rows, 0)
    held = {name: tensor.detach().clone() for name, tensor in learner.parameters.items()}
    checkpoints = Checkpoints(tmp_path, learner, "model", World(), keep=1)
    checkpoints.save(1, {"a": 0})
    for step in (1, 2):
        learner.step(rows, step)
    checkpoints.wait()
    other = make_learner()
    state = Checkpoints(tmp_path, other, "model", World(), keep=1).load_newest()
    assert state is not None and (state.step, state.updates, state.consumed) == (1, 1, {"a": 0})
    assert all(torch.equal(tensor, held[name]) for name, tensor in other.parameters.items())
    assert other.updates == 1
    torch.manual_seed(1)
    checkpoints.save(2, {})
    drawn = torch.rand(1)
    checkpoints.wait()
    Checkpoints(tmp_path, other, "model", World(), keep=1).load_newest()
    assert torch.equal(torch.rand(1), drawn), "the random state comes back too"
    assert checkpoints.available() == [2], "older ones are pruned"


def test_a_checkpoint_in_which_a_bit_has_flipped_gives_way_to_the_one_before_and_is_told(
    make_learner: Callable[..., Learner], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learner = make_learner()
    checkpoints = Checkpoints(tmp_path, learner, "model", World(), keep=2)
    for step in (1, 2):
        checkpoints.save(step, {})
        checkpoints.wait()
    shard = next((tmp_path / "step-000002").glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(bytes(data))
    state = Checkpoints(tmp_path, make_learner(), "model", World(), keep=2).load_newest()
    assert state is not None and state.step == 1
    (told,) = [line for line in capsys.readouterr().err.splitlines() if "checkpoint.damaged" in line]
    assert "step-000002" in told


def test_a_checkpoint_that_cannot_be_read_now_is_not_taken_for_damaged(
    make_learner: Callable[..., Learner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, make_learner(), "model", World(), keep=2)
    for step in (1, 2):
        checkpoints.save(step, {})
        checkpoints.wait()

    def fail(path: Path) -> str:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "_digest", fail)
        with pytest.raises(TrainingError, match="cannot be read"):
            Checkpoints(tmp_path, make_learner(), "model", World(), keep=2).load_newest()
    state = Checkpoints(tmp_path, make_learner(), "model", World(), keep=2).load_newest()
    assert state is not None and state.step == 2


def test_a_checkpoint_of_another_model_is_refused_and_kept(
    make_learner: Callable[..., Learner], tmp_path: Path
) -> None:
    learner = make_learner()
    checkpoints = Checkpoints(tmp_path, learner, identity(learner, b"one run"), World(), keep=1)
    checkpoints.save(1, {})
    checkpoints.wait()
    other = Checkpoints(tmp_path, learner, identity(learner, b"another run"), World(), keep=1)
    with pytest.raises(TrainingError, match="does not belong to this run"):
        other.load_newest()
    path = tmp_path / "step-000001" / "state.json"
    path.write_bytes(path.read_bytes().replace(b'"version":3', b'"version":9'))
    with pytest.raises(TrainingError) as caught:
        checkpoints.load_newest()
    assert "version 9" in caught.value.why and path.exists()


def test_nothing_in_a_checkpoint_is_a_pickle(trained: Spool) -> None:
    files = [path for path in trained.checkpoints.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    for stranger in ("evil.pt", ".metadata"):
        newest = max(trained.checkpoints.glob("step-*"))
        (newest / stranger).write_bytes(b"\x80\x04.")
        work(trained)
        assert not (newest / stranger).exists(), "what is not in the state's list makes a checkpoint unsound"


def test_lost_checkpoints_are_an_error_and_not_an_endless_wait(trained: Spool) -> None:
    shutil.rmtree(trained.checkpoints)
    trained.checkpoints.mkdir()
    with pytest.raises(TrainingError, match="cannot go on where it stopped"):
        work(trained)


@pytest.mark.parametrize("fault", ["stale", "future", "again", "twice"])
def test_rollouts_are_learnt_from_once_and_while_they_are_fresh(make_spool: Callable[[str], Spool], fault: str) -> None:
    where = make_spool("spool")
    rows = decode_batch(batch(3)).rows
    files: tuple[str, ...] = ("new",)
    if fault in ("stale", "future"):
        rows = tuple(msgspec.structs.replace(row, policy_step=0 if fault == "stale" else 4) for row in rows)
    else:
        files = ("file 2",) if fault == "again" else ("new", "new")
    where.write_batch(3, encode_batch(Batch(BatchHeader(3, files), rows)))
    with pytest.raises(TrainingError, match="batch of step 3"):
        work(where)
    assert where.newest_step() == 3


def test_a_rotten_checkpoint_is_passed_over(trained: Spool, straight: Spool) -> None:
    newest = max(trained.checkpoints.glob("step-*"))
    tensors = next(newest.glob("*.safetensors"))
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"\0")
    trained.metrics_path(STEPS).unlink()
    work(trained)
    assert outcome(trained) == outcome(straight)


def begin_anew_with_another_batch(where: Spool) -> None:
    """No checkpoint is sound, and the batch of step 3 is not the one that was learnt from."""
    for path in where.checkpoints.glob("step-*"):
        (path / "state.json").unlink()
    for step in range(STEPS):
        where.write_batch(step, batch(step))
    other = tuple(msgspec.structs.replace(row, reward=1 - row.reward) for row in decode_batch(batch(3)).rows)
    where.write_batch(3, encode_batch(Batch(BatchHeader(3), other)))


def test_a_replay_that_differs_from_what_was_published_is_an_error(trained: Spool) -> None:
    begin_anew_with_another_batch(trained)
    with pytest.raises(TrainingError, match="step 4"):
        work(trained)


def test_on_another_processor_a_trainer_refuses_and_says_why_and_goes_on_where_that_is_wanted(
    trained: Spool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Another processor is another rounding: here another batch stands for that, and only the name is pretended."""
    begin_anew_with_another_batch(trained)
    monkeypatch.setattr(arithmetic, "processor", lambda device: "x86_64-AVX1024")
    with pytest.raises(TrainingError, match="cannot go on exactly") as caught:
        work(trained)
    assert "processor: x86_64-AVX1024 instead of" in caught.value.why
    work(trained, deterministic=False)
    assert "x86_64-AVX1024" in capfd.readouterr().err


def test_a_replay_that_is_not_deterministic_may_differ_and_what_was_published_stands(
    trained: Spool, straight: Spool, capfd: pytest.CaptureFixture[str]
) -> None:
    begin_anew_with_another_batch(trained)
    work(trained, deterministic=False)
    assert images(trained) == images(straight)
    assert "replay.rounded_differently" in capfd.readouterr().err


def test_where_memory_runs_out_the_step_is_done_in_smaller_passes_and_a_replay_too(
    make_spool: Callable[[str], Spool], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Passes of more than 45 tokens are too much from step 3 on; afterwards the last step is made again besides."""
    real, now = Learner.step, [0]

    def step(learner: Learner, rows: Any, number: int, timing: Any) -> Any:
        now[0] = number
        return real(learner, rows, number, timing)

    def starve(module: Any, given: tuple[Any, ...]) -> None:
        if now[0] >= 3 and given[0].real > 45:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    class Starved(Learner):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.policy.register_forward_pre_hook(starve)

    monkeypatch.setattr(Learner, "step", step)
    monkeypatch.setattr(trainer, "Learner", Starved)
    where = make_spool("spool")
    with pytest.raises(SystemExit):
        work(where, micro_batch_tokens=200)
    # One start, where half of 200 would have been as much too much.
    (last,) = read_notes(where.lowered_path)
    assert (last.step, last.phase) == (3, "forward") and last.tokens < 100, "half of the pass, not of what was allowed"
    work(where, micro_batch_tokens=200)
    found = outcome(where)
    assert [one.get("micro_batch_tokens") for one in found] == [None] * 4 + [last.tokens] * (STEPS - 3)
    shutil.rmtree(max(where.checkpoints.glob("step-*")))
    where.metrics_path(STEPS).unlink()
    work(where, micro_batch_tokens=200)
    assert outcome(where) == found
    assert f'"micro_batch_tokens": {last.tokens}' in capfd.readouterr().err
    settings = TrainerSettings(checkpoint_every=2, micro_batch_tokens=200)
    assert f"passes of at most {last.tokens} tokens since, of 200" in in_words(where.lowered_path, settings)
    for changed in ({"activation_checkpointing": True}, {"world_size": 2}, {"logit_cells": 1 << 20}):
        other = msgspec.structs.replace(settings, **changed)
        assert MicroBatchLimit(where.lowered_path, other, World()).at(STEPS) == 200, changed
        assert not in_words(where.lowered_path, other)


LOST = RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize("phase", ["load", "forward", "backward", "optimizer", "publish", "lost"])
def test_memory_that_runs_out_is_told_by_phase_and_only_passes_are_tried_again(
    phase: str, make_spool: Callable[..., Spool], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    places = {
        "load": (trainer, "build_model"),
        "forward": (learner, "slopes_of"),
        "backward": (torch.Tensor, "backward"),
        "optimizer": (torch.optim.AdamW, "step"),
        "publish": (trainer, "stream_image"),
        "lost": (torch.Tensor, "backward"),
    }

    def fail(*_: Any, **__: Any) -> None:
        raise LOST if phase == "lost" else torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    where, settings = make_spool("spool"), TrainerSettings()
    monkeypatch.setattr(*places[phase], fail)
    if phase in ("forward", "backward", "lost"):
        with pytest.raises(SystemExit):
            trainer._train(where)
        told = capfd.readouterr().err
        if phase == "lost":
            assert "training.device_lost" in told and "in the backward pass of step 0" in told
            assert not where.lowered_path.exists(), "smaller passes bring no device back"
            return
        (note,) = read_notes(where.lowered_path)
        assert note.phase == phase and note.tokens < 100 and f'"phase": "{phase}"' in told
        assert WHERE[phase] in in_words(where.lowered_path, settings)
        return
    with pytest.raises(TrainingError, match=WHERE[phase]) as caught:
        trainer._train(where)
    assert not where.lowered_path.exists() and "Tried to allocate 20.00 GiB" in caught.value.why
    assert "offload_parameters" in caught.value.remedy and "micro_batch" not in caught.value.remedy.partition(";")[0]
    assert "by count this fits into a sixth less" in caught.value.remedy


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
