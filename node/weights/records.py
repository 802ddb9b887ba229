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
from node.weights.policy_cache import HeldPolicy, at_rest
from protocol.errors import ProtocolError
from protocol.policy import (
    MAX_MANIFEST_BYTES,
    PolicyManifest,
    PolicyPatch,
    WeightsSnapshot,
    decode_manifest,
    encode_manifest,
)

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
            # Not synced: a record that a power cut has torn is set aside, and the policy is fetched as by a newcomer.
            write_whole(path, data, synced=False)
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


def find_held(state: Path, record: PolicyRecord) -> HeldPolicy | None:
    """A policy as a node keeps it below its state directory, of whose blobs none was compared; None where it is not
    there: the store evicts when it is full."""
    blobs, manifest = state / "blobs" / "complete", record.manifest
    found = at_rest(manifest, lambda root: (blobs / root.hex()).is_file())
    if found is None:
        return None
    root, said = manifest.policy_root, record.announcement
    return HeldPolicy(manifest.step, root, blobs / found[0].hex(), manifest, record.manifest_root, said, found[1])


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


class FetchPath(msgspec.Struct, frozen=True):
    """To an image at rest, then `patches` that lead on from it to the policy.

    image: its blob, fetched unless the policy `base` is named: then, if it is not here, it is built from that one by
    the patches `before`. cost: bytes to fetch.
    """

    image: bytes
    base: bytes
    before: tuple[PolicyPatch, ...]
    patches: tuple[PolicyPatch, ...]
    cost: int
    here: bool

    @property
    def name(self) -> str:
        """What the way leads over, as it is counted; "here": nothing has to be fetched or built."""
        if self.base or (self.here and self.patches):
            return "patches"
        return "snapshot" if self.patches else "here" if self.here else "image"


def ways_to(manifest: PolicyManifest, held: Set[bytes], present: Callable[[bytes], int]) -> list[FetchPath]:
    """The best first. held: policies that are here or about to be; present: bytes of a blob that are here already.

    What stays at rest is the snapshot's image, or the policy's own where that is the snapshot. A policy's own image
    beside a snapshot is the last way, unless it is here: whoever takes it has nothing for those who come later.
    """
    own = WeightsSnapshot(manifest.step, manifest.policy_root, manifest.image_root)
    snapshot = manifest.snapshot or own
    after = manifest.patches_from(snapshot.policy_root) or ()
    begins = len(manifest.patches) - len(after)
    ways = [_fetched(manifest, snapshot.image_root, after, present)]
    for place in range(len(manifest.patches) - 1, -1, -1):
        if (base := manifest.patches[place].base_root) in held:
            # Of a policy after the snapshot the snapshot's image is here, or comes with it.
            before = manifest.patches[place:begins]
            ways.append(
                FetchPath(snapshot.image_root, base, before, after, _missing((*before, *after), present), False)
            )
    whole = [] if snapshot is own else [_fetched(manifest, own.image_root, (), present)]
    ways.sort(key=lambda way: (way.cost, bool(way.base), len(way.before)))
    return [*whole, *ways] if whole and whole[0].here else [*ways, *whole]


def _fetched(
    manifest: PolicyManifest, image: bytes, patches: tuple[PolicyPatch, ...], present: Callable[[bytes], int]
) -> FetchPath:
    missing = manifest.image_size - present(image)
    return FetchPath(image, b"", (), patches, missing + _missing(patches, present), not missing)


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
