"""What this node knows about the policies that it holds, on disk, so that a restart needs nobody to tell it again.

One small file per policy: the trainer's signed announcement, its manifest. The images themselves are blobs. Also read
by `intellect-node weights`, beside a running daemon: records appear whole, and may vanish at any time.
"""

from pathlib import Path

import msgspec

from node.state.files import write_whole
from node.weights.errors import disk_errors
from node.weights.keeper import HeldPolicy
from protocol.errors import ProtocolError
from protocol.policy import MAX_MANIFEST_BYTES, PolicyManifest, decode_manifest, encode_manifest

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
            write_whole(path, data)
            for old in self._paths()[:-keep]:
                old.unlink(missing_ok=True)

    def read(self) -> list[PolicyRecord]:
        """Those that are sound, oldest first."""
        return [record for record in map(read_record, self._paths()) if record is not None]

    def _path(self, manifest: PolicyManifest) -> Path:
        return self.directory / f"{manifest.step:09d}-{manifest.policy_root.hex()[:16]}.policy"

    def _paths(self) -> list[Path]:
        return sorted(self.directory.glob("*.policy"))


def encode_record(record: PolicyRecord) -> bytes:
    return msgspec.msgpack.encode(_Record(record.announcement, record.manifest_root, encode_manifest(record.manifest)))


def read_record(path: Path) -> PolicyRecord | None:
    """None where there is none that can be read: deleted in between, half-written, of another version."""
    try:
        with path.open("rb") as file:
            record = msgspec.msgpack.decode(file.read(MAX_RECORD_BYTES), type=_Record)
        return PolicyRecord(record.announcement, record.manifest_root, decode_manifest(record.manifest))
    except (OSError, msgspec.MsgspecError, ProtocolError):
        return None
