"""The policy: exact bf16 bytes of every tensor, their digests, the policy root, the manifest.

An image is a safetensors file in one canonical form (names sorted, bf16 only, no gaps), so the same weights
always give the same bytes. The weights root hashes names, shapes and tensor digests (protocol.stretches): it names the
weights however they are packed. A policy is named by its step and its weights: the policy root hashes both and is the
clock of a run, so weights that a step left as they were are another policy, in the same image. The manifest says how to
come by them: the image itself, an older image (the snapshot), and patches from one policy to the next. Callers read and
write the files.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from protocol.blobs import BlobInfo
from protocol.codec import decode_msgpack
from protocol.errors import ProtocolError
from protocol.stretches import Layout

U16 = NDArray[np.uint16]
# A model with 128 experts in 100 layers has some 40,000.
MAX_TENSORS = 65_536
MAX_HEADER_BYTES = 16 * 1024 * 1024
MAX_MANIFEST_BYTES = 16 * 1024 * 1024
MAX_DIMENSIONS = 16
# Who was away for more steps than that fetches an image.
MAX_PATCHES = 512
# Past a quarter, fetching the image once is nearly as quick and needs nothing to be held.
PATCH_SHARE = 4
"""Patches that a manifest lists have together at most the bytes of an image divided by this."""
_WEIGHTS = "intellect-node weights v2"
_POLICY = "intellect-node policy v3"


class MalformedPolicy(ProtocolError):
    """An image or manifest that is not in canonical form or does not match its root."""


class TensorInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """name; shape; digest: of the tensor's little-endian bf16 bytes, at its place in the image (protocol.stretches)."""

    name: str
    shape: tuple[int, ...]
    digest: bytes


class PolicyPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A blob (root, size in bytes) that turns the policy `base_root` into `target_root`, that of `step`."""

    step: int
    base_root: bytes
    target_root: bytes
    root: bytes
    size: int


class WeightsSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An older policy whose whole image is kept for those who hold nothing that a patch could be applied to."""

    step: int
    policy_root: bytes
    image_root: bytes


class PolicyManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the trainer publishes for step `step`: which weights, and the blobs that lead to them.

    run_root, policy_root, image_root: 32 bytes; image_size: bytes; tensors in name order. patches: an unbroken chain,
    oldest first, that ends at this policy. snapshot: where the chain, or a part of it, begins; None: this very image.
    """

    run_root: bytes
    step: int
    policy_root: bytes
    tensors: tuple[TensorInfo, ...]
    image_root: bytes
    image_size: int
    snapshot: WeightsSnapshot | None = None
    patches: tuple[PolicyPatch, ...] = ()

    def check(self) -> None:
        """Raise MalformedPolicy unless the root follows from step and tensors and the patches lead to it."""
        # Bounds first: the root is hashed over sizes that a stranger wrote.
        problem = self._tensor_fault() or self._patch_fault() or self._snapshot_fault()
        if problem:
            raise MalformedPolicy("bad policy manifest", problem)
        if policy_root(self.step, self.tensors) != self.policy_root:
            raise MalformedPolicy(
                "bad policy manifest", "the policy root does not follow from the step and the tensors"
            )

    def patches_from(self, base_root: bytes) -> tuple[PolicyPatch, ...] | None:
        """The patches that lead from a policy to this one, None if there is no such way."""
        if base_root == self.policy_root:
            return ()
        # The last of them: a chain that comes back to weights it had before would otherwise be walked twice.
        starts = [place for place, patch in enumerate(self.patches) if patch.base_root == base_root]
        return self.patches[starts[-1] :] if starts else None

    def _tensor_fault(self) -> str | None:
        names = [tensor.name for tensor in self.tensors]
        # One order only, or the same weights would have as many roots as orders.
        if not 0 < len(names) <= MAX_TENSORS or names != sorted(set(names)):
            return "tensor names are missing, repeated or not in order"
        if any(len(root) != 32 for root in (self.run_root, self.policy_root, self.image_root)):
            return "a root is not 32 bytes"
        steps = 1 << 64
        if not 0 <= self.step < steps:
            return "its step is negative or absurd"
        if any(len(tensor.digest) != 32 for tensor in self.tensors):
            return "a digest is not 32 bytes"
        if not all(len(t.shape) <= MAX_DIMENSIONS and all(0 <= n < 1 << 40 for n in t.shape) for t in self.tensors):
            return "a shape is absurd"
        if image_size(self.tensors) != self.image_size:
            return f"its tensors do not make an image of {self.image_size} bytes"
        return None

    def _patch_fault(self) -> str | None:
        if not self.patches:
            return None
        if len(self.patches) > MAX_PATCHES or any(patch.size <= 0 for patch in self.patches):
            return "too many patches, or one of no bytes"
        # Otherwise a follower would fetch more in patches than the image has.
        if sum(patch.size for patch in self.patches) * PATCH_SHARE > self.image_size:
            return "its patches have more than a quarter of the image's bytes"
        if any(len(root) != 32 for p in self.patches for root in (p.base_root, p.target_root, p.root)):
            return "a patch's root is not 32 bytes"
        pairs = list(zip(self.patches, self.patches[1:], strict=False))
        if any(a.target_root != b.base_root or not 0 <= a.step < b.step for a, b in pairs):
            return "its patches are no chain"
        if (self.patches[-1].step, self.patches[-1].target_root) != (self.step, self.policy_root):
            return "its patches lead to another policy"
        return None

    def _snapshot_fault(self) -> str | None:
        snapshot = self.snapshot
        if snapshot is None:
            return None
        if len(snapshot.policy_root) != 32 or len(snapshot.image_root) != 32 or not 0 <= snapshot.step < self.step:
            return "its snapshot is malformed"
        if any(p.target_root == snapshot.policy_root and p.step != snapshot.step for p in self.patches):
            return "its snapshot is of another step than the patch that leads to it"
        return None if self.patches_from(snapshot.policy_root) else "no patches lead from its snapshot"


def policy_root(step: int, tensors: tuple[TensorInfo, ...]) -> bytes:
    """32 bytes that name the policy of a step: these weights, at this step and at no other."""
    return root_at(step, weights_root(tensors))


def root_at(step: int, weights: bytes) -> bytes:
    """The policy root of the weights whose root is `weights`, at a step below 2^64."""
    return blake3(step.to_bytes(8, "little") + weights, derive_key_context=_POLICY).digest()


def find_step(root: str, weights: bytes, last: int) -> int | None:
    """The step, `last` at most, at which weights are the policy with these hex digits: for images without a manifest.

    None if there is none. Tries them all, about a million a second.
    """
    return next((step for step in range(last + 1) if root_at(step, weights).hex() == root), None)


def weights_root(tensors: tuple[TensorInfo, ...]) -> bytes:
    """32 bytes over (name, shape, digest) of every tensor in name order."""
    hasher = blake3(derive_key_context=_WEIGHTS)
    for tensor in tensors:
        # Lengths before contents: no name can be read as the end of another field.
        name = tensor.name.encode()
        hasher.update(len(name).to_bytes(4, "little") + name + len(tensor.shape).to_bytes(1))
        hasher.update(b"".join(size.to_bytes(8, "little") for size in tensor.shape) + tensor.digest)
    return hasher.digest()


def describe_tensors(tensors: Mapping[str, U16]) -> tuple[TensorInfo, ...]:
    """Infos in name order of all tensors of a policy, given as bf16 bit patterns."""
    shapes = [(name, tuple(tensors[name].shape)) for name in sorted(tensors)]
    layout = image_layout(shapes)
    return tuple(
        TensorInfo(name, shape, layout.hashed(place, raw(tensors[name])).digest)
        for place, (name, shape) in enumerate(shapes)
    )


def describe_blob(data: bytes | memoryview, blob: BlobInfo) -> tuple[TensorInfo, ...]:
    """Infos of the tensors of an image whose bytes were compared with `blob`: only what lies in pieces that several
    tensors share is hashed again. Raises MalformedPolicy, also for an image that is not in canonical form."""
    tensors = decode_image(data)
    shapes = [(name, tuple(tensor.shape)) for name, tensor in tensors.items()]
    layout = image_layout(shapes)
    # Hashes of pieces stand for tensors only if the tensors lie where the layout says.
    if (blob.size, blob.piece_size) != (layout.size, layout.piece_size) or not starts_canonically(data, layout):
        raise MalformedPolicy("bad policy image", "it is not in canonical form, or not cut into the usual pieces")
    return tuple(
        TensorInfo(name, shape, layout.digest(place, raw(tensors[name]), blob.pieces))
        for place, (name, shape) in enumerate(shapes)
    )


def image_layout(shapes: Sequence[tuple[str, tuple[int, ...]]]) -> Layout:
    """Where the tensors of a canonical image lie. shapes: of all of them, in name order."""
    return Layout(image_header(shapes), [2 * math.prod(shape) for _, shape in shapes])


def starts_canonically(data: bytes | memoryview, layout: Layout) -> bool:
    """Whether an image's header is the canonical one of its tensors."""
    return bytes(memoryview(data)[: len(layout.header)]) == layout.header


