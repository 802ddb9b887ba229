"""A policy's image, written and hashed tensor by tensor: nobody holds the whole model, and the bytes are those of
`protocol.policy.encode_image`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

import torch
from torch import Tensor

from protocol.policy import TensorInfo, image_layout
from protocol.stretches import ImageHasher


@dataclass(frozen=True, slots=True)
class Image:
    """digest: hex root of the blob that the image is; tensors: in name order; size: bytes."""

    digest: str
    tensors: tuple[TensorInfo, ...]
    size: int


def stream_image(
    shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[tuple[str, Tensor]], file: BinaryIO | None = None
) -> Image:
    """Hash the image of `tensors`, which come as bf16 on the CPU, in name order and of these shapes, and write it.

    Each tensor is let go before the next one is asked for. Raises OSError.
    """
    layout, infos = image_layout(sorted(shapes.items())), list[TensorInfo]()
    image = ImageHasher(layout)
    if file is not None:
        file.write(layout.header)
    for name, tensor in tensors:
        data = _bytes(tensor)
        found = layout.hashed(len(infos), data)
        image.add(found)
        infos.append(TensorInfo(name, shapes[name], found.digest))
        if file is not None:
            file.write(data)
        del tensor, data, found
    return Image(image.blob().root.hex(), tuple(infos), layout.size)


def _bytes(tensor: Tensor) -> memoryview:
    """Little-endian, without a copy where it lies in one piece."""
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data
