"""The forward pass: transformers' numbers, however the tokens are cut up."""

import json
import shutil
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch

from node.inference import matrices
from node.inference.errors import EngineError, ModelError
from node.inference.torch_engine import build_model
from node.training.errors import TrainingError
from node.training.sizing import shape_of
from tests.node.inference.models import CONFIGURATIONS, VOCABULARY, engine_model, kernel_of, transformers_model

CLOSE = {"qwen3_5_text": 1e-5, "qwen3_5_moe_text": 1e-5, "qwen3_next": 1e-5}
"""Where transformers sums in another order; all others are within 1e-6."""
TOKENS = torch.randint(0, VOCABULARY, (3, 40), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.mark.parametrize(
    ("name", "attention", "dtype"),
    [
        *((name, "sdpa", torch.float32) for name in CONFIGURATIONS),
        ("llama", "sdpa", torch.bfloat16),
        ("qwen3", "eager", torch.float32),
        ("qwen3", "eager", torch.bfloat16),
        *(
            (name, "eager", torch.bfloat16)
            for name in ("olmo3", "granite", "gemma2", "gemma3_text", "phi3, in part", "gpt_oss", "qwen3_5_text")
        ),
    ],
)
@torch.inference_mode()
def test_a_pass_gives_what_transformers_gives(name: str, attention: str, dtype: torch.dtype) -> None:
    theirs = transformers_model(CONFIGURATIONS[name], dtype, attention if kernel_of(name) == "sdpa" else "eager")
    model = engine_model(theirs, dtype, attention)
    expected = theirs.base_model(input_ids=torch.tensor(TOKENS)).last_hidden_state
    whole, atol = model.sequences(TOKENS), CLOSE.get(name, 1e-6) if dtype == torch.float32 else 1e-2
    assert torch.allclose(whole, expected, atol=atol)

    cache = model.cache()
    cache.resize(4, 44, 0, 0)
    chunks = [model.chunk(cache, 0, start, [row[start : start + 16] for row in TOKENS]) for start in (0, 16)]
    steps = [model.step(cache, [row[at] for row in TOKENS], [at] * 3)[:, None] for at in range(32, 40)]
    assert torch.allclose(torch.cat([*chunks, *steps], 1), whole, atol=atol)


@pytest.mark.parametrize("name", CONFIGURATIONS)
@torch.no_grad()
def test_packed_matrices_give_the_same_and_take_other_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrices, "_WORTH_A_CALL", 1)
    theirs = transformers_model(CONFIGURATIONS[name], torch.float32, kernel_of(name))
    model = engine_model(theirs)
    first = model.sequences(TOKENS)
    assert torch.allclose(first, theirs.base_model(input_ids=torch.tensor(TOKENS)).last_hidden_state, atol=1e-5)
    for parameter in theirs.parameters():
        parameter.mul_(0.9)
    model.load(dict(theirs.named_parameters()))
    second = model.sequences(TOKENS)
    assert torch.allclose(second, theirs.base_model(input_ids=torch.tensor(TOKENS)).last_hidden_state, atol=1e-5)
    assert not torch.allclose(second, first, atol=1e-3)


@pytest.mark.parametrize("name", CONFIGURATIONS)
@torch.inference_mode()
def test_the_head_gives_the_probabilities_of_transformers(name: str) -> None:
    theirs = transformers_model(CONFIGURATIONS[name], torch.float32, kernel_of(name))
    model = engine_model(theirs)
    fed, drawn = torch.tensor(TOKENS[:1]), torch.tensor(TOKENS[1])
    expected = (theirs(input_ids=fed).logits[0] / 0.7).log_softmax(-1).gather(1, drawn[:, None])[:, 0]
    _, _, found, _ = model.intervals(model.sequences(TOKENS[:1])[0], drawn.numpy(), 0.7)
    assert torch.allclose(torch.from_numpy(found), expected, atol=2e-5)


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text", "smollm3", "gpt_oss", "qwen3_5_text"])
@torch.inference_mode()
def test_rows_of_different_lengths_step_together(name: str) -> None:
    model = engine_model(transformers_model(CONFIGURATIONS[name], torch.float32, kernel_of(name)))
    cache = model.cache()
    cache.resize(3, 40, 0, 0)
    ends = [9, 39, 20]
    model.chunk(cache, 0, 0, [row[:end] for row, end in zip(TOKENS, ends, strict=True)])
    stepped = model.step(cache, [row[end] for row, end in zip(TOKENS, ends, strict=True)], ends)
    whole = model.sequences(TOKENS)
    expected = torch.stack([states[end] for states, end in zip(whole, ends, strict=True)])
    assert torch.allclose(stepped, expected, atol=CLOSE.get(name, 1e-6))


def test_a_way_to_attend_that_knows_no_windows_is_refused_them() -> None:
    for name, refused in (("gemma3_text", True), ("gpt_oss", True), ("qwen3_5_text", True), ("qwen3", False)):
        model = engine_model(transformers_model(CONFIGURATIONS[name], torch.float32, kernel_of(name)))
        fed, places = torch.tensor(TOKENS[:1]), torch.arange(40)
        with pytest.raises(EngineError, match="cannot be computed this way") if refused else nullcontext():
            model._transformer(fed, places, 40, lambda layer, q, k, v: q)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"model_type": "gpt2"},
            "'gpt2' is not supported; supported are llama, qwen2, qwen3, qwen3_moe, gpt_oss, mistral",
        ),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "'dynamic'"),
        ({"layer_types": ["chunked_attention"] * 2}, "'chunked_attention' are not supported; supported are full_att"),
        ({"rope_parameters": {"full_attention": {}, "sliding_attention": 3}}, "described by no table"),
        ({"clip_qkv": 8.0}, "queries, keys and values that are clipped"),
    ],
)
def test_what_the_pass_does_not_know_is_named(tiny_assets: Path, tmp_path: Path, change: dict, said: str) -> None:
    model = Path(shutil.copytree(tiny_assets / "model", tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelError, match=said):
        build_model(model, "meta")


def test_heads_of_no_width_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGURATIONS["granite"].to_dict() | {"hidden_size": 3}))
    with pytest.raises(ModelError, match="4 heads of a width of 3"):
        build_model(tmp_path, "meta")


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 1 << 40},
        {"num_hidden_layers": 0},
        {"num_hidden_layers": 2.0},
        {"model_type": []},
        {"model_type": "qwen3_moe", "num_experts": 1 << 40},
        {"model_type": "qwen3_moe", "num_experts": 4, "decoder_sparse_step": 0},
        {"num_attention_heads": 0, "head_dim": None},
    ],
    ids=str,
)
def test_counts_that_nobody_could_build_are_refused_before_anybody_counts(tmp_path: Path, change: dict) -> None:
    """A list of a kind for each of 2^40 layers is made by transformers' own reader, and by ours that sizes models."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIGURATIONS["qwen3"].to_dict() | change))
    for read in (partial(build_model, device="meta"), shape_of):
        with pytest.raises((ModelError, TrainingError), match=r"must be a whole number|is not supported"):
            read(tmp_path)
