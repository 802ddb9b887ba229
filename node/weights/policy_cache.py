"""The policies that this node holds: verified images in the blob store, the newest few, by root and by step.

What the newest manifest refers to (its patches, the anchor's image) is kept as well, for those who come late. Nobody
sees an image before every tensor has matched the manifest and the manifest the announced root.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
import trio

from protocol.policy import PolicyManifest


class HeldPolicy(msgspec.Struct, frozen=True):
    """path: a verified canonical image. manifest_root: blob of the manifest; announcement: the signed envelope."""

    step: int
    root: bytes
    path: Path
    manifest: PolicyManifest
    manifest_root: bytes = b""
    announcement: bytes = b""


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
        self._pins.pin(policy.manifest.image_root)
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
        self._pins.unpin(policy.manifest.image_root)

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
    """Blobs that lead to a policy: its manifest, its patches, its anchor's image."""
    manifest = policy.manifest
    roots = {patch.root for patch in manifest.patches}
    if manifest.anchor:
        roots.add(manifest.anchor.image_root)
    if policy.manifest_root:
        roots.add(policy.manifest_root)
    return frozenset(roots)
