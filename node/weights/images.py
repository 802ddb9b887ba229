"""Policy images as files: opened without reading them whole, checked, built from a base and patches.

One tensor at a time is in memory. Everything here hashes or copies: call in a thread. Knows files; knows nothing of
peers, and gives nothing away that has not matched its manifest.
"""

import mmap
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from blake3 import blake3

from node.weights.errors import WeightsError, disk_errors
from protocol.blobs import BlobInfo
from protocol.delta import PatchError, apply_patch, digest
from protocol.policy import (
    MalformedPolicy,
    PolicyManifest,
    PolicyPatch,
    TensorInfo,
    decode_image,
    describe_tensors,
    image_header,
    policy_root,
    verify_image,
)
from protocol.policy_patch import PolicyState, encode_policy_patch, forms, split_policy_patch

U16 = np.ndarray[tuple[int, ...], np.dtype[np.uint16]]


class Stopped(WeightsError):
    """The node is stopping; the half-built file is gone."""

    def __init__(self) -> None:
        super().__init__("a policy was not finished", "the node is stopping", "nothing: it is built at the next start")


class PatchTooLong(Exception):
    """A patch that costs more than it saves."""


def mapped(path: Path) -> memoryview:
    """The bytes of a file, paged in as they are looked at; the mapping ends with the last view of it."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def describe_image(path: Path) -> tuple[TensorInfo, ...]:
    """The tensors of an image file. Raises MalformedPolicy."""
    return describe_tensors(decode_image(mapped(path)))


def is_canonical(path: Path) -> bool:
    """Whether an image's header is exactly the one that its tensors have in canonical form."""
    data = mapped(path)
    header = image_header((name, tensor.shape) for name, tensor in decode_image(data).items())
    return bytes(data[: len(header)]) == header


def write_canonical(source: Path, target: Path) -> None:
    """The same tensors in canonical form."""
    tensors = decode_image(mapped(source))
    with disk_errors(f"the policy image {target}"), target.open("wb") as file:
        file.write(image_header((name, tensor.shape) for name, tensor in tensors.items()))
        for tensor in tensors.values():
            file.write(raw(tensor))
        file.flush()
        os.fsync(file.fileno())


def verify_file(manifest: PolicyManifest, path: Path) -> None:
    """Raise MalformedPolicy unless the file is exactly the manifest's policy."""
    verify_image(manifest, mapped(path))


def is_sound(path: Path, info: BlobInfo) -> bool:
    """Whether the file still is the blob that it was."""
    try:
        data = mapped(path)
    except OSError:
        return False
    spans = (info.span(place) for place in range(len(info.pieces)))
    pieces = zip(spans, info.pieces, strict=True)
    return len(data) == info.size and all(blake3(data[at : at + n]).digest() == piece for (at, n), piece in pieces)


def write_patch(
    base: Path, base_infos: tuple[TensorInfo, ...], target: Path, infos: tuple[TensorInfo, ...], out: Path, most: int
) -> tuple[bytes, bytes]:
    """Write the patch between two images; returns both policy roots.

    Raises PatchTooLong beyond `most` bytes, PatchError if their tensors differ in name or shape.
    """
    before = PolicyState(policy_root(base_infos), base_infos, decode_image(mapped(base)))
    after = PolicyState(policy_root(infos), infos, decode_image(mapped(target)))
    size = 0
    with disk_errors(f"the patch {out}"), out.open("wb") as file:
        for part in encode_policy_patch(before, after):
            size += len(part)
            if size > most:
                raise PatchTooLong
            file.write(part)
    return before.root, after.root


def build_image(
    manifest: PolicyManifest,
    base: Path,
    patches: Sequence[tuple[PolicyPatch, Path]],
    out: Path,
    stop: threading.Event | None = None,
) -> None:
    """Write the manifest's image to `out`: the base image with the patches applied, every tensor checked.

    It is the store that brings it to the disk and gives it its name.

    Raises PatchError or MalformedPolicy if they do not lead to the manifest's policy, Stopped once `stop` is set,
    WeightsDiskError. Whatever is raised, `out` is gone.
    """
    tensors = decode_image(mapped(base))
    if [(name, tensor.shape) for name, tensor in tensors.items()] != forms(manifest.tensors):
        raise MalformedPolicy("wrong base", "its tensors have other names or shapes than the policy's")
    layers = [
        split_policy_patch(mapped(path), patch.base_root, patch.target_root, manifest.tensors)
        for patch, path in patches
    ]
    try:
        with disk_errors(f"the policy image {out}"), out.open("wb") as file:
            file.write(image_header(forms(manifest.tensors)))
            for place, info in enumerate(manifest.tensors):
                if stop is not None and stop.is_set():
                    raise Stopped
                file.write(raw(_patched(tensors[info.name], [layer[place] for layer in layers], info)))
    except BaseException:
        out.unlink(missing_ok=True)
        raise


def _patched(tensor: U16, patches: Sequence[memoryview], info: TensorInfo) -> U16:
    """One tensor, patched and checked."""
    for patch in patches:
        tensor = apply_patch(tensor, patch, check=False)
    if digest(tensor) != info.digest:
        raise PatchError(f"{info.name[:80]} is not the tensor that the manifest names")
    return tensor


def raw(tensor: U16) -> memoryview | bytes:
    """The little-endian bytes of a tensor, not copied."""
    return np.ascontiguousarray(tensor, dtype="<u2").reshape(-1).view(np.uint8).data if tensor.size else b""
