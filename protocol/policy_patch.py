"""A whole policy's patch: the patches of its tensors, in name order, in one file.

    file := "INP" version | policy root of base | policy root of target | tensors u32 | (length u64, patch)...

Both sides work on one tensor at a time. What stands in a patch is checked against the tensors that the signed manifest
lists, before any of it is applied.
"""

import math
import struct
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from protocol.delta import U16, PatchError, encode_patch, max_patch_bytes
from protocol.policy import TensorInfo

_MAGIC = b"INP\x01"
_HEADER = struct.Struct("<4s32s32sI")
_LENGTH = struct.Struct("<Q")


class PolicyState(msgspec.Struct, frozen=True):
    """One side of a patch. tensors: views of its image by name; infos: theirs, in name order."""

    root: bytes
    infos: tuple[TensorInfo, ...]
    tensors: Mapping[str, U16]


def encode_policy_patch(base: PolicyState, target: PolicyState) -> Iterator[bytes]:
    """The file, part by part. Raises PatchError at once if the two do not have the same names and shapes."""
    if forms(base.infos) != forms(target.infos):
        raise PatchError("the tensors of the two policies have other names or shapes")
    yield _HEADER.pack(_MAGIC, base.root, target.root, len(target.infos))
    for old, new in zip(base.infos, target.infos, strict=True):
        digests = (old.digest, new.digest)
        patch = encode_patch(base.tensors[new.name], target.tensors[new.name], digests=digests)
        yield _LENGTH.pack(len(patch))
        yield patch


def split_policy_patch(
    data: bytes | memoryview, base_root: bytes, target_root: bytes, infos: Sequence[TensorInfo]
) -> tuple[memoryview, ...]:
    """The patch of each tensor (not copied, not yet looked into), in the order of `infos`. Raises PatchError."""
    view = memoryview(data)
    if len(view) < _HEADER.size:
        raise PatchError("the file ends within its header")
    magic, base, target, count = _HEADER.unpack(view[: _HEADER.size])
    if magic != _MAGIC:
        raise PatchError("it is no patch of a policy, or one of another version")
    if (base, target) != (base_root, target_root) or count != len(infos):
        raise PatchError("it is for other policies than the manifest says")
    patches: list[memoryview] = []
    rest = view[_HEADER.size :]
    for info in infos:
        length = _LENGTH.unpack(rest[: _LENGTH.size])[0] if len(rest) >= _LENGTH.size else -1
        if not 0 <= length <= min(len(rest) - _LENGTH.size, max_patch_bytes(math.prod(info.shape))):
            raise PatchError(f"the patch of {info.name[:80]} is cut off or longer than the tensor itself")
        patches.append(rest[_LENGTH.size : _LENGTH.size + length])
        rest = rest[_LENGTH.size + length :]
    if len(rest):
        raise PatchError(f"{len(rest)} bytes too many")
    return tuple(patches)


def forms(infos: Sequence[TensorInfo]) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes: what the two sides of a patch have in common."""
    return [(info.name, info.shape) for info in infos]
