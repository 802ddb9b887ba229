import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.delta import PatchError, apply_patch
from protocol.policy import TensorInfo, describe_tensors, policy_root
from protocol.policy_patch import PolicyState, encode_policy_patch, split_policy_patch


def state(seed: int, *, shape: tuple[int, ...] = (30, 40)) -> PolicyState:
    random = np.random.default_rng(seed)
    tensors = {name: random.integers(0, 65536, size, np.uint16) for name, size in (("a", shape), ("b", (7,)))}
    infos = describe_tensors(tensors)
    return PolicyState(policy_root(infos), infos, tensors)


BASE, TARGET = state(1), state(2)
PATCH = b"".join(encode_policy_patch(BASE, TARGET))


def split(data: bytes, infos: tuple[TensorInfo, ...] = TARGET.infos) -> tuple[memoryview, ...]:
    return split_policy_patch(data, BASE.root, TARGET.root, infos)


def test_every_tensor_finds_its_patch() -> None:
    for info, patch in zip(TARGET.infos, split(PATCH), strict=True):
        changed = apply_patch(BASE.tensors[info.name], patch).reshape(info.shape)
        assert np.array_equal(changed, TARGET.tensors[info.name])


def test_policies_of_other_shapes_have_no_patch() -> None:
    with pytest.raises(PatchError, match="shapes"):
        next(encode_policy_patch(BASE, state(3, shape=(40, 30))))


def test_a_patch_between_other_policies_is_refused() -> None:
    for roots in ((BASE.root, BASE.root), (TARGET.root, TARGET.root)):
        with pytest.raises(PatchError, match="other policies"):
            split_policy_patch(PATCH, *roots, TARGET.infos)


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
        split(PATCH, TARGET.infos[:1])


@given(st.binary(max_size=300))
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(PatchError):
        split(garbage)
    with pytest.raises(PatchError):
        split(PATCH[:72] + garbage)
