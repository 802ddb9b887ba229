import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protocol.policy import (
    MalformedPolicy,
    PolicyManifest,
    PolicyPatch,
    WeightsSnapshot,
    bf16_bits,
    bf16_values,
    decode_image,
    decode_manifest,
    describe_tensors,
    encode_image,
    encode_manifest,
    find_step,
    policy_root,
    root_at,
    weights_root,
)

TENSORS = {
    "b.weight": np.arange(6, dtype=np.uint16).reshape(2, 3),
    "a": np.ones(4, np.uint16),
    "s": np.ones((), np.uint16),
}


def manifest() -> PolicyManifest:
    infos = describe_tensors(TENSORS)
    return PolicyManifest(b"\x01" * 32, 4, policy_root(4, infos), infos, b"\x02" * 32, len(encode_image(TENSORS)))


def test_an_image_holds_its_tensors_whatever_order_they_came_in() -> None:
    image = encode_image(TENSORS)
    assert image == encode_image(dict(reversed(TENSORS.items())))
    assert all((decode_image(image)[name] == tensor).all() for name, tensor in TENSORS.items())


def test_safetensors_reads_our_images(tmp_path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    path = tmp_path / "model.safetensors"
    path.write_bytes(encode_image({"w": bf16_bits(np.array([1.5, -2.0], dtype=np.float32))}))
    assert load_file(path)["w"].dtype == torch.bfloat16
    assert load_file(path)["w"].tolist() == [1.5, -2.0]


def test_one_changed_weight_changes_the_root() -> None:
    changed = {**TENSORS, "a": np.array([1, 1, 1, 2], np.uint16)}
    assert policy_root(4, describe_tensors(changed)) != policy_root(4, describe_tensors(TENSORS))


def test_a_reshaped_tensor_is_another_policy() -> None:
    reshaped = {**TENSORS, "b.weight": TENSORS["b.weight"].reshape(3, 2)}
    assert policy_root(4, describe_tensors(reshaped)) != policy_root(4, describe_tensors(TENSORS))


STEPS = st.integers(0, 2**64 - 1)


@given(STEPS, STEPS)
def test_the_same_weights_at_another_step_are_another_policy(step: int, other: int) -> None:
    infos = describe_tensors(TENSORS)
    assert (policy_root(step, infos) == policy_root(other, infos)) == (step == other)


@given(STEPS)
def test_a_manifest_of_another_step_than_its_root_is_refused(step: int) -> None:
    told = encode_manifest(msgspec.structs.replace(manifest(), step=step))
    if step == manifest().step:
        assert decode_manifest(told) == manifest()
    else:
        with pytest.raises(MalformedPolicy, match="the step and the tensors"):
            decode_manifest(told)


def test_a_step_that_fits_no_root_is_refused() -> None:
    for step in (-1, 2**64):
        with pytest.raises(MalformedPolicy, match="its step is"):
            msgspec.structs.replace(manifest(), step=step).check()


def test_a_policy_is_named_by_these_very_bytes() -> None:
    """Golden: a root stands on chain and in signatures, so another hash is another protocol."""
    infos = describe_tensors(TENSORS)
    assert weights_root(infos).hex() == "26c5474585cd966e2b9fd1e0dbec25661abdeb8688dbcb39f76078b6df32deea"
    assert policy_root(4, infos).hex() == "f62eb6f5829dffa12af4c4fbd712e830c5dab2cb54635932c5ef9aee212a91a0"


def test_the_step_of_an_image_is_found_from_its_root() -> None:
    weights = weights_root(describe_tensors(TENSORS))
    assert find_step(root_at(9, weights).hex(), weights, 9) == 9
    for unknown in (root_at(10, weights).hex(), weights.hex(), "", "no root"):
        assert find_step(unknown, weights, 9) is None


def header(entry: object) -> bytes:
    text = json.dumps(entry).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        (10**9).to_bytes(8, "little"),
        header([]),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}) + bytes(4),
        header({"a": {"dtype": "BF16", "shape": [2**62, 4], "data_offsets": [0, 8]}}) + bytes(8),
        header({"a": {"dtype": "BF16", "shape": [-1], "data_offsets": [0, -2]}}),
        header({"a": {"dtype": "BF16", "shape": [1], "data_offsets": [2, 4]}}) + bytes(4),
        header({"a": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}) + bytes(4),
        header({"a": {"dtype": "BF16", "shape": "x", "data_offsets": [0, 2]}}) + bytes(2),
        header({"\ud800": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}) + bytes(2),  # half a character
        header(
            {
                "b": {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]},
                "a": {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]},
            }
        ),
    ],
)
def test_a_hostile_image_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedPolicy):
        decode_image(data)


