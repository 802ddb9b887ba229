"""The policies that this node holds: the newest few, by root and by step, each a verified image in the blob store or
the snapshot's image and the patches after it.

What the newest manifest refers to (its patches, the snapshot's image) is kept as well, for those who come late. Nobody
sees a policy before every tensor has matched the manifest and the manifest the announced root.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
import trio

from node.inference.layers import LayeredImage, PatchFile
from node.inference.wire import LoadPolicy
from protocol.policy import PolicyManifest, PolicyPatch

IMAGES_KEPT = 2.3
"""Images that a store needs room for: the one that held policies rest on and the next one, with the patches that lead
on from either (a quarter of an image at most, and usually of one only)."""


class HeldPolicy(msgspec.Struct, frozen=True):
    """path: a verified canonical image: the policy's own or, where there are `patches`, the one that they lead on from;
    patches: blobs beside it. manifest_root: blob of the manifest; announcement: the signed envelope."""

    step: int
    root: bytes
    path: Path
    manifest: PolicyManifest
    manifest_root: bytes = b""
    announcement: bytes = b""
    patches: tuple[PolicyPatch, ...] = ()

    @property
    def layers(self) -> tuple[PatchFile, ...]:
        """The patches as files."""
        return layers_in(self.path.parent, self.patches)

    @property
    def blobs(self) -> tuple[bytes, ...]:
        """What the policy is put together from."""
        base = bytes.fromhex(self.path.name) if self.patches else self.manifest.image_root
        return base, *(patch.root for patch in self.patches)

    def image(self) -> LayeredImage:
        """Its tensors, compared as they are put together. Blocking. Raises OSError, MalformedPolicy, PatchError."""
        return LayeredImage(self.path, self.layers, self._digests())

    def load(self) -> LoadPolicy:
        """What an engine is asked to load."""
        if not self.patches:
            return LoadPolicy(policy_root=self.root, step=self.step, path=str(self.path))
        return load_of(self.manifest, self.path, self.patches)

    def _digests(self) -> bytes:
        # An image was compared as it was written, and is the blob that its name says.
        return digests_of(self.manifest) if self.patches else b""


def load_of(manifest: PolicyManifest, base: Path, patches: Iterable[PolicyPatch]) -> LoadPolicy:
    """The order to take what patches of this store make of a base, and to compare all of it."""
    return LoadPolicy(
        policy_root=manifest.policy_root,
        step=manifest.step,
        path=str(base),
        patches=layers_in(base.parent, patches),
        digests=digests_of(manifest),
        image_root=manifest.image_root,
    )


def digests_of(manifest: PolicyManifest) -> bytes:
    """Of its tensors, 32 bytes each, in name order."""
    return b"".join(tensor.digest for tensor in manifest.tensors)


def layers_in(blobs: Path, patches: Iterable[PolicyPatch]) -> tuple[PatchFile, ...]:
    """Patches as files of a store."""
    return tuple(PatchFile(str(blobs / one.root.hex()), one.base_root, one.target_root) for one in patches)


def at_rest(manifest: PolicyManifest, has: Callable[[bytes], bool]) -> tuple[bytes, tuple[PolicyPatch, ...]] | None:
    """(blob of an image, patches that lead on from it) by which a policy is here; None where it is not. has: which
    blobs are."""
    snapshot = manifest.snapshot
    if snapshot is not None and has(snapshot.image_root):
        patches = manifest.patches_from(snapshot.policy_root) or ()
        if all(has(patch.root) for patch in patches):
            return snapshot.image_root, patches
    return (manifest.image_root, ()) if has(manifest.image_root) else None


class PolicyPins(Protocol):
    """The part of the blob store that keeps a policy from being evicted."""

    def pin(self, root: bytes) -> None: ...
    def unpin(self, root: bytes) -> None: ...


class PolicyCache:
    """The newest `keep` policies; waiting for newer ones."""

    def __init__(self, keep: int, pins: PolicyPins) -> None:
        self.keep = keep
        """How many policies stay."""
        self._pins = pins
        self._held: dict[bytes, HeldPolicy] = {}
        """By root: of one step there may be an orphan and its heir."""
        self._orphans: set[bytes] = set()
        self._referred: frozenset[bytes] = frozenset()
        self._wanted: set[bytes] = set()
        self._changed = trio.Event()

    @property
    def newest(self) -> HeldPolicy | None:
        """Of those that no later term took back."""
        return max((one for one in self._held.values() if one.root not in self._orphans), key=_step, default=None)

    @property
    def count(self) -> int:
        return len(self._held)

    @property
    def held(self) -> tuple[HeldPolicy, ...]:
        """All of them, oldest first."""
        return tuple(sorted(self._held.values(), key=_step))

    def by_root(self, root: bytes) -> HeldPolicy | None:
        return self._held.get(root)

    def orphan(self, root: bytes) -> None:
        """A later term took this policy back: it can still be asked for, and is not the newest."""
        # Whoever waits for the newest policy looks again: it may be an older one now.
        self._orphans.add(root)
        self._changed.set()
        self._changed = trio.Event()

    def hold(self, root: bytes) -> None:
        """Keep a policy, here or to come, however many are newer: somebody works with it."""
        self._wanted.add(root)

    def let_go(self, root: bytes) -> None:
        """Keep it no longer than any other."""
        self._wanted.discard(root)
        self._drop_old()

    def put(self, policy: HeldPolicy) -> None:
        """Add one; the oldest that nobody works with goes when there are too many."""
        # Pins are counted once: a second one would never be taken back.
        if policy.root in self._held:
            return
        self._held[policy.root] = policy
        for root in policy.blobs:
            self._pins.pin(root)
        self._drop_old()
        self._keep_what_is_referred_to()
        self._changed.set()
        self._changed = trio.Event()

    def _drop_old(self) -> None:
        # Orphans count among them: they take as much room.
        for policy in self.held[: -self.keep]:
            if policy.root not in self._wanted:
                self._let_go_of(policy)

    def _let_go_of(self, policy: HeldPolicy) -> None:
        del self._held[policy.root]
        self._orphans.discard(policy.root)
        for root in policy.blobs:
            self._pins.unpin(root)

    def make_room(self) -> bool:
        """Let go of the oldest policy that nobody works with, orphans first, then of those that somebody does, or at
        last of what is kept for others only; False if there is nothing left."""
        held = self.held
        # The newest stays: a node without any policy has nothing to work with, and nothing to give to others.
        others = [one for one in held if one is not (self.newest or held[-1])]
        if others:
            self._let_go_of(min(others, key=lambda one: (one.root in self._wanted, one.root not in self._orphans)))
            return True
        referred, self._referred = self._referred, frozenset()
        for root in referred:
            self._pins.unpin(root)
        return bool(referred)

    async def newer_than(self, step: int) -> HeldPolicy:
        """The newest policy, once it is newer than `step`."""
        while self.newest is None or self.newest.step <= step:
            await self._changed.wait()
        return self.newest

    @contextmanager
    def pinned(self, roots: Iterable[bytes]) -> Iterator[None]:
        """Keep blobs, present or to come, from eviction for a while."""
        kept = list(roots)
        for root in kept:
            self._pins.pin(root)
        try:
            yield
        finally:
            for root in kept:
                self._pins.unpin(root)

    def _keep_what_is_referred_to(self) -> None:
        """Pin the blobs of the newest manifest, let go of those that only older ones named."""
        newest = self.newest
        wanted = referred(newest) if newest else frozenset()
        for root in wanted - self._referred:
            self._pins.pin(root)
        for root in self._referred - wanted:
            self._pins.unpin(root)
        self._referred = wanted


def _step(policy: HeldPolicy) -> int:
    return policy.step


def referred(policy: HeldPolicy) -> frozenset[bytes]:
    """Blobs that lead to a policy: its manifest, its patches, its snapshot's image."""
    roots = named_in(policy.manifest)
    return roots | {policy.manifest_root} if policy.manifest_root else roots


def named_in(manifest: PolicyManifest) -> frozenset[bytes]:
    """Patches and the snapshot's image."""
    roots = {patch.root for patch in manifest.patches}
    return frozenset(roots | {manifest.snapshot.image_root} if manifest.snapshot else roots)
