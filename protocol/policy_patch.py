"""A whole policy's patch: the patches of its tensors, in name order, in one file.

    file := "INP" version | policy root of base | policy root of target | tensors u32 | (length u64, patch)...

Both sides work on one tensor at a time. What stands in a patch is checked against the tensors that the signed manifest
lists, before any of it is applied.
"""

import math
import struct
from collections.abc import Sequence

from protocol.delta import PatchError, max_patch_bytes
from protocol.policy import TensorInfo

_MAGIC = b"INP\x01"
_HEADER = struct.Struct("<4s32s32sI")
_LENGTH = struct.Struct("<Q")


def policy_patch_header(base_root: bytes, target_root: bytes, tensors: int) -> bytes:
    """What stands before the first tensor's patch."""
    return _HEADER.pack(_MAGIC, base_root, target_root, tensors)


def framed(patch: bytes) -> tuple[bytes, bytes]:
    """One tensor's patch as it stands in the file: its length, then itself."""
    return _LENGTH.pack(len(patch)), patch


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
