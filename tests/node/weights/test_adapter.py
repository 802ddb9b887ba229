"""A policy that is an adapter leaves the program as PEFT has adapters, and as a whole model."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cli.demo.report import copy_model
from node.inference.errors import ModelError
from node.inference.lora import expected_tensors, read_peft
from node.weights.export import export_model, holds_adapter, verify_directory, write_adapter
from node.weights.records import PolicyRecord
from protocol.lora import adapted_weight
from protocol.policy import bf16_bits, bf16_values, decode_image, encode_image, root_at
from tests.node.weights.test_weights import manifest_for

NAMES = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj")
SHAPES = {NAMES[0]: (6, 4), NAMES[1]: (4, 8)}


def bits(seed: int, *shape: int) -> np.ndarray:
    return bf16_bits(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


BASE = {f"{name}.weight": bits(1, *shape) for name, shape in SHAPES.items()} | {"model.norm.weight": bits(2, 4)}
ADAPTER = {f"{name}.lora_a": bits(3, 2, shape[1]) for name, shape in SHAPES.items()} | {
    f"{name}.lora_b": bits(4, shape[0], 2) for name, shape in SHAPES.items()
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text('{"_name_or_path": "org/start", "dtype": "float32"}')
    (directory / "model.safetensors").write_bytes(encode_image(BASE))
    return directory


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(encode_image(ADAPTER))
    return path


def whole() -> dict[str, np.ndarray]:
    """What PEFT's merge gives, in float64."""
    found = {name: bf16_values(tensor).astype(np.float64) for name, tensor in BASE.items()}
    for name in NAMES:
        a, b = (bf16_values(ADAPTER[f"{name}.lora_{part}"]).astype(np.float64) for part in "ab")
        found[f"{name}.weight"] += b @ a
    return found


