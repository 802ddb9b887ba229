"""An image as a mapped file."""

from pathlib import Path

import pytest
import torch

from node.inference.errors import ModelError
from node.inference.image import ImageFile
from tests.node.inference.engine_kinds import write_image

TENSORS = {"a": torch.arange(6).reshape(2, 3).to(torch.bfloat16), "b": torch.ones(4, dtype=torch.bfloat16)}


def test_an_image_is_read_as_it_was_written(tmp_path: Path) -> None:
    image = write_image(tmp_path / "image", TENSORS)
    assert {**ImageFile.checked(image.path, image.digest)}.keys() == TENSORS.keys()
    assert all(torch.equal(image[name], tensor) for name, tensor in TENSORS.items())


def test_a_file_that_changed_since_it_was_checked_is_refused(tmp_path: Path) -> None:
    image = write_image(tmp_path / "image", TENSORS)
    data = bytearray(image.path.read_bytes())
    data[-1] ^= 1
    image.path.write_bytes(data)
    with pytest.raises(ModelError, match=f"{image.digest.hex()[:16]} was checked"):
        ImageFile.checked(image.path, image.digest)


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("no image at all")
    for name in ("empty", "text", "absent"):
        with pytest.raises(ModelError, match=name):
            ImageFile(tmp_path / name)
