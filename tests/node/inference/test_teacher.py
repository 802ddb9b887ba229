"""What a run's teacher says of a rollout file, by an engine beside the one that samples."""

import shutil
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from node.inference.engines import torch_engine
from node.inference.options import EngineOptions
from node.inference.process import settings_for
from node.inference.scheduler import EngineScheduler, RequestContext
from node.inference.server import EngineServer
from node.inference.session import EngineSession
from node.inference.settings import EngineSettings
from node.inference.teacher import teach
from node.inference.wire import EngineReady, Prepare, RequestFailed, Taught, Teach
from node.training.batch import BatchRow
from node.training.micro_batch import padded
from node.training.warmstart import SORT_ALPHABET, create_model
from protocol.blobs import describe
from protocol.identity import Address
from protocol.rollout import RolloutBatch, RolloutHeader, SampleRow, encode
from protocol.run import Asset, RunSpec, encode_run
from protocol.sections import TEACHER, Distill
from protocol.teaching import Taught as Said
from protocol.teaching import decode_taught, taught_otherwise
from tests.node.training.test_distill import teacher_of

TASK = bytes([5]) * 32
NODE = Address("0x" + "11" * 20)
PROMPTS = ([3, 4, 12], [5, 12])


@pytest.fixture(scope="module")
def assets(tiny_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, and a teacher of another shape, whose files have no tokenizer."""
    made = tmp_path_factory.mktemp("taught") / "assets"
    shutil.copytree(tiny_assets / "model", made / "model")
    whole = made.parent / "whole"
    teacher = create_model(whole, SORT_ALPHABET, seed=8, hidden=32, layers=1)
    with torch.no_grad():
        teacher.get_output_embeddings().weight.mul_(20)  # of an opinion
    (whole / "model.safetensors").unlink()
    teacher.to(torch.bfloat16).save_pretrained(whole)
    (made / TEACHER).mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(whole / name, made / TEACHER / name)
    return made


@pytest.fixture(scope="module")
def run(tiny_run: RunSpec, assets: Path) -> RunSpec:
    files = [Asset(path=f"{TEACHER}/{one.name}", root="ab" * 32, size=1) for one in (assets / TEACHER).iterdir()]
    rollout = msgspec.structs.replace(tiny_run.rollout, temperature=0.7)
    distill = Distill(teacher=TEACHER, tasks=True)
    return msgspec.structs.replace(tiny_run, rollout=rollout, distill=distill, assets=tuple(files))


def rows() -> list[SampleRow]:
    """Of one turn and of two: between them the environment spoke, and nothing is said of that."""
    one = SampleRow(0, 0, "p0", PROMPTS[0], [3, 4, 1], True, b"")
    two = SampleRow(1, 0, "p1", PROMPTS[1], [5, 9, 9, 6, 1], True, b"", segments=[1, 2, 2])
    return [one, two]


def teaching(place: Path) -> Teach:
    header = RolloutHeader(1, NODE, "cd" * 32, 0)
    data = encode(RolloutBatch(header, tuple(rows())))
    (place / "file").write_bytes(data)
    return Teach(path=str(place / "file"), file_root=describe(data).root, task=TASK, out_path=str(place / "taught"))


def said(order: Teach) -> Said:
    return decode_taught(Path(order.out_path).read_bytes(), order.file_root, TASK, 2)


def expected(assets: Path) -> list[np.ndarray]:
    """As a learner that holds the teacher finds it."""
    teacher = teacher_of(assets)
    teacher = type(teacher)(teacher.model, 0.7, 1 << 20)
    found = []
    for row in rows():
        learnt = BatchRow(0, row.prompt, row.output, [], 0.0, 0, segments=row.segments)
        with torch.no_grad():
            found.append(teacher(padded([learnt], torch.device("cpu")))[0].numpy())
    return found


def test_a_task_has_what_a_trainer_with_the_teacher_would_compute(run: RunSpec, assets: Path, tmp_path: Path) -> None:
    order = teaching(tmp_path)
    found = teach(EngineSession(run, assets, torch_engine), order)
    taught = said(order)
    assert found.tokens == sum(row.units for row in rows()) == 6
    assert [(row.group, row.sample) for group in taught.values() for row in group] == [(0, 0), (1, 0)]
    for own, truth in zip((taught[0][0], taught[1][0]), expected(assets), strict=True):
        np.testing.assert_allclose(own.logprobs, truth, atol=1e-5)


def test_an_engine_of_another_class_says_the_same_within_the_tolerance_and_another_teacher_does_not(
    run: RunSpec, assets: Path, tmp_path: Path
) -> None:
    def by(run: RunSpec, assets: Path, dtype: str, name: str) -> Said:
        place = tmp_path / f"by-{name}"
        place.mkdir()
        order = teaching(place)
        settings = EngineSettings(dtype=dtype)
        teach(EngineSession(run, assets, lambda model: torch_engine(model, settings)), order)
        return said(order)

    one, other = by(run, assets, "float32", "one"), by(run, assets, "bfloat16", "other")
    assert one != other and taught_otherwise(one, other, run.audit.logprob_tolerance) == ""
    changed = Path(shutil.copytree(assets, tmp_path / "changed"))
    shutil.copy(assets / "model" / "config.json", changed / TEACHER)
    shutil.copy(assets / "model" / "model.safetensors", changed / TEACHER)
    assert taught_otherwise(one, by(run, changed, "float32", "changed"), run.audit.logprob_tolerance)


def test_a_process_takes_the_request_and_says_why_it_cannot(
    run: RunSpec, tiny_run: RunSpec, assets: Path, tmp_path: Path
) -> None:
    def answered(run: RunSpec, order: Teach) -> object:
        server = EngineServer(lambda _: torch_engine, EngineSession)
        owner = EngineScheduler()
        threading.Thread(target=owner.serve, daemon=True).start()
        prepared = server.answer(
            Prepare(id=1, run=encode_run(run), assets_dir=str(assets)), RequestContext(1, "task"), owner
        )
        assert isinstance(prepared, EngineReady), prepared
        return server.answer(order, RequestContext(2, "task"), owner)

    order = teaching(tmp_path)
    assert isinstance(answered(run, order), Taught) and said(order)
    other = msgspec.structs.replace(order, file_root=bytes(32))
    refused = answered(run, other)
    assert isinstance(refused, RequestFailed) and "not those that are named" in refused.why
    refused = answered(tiny_run, order)
    assert isinstance(refused, RequestFailed) and "no teacher" in refused.why


def test_what_an_asked_teacher_needs_is_not_taken_by_the_engine_beside_it(run: RunSpec) -> None:
    def leave(run: RunSpec) -> int:
        return settings_for(EngineOptions(device="cpu", dtype="float32"), run).leave

    held = msgspec.structs.replace(run, distill=Distill(teacher=TEACHER))
    assert leave(held) == 0 < run.weight_bytes(TEACHER) < leave(run)
