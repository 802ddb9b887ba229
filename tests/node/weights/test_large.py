"""A model of 70 billion parameters: one blob of 141 GB, of which next to nothing is written here."""

import os
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from blake3 import blake3

from node.blobs.errors import StoreFull
from node.blobs.store import BlobStore
from node.inference.layers import LayeredImage, PatchFile
from node.inference.wire import LoadPolicy, encode
from node.preflight.machine import check_quota
from node.run.assets import image_limit
from node.weights.policy_cache import load_of
from node.weights.records import ways_to
from protocol.blobs import MAX_INFO_BYTES, BlobInfo, decode_info, describe_pieces, encode_info
from protocol.delta import encode_patch, unchanged
from protocol.policy import (
    MAX_HEADER_BYTES,
    MAX_MANIFEST_BYTES,
    PolicyManifest,
    PolicyPatch,
    TensorInfo,
    WeightsSnapshot,
    decode_manifest,
    encode_manifest,
    image_layout,
    policy_root,
)
from protocol.policy_patch import framed, policy_patch_header
from protocol.run import Asset, RunSpec
from protocol.stretches import Layout

GB = 10**9
Shapes = list[tuple[str, tuple[int, ...]]]


@pytest.fixture(scope="module")
def shapes() -> Shapes:
    """Of Llama 3 with 70 billion parameters."""
    hidden, inner, keys, words = 8192, 28_672, 1024, 128_256
    layer = {
        "input_layernorm.weight": (hidden,),
        "mlp.down_proj.weight": (hidden, inner),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, hidden),
        "self_attn.q_proj.weight": (hidden, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
    }
    whole = {"lm_head.weight": (words, hidden), "model.embed_tokens.weight": (words, hidden)}
    whole |= {f"model.layers.{number}.{name}": shape for number in range(80) for name, shape in layer.items()}
    return sorted((whole | {"model.norm.weight": (hidden,)}).items())


@pytest.fixture(scope="module")
def layout(shapes: Shapes) -> Layout:
    return image_layout(shapes)


def blob_of(layout: Layout, written: dict[int, bytes]) -> BlobInfo:
    """What it would be, were these pieces there and all others something else."""
    hashes = [blake3(number.to_bytes(8)).digest() for number in range(-(-layout.size // layout.piece_size))]
    for number, data in written.items():
        hashes[number] = blake3(data).digest()
    return describe_pieces(layout.size, layout.piece_size, hashes)


def test_its_manifest_is_read_and_planned_and_told_to_an_engine(
    shapes: Shapes, layout: Layout, tiny_run: RunSpec
) -> None:
    tensors = tuple(TensorInfo(name, shape, blake3(name.encode()).digest()) for name, shape in shapes)
    step, old, blob = 70, policy_root(69, tensors), blob_of(layout, {})
    patch = PolicyPatch(step, old, policy_root(step, tensors), b"\x01" * 32, layout.size // 50)
    manifest = PolicyManifest(
        bytes(32),
        step,
        patch.target_root,
        tensors,
        blob.root,
        layout.size,
        WeightsSnapshot(69, old, b"\x02" * 32),
        (patch,),
    )
    encoded = encode_manifest(manifest)
    assert layout.size > 141 * GB and len(layout.header) < MAX_HEADER_BYTES and len(encoded) < MAX_MANIFEST_BYTES // 100
    assert decode_manifest(encoded) == manifest
    ways = ways_to(manifest, {old}, lambda root: 0)
    assert [(way.name, way.cost) for way in ways] == [
        ("patches", patch.size),
        ("snapshot", layout.size + patch.size),
        ("image", layout.size),
    ]
    load = load_of(manifest, Path("/store/base"), manifest.patches)
    assert isinstance(load, LoadPolicy) and len(encode(load)) < 64_000
    asset = Asset("model/model.safetensors", "0" * 64, layout.size)
    assert image_limit(msgspec.structs.replace(tiny_run, assets=(asset,))) > layout.size
    small = check_quota(324 * GB, layout.size)
    assert small.level == "failure" and small.data["needed_bytes"] == int(2.3 * layout.size)
    assert check_quota(small.data["needed_bytes"], layout.size).level == "ok"


async def test_its_pieces_are_stored_where_they_belong_and_found_again_after_a_restart(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = -(-layout.size // layout.piece_size) - 1
    pieces = {0: b"first" * 2**20, 20_000: b"far" * 2**21, last: b"end" * 2**20}
    pieces = {number: (data * 2)[: layout.piece_size] for number, data in pieces.items()}
    pieces[last] = pieces[last][: layout.size - last * layout.piece_size]
    blob = blob_of(layout, pieces)
    assert last < 65_536 and len(encode_info(blob)) < MAX_INFO_BYTES
    assert decode_info(encode_info(blob), blob.root) == blob
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=400 * GB))
    store = BlobStore(tmp_path / "small", 140 * GB)
    with pytest.raises(StoreFull, match="its whole quota"):
        await store.open_partial(blob)
    store = BlobStore(tmp_path / "blobs", 325 * GB)
    partial = await store.open_partial(blob)
    for number, data in pieces.items():
        assert await partial.write_pieces([number], memoryview(data)) == [number]
    assert await partial.write_pieces([1], memoryview(bytes(layout.piece_size))) == []
    assert store.used == layout.size and store.arrived(blob.root) < 2 * sum(map(len, pieces.values()))
    again = BlobStore(tmp_path / "blobs", 325 * GB)
    assert again.used == layout.size and (await again.open_partial(blob)).have == {*pieces}


def test_what_lies_far_behind_is_patched_and_read(shapes: Shapes, layout: Layout, tmp_path: Path) -> None:
    base, patch = tmp_path / "base", tmp_path / "patch"
    with base.open("wb") as file:
        file.write(layout.header)
        os.truncate(file.fileno(), layout.size)
    last = shapes[-1]
    assert last == ("model.norm.weight", (8192,)) and layout.offsets[-1] > 2**37
    moved = np.arange(8192, dtype=np.uint16)
    parts = [unchanged(int(np.prod(shape))) for _, shape in shapes[:-1]] + [encode_patch(moved * 0, moved)]
    patch.write_bytes(
        policy_patch_header(b"a" * 32, b"b" * 32, len(shapes)) + b"".join(b"".join(framed(one)) for one in parts)
    )
    image = LayeredImage(base, [PatchFile(str(patch), b"a" * 32, b"b" * 32)])
    assert np.array_equal(image["model.norm.weight"], moved)
    assert image.read(layout.size - len(layout.header) - 4, 4) == moved[-2:].tobytes()
    assert len(image.answer(b"k" * 32)) == 64
