"""The engine: decoding and prefill must tell the same story."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from node.inference.engine import Finished, Request, generate
from node.inference.errors import EngineError, ModelError
from node.inference.proofs import compare_all, prove_all
from node.inference.torch_engine import TorchEngine
from protocol import toploc
from protocol.policy import decode_image, encode_image
from protocol.sampling import distance, uniforms

K = 32


@pytest.fixture(scope="module")
def engine(tiny_assets: Path) -> TorchEngine:
    engine = TorchEngine(tiny_assets / "model")
    engine.load(engine.read(str(tiny_assets / "model" / "model.safetensors")))
    return engine


def requests(lengths: list[int], limit: int) -> list[Request]:
    random = np.random.default_rng(1)
    return [
        Request(random.integers(2, 12, size=n).tolist(), uniforms(bytes([i]) * 32, limit))
        for i, n in enumerate(lengths)
    ]


@pytest.mark.parametrize("lengths", [[5] * 12, [1, 2, 3, 5, 8, 8, 13, 3]])
def test_prefill_gives_the_rows_and_intervals_that_decoding_had(engine: TorchEngine, lengths: list[int]) -> None:
    asked = requests(lengths, 70)
    completions = generate(engine, asked, 0.9)
    checked = engine.prefill([Finished(r.prompt, c.output) for r, c in zip(asked, completions, strict=True)], 0.9)
    assert len({len(c.output) for c in completions}) > 3, "the test wants outputs of different lengths"
    for request, completion, prefill in zip(asked, completions, checked, strict=True):
        n = len(completion.output)
        assert completion.heads.shape == prefill.heads.shape == (n, 64) and len(completion.rows) == n - 1
        assert distance(request.uniforms[:n], prefill.lo, prefill.hi).max() < 1e-6
        assert np.allclose(np.log(prefill.hi - prefill.lo), prefill.logprobs, atol=1e-4)
    proofs = prove_all([c.rows for c in completions], K, 32)
    parsed = [
        toploc.split_proofs(p, K, toploc.proof_count(len(c.output))) for p, c in zip(proofs, completions, strict=True)
    ]
    errors = compare_all(parsed, [p.rows for p in checked], 32)
    assert max(e.exponent_mismatches for e in errors) <= 1
    assert max(e.mantissa_mean for e in errors) < 0.1


def test_an_output_ends_at_its_first_end_token_or_at_the_limit(engine: TorchEngine) -> None:
    for completion in generate(engine, requests([4] * 32, 12), 1.0):
        ends = [i for i, token in enumerate(completion.output) if token in engine.eos]
        assert completion.finished == bool(ends)
        assert ends == [len(completion.output) - 1] if ends else len(completion.output) == 12


def test_a_completion_does_not_depend_on_its_neighbours(engine: TorchEngine) -> None:
    asked = requests([2, 9, 4, 4, 6], 30)
    together = generate(engine, asked, 1.0)
    alone = [generate(engine, [request], 1.0)[0] for request in asked]
    assert [c.output for c in together] == [c.output for c in alone]


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


def test_an_image_of_another_shape_or_with_other_names_is_refused(engine: TorchEngine, model: Path) -> None:
    tensors = dict(decode_image((model / "model.safetensors").read_bytes()))
    path = model / "other.safetensors"
    path.write_bytes(encode_image({**tensors, "model.norm.weight": tensors["model.norm.weight"][:-1]}))
    with pytest.raises(ModelError, match="model.norm.weight"):
        engine.read(str(path))
    tensors.pop("model.norm.weight")
    path.write_bytes(encode_image(tensors))
    with pytest.raises(ModelError, match="model.norm.weight"):
        engine.read(str(path))
    path.write_bytes(b"garbage")
    with pytest.raises(ModelError):
        engine.read(str(path))


def test_an_image_is_mapped_and_not_copied(engine: TorchEngine, model: Path) -> None:
    path = model / "model.safetensors"
    weights = engine.read(str(path))
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines if line.endswith(str(path))]
    assert all(any(start <= tensor.data_ptr() < end for start, end in spans) for tensor in weights.values())


def test_weights_stay_while_requests_are_in_flight(engine: TorchEngine, tiny_assets: Path) -> None:
    weights = engine.read(str(tiny_assets / "model" / "model.safetensors"))
    decoder = engine.decoder(1.0)
    number = decoder.submit(requests([4], 9)[0])
    decoder.step()
    with pytest.raises(EngineError, match="in use"):
        engine.load(weights)
    decoder.cancel(number)
    engine.load(weights)
