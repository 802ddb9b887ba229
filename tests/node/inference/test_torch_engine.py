"""The torch engine's model directory, its images and its proofs; what it computes: test_every_engine.py."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from node.inference.errors import ModelError
from node.inference.proofs import compare_all, prove_all
from node.inference.torch_engine import TorchEngine
from protocol import toploc

K = 32


@pytest.fixture(scope="module")
def engine(tiny_assets: Path) -> TorchEngine:
    engine = TorchEngine(tiny_assets / "model")
    engine.load(engine.read(str(tiny_assets / "model" / "model.safetensors")))
    return engine


def test_comparing_all_proofs_at_once_agrees_with_one_by_one(engine: TorchEngine) -> None:
    random = np.random.default_rng(3)
    samples = [random.integers(0x3000, 0x4200, size=(n, 64)).astype(np.uint16) for n in (1, 40, 32, 0, 64)]
    proofs = prove_all(samples, K, 32)
    assert proofs == [toploc.proofs_for(rows, K, 32) for rows in samples]
    disturbed = [(rows + random.integers(0, 200, rows.shape)).astype(np.uint16) for rows in samples]
    parsed = [toploc.split_proofs(p, K, -(-len(rows) // 32)) for p, rows in zip(proofs, samples, strict=True)]
    singly = [
        toploc.compare(proof, part)
        for of_sample, rows in zip(parsed, disturbed, strict=True)
        for proof, part in zip(of_sample, toploc.row_batches(rows), strict=True)
    ]
    assert compare_all(parsed, disturbed, 32) == singly


@pytest.fixture
def model(tiny_assets: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_assets / "model", tmp_path / "model"))


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_a_missing_model_file_is_named(model: Path, missing: str) -> None:
    (model / missing).unlink()
    with pytest.raises(ModelError, match=missing):
        TorchEngine(model)


def test_code_in_a_model_directory_is_not_run(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}}
    (model / "config.json").write_text(json.dumps(config))
    (model / "mine.py").write_text("raise SystemExit('ran')")
    with pytest.raises(ModelError):
        TorchEngine(model)


def test_an_image_is_mapped_and_not_copied(engine: TorchEngine, model: Path) -> None:
    path = model / "model.safetensors"
    weights = engine.read(str(path))
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines if line.endswith(str(path))]
    assert all(any(start <= tensor.data_ptr() < end for start, end in spans) for tensor in weights.values())
