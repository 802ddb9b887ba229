import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.delta import PatchError, apply_patch, encode_patch
from protocol.policy import TensorInfo, describe_tensors, policy_root
from protocol.policy_patch import framed, policy_patch_header, split_policy_patch


def weights(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.integers(0, 65536, size, np.uint16) for name, size in (("a", (30, 40)), ("b", (7,)))}


BASE, TARGET = weights(1), weights(2)
BASE_ROOT, TARGET_ROOT = (policy_root(step, describe_tensors(tensors)) for step, tensors in enumerate((BASE, TARGET)))
INFOS = describe_tensors(TARGET)
PATCH = policy_patch_header(BASE_ROOT, TARGET_ROOT, 2)
PATCH += b"".join(part for name in ("a", "b") for part in framed(encode_patch(BASE[name], TARGET[name])))


def split(data: bytes, infos: tuple[TensorInfo, ...] = INFOS) -> tuple[memoryview, ...]:
    return split_policy_patch(data, BASE_ROOT, TARGET_ROOT, infos)


def test_every_tensor_finds_its_patch() -> None:
    for info, patch in zip(INFOS, split(PATCH), strict=True):
        changed = apply_patch(BASE[info.name], patch).reshape(info.shape)
        assert np.array_equal(changed, TARGET[info.name])


def test_a_patch_between_other_policies_is_refused() -> None:
    for roots in ((BASE_ROOT, BASE_ROOT), (TARGET_ROOT, TARGET_ROOT)):
        with pytest.raises(PatchError, match="other policies"):
            split_policy_patch(PATCH, *roots, INFOS)


@pytest.mark.parametrize("cut", [0, 5, 71, 72, 76, 90, len(PATCH) - 1])
def test_a_cut_off_file_is_refused(cut: int) -> None:
    with pytest.raises(PatchError):
        split(PATCH[:cut])


def test_lengths_beyond_the_tensor_or_the_file_are_refused() -> None:
    for length in (1 << 63, len(PATCH), 5000):
        with pytest.raises(PatchError, match="longer"):
            split(PATCH[:72] + length.to_bytes(8, "little") + bytes(6000))
    with pytest.raises(PatchError, match="too many"):
        split(PATCH + b"\0")
    with pytest.raises(PatchError):
        split(PATCH, INFOS[:1])


@given(st.binary(max_size=300))
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(PatchError):
        split(garbage)
    with pytest.raises(PatchError):
        split(PATCH[:72] + garbage)
