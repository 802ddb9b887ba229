"""A policy's image, written and hashed tensor by tensor: nobody holds the whole model, and the bytes are those of
`protocol.policy.encode_image`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from torch import Tensor

from node.inference.transfer import stretches
from protocol.policy import TensorInfo, image_layout
from protocol.stretches import ImageHasher, TensorHasher


@dataclass(frozen=True, slots=True)
class Image:
    """digest: hex root of the blob that the image is; tensors: in name order; size: bytes."""

    digest: str
    tensors: tuple[TensorInfo, ...]
    size: int


def stream_image(
    shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[tuple[str, Tensor]], file: BinaryIO | None = None
) -> Image:
    """Hash the image of `tensors`, which come as bf16, in name order and of these shapes, and write it.

    Each tensor is let go before the next one is asked for. Raises OSError.
    """
    layout, infos = image_layout(sorted(shapes.items())), list[TensorInfo]()
    image = ImageHasher(layout)
    if file is not None:
        file.write(layout.header)
    for name, tensor in tensors:
        hasher = TensorHasher(layout, len(infos))
        for part in stretches(tensor):
            hasher.update(part)
            if file is not None:
                file.write(part)
        found = hasher.finish()
        image.add(found)
        infos.append(TensorInfo(name, shapes[name], found.digest))
        # The loop's own names would hold this tensor while the next one is gathered.
        del tensor, part, found
    return Image(image.blob().root.hex(), tuple(infos), layout.size)
