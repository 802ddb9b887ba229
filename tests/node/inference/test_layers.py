"""A policy that is kept as a base and patches, as engines read it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from node.inference import layers
from node.inference.errors import ModelError
from node.inference.image import PatchedWeights, one_by_one, read_image
from node.inference.layers import LayeredImage, PatchFile
from protocol.delta import encode_patch
from protocol.policy import describe_tensors, encode_image
from protocol.policy_patch import framed, policy_patch_header

Steps = list[dict[str, np.ndarray]]


def few_steps() -> Steps:
    """Of a model whose tensors begin anywhere in a piece; one never changes, one has no numbers."""
    random = np.random.default_rng(5)
    shapes = {"a": (130_000,), "b": (3, 7), "empty": (0, 4), "still": (5, 5), "z": (300, 500)}
    found = [{name: random.integers(0, 1 << 16, shape, dtype=np.uint16) for name, shape in shapes.items()}]
    for share in (0.01, 0.5, 0.0, 0.002):
        last = found[-1]
        moved = {name: bits + (random.random(bits.shape) < share).astype(np.uint16) for name, bits in last.items()}
        found.append(moved | {"still": last["still"]})
    return found


@pytest.fixture
def steps() -> Steps:
    return few_steps()


def laid_out(folder: Path, steps: Steps) -> tuple[Path, list[PatchFile], bytes]:
    """(base, patches, digests of the last) on a disk."""
    base, patches = folder / "base", list[PatchFile]()
    base.write_bytes(encode_image(steps[0]))
    for at, (old, new) in enumerate(zip(steps, steps[1:], strict=False)):
        roots = bytes([at]) * 32, bytes([at + 1]) * 32
        path = folder / f"patch-{at}"
        parts = [part for name in sorted(old) for part in framed(encode_patch(old[name], new[name]))]
        path.write_bytes(policy_patch_header(*roots, len(old)) + b"".join(parts))
        patches.append(PatchFile(str(path), *roots))
    return base, patches, b"".join(info.digest for info in describe_tensors(steps[-1]))


def test_a_base_and_its_patches_are_the_bytes_of_the_image(tmp_path: Path, steps: Steps) -> None:
    base, patches, digests = laid_out(tmp_path, steps)
    for count in range(len(steps)):
        image, whole = LayeredImage(base, patches[:count]), encode_image(steps[count])
        body = whole[8 + int.from_bytes(whole[:8], "little") :]
        assert {name: bits.tolist() for name, bits in image.items()} == {n: b.tolist() for n, b in steps[count].items()}
        for start, length in ((0, 1024), (1, 7), (259_998, 300), (len(body) - 1000, 1000), (0, len(body))):
            assert image.read(start, length) == body[start : start + length]
        (tmp_path / "whole").write_bytes(whole)
        assert image.answer(b"k" * 32) == LayeredImage(tmp_path / "whole").answer(b"k" * 32)
    with pytest.raises(KeyError):
        LayeredImage(base, patches, digests)["nobody"]


def test_each_tensor_is_compared_as_an_engine_takes_it(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, patches, digests = laid_out(tmp_path, steps)
    parameters = {name: torch.empty(bits.shape) for name, bits in steps[0].items()}
    monkeypatch.setattr(layers, "PARALLEL_BYTES", 0)
    weights = read_image(str(base), parameters, patches, digests)
    for name, tensor in zip(weights, one_by_one(weights, list(weights)), strict=True):
        assert torch.equal(tensor.view(torch.int16), torch.from_numpy(steps[-1][name].view(np.int16)))
    spoiled = bytearray(base.read_bytes())
    spoiled[-2] ^= 1
    base.write_bytes(spoiled)
    weights = read_image(str(base), parameters, patches, digests)
    assert weights["a"].shape == (130_000,)
    with pytest.raises(ModelError, match="z is not the tensor that was signed for"):
        weights["z"]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), "cut off"),
        (lambda path: path.write_bytes(path.read_bytes()[:50]), "ends within its header"),
    ],
)
def test_a_patch_that_is_missing_or_half_written_is_told(tmp_path: Path, steps: Steps, damage, why: str) -> None:
    base, patches, digests = laid_out(tmp_path, steps)
    damage(Path(patches[1].path))
    with pytest.raises(ModelError, match=why):
        PatchedWeights(str(base), patches, digests)


def test_digests_of_another_model_are_refused(tmp_path: Path, steps: Steps) -> None:
    base, patches, digests = laid_out(tmp_path, steps)
    with pytest.raises(ModelError, match="more or fewer tensors"):
        PatchedWeights(str(base), patches, digests[32:])
