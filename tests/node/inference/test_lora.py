"""An adapter is added to the start model's weights: the same bits on any machine, and only where it fits."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from node.inference.engine import FinishedSequence
from node.inference.errors import ModelError
from node.inference.lora import merge, merged
from node.inference.start_weights import StartWeights
from node.inference.torch_engine import TorchEngine, bf16_bits
from protocol.lora import tensors_of
from protocol.policy import encode_image

Q = "model.layers.0.self_attn.q_proj.weight"


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)).to(torch.bfloat16)


def adapter(weight: Tensor, name: str = Q, rank: int = 3) -> dict[str, Tensor]:
    a, b = tensors_of(name)
    rows, columns = weight.shape
    return {a: normal(rank, columns, seed=1), b: normal(rows, rank, seed=2)}


def write_image(path: Path, tensors: Mapping[str, Tensor]) -> str:
    path.write_bytes(encode_image({name: bf16_bits(tensor) for name, tensor in tensors.items()}))
    return str(path)


def test_a_merged_weight_does_not_depend_on_the_order_of_the_sum() -> None:
    weight, a, b = normal(50, 40), normal(16, 40, seed=1), normal(50, 16, seed=2)
    shuffled = torch.randperm(16)
    found = merge(weight, a, b)
    assert found.dtype == torch.float32
    assert torch.equal(found, merge(weight, a[shuffled], b[:, shuffled]))
    assert torch.allclose(found, weight.float() + b.float() @ a.float(), atol=1e-5)
    assert torch.allclose(merge(weight, a, b, 0.5), weight.float() + b.float() @ a.float() / 2, atol=1e-5)


def test_a_weight_of_many_rows_is_merged_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, a, b = normal(50, 40), normal(16, 40, seed=1), normal(50, 16, seed=2)
    whole = merge(weight, a, b)
    monkeypatch.setattr("node.inference.lora.CELLS", 7 * 40)
    assert torch.equal(merge(weight, a, b), whole)


def test_the_start_model_is_not_changed_by_a_merge() -> None:
    weight = normal(8, 8).float()
    before = weight.clone()
    tensors = merged({Q: weight, "norm.weight": weight[0]}, adapter(weight))
    assert not torch.equal(tensors[Q], weight) and torch.equal(weight, before)
    assert tensors["norm.weight"] is not None and list(tensors) == [Q, "norm.weight"] and len(tensors) == 2


def test_an_engine_computes_with_an_adapter_and_afterwards_without(tiny_assets: Path, tmp_path: Path) -> None:
    engine = TorchEngine(tiny_assets / "model")
    start = StartWeights(tiny_assets / "model")
    extra = adapter(start[Q])
    seen = [FinishedSequence([3, 4, 5], [6, 7, 1])]

    def logprobs(weights: Mapping[str, Tensor]) -> list[float]:
        engine.load(dict(weights))
        return engine.prefill(seen, 1.0)[0].logprobs.tolist()

    plain = logprobs({name: start[name] for name in start})
    read = engine.read(write_image(tmp_path / "adapter.safetensors", extra))
    assert set(read) == set(extra)
    by_hand = {name: merge(start[name], *extra.values()) if name == Q else start[name] for name in start}
    assert logprobs(read) == logprobs(by_hand) != plain
    still = {name: torch.zeros_like(tensor) if name.endswith("lora_b") else tensor for name, tensor in read.items()}
    assert logprobs(still) == plain


@pytest.mark.parametrize("fault", ["stranger", "half", "shape", "rank", "norm"])
def test_an_adapter_that_does_not_fit_is_refused(tiny_assets: Path, tmp_path: Path, fault: str) -> None:
    engine = TorchEngine(tiny_assets / "model")
    weight = StartWeights(tiny_assets / "model")[Q]
    a, b = tensors_of(Q)
    tensors = {
        "stranger": adapter(weight, "model.layers.99.self_attn.q_proj.weight"),
        "half": {b: adapter(weight)[b]},
        "shape": {**adapter(weight), b: normal(weight.shape[0] + 1, 3)},
        "rank": adapter(weight, rank=2000),
        "norm": adapter(normal(4, 4), "model.norm.weight"),
    }[fault]
    with pytest.raises(ModelError):
        engine.read(write_image(tmp_path / "adapter.safetensors", tensors))