def check_peft(directory: Path) -> None:
    config = json.loads((directory / "adapter_config.json").read_bytes())
    assert (config["peft_type"], config["task_type"], config["base_model_name_or_path"]) == (
        "LORA",
        "CAUSAL_LM",
        "org/start",
    )
    assert config["r"] == config["lora_alpha"] == 2 and config["target_modules"] == ["down_proj", "q_proj"]
    stored = decode_image((directory / "adapter_model.safetensors").read_bytes())
    assert set(stored) == {f"base_model.model.{name}.lora_{part}.weight" for name in NAMES for part in "AB"}
    for name in NAMES:
        a, b = (stored[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
        assert np.array_equal(a, ADAPTER[f"{name}.lora_a"]) and np.array_equal(b, ADAPTER[f"{name}.lora_b"])


def check_merged(file: Path) -> None:
    found = decode_image(file.read_bytes())
    assert set(found) == set(BASE)
    for name, expected in whole().items():
        assert np.array_equal(found[name], bf16_bits(expected.astype(np.float32))), name
    assert not np.array_equal(found[f"{NAMES[0]}.weight"], BASE[f"{NAMES[0]}.weight"])


def test_an_exported_adapter_is_merged_and_peft_s_and_still_what_was_signed(
    image: Path, model: Path, tmp_path: Path
) -> None:
    record = PolicyRecord(b"announcement", b"m" * 32, manifest_for(ADAPTER, 4))
    exported = export_model(image, record, {"config.json": model / "config.json"}, tmp_path / "out")
    assert set(exported.files) == {
        "policy/model.safetensors",
        "adapter/adapter_model.safetensors",
        "model.safetensors",
    }
    check_merged(tmp_path / "out" / "model.safetensors")
    check_peft(tmp_path / "out" / "adapter")
    assert json.loads((tmp_path / "out" / "config.json").read_bytes())["dtype"] == "bfloat16"
    weights, found = verify_directory(tmp_path / "out" / "policy")
    assert found == record and root_at(4, weights) == exported.root


def test_without_the_start_model_an_adapter_is_exported_alone(image: Path, model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").unlink()
    record = PolicyRecord(b"announcement", b"m" * 32, manifest_for(ADAPTER, 4))
    export_model(image, record, {"config.json": model / "config.json"}, tmp_path / "out")
    check_peft(tmp_path / "out" / "adapter")
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_a_run_at_a_desk_leaves_both(image: Path, model: Path, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    (spool / "out").mkdir(parents=True)
    (spool / "assets").mkdir()
    model.rename(spool / "assets" / "model")
    image.rename(spool / "out" / "policy-000003.safetensors")
    (spool / "out" / "step-000003.json").write_text("{}")
    assert copy_model(spool, tmp_path / "trained")
    check_merged(tmp_path / "trained" / "model.safetensors")
    check_peft(tmp_path / "trained" / "adapter")


def expects(shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
    return expected_tensors(shapes, {name: torch.empty(tensor.shape) for name, tensor in BASE.items()})


def of_others(directory: Path, config: Mapping[str, object] | None = None) -> Path:
    """As PEFT saves an adapter, with what it says besides."""
    directory.mkdir(exist_ok=True)
    told = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "bias": "none", "use_dora": False, "rank_pattern": {}}
    (directory / "adapter_config.json").write_text(json.dumps({**told, **(config or {})}))
    tensors = {
        f"base_model.model.{name}.lora_{part}.weight": torch.full(shape, 0.5, dtype=torch.float16)
        for name, (rows, columns) in SHAPES.items()
        for part, shape in (("A", (2, columns)), ("B", (rows, 2)))
    }
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory


def test_an_adapter_comes_back_as_it_left_and_others_with_their_scale(image: Path, model: Path, tmp_path: Path) -> None:
    write_adapter(image, tmp_path / "ours", model)
    back = read_peft(tmp_path / "ours", expects)
    assert set(back) == set(ADAPTER)
    for name, tensor in back.items():
        assert np.array_equal(tensor.numpy(), bf16_values(ADAPTER[name])), name
    plain = [({"init_lora_weights": start}, 3.0) for start in (True, False, None, "gaussian", "eva", "orthogonal")]
    for config, scale in (({}, 3.0), ({"use_rslora": True}, 6 / 2**0.5), *plain, ({"loftq_config": {}}, 3.0)):
        found = read_peft(of_others(tmp_path / "theirs", config), expects)
        for name, tensor in found.items():
            assert torch.allclose(tensor, torch.tensor(0.5 * (scale if name.endswith(".lora_b") else 1)), rtol=1e-6)


CHANGES_THE_BASE = ("pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga", "of next year")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
        ({"bias": "all"}, "bias = 'all'"),
        ({"peft_type": "IA3"}, "peft_type"),
        *(({"init_lora_weights": start}, f"init_lora_weights = '{start}'") for start in CHANGES_THE_BASE),
        ({"loftq_config": {"loftq_bits": 4}}, "loftq_config"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"r": 4}, "is of rank 2, not 4"),
        ({"r": 0}, "needs r"),
        ({"r": True}, "needs r"),
        ({"lora_alpha": float("nan")}, "needs r"),
        ({"lora_alpha": "6"}, "needs r"),
    ],
)
def test_an_adapter_that_is_more_or_less_than_one_is_refused(
    tmp_path: Path, config: dict[str, object], said: str
) -> None:
    with pytest.raises(ModelError, match=re.escape(said)):
        read_peft(of_others(tmp_path / "theirs", config), expects)


def test_an_adapter_with_other_tensors_is_refused(tmp_path: Path) -> None:
    path = of_others(tmp_path / "theirs") / "adapter_model.safetensors"
    good = load_file(path)
    a, b = (f"base_model.model.{NAMES[0]}.lora_{part}.weight" for part in "AB")
    for changed, said in (
        ({**good, "base_model.model.lm_head.weight": good[a].clone()}, "is no part of"),
        ({**good, a.replace("layers.0", "layers.9"): good[a].clone()}, "no linear layer"),
        ({name: tensor for name, tensor in good.items() if name != b}, "another shape"),
        ({**good, b: good[b].T.contiguous()}, "another shape"),
        ({}, "nothing"),
    ):
        save_file(changed, path)
        with pytest.raises(ModelError, match=said):
            read_peft(path.parent, expects)
    path.write_bytes(b"\xff" * 64)
    with pytest.raises(ModelError, match="cannot be used"):
        read_peft(path.parent, expects)


def test_a_whole_model_is_no_adapter(model: Path, image: Path) -> None:
    assert holds_adapter(image) and not holds_adapter(model / "model.safetensors")
    assert all(adapted_weight(name) in BASE for name in ADAPTER)
