"""Audits of a step: an honest one holds, every cheat is seen in its step, and what is lacking is said.

The files, reports and the learner are real; only the answers are made up. Step 0 is always honest: the control.
"""

import shutil
from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from node.audit.desk import audit_at_desk
from node.audit.findings import FLOAT32_LIMIT, Audit, Says
from node.audit.order import ruling
from node.recipe.desk import desk_blobs, desk_paths, desk_root
from node.recipe.join import join
from node.recipe.manifest import compose, materialise
from node.recipe.pool import Group, Origin, Selection, freshness
from node.training import compiling, replay
from node.training.batch import Batch, encode_batch
from node.training.errors import TrainingError
from node.training.learner import Learner
from node.training.replay import StepReplayer
from node.training.settings import TrainerSettings
from node.training.spool import Spool
from node.training.trainer import SpoolTrainer
from node.training.warmstart import SORT_ALPHABET, create_model
from node.training.world import join_world, leave_world
from protocol.blobs import describe
from protocol.checks import Reason
from protocol.errors import OwnFailure
from protocol.identity import address_bytes, address_from_bytes
from protocol.manifest import Arithmetic, decode_composed, encode_manifest
from protocol.rollout import (
    ReportHeader,
    ReportRow,
    RolloutBatch,
    RolloutHeader,
    SampleRow,
    ValidatorReport,
    decode,
    decode_report,
    encode,
    encode_report,
)
from protocol.run import RunSpec, encode_run
from protocol.statements import VerdictOutcome, WorkCommitment, work_id

NODE = address_from_bytes(b"\x07" * 20)
STEPS, GROUPS, SIZE = 2, 8, 4
SETTINGS = TrainerSettings(checkpoint_every=1, keep_checkpoints=9)


class Desk:
    """The directory of a `train` of two steps, whose batches are made of files for policy 0."""

    def __init__(
        self, directory: Path, run: RunSpec, assets: Path, pool: int = 0, root: bytes = b"", groups: int = GROUPS
    ) -> None:
        self.groups = groups
        rollout = msgspec.structs.replace(
            run.rollout, prompts_per_step=groups, prompts_per_file=groups, group_size=SIZE
        )
        recipe = msgspec.structs.replace(run.recipe, steps=STEPS, max_staleness=2, learning_rate=1e-3, warmup_steps=0)
        self.run = msgspec.structs.replace(run, rollout=rollout, recipe=recipe)
        self.pool, self.root = pool, root or desk_root(self.run)
        self.directory, self.spool = directory, Spool(directory / "spool")
        self.spool.prepare(encode_run(self.run), assets)
        replayer = StepReplayer(self.spool, SETTINGS)
        replayer.place(0)
        self.start = replayer.roots(0).policy_root
        (directory / "rollouts").mkdir()
        for step in range(STEPS):
            self._make(step)

    def _make(self, step: int) -> None:
        random = np.random.default_rng(step)
        rows, values = list[SampleRow](), list[ReportRow]()
        for place in range(self.groups * SIZE):
            group, sample = divmod(place, SIZE)
            output = [*random.integers(2, 12, size=int(random.integers(1, 6))).tolist(), 1]
            rows.append(SampleRow(group, sample, f"p{group}", [3, 4, 12], output, True, b""))
            logprobs = (-2.5 + random.normal(size=len(output)) * 0.1).tolist()
            values.append(ReportRow(group, sample, float(sample % 2 == group % 2), logprobs))
        batch = RolloutBatch(RolloutHeader(self.pool, NODE, self.start.hex(), step), tuple(rows))
        data = encode(batch)
        report = encode_report(
            ValidatorReport(ReportHeader(describe(data).root.hex(), self.start.hex()), tuple(values))
        )
        for path, content in zip(desk_paths(self.directory / "rollouts", 0, step), (data, report), strict=True):
            path.write_bytes(content)
        composed = compose(self.run, self.root, self.pool, Selection(step, tuple(self._groups(step))))
        self.spool.write_works(step, encode_manifest(composed))
        self.spool.write_batch(step, encode_batch(self.batch(step)))

    def _groups(self, step: int) -> list[Group]:
        data, told = (path.read_bytes() for path in desk_paths(self.directory / "rollouts", 0, step))
        batch, root = decode(data, 1000), describe(data).root
        commitment = WorkCommitment(self.pool, NODE, self.start, step, root, batch.units)
        origin = Origin(commitment, len(data), address_bytes(NODE), describe(told).root, len(told))
        name = work_id(commitment) if self.pool else b""
        groups = join(self.run, root, 0, batch, decode_report(told, 1000), name=name)
        return sorted((msgspec.structs.replace(group, origin=origin) for group in groups), key=freshness)

    def batch(self, step: int) -> Batch:
        composed = decode_composed(self.spool.works_path(step).read_bytes())
        return materialise(self.run, composed, *desk_blobs(self.directory / "rollouts", composed))

    def copied(self, directory: Path) -> "Desk":
        """Another one with the same files."""
        other = copy(self)
        shutil.copytree(self.directory, directory, symlinks=True)
        other.directory, other.spool = directory, Spool(directory / "spool")
        return other

    def undo_last_step(self) -> None:
        self.spool.cut(STEPS)
        self._make(STEPS - 1)

    def train(self, settings: TrainerSettings = SETTINGS) -> None:
        world = join_world(settings)
        try:
            SpoolTrainer(self.spool, settings, world).train()
        finally:
            leave_world(world)

    def audit(self, step: int, own: TrainerSettings | None = None) -> Audit:
        return audit_at_desk(self.directory, step, own)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory, tiny_run: RunSpec) -> Desk:
    """With a model of one layer."""
    made = tmp_path_factory.mktemp("audits")
    create_model(made / "assets" / "model", SORT_ALPHABET, seed=7, hidden=64, layers=1)
    (made / "desk").mkdir()
    return Desk(made / "desk", tiny_run, made / "assets")


