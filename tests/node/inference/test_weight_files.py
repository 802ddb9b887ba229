"""Model directories as people have them: which weights are the model, and what is refused because loaders disagree."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from node.inference.errors import ModelError
from node.inference.model_files import HEAD, as_bf16
from node.inference.start_weights import StartWeights
from node.inference.torch_engine import build_model, image_names
from node.inference.weight_files import files_of, has_own_head, weight_files

INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"
SIZES = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "model_type": "qwen2"}


def make(directory: Path, **settings: object) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**SIZES, **settings}))
    torch.manual_seed(len(str(settings)))
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory)).save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps({**SIZES, **settings}))
    return directory


def shard(directory: Path, count: int = 2) -> dict[str, str]:
    """Cuts model.safetensors into shards with an index; tensor -> file."""
    tensors = load_file(directory / WHOLE)
    (directory / WHOLE).unlink()
    homes = {n: f"model-{i % count + 1:05d}-of-{count:05d}.safetensors" for i, n in enumerate(sorted(tensors))}
    for home in set(homes.values()):
        save_file({n: tensors[n] for n in homes if homes[n] == home}, directory / home)
    write_index(directory, homes)
    return homes


def write_index(directory: Path, homes: object) -> None:
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": homes}))


def differing(directory: Path) -> list[str]:
    """Names of the tensors that we would begin with and transformers would not."""
    ours, names = StartWeights(directory), image_names(build_model(directory, "meta"))
    ours.check(names)
    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).state_dict()
    return [name for name in names if not torch.equal(ours[name], theirs[name])]


@pytest.mark.parametrize("sharded", [False, True])
def test_what_lies_beside_the_model_is_left_out_and_named(tmp_path: Path, sharded: bool) -> None:
    directory = make(tmp_path)
    tensors = load_file(directory / WHOLE)
    if sharded:
        shard(directory)
    assert differing(directory) == [] and weight_files(directory).left_out == ()
    others = ("model-00001-of-00003.safetensors", "model.old.safetensors", "a_backup.safetensors", "zz.safetensors")
    for other in (*others, "adapter_model.safetensors", "consolidated.safetensors"):
        save_file({name: torch.randn_like(tensor) for name, tensor in tensors.items()}, directory / other)
    assert differing(directory) == []
    assert {*others} < {*weight_files(directory).left_out}
    assert not {path.name for path in files_of(directory)} & {*others}


@pytest.mark.parametrize("value", ["own", "copied", "absent"])
def test_a_head_is_one_of_its_own_where_its_numbers_are(tmp_path: Path, value: str) -> None:
    directory = make(tmp_path, tie_word_embeddings=False)
    (directory / "config.json").write_text(json.dumps({**SIZES, "tie_word_embeddings": True}))
    tensors = load_file(directory / WHOLE)
    if value == "copied":
        tensors[HEAD] = tensors["model.embed_tokens.weight"].clone()
    if value == "absent":
        del tensors[HEAD]
    save_file(tensors, directory / WHOLE, metadata={"format": "pt"})
    assert has_own_head(directory) is (value == "own")
    assert (HEAD in image_names(build_model(directory, "meta"))) is (value == "own")
    assert differing(directory) == []


def test_a_configuration_that_goes_with_a_head_of_its_own_says_so() -> None:
    tied = json.dumps({"tie_word_embeddings": True, "dtype": "bfloat16"}).encode()
    assert as_bf16(tied) == tied and as_bf16(tied, ["model.norm.weight"]) == tied
    assert json.loads(as_bf16(tied, [HEAD]))["tie_word_embeddings"] is False


def _index_of(change: Callable[[dict[str, str]], object]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        write_index(directory, change(shard(directory)))

    return apply


def _named_twice(directory: Path) -> None:
    homes = shard(directory)
    text = json.dumps({"weight_map": homes})
    name = sorted(homes)[0]
    again = f'{{"weight_map": {{"{name}": "model-00002-of-00002.safetensors", '
    (directory / INDEX).write_text(text.replace('{"weight_map": {', again, 1))


def _two_saves(directory: Path) -> None:
    homes = shard(directory)
    (directory / "model-00002-of-00002.safetensors").rename(directory / "model-00002-of-00003.safetensors")
    write_index(directory, {n: home.replace("2-of-00002", "2-of-00003") for n, home in homes.items()})


def _of_another_model(directory: Path) -> None:
    """The second shard is one of a model that was cut otherwise."""
    tensors = load_file(directory / WHOLE)
    homes = shard(directory)
    taken = {name: tensor for name, tensor in tensors.items() if name != sorted(homes)[1]}
    save_file(taken, directory / "model-00002-of-00002.safetensors")


def _both(directory: Path) -> None:
    tensors = load_file(directory / WHOLE)
    shard(directory)
    save_file(tensors, directory / WHOLE)


def _only_shards(directory: Path) -> None:
    shard(directory)
    (directory / INDEX).unlink()


def _elsewhere(directory: Path) -> None:
    (directory / "config.json").write_text(json.dumps({**SIZES, "transformers_weights": "other.safetensors"}))


def _pointer(directory: Path) -> None:
    (directory / WHOLE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n")


def _lost(directory: Path) -> None:
    homes = shard(directory)
    (directory / sorted(homes.values())[0]).unlink()


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "an index that names a tensor twice": (_named_twice, "named twice"),
    "an index that names no file": (_index_of(lambda homes: {}), "names no file"),
    "an index without a map": (_index_of(lambda homes: [1]), "weight_map"),
    "an index that leads elsewhere": (_index_of(lambda homes: {**homes, "x": "../x.safetensors"}), "no .safetensors"),
    "an index whose file is a number": (_index_of(lambda homes: {**homes, "x": 7}), "no .safetensors"),
    "an index with a tensor that is nowhere": (
        _index_of(lambda homes: {**homes, "x": "model-00001-of-00002.safetensors"}),
        "lacks it",
    ),
    "an index that gives a tensor to the wrong file": (
        _index_of(lambda homes: dict.fromkeys(homes, "model-00001-of-00002.safetensors")),
        "lacks it",
    ),
    "shards of two saves": (_two_saves, "two models"),
    "a shard of another model": (_of_another_model, "two models"),
    "an index and a whole model": (_both, "lies beside them"),
    "shards without an index": (_only_shards, "neither"),
    "a configuration that names another file": (_elsewhere, "other programs load other files"),
    "a pointer": (_pointer, "git lfs pull"),
    "a lost shard": (_lost, "1 of them missing"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_not_one_model_is_refused_with_what_to_do(tmp_path: Path, kind: str) -> None:
    change, words = BAD[kind]
    directory = make(tmp_path)
    assert weight_files(directory).files == (directory / WHOLE,)  # a control: it is the change that is refused
    change(directory)
    with pytest.raises(ModelError) as caught:
        StartWeights(directory).check(image_names(build_model(directory, "meta")))
    error = caught.value
    assert words in f"{error.why} {error.remedy}" and error.what and error.remedy


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.int32, torch.bool])
def test_numbers_that_mean_nothing_without_others_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    directory = make(tmp_path)
    names, tensors = image_names(build_model(directory, "meta")), load_file(directory / WHOLE)
    name = "model.layers.0.mlp.up_proj.weight"
    for kept in (torch.float16, torch.float32, torch.bfloat16):
        save_file({**tensors, name: tensors[name].to(kept)}, directory / WHOLE)
        StartWeights(directory).check(names)
    save_file({**tensors, name: tensors[name].to(dtype)}, directory / WHOLE)
    with pytest.raises(ModelError, match="is of type"):
        StartWeights(directory).check(names)


def test_tensors_without_a_place_in_the_architecture_are_named(tmp_path: Path) -> None:
    directory = make(tmp_path)
    homes, names = shard(directory), image_names(build_model(directory, "meta"))
    assert StartWeights(directory).left_out(names) == []
    place = directory / homes["model.norm.weight"]
    tensors = load_file(place)
    save_file({**tensors, "model.mtp.weight": torch.zeros(2), "unheard.of": torch.zeros(1)}, place)
    write_index(directory, {**homes, "model.mtp.weight": place.name})
    assert StartWeights(directory).left_out(names) == ["model.mtp.weight"]
    assert weight_files(directory).unnamed == ("unheard.of",)
    assert differing(directory) == []