@given(st.binary(max_size=200))
def test_garbage_is_no_image_and_no_manifest(data: bytes) -> None:
    with pytest.raises(MalformedPolicy):
        decode_image(data + b"x")
    with pytest.raises(MalformedPolicy):
        decode_manifest(data)


def test_a_manifest_must_follow_from_its_tensors() -> None:
    good = manifest()
    assert decode_manifest(encode_manifest(good)) == good
    absurd = (msgspec.structs.replace(good.tensors[0], shape=(1 << 62, 1 << 62)), *good.tensors[1:])
    for change in (
        {"policy_root": bytes(32)},
        {"tensors": good.tensors[::-1]},
        {"tensors": ()},
        {"tensors": absurd},
        {"tensors": (msgspec.structs.replace(good.tensors[0], shape=(-4,)), *good.tensors[1:])},
        {"tensors": (msgspec.structs.replace(good.tensors[0], shape=(1,) * 300), *good.tensors[1:])},
        {"image_root": b""},
        {"image_size": good.image_size - 1},
        {"image_size": 1 << 60},
        {"step": -1},
        {"step": 5},
    ):
        with pytest.raises(MalformedPolicy):
            decode_manifest(encode_manifest(msgspec.structs.replace(good, **change)))


BIG = {"w": np.zeros(4000, np.uint16)}


def chained(*patches: PolicyPatch, snapshot: WeightsSnapshot | None = None) -> PolicyManifest:
    infos = describe_tensors(BIG)
    size = len(encode_image(BIG))
    return PolicyManifest(b"\x01" * 32, 4, policy_root(4, infos), infos, b"\x02" * 32, size, snapshot, patches)


def test_patches_must_be_a_chain_that_ends_at_the_policy_and_costs_little() -> None:
    target = policy_root(4, describe_tensors(BIG))
    two = PolicyPatch(2, b"a" * 32, b"b" * 32, b"x" * 32, 900)
    four = PolicyPatch(4, b"b" * 32, target, b"y" * 32, 900)
    good = chained(two, four, snapshot=WeightsSnapshot(1, b"a" * 32, b"i" * 32))
    assert decode_manifest(encode_manifest(good)) == good
    assert good.patches_from(b"a" * 32) == (two, four)
    assert good.patches_from(b"b" * 32) == (four,)
    assert good.patches_from(target) == () and good.patches_from(b"?" * 32) is None
    replace = msgspec.structs.replace
    for bad in (
        chained(four, two),
        chained(two),
        chained(two, replace(four, base_root=b"?" * 32)),
        chained(two, replace(four, step=5)),
        chained(two, replace(four, size=1200)),
        chained(two, replace(four, size=-1200)),
        chained(two, replace(four, root=b"short")),
        chained(replace(two, step=4), four),
        chained(two, four, snapshot=WeightsSnapshot(1, b"?" * 32, b"i" * 32)),
        chained(two, four, snapshot=WeightsSnapshot(4, b"a" * 32, b"i" * 32)),
        chained(two, four, snapshot=WeightsSnapshot(1, b"b" * 32, b"i" * 32)),
        chained(snapshot=WeightsSnapshot(1, b"a" * 32, b"i" * 32)),
    ):
        with pytest.raises(MalformedPolicy):
            decode_manifest(encode_manifest(bad))


def test_a_shape_of_a_million_dimensions_is_refused_at_once() -> None:
    entry = {"dtype": "BF16", "shape": [9] * 1_000_000, "data_offsets": [0, 2]}
    with pytest.raises(MalformedPolicy, match="dimensions"):
        decode_image(header({"a": entry}) + bytes(2))


@pytest.mark.parametrize("shape", [[1e999], [float("nan")], [1.0], ["1"], [True], [0, 10**30], [[1]]])
def test_a_size_that_is_no_plain_number_is_refused(shape: list[object]) -> None:
    """Found by scripts/fuzz_proofs.py: JSON's Infinity left the parser as an OverflowError."""
    entry = {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]}
    with pytest.raises(MalformedPolicy):
        decode_image(header({"a": entry}))


@given(hnp.arrays(np.float32, 20, elements=st.floats(width=32, allow_nan=True)))
def test_rounding_to_bf16_is_torchs(values: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = bf16_values(bf16_bits(values)), torch.from_numpy(values).bfloat16().float().numpy()
    assert np.array_equal(ours, theirs, equal_nan=True)
