"""The formula of memory beside torch: parameters and kept activations as they are, and what follows from settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from node.training.batch import BatchRow
from node.training.errors import TrainingError
from node.training.micro_batch import packed
from node.training.policy_model import PolicyModel
from node.training.settings import TrainerSettings
from node.training.sizing import KNOWN, DecoderShape, memory_of_a_rank, shape_of
from protocol.lora import Lora
from tests.node.inference.models import CONFIGURATIONS
from tests.node.training.conftest import made_up_rows

SMALL = DecoderShape(hidden=64, intermediate=96, layers=2, heads=4, key_heads=2, head=16, vocabulary=50)
KINDS = {"llama": {}, "qwen2": {"biases": True}, "qwen3": {"norms": True}}


def build(kind: str, shape: DecoderShape, dtype: torch.dtype = torch.float32) -> Any:
    config = AutoConfig.for_model(
        kind,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.eval()
    return model


def kept(model: Any, rows: Sequence[BatchRow] = ()) -> float:
    """Bytes of everything that autograd keeps of a forward pass, weights left out, per token."""
    batch = packed(sorted(rows or made_up_rows(8), key=lambda row: row.fed), torch.device("cpu"))
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in weights:
            found[place] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        PolicyModel(model, 1.0, 1 << 26)(batch)
    return sum(tensor.untyped_storage().nbytes() for tensor in found.values()) / batch.tokens.numel()


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_and_kept_activations_are_those_that_torch_has(kind: str, tmp_path: Path) -> None:
    shape = msgspec.structs.replace(SMALL, tied=kind == "qwen3", **KINDS[kind])
    deeper = msgspec.structs.replace(shape, layers=shape.layers + 1)
    for dtype, size in ((torch.float32, 4), (torch.bfloat16, 2)):
        shallow, deep = build(kind, shape, dtype), build(kind, deeper, dtype)
        assert sum(parameter.numel() for parameter in shallow.parameters()) == shape.parameters
        assert kept(deep) - kept(shallow) == pytest.approx(shape.kept_per_token(size), rel=0.03)
    shallow.config.to_json_file(tmp_path / "config.json")
    assert shape_of(tmp_path) == shape


def test_a_layer_that_remembers_keeps_about_what_is_counted(tmp_path: Path) -> None:
    """Of samples that fill their chunks: two of 64 tokens."""
    rows = [BatchRow(0, [1] * 8, [2] * 121, [-1.0] * 121, 0.0, 0)] * 3
    for dtype, size in ((torch.float32, 4), (torch.bfloat16, 2)):
        found = []
        for layers in (1, 2):
            kinds = ["full_attention"] + ["linear_attention"] * layers
            said = CONFIGURATIONS["qwen3_5_text"].to_dict() | {"layer_types": kinds, "num_hidden_layers": len(kinds)}
            config = AutoConfig.for_model(**said)
            found.append(kept(AutoModelForCausalLM.from_config(config, dtype=dtype).eval(), rows))
        config.to_json_file(tmp_path / "config.json")
        shape = shape_of(tmp_path)
        assert shape.recalling == 2 and found[1] - found[0] == pytest.approx(shape.kept_per_token(size), rel=0.1)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("smollm2-135m", 0.1345), ("qwen2.5-1.5b", 1.5437), ("qwen2.5-7b", 7.6156), ("qwen2.5-32b", 32.76)],
)
def test_known_models_have_the_parameters_that_their_makers_say(name: str, billions: float) -> None:
    assert KNOWN[name].parameters / 1e9 == pytest.approx(billions, rel=1e-3)


def test_memory_follows_from_ranks_and_settings() -> None:
    large = KNOWN["qwen2.5-32b"]
    one, eight = (memory_of_a_rank(large, TrainerSettings(), ranks=ranks) for ranks in (1, 8))
    assert one.state == 16 * large.parameters + 4 * large.root_parameters and eight.state == one.state // 8
    assert eight.gathered == one.gathered > 4 * large.root_parameters
    recomputed = TrainerSettings(activation_checkpointing=True)
    assert memory_of_a_rank(large, recomputed, ranks=8).activations < eight.activations / 5
    offloaded = memory_of_a_rank(large, TrainerSettings(offload_parameters=True), ranks=8)
    assert offloaded.state == 0 and offloaded.host == eight.state
    adapter = memory_of_a_rank(large, TrainerSettings(), ranks=8, lora=Lora())
    assert adapter.state < eight.state / 6
    plain = memory_of_a_rank(SMALL, TrainerSettings(), ranks=1, gpu=False)
    assert plain.state == 20 * SMALL.parameters and plain.gathered == 0 and plain.evaluator == 4 * SMALL.parameters


def test_a_model_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba", "num_attention_heads": 1, "hidden_size": 8}')
    with pytest.raises(TrainingError, match="size cannot be told") as caught:
        shape_of(tmp_path)
    assert "mamba" in caught.value.why
    with pytest.raises(TrainingError):
        shape_of(tmp_path / "nowhere")
