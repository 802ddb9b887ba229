"""Manifests of policies: fetched, and held against what was announced."""

from collections.abc import Callable, Sequence

import trio

from node.blobs.interface import Blobs
from node.bounded_dict import BoundedDict
from node.state.files import as_named
from node.swarm.policies import PolicyIndex
from protocol.blobs import describe
from protocol.identity import Address
from protocol.messages import PolicyAnnounced
from protocol.policy import MAX_MANIFEST_BYTES, MalformedPolicy, PolicyManifest, decode_manifest


class Manifests:
    """clock: what was announced; sources: whom to ask for what an author announced; max_image: bytes that the run
    allows; kept: how many are remembered."""

    def __init__(
        self,
        clock: PolicyIndex,
        blobs: Blobs,
        run_root: bytes,
        sources: Callable[[Address], Sequence[Address]],
        max_image: int,
        kept: int,
    ) -> None:
        self._clock, self._blobs, self._run_root = clock, blobs, run_root
        self._sources, self._max_image = sources, max_image
        self._read_before = BoundedDict[bytes, PolicyManifest](kept)

    async def get(self, message: PolicyAnnounced, author: Address) -> PolicyManifest:
        """The manifest that an announcement names, checked against it. Raises MalformedPolicy."""
        manifest = self._read_before.get(message.manifest_root)
        if manifest is None:
            manifest = await self._read(message, author)
            self._read_before[message.manifest_root] = manifest
        self._check(manifest, message)
        return manifest

    async def _read(self, message: PolicyAnnounced, author: Address) -> PolicyManifest:
        if not 0 < message.manifest_size <= MAX_MANIFEST_BYTES:
            raise MalformedPolicy("wrong policy manifest", f"{message.manifest_size} bytes cannot be one")
        root, data = message.manifest_root, message.manifest
        few = 4096  # bytes that are decoded sooner than a thread begins; announcements have no more
        if data:
            if describe(data).root != root:
                raise MalformedPolicy("wrong policy manifest", "the one in the announcement is not the one it names")
            return decode_manifest(data) if len(data) <= few else await trio.to_thread.run_sync(decode_manifest, data)
        path = await self._blobs.fetch(root, self._sources(author), max_size=message.manifest_size, timeout=60.0)
        read = lambda: decode_manifest(as_named(path.read_bytes(), root, "a policy manifest"))
        return await trio.to_thread.run_sync(read)

    def _check(self, manifest: PolicyManifest, message: PolicyAnnounced) -> None:
        named = (manifest.run_root, manifest.step, manifest.policy_root)
        if named != (self._run_root, message.step, message.policy_root):
            raise MalformedPolicy("wrong policy manifest", "it is not the one that was announced")
        if manifest.image_size > self._max_image:
            raise MalformedPolicy("wrong policy manifest", f"an image of {manifest.image_size} bytes is too large")
        steps = {patch.step: patch.target_root for patch in manifest.patches}
        if manifest.snapshot is not None:
            steps.setdefault(manifest.snapshot.step, manifest.snapshot.policy_root)
        for step, root in steps.items():
            signed, known = self._clock.of_step(step), self._clock.find(root)
            if (signed and signed.message.policy_root != root) or (known and known.step != step):
                raise MalformedPolicy("forked policy", f"it builds on another policy of step {step} than was announced")
