"""A policy's image, written and hashed tensor by tensor: nobody holds the whole model, and the bytes are those of
`protocol.policy.encode_image`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

import torch
from blake3 import blake3
from torch import Tensor

from protocol.policy import TensorInfo, image_header


@dataclass(frozen=True, slots=True)
class Image:
    """digest: hex BLAKE3 of the whole file; tensors: in name order; size: bytes."""

    digest: str
    tensors: tuple[TensorInfo, ...]
    size: int


class _Sink:
    """A hash, and the file that is hashed, if there is one."""

    def __init__(self, file: BinaryIO | None) -> None:
        self._file = file
        self._hasher = blake3()
        self.size = 0

    @property
    def digest(self) -> str:
        return self._hasher.hexdigest()

    def put(self, data: bytes | memoryview) -> None:
        self._hasher.update(data)
        self.size += len(data)
        if self._file is not None:
            self._file.write(data)


def stream_image(
    shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[tuple[str, Tensor]], file: BinaryIO | None = None
) -> Image:
    """Hash the image of `tensors`, which come as bf16 on the CPU, in name order and of these shapes, and write it.

    Each tensor is let go before the next one is asked for. Raises OSError.
    """
    sink, infos = _Sink(file), list[TensorInfo]()
    sink.put(image_header(sorted(shapes.items())))
    for name, tensor in tensors:
        data = _bytes(tensor)
        infos.append(TensorInfo(name, shapes[name], blake3(data).digest()))
        sink.put(data)
        del tensor, data
    return Image(sink.digest, tuple(infos), sink.size)


def _bytes(tensor: Tensor) -> memoryview:
    """Little-endian, without a copy where it lies in one piece."""
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data
