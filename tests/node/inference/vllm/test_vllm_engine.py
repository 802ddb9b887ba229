"""What only the vLLM engine has: weights in packed copies, a cache over requests, a swap between two tokens.

Runs where vLLM is (`make test-vllm`).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from node.inference.engine import FinishedSequence, GenerationRequest, generate
from node.inference.errors import EngineError, ModelError
from node.inference.torch_engine import TorchEngine, build_model
from node.training.warmstart import SORT_ALPHABET, write_config, write_tokenizer, write_weights
from protocol.sampling import distance
from tests.node.inference.engine_kinds import open_engine, outputs, requests, write_image

HIDDEN = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the output head tied to the embedding, as most small models have it."""
    model = tmp_path_factory.mktemp("tied") / "model"
    model.mkdir()
    write_tokenizer(model, SORT_ALPHABET)
    write_config(model, len(SORT_ALPHABET) + 2, HIDDEN, 2)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    torch.manual_seed(3)
    write_weights(model, build_model(model))
    return model


@pytest.fixture(scope="module")
def made(model: Path) -> Any:
    return open_engine("vllm", model)


@pytest.fixture
def engine(made: Any, model: Path) -> Iterator[Any]:
    yield made
    made.load(made.read(str(model / "model.safetensors")))


def reference(model: Path, weights: Any) -> TorchEngine:
    engine = TorchEngine(model)
    engine.load(weights)
    return engine


def shaken(weights: Any, scale: float = 0.1) -> dict[str, torch.Tensor]:
    return {name: tensor + scale * torch.randn(tensor.shape).to(tensor.dtype) for name, tensor in weights.items()}


def test_a_head_tied_to_the_embedding_changes_with_it(engine: Any, model: Path) -> None:
    weights = shaken(engine.read(str(model / "model.safetensors")))
    engine.load(weights)
    asked = requests([3, 5, 8])
    assert outputs(engine, asked) == outputs(reference(model, weights), asked)


def test_what_the_cache_holds_of_a_prompt_is_not_used_with_other_weights(engine: Any, model: Path) -> None:
    asked = requests([300, 300])
    first = outputs(engine, asked)
    assert outputs(engine, asked) == first
    weights = shaken(engine.read(str(model / "model.safetensors")))
    engine.load(weights)
    assert outputs(engine, asked) == outputs(reference(model, weights), asked) != first


def test_a_finished_sequence_is_computed_anew_whatever_the_cache_holds_of_it(engine: Any) -> None:
    """Of 125 tokens and their outputs a whole block of 128 stays in the cache, with places that are to be looked at."""
    asked = requests([125] * 6)
    made = generate(engine, asked, 0.9)
    assert max(len(one.output) for one in made) > 4
    looked = engine.prefill([FinishedSequence(a.prompt, m.output) for a, m in zip(asked, made, strict=True)], 0.9)
    for request, completion, prefill in zip(asked, made, looked, strict=True):
        assert distance(request.uniforms[: len(completion.output)], prefill.lo, prefill.hi).max() < 1e-6


def test_a_layer_that_keeps_its_old_weights_is_found(engine: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = engine._core._vllm.model_executor.driver_worker.worker.model_runner
    reload = runner.reload_weights
    stale = dict(engine.read(str(model / "model.safetensors")))
    name = "model.layers.1.mlp.down_proj.weight"

    def forgetful(weights_iterator: Any) -> None:
        reload(weights_iterator=((own, stale[own] if own == name else new) for own, new in weights_iterator))

    monkeypatch.setattr(runner, "reload_weights", forgetful)
    with pytest.raises(EngineError, match=r"model\.layers\.1\.mlp\.down_proj"):
        engine.load(shaken(stale))
    with pytest.raises(EngineError, match="no weights"):
        generate(engine, requests([3]), 0.9)


def test_a_file_that_changed_after_it_was_read_is_not_loaded(engine: Any, model: Path, tmp_path: Path) -> None:
    image = write_image(tmp_path / "image", shaken(engine.read(str(model / "model.safetensors"))))
    weights = engine.read(str(image.path))
    data = bytearray(image.path.read_bytes())
    data[-1] ^= 1
    image.path.write_bytes(data)
    with pytest.raises(ModelError, match="was checked"):
        engine.load(weights)


def test_an_adapter_computes_as_the_weights_that_it_is_added_to(engine: Any, model: Path) -> None:
    layer = "model.layers.0.self_attn.q_proj"
    rows, columns = engine.read(str(model / "model.safetensors"))[f"{layer}.weight"].shape
    adapter = {
        f"{layer}.lora_a": torch.randn(2, columns).to(torch.bfloat16),
        f"{layer}.lora_b": torch.randn(rows, 2).to(torch.bfloat16),
    }
    asked = requests([3, 5, 8])
    before = outputs(engine, asked)
    engine.load(adapter)
    assert outputs(engine, asked) == outputs(reference(model, adapter), asked) != before


def test_a_request_over_what_fits_is_refused_in_words(engine: Any) -> None:
    [request] = requests([500], 100)
    with pytest.raises(EngineError, match="500 tokens and 100 more"):
        engine.decoder(1.0).submit(request)
    with pytest.raises(EngineError, match="unknown tokens"):
        engine.decoder(1.0).submit(GenerationRequest([10**6], request.uniforms))
