"""Merged model directories: the same bytes with any number of threads, from one file or from shards."""

import json
from pathlib import Path

import numpy as np
import pytest

from cli.main import main
from node.weights.errors import WeightsError
from node.weights.export import verify_directory, weight_files
from node.weights.images import mapped
from node.weights.merge import merge_models
from protocol.merging import Merge, MergeError
from protocol.policy import bf16_bits, decode_image, encode_image

SHAPES = {"a.weight": (300, 500), "b": (7,), "c.weight": (64, 1024), "empty": (0, 4)}


def write_model(path: Path, seed: int, shapes: dict[str, tuple[int, ...]] = SHAPES, *, shards: int = 1) -> Path:
    source = np.random.default_rng(seed)
    tensors = {name: bf16_bits(source.normal(0, 0.02, shape).astype(np.float32)) for name, shape in shapes.items()}
    path.mkdir()
    names = np.array_split(sorted(tensors), shards)
    files = {f"model-{i}.safetensors" if shards > 1 else "model.safetensors": part for i, part in enumerate(names)}
    for file, part in files.items():
        (path / file).write_bytes(encode_image({name: tensors[name] for name in part}))
    if shards > 1:
        homes = {str(name): file for file, part in files.items() for name in part}
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": homes}))
    (path / "config.json").write_text('{"dtype": "float32"}')
    (path / "tokenizer.json").write_text("{}")
    return path


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    """A base, and three models, one of them in shards."""
    return [write_model(tmp_path / f"m{i}", i, shards=2 if i == 2 else 1) for i in range(4)]


@pytest.mark.parametrize(
    "merge", [Merge("average", (1, 2, 3)), Merge("ties", (1, 1, 1), 0.3), Merge("dare", (1, 1, 1))]
)
def test_one_thread_and_sixteen_make_the_same_model(merge: Merge, models: list[Path], tmp_path: Path) -> None:
    found = [
        merge_models(merge, models[1:], tmp_path / f"merged-{workers}", base=models[0], workers=workers)
        for workers in (1, 16)
    ]
    assert found[0].root == found[1].root == verify_directory(tmp_path / "merged-16")[0]
    data = [(tmp_path / f"merged-{workers}" / "model.safetensors").read_bytes() for workers in (1, 16)]
    assert data[0] == data[1]
    tensors = decode_image(data[0])
    assert {name: tensor.shape for name, tensor in tensors.items()} == SHAPES
    said = json.loads((tmp_path / "merged-1" / "intellect-merge.json").read_bytes())
    assert said["method"] == merge.method and said["weights_root"] == found[0].root.hex()
    assert len(said["inputs"]) == 3 + merge.needs_base
    assert json.loads((tmp_path / "merged-1" / "config.json").read_bytes()) == {"dtype": "bfloat16"}
    assert (tmp_path / "merged-1" / "tokenizer.json").exists()


def test_the_average_of_one_model_has_its_root(models: list[Path], tmp_path: Path) -> None:
    found = merge_models(Merge(weights=(5,)), [models[1]], tmp_path / "same")
    assert found.inputs == (found.root,)
    assert (tmp_path / "same" / "model.safetensors").read_bytes() == (models[1] / "model.safetensors").read_bytes()


def test_models_that_do_not_fit_leave_nothing_behind(models: list[Path], tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", 9, {**SHAPES, "b": (8,)})
    wide = tmp_path / "wide"
    wide.mkdir()
    data = bytes(mapped(weight_files(models[0])[0])).replace(b'"BF16"', b'"F16" ', 1)
    (wide / "model.safetensors").write_bytes(data)
    for several, base, error, words in (
        ([models[1], other], None, MergeError, "b has the shapes"),
        ([models[1], wide], None, WeightsError, "not bf16"),
        ([models[1], tmp_path / "absent"], None, WeightsError, "neither model.safetensors.index.json nor"),
    ):
        with pytest.raises(error, match=words):
            merge_models(Merge(weights=(1, 1)), several, tmp_path / "out", base=base)
    with pytest.raises(MergeError, match="differences to a base"):
        merge_models(Merge("ties", (1, 1)), models[:2], tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))


def test_the_command_merges_and_says_what_is_wrong(models: list[Path], tmp_path: Path, capfd) -> None:
    several, out = [str(path) for path in models[1:]], str(tmp_path / "out")
    assert main(["weights", "merge", out, *several, "--method", "ties", "--base", str(models[0]), "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["method"] == "ties" and said["tensors"] == 4 and len(said["inputs"]) == 4
    assert main(["weights", "merge", out, *several]) == 3
    for flags, words in (
        (["--method", "slerp"], "there are average, ties, dare"),
        (["--weight", "2"], "3 models, 1 weights"),
        (["--method", "dare"], "--base"),
        (["--weight", "0", "--weight", "1", "--weight", "1"], "whole"),
    ):
        assert main(["weights", "merge", str(tmp_path / "new"), *several, *flags]) in (2, 5)
        assert words in capfd.readouterr().err
