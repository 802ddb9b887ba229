"""The policies that this node holds: verified images on disk, the newest few, by root and by step.

Nobody sees an image before every tensor has matched the manifest and the manifest the announced root.
"""

from pathlib import Path
from typing import Protocol

import msgspec
import trio

from protocol.blobs import BlobInfo
from protocol.policy import PolicyManifest, decode_image, describe_tensors, policy_root, verify_image


class HeldPolicy(msgspec.Struct, frozen=True):
    """path: a verified canonical image."""

    step: int
    root: bytes
    path: Path
    manifest: PolicyManifest


class Pins(Protocol):
    """The part of the blob store that keeps a policy from being evicted."""

    def pin(self, root: bytes) -> None: ...
    def unpin(self, root: bytes) -> None: ...


class PolicyShelf:
    """The newest `keep` policies; waiting for newer ones."""

    def __init__(self, keep: int, pins: Pins) -> None:
        self._keep = keep
        self._pins = pins
        self._held: dict[int, HeldPolicy] = {}
        self._changed = trio.Event()

    @property
    def newest(self) -> HeldPolicy | None:
        return self._held[max(self._held)] if self._held else None

    @property
    def held(self) -> tuple[HeldPolicy, ...]:
        """All of them, oldest first."""
        return tuple(self._held[step] for step in sorted(self._held))

    @property
    def count(self) -> int:
        return len(self._held)

    def by_root(self, root: bytes) -> HeldPolicy | None:
        return next((policy for policy in self._held.values() if policy.root == root), None)

    def put(self, policy: HeldPolicy) -> None:
        """Add one; the oldest goes when there are too many."""
        if policy.step in self._held:
            return
        self._held[policy.step] = policy
        self._pins.pin(policy.manifest.image_root)
        for step in sorted(self._held)[: -self._keep]:
            self._pins.unpin(self._held.pop(step).manifest.image_root)
        self._changed.set()
        self._changed = trio.Event()

    async def newer_than(self, step: int) -> HeldPolicy:
        """The newest policy, once it is newer than `step`."""
        while self.newest is None or self.newest.step <= step:
            await self._changed.wait()
        return self.newest


def manifest_of(image: bytes, info: BlobInfo, run_root: bytes, step: int) -> PolicyManifest:
    """The manifest of a canonical image whose blob is `info`. Hashes: call in a thread."""
    tensors = describe_tensors(decode_image(image))
    return PolicyManifest(run_root, step, policy_root(tensors), tensors, info.root, info.size)


def verify_file(manifest: PolicyManifest, path: Path) -> None:
    """Raise MalformedPolicy unless the file is exactly the manifest's policy. Hashes: call in a thread."""
    verify_image(manifest, path.read_bytes())
