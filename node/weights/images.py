"""Policy images as files: opened without reading them whole, checked, built from a base and patches.

A few stretches of tensors at a time are in memory. Everything here hashes or copies: call in a thread. Knows files;
knows nothing of peers, and gives nothing away that has not matched its manifest.
"""

import errno
import math
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from node.inference.layers import LayeredImage, in_order
from node.state.files import mapped
from node.weights.errors import WeightsError, disk_errors
from protocol.blobs import BlobInfo
from protocol.delta import PatchError, encode_patch, unchanged
from protocol.policy import (
    MalformedPolicy,
    PolicyManifest,
    TensorInfo,
    decode_image,
    describe_blob,
    image_header,
    image_layout,
    raw,
    starts_canonically,
)
from protocol.policy_patch import forms, framed, policy_patch_header
from protocol.stretches import HashedTensor, ImageHasher, Layout, TensorHasher

U16 = np.ndarray[tuple[int, ...], np.dtype[np.uint16]]


class Stopped(WeightsError):
    """The node is stopping; the half-built file is gone."""

    def __init__(self) -> None:
        super().__init__("a policy was not finished", "the node is stopping", "nothing: it is built at the next start")


class PatchTooLong(Exception):
    """A patch that costs more than it saves."""


def size_of(infos: Sequence[TensorInfo]) -> int:
    """Bytes of these tensors."""
    return 2 * sum(math.prod(info.shape) for info in infos)


class DescribedImage(NamedTuple):
    """tensors: in name order; blob: what the file is as one."""

    tensors: tuple[TensorInfo, ...]
    blob: BlobInfo


def describe_image(path: Path) -> DescribedImage:
    """The tensors of an image file, and the blob that it is. Raises MalformedPolicy unless it is in canonical form."""
    data = mapped(path)
    tensors, layout = _laid_out(data)
    if not starts_canonically(data, layout):
        raise MalformedPolicy("bad policy image", "it is not in canonical form")
    names = list(tensors)

    def hashed(place: int) -> HashedTensor:
        return layout.hashed(place, raw(tensors[names[place]]))

    image, infos = ImageHasher(layout), list[TensorInfo]()
    for name, found in zip(names, in_order(hashed, range(len(names)), len(data)), strict=True):
        image.add(found)
        infos.append(TensorInfo(name, tuple(tensors[name].shape), found.digest))
    return DescribedImage(tuple(infos), image.blob())


def _laid_out(data: memoryview) -> tuple[dict[str, U16], Layout]:
    tensors = decode_image(data)
    return tensors, image_layout([(name, tuple(tensor.shape)) for name, tensor in tensors.items()])


def is_canonical(path: Path) -> bool:
    """Whether an image's header is exactly the one that its tensors have in canonical form."""
    data = mapped(path)
    return starts_canonically(data, _laid_out(data)[1])


def write_canonical(source: Path, target: Path) -> None:
    """The same tensors in canonical form. It is the store that brings them to the disk."""
    tensors = decode_image(mapped(source))
    with disk_errors(f"the policy image {target}"), target.open("wb") as file:
        file.write(image_header((name, tensor.shape) for name, tensor in tensors.items()))
        for tensor in tensors.values():
            file.write(raw(tensor))


def verify_file(manifest: PolicyManifest, path: Path, blob: BlobInfo | None = None) -> None:
    """Raise MalformedPolicy unless the file is exactly the manifest's policy.

    blob: what the file is, where each of its pieces was compared with that as it was written, just now; only what
    several tensors share is then read again.
    """
    found = describe_image(path).tensors if blob is None else describe_blob(mapped(path), blob)
    if found != manifest.tensors:
        raise MalformedPolicy("wrong policy image", "its tensors are not those of the manifest")