def raw(tensor: U16) -> memoryview | bytes:
    """The little-endian bytes of a tensor, not copied where it lies in one piece."""
    return np.ascontiguousarray(tensor, dtype="<u2").reshape(-1).view(np.uint8).data if tensor.size else b""


def image_header(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> bytes:
    """The bytes before the tensors, which follow without gaps in the same (name) order."""
    # What transformers asks for, before it takes a file for torch's.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes:
        end = offset + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    # safetensors: what follows the header is aligned to 8 bytes.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def image_size(tensors: Iterable[TensorInfo]) -> int:
    """Bytes of the canonical image of these tensors."""
    infos = list(tensors)
    header = image_header((tensor.name, tensor.shape) for tensor in infos)
    return len(header) + 2 * sum(math.prod(tensor.shape) for tensor in infos)


def encode_image(tensors: Mapping[str, U16]) -> bytes:
    """The canonical safetensors bytes of bf16 tensors (uint16 bit patterns)."""
    names = sorted(tensors)
    header = image_header((name, tuple(tensors[name].shape)) for name in names)
    body = [np.ascontiguousarray(tensors[name], dtype="<u2").tobytes() for name in names]
    return header + b"".join(body)


def decode_image(data: bytes | memoryview) -> dict[str, U16]:
    """Views (no copies) of the tensors of a canonical image; raises MalformedPolicy on any other form."""
    view = memoryview(data)
    # Compared before the header is parsed: JSON of gigabytes would be memory that a stranger chose.
    length = int.from_bytes(view[:8], "little") if len(view) >= 8 else MAX_HEADER_BYTES + 1
    if length > min(MAX_HEADER_BYTES, len(view) - 8):
        raise MalformedPolicy("bad policy image", "the header is longer than the file")
    try:
        header = json.loads(bytes(view[8 : 8 + length]))
        entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
        if not entries:
            raise ValueError("no tensors")
        tensors = _views(view[8 + length :], entries)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise MalformedPolicy("bad policy image", f"unreadable header: {error}") from error
    return tensors


def _views(body: memoryview, entries: list[tuple[str, Any]]) -> dict[str, U16]:
    if len(entries) > MAX_TENSORS or [name for name, _ in entries] != sorted(name for name, _ in entries):
        raise MalformedPolicy("bad policy image", "too many tensors, or names out of order")
    tensors: dict[str, U16] = {}
    offset = 0
    for name, entry in entries:
        name.encode()  # ValueError: JSON can spell half a character, and roots are hashed over UTF-8
        shape = tuple(entry["shape"])
        # type(), not isinstance: True and 1.0 would pass, and be written differently again.
        if any(type(size) is not int for size in shape):
            raise MalformedPolicy("bad policy image", f"{name[:80]} has a size that is no whole number")
        if len(shape) > MAX_DIMENSIONS:
            raise MalformedPolicy("bad policy image", f"{name[:80]} has {len(shape)} dimensions")
        count = 1
        for size in shape:
            # Whole numbers of Python cannot overflow; a negative size makes the count too large on purpose.
            count *= size if size >= 0 else len(body) + 1
        if entry["dtype"] != "BF16" or list(entry["data_offsets"]) != [offset, offset + 2 * count]:
            raise MalformedPolicy("bad policy image", f"{name[:80]} is not bf16 or not in its place")
        if offset + 2 * count > len(body):
            raise MalformedPolicy("bad policy image", f"{name[:80]} reaches beyond the file")
        tensors[name] = np.frombuffer(body, dtype="<u2", count=count, offset=offset).reshape(shape)
        offset += 2 * count
    # Bytes that no tensor has would let one policy have many images.
    if offset != len(body):
        raise MalformedPolicy("bad policy image", f"{len(body) - offset} bytes too many")
    return tensors


def encode_manifest(manifest: PolicyManifest) -> bytes:
    return msgspec.msgpack.encode(manifest)


def decode_manifest(data: bytes) -> PolicyManifest:
    """Parse and check; raises MalformedPolicy."""
    manifest = decode_msgpack(
        data, PolicyManifest, limit=MAX_MANIFEST_BYTES, error=MalformedPolicy, what="bad policy manifest"
    )
    manifest.check()
    return manifest


def bf16_bits(values: NDArray[np.float32]) -> U16:
    """float32 -> bf16 bit patterns, rounding to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    # To even: half of a unit less one, and one more where the kept bit is odd.
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def bf16_values(bits: U16) -> NDArray[np.float32]:
    """bf16 bit patterns -> float32, exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
