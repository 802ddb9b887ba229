"""Sharded models begin without memory, and are filled from the start model's files tensor by tensor."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from node.inference.errors import ModelError
from node.inference.model_files import as_bf16
from node.inference.start_weights import StartWeights
from node.inference.torch_engine import build_model
from node.inference.weight_files import weight_files
from node.recipe.capacity import cache_per_token
from node.training.learner import Learner
from node.training.settings import TrainerSettings
from node.training.sharding import without_memory
from node.training.sizing import shape_of
from node.training.world import World, join_world, leave_world
from protocol.recipe import Recipe
from tests.node.inference.models import CONFIGURATIONS, transformers_model
from tests.node.training.conftest import LIMIT, made_up_rows


@pytest.fixture
def directory(tiny_assets: Path, tmp_path: Path) -> Path:
    """The tiny model, in two files and their index."""
    shutil.copytree(tiny_assets / "model", tmp_path / "model")
    whole = tmp_path / "model" / "model.safetensors"
    tensors = load_file(whole)
    names = sorted(tensors)
    homes: dict[str, str] = {}
    for number, part in enumerate((names[:3], names[3:])):
        homes |= dict.fromkeys(part, f"part-{number}.safetensors")
        save_file({name: tensors[name] for name in part}, tmp_path / "model" / f"part-{number}.safetensors")
    whole.unlink()
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": homes}))
    return tmp_path / "model"


def test_a_sharded_model_is_built_without_memory_and_with_its_buffers(tiny_assets: Path) -> None:
    sharded = SimpleNamespace(mesh=object())
    with without_memory(sharded):  # type: ignore[arg-type]
        model = build_model(tiny_assets / "model")
    assert all(parameter.is_meta and parameter.requires_grad for parameter in model.parameters())
    plain = build_model(tiny_assets / "model")
    for (name, mine), (_, theirs) in zip(model.named_buffers(), plain.named_buffers(), strict=True):
        assert torch.equal(mine, theirs), name
    with without_memory(World()):
        assert not any(parameter.is_meta for parameter in build_model(tiny_assets / "model").parameters())


@pytest.mark.parametrize("tied", [False, True])
def test_it_learns_what_a_model_with_memory_from_the_start_learns(
    tiny_assets: Path, tmp_path: Path, tied: bool
) -> None:
    directory = tmp_path / "model"
    shutil.copytree(tiny_assets / "model", directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": tied}))
    if tied:  # a head of its own would be kept
        tensors = load_file(directory / "model.safetensors")
        del tensors["lm_head.weight"]
        save_file(tensors, directory / "model.safetensors")
    settings = TrainerSettings(device="cpu", dtype="bfloat16")  # one process, sharded over itself
    world = join_world(settings)
    try:
        found = []
        for start in (World(), world):
            with without_memory(start):
                model = build_model(directory)
            learner = Learner(model, Recipe(), 1.0, settings, world, LIMIT)
            learner.load_weights(StartWeights(directory))
            metrics = learner.step(made_up_rows(), 0)
            assert metrics["grad_norm"] > 0
            same = model.get_output_embeddings().weight is model.get_input_embeddings().weight
            found.append((metrics["loss"], metrics["grad_norm"], same, learner.image()))
    finally:
        leave_world(world)
    assert found[0][:3] == found[1][:3] and found[0][2] is tied
    assert all(torch.equal(tensor, found[1][3][name]) for name, tensor in found[0][3].items())


def test_every_tensor_is_read_from_the_file_that_has_it(directory: Path, tiny_assets: Path) -> None:
    expected = load_file(tiny_assets / "model" / "model.safetensors")
    found = StartWeights(directory)
    assert set(found) == set(expected) and len(found) == len(expected)
    found.check(dict(build_model(directory).named_parameters()))
    assert all(found[name].dtype == torch.bfloat16 for name in found)
    assert all(torch.equal(found[name], tensor.to(torch.bfloat16)) for name, tensor in expected.items())


@pytest.mark.parametrize("fault", ["missing", "shape", "broken"])
def test_files_that_do_not_fit_the_model_are_an_error(directory: Path, fault: str) -> None:
    parameters = dict(build_model(directory).named_parameters())
    part = directory / "part-0.safetensors"
    tensors = load_file(part)
    name = sorted(tensors)[0]
    if fault == "missing":
        save_file({key: tensor for key, tensor in tensors.items() if key != name}, part)
    elif fault == "shape":
        save_file({**tensors, name: tensors[name][:-1].contiguous()}, part)
    else:
        part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(ModelError, match="model cannot be loaded") as caught:
        StartWeights(directory).check(parameters)
    assert ("part-0" if fault == "broken" else name) in caught.value.why


def test_experts_are_read_from_files_of_one_matrix_each_and_from_stacks(tmp_path: Path) -> None:
    model = transformers_model(CONFIGURATIONS["qwen3_moe, in part"], torch.bfloat16, "sdpa")
    model.save_pretrained(tmp_path / "published")
    image_directory = Path(shutil.copytree(tmp_path / "published", tmp_path / "ours"))
    parameters = dict(model.named_parameters())
    save_file(
        {name: tensor.detach().clone() for name, tensor in parameters.items()}, image_directory / "model.safetensors"
    )
    with safe_open(tmp_path / "published" / "model.safetensors", framework="pt") as file:
        assert "model.layers.1.mlp.experts.3.up_proj.weight" in file.keys()
    for place in (tmp_path / "published", image_directory):
        weights = StartWeights(place)
        weights.check(parameters)
        assert set(weights) == set(parameters) and len(weights) == len(parameters)
        assert all(torch.equal(weights[name], parameter) for name, parameter in parameters.items())
        again = AutoModelForCausalLM.from_pretrained(place, dtype=torch.bfloat16)
        assert all(torch.equal(parameter, parameters[name]) for name, parameter in again.named_parameters())


@pytest.mark.parametrize("change", ["one lacks", "another shape"])
def test_experts_that_do_not_fit_together_are_refused(tmp_path: Path, change: str) -> None:
    parts = {
        f"model.layers.0.mlp.experts.{i}.{part}.weight": torch.zeros(*size)
        for i in range(3)
        for part, size in (("gate_proj", (4, 8)), ("up_proj", (4, 8)), ("down_proj", (8, 4)))
    }
    whole = "model.layers.0.mlp.experts.gate_up_proj"
    odd = "model.layers.0.mlp.experts.1.up_proj.weight"
    save_file(parts, tmp_path / "model.safetensors")
    StartWeights(tmp_path).check({whole: torch.zeros(3, 8, 8)})
    save_file(
        parts | {odd: torch.zeros(5, 8)} if change != "one lacks" else {n: t for n, t in parts.items() if n != odd},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(ModelError, match="in no file" if change == "one lacks" else "unlike shapes"):
        StartWeights(tmp_path).check({whole: torch.zeros(3, 8, 8)})


def in_four_bits(shape: tuple[int, int, int], random: torch.Generator) -> dict[str, torch.Tensor]:
    """Any blocks and scales of a tensor [experts, in, out]."""
    blocks = torch.randint(0, 256, (shape[0], shape[2], shape[1] // 32, 16), generator=random, dtype=torch.uint8)
    scales = torch.randint(0, 250, blocks.shape[:3], generator=random, dtype=torch.uint8)
    return {"_blocks": blocks, "_scales": scales}


def test_experts_of_four_bits_are_read_as_the_bf16_that_they_stand_for(tmp_path: Path) -> None:
    config = GptOssConfig.from_dict(CONFIGURATIONS["gpt_oss"].to_dict() | {"intermediate_size": 64})
    model = transformers_model(config, torch.bfloat16, "eager")
    parameters, random = dict(model.named_parameters()), torch.Generator().manual_seed(1)
    files: dict[str, torch.Tensor] = {}
    for name, tensor in parameters.items():
        packed = name.endswith(("gate_up_proj", "down_proj"))
        parts = in_four_bits(tuple(tensor.shape), random) if packed else {"": tensor.detach().clone()}
        files |= {name + part: value for part, value in parts.items()}
    save_file(files, tmp_path / "model.safetensors")
    said = {**config.to_dict(), "quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "config.json").write_text(json.dumps(said))
    weights = StartWeights(tmp_path)
    weights.check(dict(build_model(tmp_path, "meta").named_parameters()))
    assert set(weights) == set(parameters) and len(weights) == len(parameters)
    stack = "model.layers.1.mlp.experts.down_proj"
    expected = convert_moe_packed_tensors(files[stack + "_blocks"], files[stack + "_scales"])
    assert torch.equal(weights[stack], expected) and weights[stack].is_contiguous()
    assert weight_files(tmp_path).numbers == sum(tensor.numel() for tensor in parameters.values())
    assert "quantization_config" not in json.loads(as_bf16((tmp_path / "config.json").read_bytes()))
    (tmp_path / "config.json").write_text(json.dumps({**said, "quantization_config": {"quant_method": "awq"}}))
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        build_model(tmp_path, "meta")
    assert "other than MXFP4" in caught.value.why
    save_file(files | {stack + "_scales": files[stack + "_scales"][:, :1].contiguous()}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError) as caught:
        StartWeights(tmp_path).check(parameters)
    assert "blocks of" in caught.value.why and stack in caught.value.why
    save_file(files | {stack + "_blocks": files[stack + "_blocks"].half()}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="U8"):
        StartWeights(tmp_path).check(parameters)


def test_a_language_model_that_was_published_with_eyes_is_read_without_them(tmp_path: Path) -> None:
    theirs = transformers_model(CONFIGURATIONS["qwen3_5_text"], torch.bfloat16, "sdpa")
    text = theirs.config.to_dict() | {"tie_word_embeddings": False}
    config = {"model_type": "qwen3_5", "text_config": text, "vision_config": {"depth": 1}, "tie_word_embeddings": False}
    config |= {"architectures": ["Qwen3_5ForConditionalGeneration"], "eos_token_id": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    own = {name: tensor.detach().clone() for name, tensor in theirs.named_parameters()}
    published = {name.replace("model.", "model.language_model."): tensor for name, tensor in own.items()}
    unread = {"model.visual.blocks.0.norm1.weight": torch.ones(4), "mtp.fc.weight": torch.ones(2, 2)}
    save_file(published | unread, tmp_path / "model.safetensors")

    shell, weights = build_model(tmp_path, "meta"), StartWeights(tmp_path)
    parameters = dict(shell.named_parameters())
    assert shell.config.model_type == "qwen3_5_text" and parameters.keys() == own.keys()
    weights.check(parameters)
    assert all(torch.equal(weights[name], tensor) for name, tensor in own.items())
    assert weights.left_out(parameters) == sorted(unread)
    assert shape_of(tmp_path).parameters == sum(tensor.numel() for tensor in own.values())
    assert cache_per_token(tmp_path / "config.json") == 2 * 2 * 32 * 4, "of the one layer that attends"

    # What is exported says what it is, and other programs read it so.
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_bytes(as_bf16((tmp_path / "config.json").read_bytes(), own))
    save_file({name: weights[name] for name in own}, tmp_path / "out" / "model.safetensors", {"format": "pt"})
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert exported.dtype == torch.bfloat16
    assert all(torch.equal(tensor, own[name]) for name, tensor in exported.named_parameters())

    save_file(published | {"model.norm.weight": torch.ones(64)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="one tensor's names"):
        StartWeights(tmp_path)


def test_what_mixtral_and_gemma_publish_is_read_by_the_names_of_the_model(tmp_path: Path) -> None:
    for kind in ("mixtral", "gemma3"):
        theirs = transformers_model(
            CONFIGURATIONS["mixtral" if kind == "mixtral" else "gemma3_text"], torch.bfloat16, "sdpa"
        )
        own = {name: tensor.detach().clone() for name, tensor in theirs.named_parameters()}
        published, said = {}, theirs.config.to_dict()
        for name, tensor in own.items():
            place = name.replace(".mlp.", ".block_sparse_moe.")
            if kind == "gemma3":
                published[f"language_model.{name}"] = tensor
            elif name.endswith("gate_up_proj"):
                for number, one in enumerate(tensor):
                    for part, half in zip(("w1", "w3"), one.chunk(2), strict=True):
                        published[place.replace("gate_up_proj", f"{number}.{part}.weight")] = half.clone()
            elif name.endswith("experts.down_proj"):
                for number, one in enumerate(tensor):
                    published[place.replace("down_proj", f"{number}.w2.weight")] = one.clone()
            else:
                published[place] = tensor
        if kind == "gemma3":
            said = {"model_type": "gemma3", "text_config": said, "vision_config": {"num_hidden_layers": 1}}
            published["vision_tower.post.weight"] = torch.ones(2)
        (tmp_path / "config.json").write_text(json.dumps(said))
        save_file(published, tmp_path / "model.safetensors")
        parameters, weights = dict(build_model(tmp_path, "meta").named_parameters()), StartWeights(tmp_path)
        weights.check(parameters)
        assert parameters.keys() == own.keys() and all(torch.equal(weights[name], one) for name, one in own.items())
        assert weights.left_out(parameters) == (["vision_tower.post.weight"] if kind == "gemma3" else [])
        assert shape_of(tmp_path).parameters == pytest.approx(sum(one.numel() for one in own.values()), rel=0.02)