def write_patch(
    base: Path,
    base_infos: tuple[TensorInfo, ...],
    target: Path,
    infos: tuple[TensorInfo, ...],
    out: Path,
    most: int,
    *,
    roots: tuple[bytes, bytes],
) -> None:
    """Write the patch between two images. roots: the policies that they are, of the base and of the target.

    Raises PatchTooLong beyond `most` bytes, PatchError if their tensors differ in name or shape.
    """
    # Positions in a patch are positions in a tensor: of another shape they would mean other numbers.
    if forms(base_infos) != forms(infos):
        raise PatchError("the tensors of the two policies have other names or shapes")
    old, new = decode_image(mapped(base)), decode_image(mapped(target))

    def encode(pair: tuple[TensorInfo, TensorInfo]) -> bytes:
        before, after = pair
        # Digests say it without a pass over both tensors; in late training many stand still.
        if before.digest == after.digest:
            return unchanged(new[after.name].size)
        return encode_patch(old[before.name], new[after.name])

    with disk_errors(f"the patch {out}"), out.open("wb") as file:
        size = file.write(policy_patch_header(*roots, len(infos)))
        for patch in in_order(encode, list(zip(base_infos, infos, strict=True)), size_of(infos)):
            for part in framed(patch):
                size += len(part)
                if size > most:
                    raise PatchTooLong
                file.write(part)


def build_image(
    image: LayeredImage,
    infos: Sequence[TensorInfo] | None = None,
    out: Path | None = None,
    stop: threading.Event | None = None,
) -> BlobInfo:
    """The blob that a base and its patches come to, written to `out` where that is given; it is the store that brings
    it to the disk and gives it its name. infos: of the tensors, with which each of them is compared.

    Raises PatchError or MalformedPolicy if they come to other tensors, Stopped once `stop` is set, WeightsDiskError.
    Whatever is raised, `out` is gone.
    """
    if infos is not None and image.forms != forms(infos):
        raise MalformedPolicy("wrong base", "its tensors have other names or shapes than the policy's")

    def check(place: int, found: HashedTensor) -> None:
        # Tensor by tensor: a wrong patch is found at the first, and not after gigabytes.
        if infos is not None and found.digest != infos[place].digest:
            raise PatchError(f"{infos[place].name[:80]} is not the tensor that the manifest names")

    return write_image(image.layout, image.windows, out, check, stop=stop)


def write_image(
    layout: Layout,
    windows: Callable[[int], Iterable[U16]],
    out: Path | None,
    check: Callable[[int, HashedTensor], None],
    *,
    workers: int | None = None,
    stop: threading.Event | None = None,
) -> BlobInfo:
    """Write an image tensor by tensor, or, without `out`, hash it only; the blob that it is. windows: of the tensor at
    a place, each looked at before the next one is asked for; check: hears of each tensor, in the thread that wrote it.
    Whatever is raised, `out` is gone."""
    if out is None:
        return _written(layout, windows, None, check, workers, stop)
    try:
        with disk_errors(f"the policy image {out}"), out.open("wb") as file:
            _set_aside(file.fileno(), layout.size)
            _write_all(file.fileno(), memoryview(layout.header), 0)
            return _written(layout, windows, file.fileno(), check, workers, stop)
    except BaseException:
        out.unlink(missing_ok=True)
        raise


def _written(
    layout: Layout,
    windows: Callable[[int], Iterable[U16]],
    descriptor: int | None,
    check: Callable[[int, HashedTensor], None],
    workers: int | None,
    stop: threading.Event | None,
) -> BlobInfo:
    def write(place: int) -> HashedTensor:
        found = _write(windows(place), TensorHasher(layout, place), descriptor, layout.offsets[place], stop)
        check(place, found)
        return found

    image = ImageHasher(layout)
    for found in in_order(write, range(len(layout.sizes)), layout.size, workers):
        image.add(found)
    return image.blob()


def _write(
    windows: Iterable[U16], hasher: TensorHasher, descriptor: int | None, offset: int, stop: threading.Event | None
) -> HashedTensor:
    """Write a tensor to a file, if there is one, from `offset` on, each window while it is in the processor's cache."""
    for window in windows:
        # Between windows: a node that is to stop does not wait for a model to be written.
        if stop is not None and stop.is_set():
            raise Stopped
        data = memoryview(raw(window))
        hasher.update(data)
        if descriptor is not None:
            _write_all(descriptor, data, offset)
            offset += len(data)
    return hasher.finish()


def _set_aside(descriptor: int, size: int) -> None:
    """Room on the disk for all of a file at once: cheaper than window by window, and a full disk is known before work
    is done for it. Not every file system can. Raises OSError if there is no room."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        # Other errors mean that this file system cannot set room aside; writing may still succeed.
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise


def _write_all(descriptor: int, view: memoryview, offset: int) -> None:
    while len(view):
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