@pytest.fixture(scope="module")
def honest(untrained: Desk, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    made = untrained.copied(tmp_path_factory.mktemp("honest") / "desk")
    made.train()
    return made


@pytest.fixture
def desk(untrained: Desk, tmp_path: Path) -> Desk:
    """A copy, to train with."""
    return untrained.copied(tmp_path / "desk")


@pytest.fixture
def trained(honest: Desk, tmp_path: Path) -> Desk:
    """A copy of what an honest trainer made."""
    return honest.copied(tmp_path / "desk")


def said(audit: Audit) -> dict[str, Says]:
    return {one.test: one.says for one in audit.findings}


def test_every_honest_step_holds_and_an_auditor_of_another_class_accuses_nobody(trained: Desk) -> None:
    for step in range(STEPS):
        audit = trained.audit(step)
        assert set(said(audit).values()) == {Says.HOLDS} and len(audit.findings) == 4, audit
        other = trained.audit(step, TrainerSettings(micro_batch_tokens=64, packing=False))
        assert other.differences and not other.broken, other
        assert said(other)["direction"] is Says.HOLDS


def test_a_trainer_in_bfloat16_is_not_accused_and_a_group_it_leaves_out_is_found_from_float32(desk: Desk) -> None:
    batch = desk.batch(1)
    left = tuple(row for row in batch.rows if row.group_key != batch.rows[0].group_key)
    desk.spool.write_batch(1, encode_batch(Batch(batch.header, left)))
    bfloat16 = TrainerSettings(checkpoint_every=1, keep_checkpoints=9, dtype="bfloat16")
    desk.train(bfloat16)
    auditor = TrainerSettings(dtype="float32")
    assert not desk.audit(0, auditor).broken
    found = {one.test: one for one in desk.audit(1, auditor).findings}
    assert found["direction"].says is Says.BROKEN and "left out" in found["direction"].text


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that can compile, without a compiler."""
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")
    for place in (compiling, replay):
        monkeypatch.setattr(place, "compiler", lambda device: "one for tests")
    yield
    torch._dynamo.reset()
    torch.compiler.set_stance("default")


def test_compiled_layers_are_replayed_to_the_bit_by_their_class_and_accused_by_no_other(
    desk: Desk, compiles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.train(msgspec.structs.replace(SETTINGS, compile=True))
    audit = desk.audit(1)
    assert audit.differences == () and set(said(audit).values()) == {Says.HOLDS}, audit

    def broken(*_: Any) -> None:
        raise ValueError("an internal compiler error")

    monkeypatch.setattr(compiling, "BACKEND", broken)
    torch._dynamo.reset()
    eager = desk.audit(1)
    assert eager.differences == ("compiled:  instead of one for tests",) and not eager.broken, eager
    assert said(eager)["direction"] is Says.HOLDS


def other_batch(change: Callable[[list[Any]], list[Any]]) -> Callable[[Desk, pytest.MonkeyPatch], None]:
    """A trainer that learns from something else than its manifest says."""

    def cheat(desk: Desk, patch: pytest.MonkeyPatch) -> None:
        batch = desk.batch(1)
        desk.spool.write_batch(1, encode_batch(Batch(batch.header, tuple(change(list(batch.rows))))))

    return cheat


def gradient(change: Callable[[torch.Tensor], torch.Tensor], at: int = 1) -> Callable[[Desk, pytest.MonkeyPatch], None]:
    """A trainer that changes the gradient of a step after it was clipped."""

    def cheat(desk: Desk, patch: pytest.MonkeyPatch) -> None:
        real = torch.nn.utils.clip_grad_norm_

        def clip(parameters: Any, most: float) -> Any:
            parameters, norm = list(parameters), None
            norm = real(parameters, most)
            if desk.spool.newest_step() == at:
                for parameter in parameters:
                    parameter.grad = change(parameter.grad)
            return norm

        patch.setattr(torch.nn.utils, "clip_grad_norm_", clip)

    return cheat


def rate(desk: Desk, patch: pytest.MonkeyPatch) -> None:
    real = Learner.learning_rate
    patch.setattr(Learner, "learning_rate", lambda self, step, update=0: real(self, step, update) * (1 + 0.01 * step))


def pushed(desk: Desk, patch: pytest.MonkeyPatch) -> None:
    """Weights are published that no step made."""
    real = Learner.tensors

    def tensors(self: Learner) -> Any:
        for place, (name, tensor) in enumerate(real(self)):
            yield name, tensor * 1.01 if place == 0 and desk.spool.newest_step() == 1 else tensor

    patch.setattr(Learner, "tensors", tensors)


def without_first(rows: list[Any]) -> list[Any]:
    return [row for row in rows if row.group_key != rows[0].group_key]


def flipped(rows: list[Any]) -> list[Any]:
    return [msgspec.structs.replace(rows[0], reward=1 - rows[0].reward), *rows[1:]]


def others(rows: list[Any]) -> list[Any]:
    return [msgspec.structs.replace(row, output=[2 + (token + 3) % 10 for token in row.output]) for row in rows]


def hidden(grad: torch.Tensor) -> torch.Tensor:
    noise = torch.randn(grad.shape, generator=torch.Generator().manual_seed(1))
    return grad + 0.01 * grad.norm() * noise / noise.norm()


@pytest.mark.parametrize(
    ("cheat", "test"),
    [
        (other_batch(without_first), "direction"),
        (other_batch(flipped), "direction"),
        (other_batch(others), "direction"),
        (gradient(lambda grad: grad * 0.9), "direction"),
        (gradient(hidden), "direction"),
        (rate, "identity"),
        (pushed, "identity"),
    ],
    ids=["group left out", "reward flipped", "other data", "scaled", "hidden 1 %", "rate 1 %", "other policy"],
)
def test_a_cheat_is_seen_in_its_step_and_in_no_other(
    trained: Desk, monkeypatch: pytest.MonkeyPatch, cheat: Callable[[Desk, pytest.MonkeyPatch], None], test: str
) -> None:
    trained.undo_last_step()
    with monkeypatch.context() as patch:
        cheat(trained, patch)
        trained.train()
    assert set(said(trained.audit(0)).values()) == {Says.HOLDS}
    found = said(trained.audit(1))
    assert found[test] is Says.BROKEN and found["replay"] is Says.BROKEN
    far = trained.audit(1, TrainerSettings(micro_batch_tokens=64, packing=False))
    assert said(far)[test] is Says.BROKEN, "another class sees it, too"


@pytest.mark.parametrize("error", ["CUDA out of memory.", "CUDA error: an illegal memory access was encountered"])
def test_an_auditor_whose_memory_or_device_fails_says_nothing_of_the_step(
    trained: Desk, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """The control is every other test here: what a step cannot be learnt from for is broken."""

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(torch.optim.AdamW, "step", fail)
    with pytest.raises(OwnFailure):
        trained.audit(0)


@pytest.mark.parametrize("honest", [True, False])
def test_a_step_without_a_checkpoint_after_it_is_told_by_the_next_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, honest: bool
) -> None:
    """A processor of the same name that rounds differently accuses nobody: here one that cuts batches otherwise."""
    with monkeypatch.context() as patch:
        if not honest:
            gradient(hidden, at=0)(desk, patch)
        desk.train(TrainerSettings(checkpoint_every=2, keep_checkpoints=9))
    assert desk.spool.checkpoint_steps() == [2]
    bits = {one.test: one for one in desk.audit(0).findings}["replay"]
    assert bits.says is (Says.HOLDS if honest else Says.BROKEN)
    monkeypatch.setattr(Arithmetic, "differences", lambda one, other: [])
    audit = desk.audit(0, TrainerSettings(micro_batch_tokens=64, packing=False))
    found = {one.test: one for one in audit.findings}["replay"]
    assert found.says is Says.BROKEN and found.figures["steps"] == 1 and audit.differences == ()
    ruled = ruling(audit)
    assert (ruled and (ruled.outcome, ruled.reason)) == (None if honest else (VerdictOutcome.REJECT, Reason.DISTANCE))
    assert (found.figures["distance"] < FLOAT32_LIMIT / 5) == honest
    after = {one.test: one for one in desk.audit(1).findings}["replay"]
    assert after.figures.get("first") == (None if honest else 0.0), "which step to look at"


def test_what_is_lacking_or_false_in_the_directory_is_said(trained: Desk) -> None:
    after = trained.spool.checkpoints / "step-000002"
    tensors = next(after.glob("*.safetensors"))
    tensors.write_bytes(tensors.read_bytes()[:-100])
    found = said(trained.audit(1))
    assert (found["identity"], found["replay"]) == (Says.UNDECIDED, Says.HOLDS), "a truncated checkpoint accuses nobody"
    shutil.rmtree(trained.spool.checkpoints / "step-000001")
    assert said(trained.audit(1))["replay"] is Says.HOLDS, "from the one before, over two steps"
    file, report = desk_paths(trained.directory / "rollouts", 0, 1)
    report.write_bytes(report.read_bytes().replace(b"\0\0\x80?", b"\0\0\0\0", 1))
    assert said(trained.audit(1)) == {"manifest": Says.UNDECIDED}, "other bytes than were named are not what was named"
    file.unlink()
    assert said(trained.audit(1)) == {"manifest": Says.UNDECIDED}
    with pytest.raises(TrainingError, match="step 3 is not there"):
        trained.audit(2)
