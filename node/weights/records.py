"""What this node knows about the policies that it holds, on disk, so that a restart needs nobody to tell it again.

One small file per policy: the trainer's signed announcement, its manifest. The images themselves are blobs. Also read
by `intellect-node weights`, beside a running daemon: records appear whole, and may vanish at any time.
"""

from collections.abc import Callable, Set
from functools import partial
from pathlib import Path

import msgspec

from node.state.files import write_whole
from node.state.kept import cached
from node.weights.errors import disk_errors
from node.weights.policy_cache import HeldPolicy
from protocol.errors import ProtocolError
from protocol.policy import MAX_MANIFEST_BYTES, PolicyManifest, PolicyPatch, decode_manifest, encode_manifest

RECORD_NAME = "intellect-node.policy"
"""The record's name inside an exported model directory."""
MAX_RECORD_BYTES = MAX_MANIFEST_BYTES + 64 * 1024


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    announcement: bytes
    manifest_root: bytes
    manifest: bytes
    version: int = 1


class PolicyRecord(msgspec.Struct, frozen=True):
    """announcement: the signed envelope; manifest: checked."""

    announcement: bytes
    manifest_root: bytes
    manifest: PolicyManifest


class PolicyRecords:
    """The records below `directory`. Methods block for the disk."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, policy: HeldPolicy, keep: int) -> None:
        """Record one more and forget all but the newest `keep`. Raises WeightsDiskError."""
        data = encode_record(PolicyRecord(policy.announcement, policy.manifest_root, policy.manifest))
        path = self._path(policy.manifest)
        with disk_errors(f"the record {path}"):
            # The new one first: a crash in between leaves one record too many, never one too few.
            write_whole(path, data)
            for old in self._paths()[:-keep]:
                old.unlink(missing_ok=True)

    def read(self) -> list[PolicyRecord]:
        """Those that are sound, oldest first."""
        found = [cached(path, partial(_read, path)) for path in self._paths()]
        return [record for record in found if record is not None]

    def _path(self, manifest: PolicyManifest) -> Path:
        return self.directory / f"{manifest.step:09d}-{manifest.policy_root.hex()[:16]}.policy"

    def _paths(self) -> list[Path]:
        return sorted(self.directory.glob("*.policy"))


def encode_record(record: PolicyRecord) -> bytes:
    return msgspec.msgpack.encode(_Record(record.announcement, record.manifest_root, encode_manifest(record.manifest)))


def read_record(path: Path) -> PolicyRecord | None:
    """None where there is none that can be read: deleted in between, half-written, of another version."""
    try:
        return _read(path)
    except (msgspec.MsgspecError, UnicodeDecodeError, ProtocolError):
        return None


def _read(path: Path) -> PolicyRecord | None:
    try:
        with path.open("rb") as file:
            # Bounded: in a model directory it is a stranger's file.
            raw = file.read(MAX_RECORD_BYTES)
    except OSError:
        return None
    record = msgspec.msgpack.decode(raw, type=_Record)
    return PolicyRecord(record.announcement, record.manifest_root, decode_manifest(record.manifest))


SOON = 64 * 1024**2
"""Bytes of an image that is fetched whole; a bigger one may be superseded before it has arrived, an anchor stays."""


class FetchPath(msgspec.Struct, frozen=True):
    """Fetch `image` unless it is empty, take the image of `base` otherwise, then apply `patches` in order.

    base: a policy root; image: the blob of that policy's image; cost: bytes to fetch.
    """

    base: bytes
    image: bytes
    patches: tuple[PolicyPatch, ...]
    cost: int

    @property
    def whole(self) -> bool:
        """Whether the policy's own image is fetched."""
        return bool(self.image) and not self.patches

    @property
    def name(self) -> str:
        """What the way leads over, as it is counted; "here": nothing has to be fetched or built."""
        if self.whole:
            return "image" if self.cost else "here"
        return "anchor" if self.image else "patches"


def ways_to(manifest: PolicyManifest, held: Set[bytes], present: Callable[[bytes], int]) -> list[FetchPath]:
    """held: policy roots whose images are here or about to be; present: bytes of a blob that are here already."""
    ways: list[FetchPath] = []
    for place in range(len(manifest.patches) - 1, -1, -1):
        patches = manifest.patches[place:]
        if patches[0].base_root in held:
            ways.append(FetchPath(patches[0].base_root, b"", patches, _missing(patches, present)))
    anchor = manifest.anchor
    if anchor is not None:
        patches = manifest.patches_from(anchor.policy_root) or ()
        cost = manifest.image_size - present(anchor.image_root) + _missing(patches, present)
        if manifest.image_size > SOON:
            cost = max(0, cost - manifest.image_size // 3)  # of two long ways the one whose goal stays where it is
        ways.append(FetchPath(anchor.policy_root, anchor.image_root, patches, cost))
    whole = manifest.image_size - present(manifest.image_root)
    ways.append(FetchPath(manifest.policy_root, manifest.image_root, (), whole))
    return sorted(ways, key=lambda way: (way.cost, len(way.patches)))


def _missing(patches: tuple[PolicyPatch, ...], present: Callable[[bytes], int]) -> int:
    return sum(patch.size - present(patch.root) for patch in patches)


def next_chain(
    previous: PolicyManifest | None, patch: PolicyPatch | None, image_size: int, most: int
) -> tuple[PolicyPatch, ...]:
    """The newest patches, `patch` last, that together have at most `most` bytes."""
    chain = (*(previous.patches if previous else ()), patch) if patch else ()
    while chain and sum(each.size for each in chain) > most:
        chain = chain[1:]
    return chain
