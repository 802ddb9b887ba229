import json

import numpy as np
import pytest

from node.inference.model_files import as_bf16
from node.weights.errors import WeightsDiskError, WeightsError
from node.weights.export import export_model, plan_shards, verify_directory, weight_files
from node.weights.records import PolicyRecord
from protocol.policy import MalformedPolicy, decode_image, encode_image, root_at
from tests.node.weights.test_weights import manifest_for

WEIGHTS = {
    name: np.random.default_rng(3).integers(0, 65536, shape, np.uint16)
    for name, shape in (("a", (50, 8)), ("b", (8,)), ("c", (300,)), ("d", ()))
}


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "image"
    path.write_bytes(encode_image(WEIGHTS))
    return path


def record() -> PolicyRecord:
    return PolicyRecord(b"announcement", b"m" * 32, manifest_for(WEIGHTS, 4))


def test_shards_keep_the_order_and_their_limit() -> None:
    tensors = manifest_for(WEIGHTS).tensors
    for most in (1, 700, 820, 10_000):
        shards = plan_shards(tensors, most)
        assert [tensor for shard in shards for tensor in shard] == list(tensors)
        for shard in shards:
            assert len(shard) == 1 or sum(2 * int(np.prod(tensor.shape)) for tensor in shard) <= most
    assert len(plan_shards(tensors, 10_000)) == 1


@pytest.mark.parametrize(("most", "files"), [(820, 2), (100_000, 1)])
def test_an_exported_directory_holds_the_policy_and_proves_it(image, tmp_path, most: int, files: int) -> None:
    (tmp_path / "config.json").write_text("{}")
    counted = []
    assets = {"config.json": tmp_path / "config.json"}
    exported = export_model(image, record(), assets, tmp_path / "out", shard_bytes=most, on_progress=counted.append)
    assert len(exported.files) == files and sum(counted) == sum(tensor.nbytes for tensor in WEIGHTS.values())
    assert (tmp_path / "out" / "config.json").exists()
    weights, found = verify_directory(tmp_path / "out")
    assert found == record() and root_at(4, weights) == exported.root == record().manifest.policy_root
    if files > 1:
        index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
        assert set(index["weight_map"]) == set(WEIGHTS)
        assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in WEIGHTS.values())
    with pytest.raises(WeightsError, match="exists"):
        export_model(image, record(), {}, tmp_path / "out")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"dtype": "float32"}, {"dtype": "bfloat16"}),
        ({"torch_dtype": "float16"}, {"torch_dtype": "bfloat16"}),
        ({"torch_dtype": "float32", "dtype": "bfloat16"}, {"torch_dtype": "bfloat16", "dtype": "bfloat16"}),
        ({}, {"dtype": "bfloat16"}),
    ],
)
def test_an_exported_config_says_what_the_tensors_are(image, tmp_path, config: dict, said: dict) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", **config}))
    export_model(image, record(), {"config.json": tmp_path / "config.json"}, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_bytes()) == {"model_type": "qwen3", **said}


def test_a_config_that_is_right_or_unreadable_keeps_its_bytes() -> None:
    for config in (b'{"dtype":  "bfloat16"}', b"{", b"[1]"):
        assert as_bf16(config) == config


def test_a_changed_byte_is_found_and_its_tensor_named(image, tmp_path) -> None:
    export_model(image, record(), {}, tmp_path / "out")
    (file,) = weight_files(tmp_path / "out")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(MalformedPolicy, match="d is missing"):
        verify_directory(tmp_path / "out")


def test_a_damaged_image_is_not_exported_and_leaves_nothing(image, tmp_path) -> None:
    data = bytearray(image.read_bytes())
    data[-1] ^= 1
    image.write_bytes(data)
    with pytest.raises(MalformedPolicy):
        export_model(image, record(), {}, tmp_path / "out")
    with pytest.raises(WeightsDiskError):
        export_model(image, record(), {}, image / "below-a-file")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image"]


@pytest.mark.parametrize("index", ["[]", "{", '{"weight_map": {"a": "../../etc/passwd"}}', '{"weight_map": {}}'])
def test_an_index_that_leads_elsewhere_is_refused(index: str, tmp_path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(WeightsError):
        weight_files(tmp_path)


@pytest.mark.parametrize("index", [b"[" * 100_000, b'{"weight_map": {"a": "\xff"}}'], ids=["brackets", "no text"])
def test_an_index_that_cannot_be_read_is_refused(index: bytes, tmp_path) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(index)
    with pytest.raises(WeightsError, match="no weight_map"):
        weight_files(tmp_path)


def test_a_tensor_in_two_files_and_a_missing_file_are_refused(image, tmp_path) -> None:
    export_model(image, record(), {}, tmp_path / "out", shard_bytes=820)
    first, second = weight_files(tmp_path / "out")
    first_bytes = first.read_bytes()
    second.write_bytes(first_bytes)
    with pytest.raises(WeightsError, match="shards of two models"):
        verify_directory(tmp_path / "out")
    second.unlink()
    with pytest.raises(WeightsError, match="missing"):
        verify_directory(tmp_path / "out")


def test_transformers_loads_a_sharded_export_as_it_is(tiny_assets, tmp_path) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    source = tiny_assets / "model" / "model.safetensors"
    tensors = {name: tensor.copy() for name, tensor in decode_image(source.read_bytes()).items()}
    name = next(iter(tensors))
    tensors[name].reshape(-1)[0] ^= 1  # another policy than the start model
    (tmp_path / "image").write_bytes(encode_image(tensors))
    assets = {path.name: path for path in source.parent.iterdir() if path.suffix != ".safetensors"}
    manifest = manifest_for(tensors, 9)
    exported = export_model(
        tmp_path / "image", PolicyRecord(b"", b"m" * 32, manifest), assets, tmp_path / "out", shard_bytes=60_000
    )
    assert len(exported.files) > 1
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16)
    loaded = dict(model.named_parameters())
    assert set(loaded) == set(tensors)
    for name, bits in tensors.items():
        assert np.array_equal(loaded[name].detach().view(torch.int16).numpy().view(np.uint16), bits), name
