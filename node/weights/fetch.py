"""Follow the trainer's announcements: fetch, verify and keep each newest policy."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import structlog
import trio

from node.weights.keeper import HeldPolicy, PolicyShelf, verify_file
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.messages import PolicyAnnounced, Signed
from protocol.policy import MAX_MANIFEST_BYTES, MalformedPolicy, PolicyManifest, decode_manifest

log = structlog.get_logger()
FETCH_TIMEOUT = 600.0
RETRY_PAUSE = 0.5


class Fetcher(Protocol):
    """The part of node.network that policies need: blobs by root."""

    async def fetch(self, root: bytes, sources: Sequence[Address], *, max_size: int, timeout: float) -> Path: ...


class PolicyFollower:
    """A service: the newest announced policy, always, and older ones on demand."""

    def __init__(
        self,
        announcements: trio.MemoryReceiveChannel[Signed],
        blobs: Fetcher,
        shelf: PolicyShelf,
        run_root: bytes,
        sources: Callable[[Address], Sequence[Address]],
        max_image_bytes: int,
    ) -> None:
        self._announcements = announcements
        self._blobs = blobs
        self._shelf = shelf
        self._run_root = run_root
        self._sources = sources
        self._max_image = max_image_bytes
        self._announced: dict[bytes, Signed] = {}
        self._wanted = trio.Event()
        self._news = trio.Event()
        self._lock = trio.Lock()
        self.newest_step = -1

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen)
            nursery.start_soon(self._keep_newest)

    def step_of(self, root: bytes) -> int | None:
        """The step of an announced policy."""
        signed = self._announced.get(root)
        return _announcement(signed).step if signed else None

    async def announced(self, root: bytes) -> None:
        """Return once the trainer has announced `root`; a worker may have heard of it before us."""
        while root not in self._announced:
            await self._news.wait()

    async def get(self, root: bytes, timeout: float) -> HeldPolicy | None:
        """The policy `root`, fetched if it was announced; None if it was not, or cannot be had in time (seconds)."""
        held = self._shelf.by_root(root)
        signed = self._announced.get(root)
        if held or not signed:
            return held
        with trio.move_on_after(timeout):
            await self._obtain(signed)
        return self._shelf.by_root(root)

    async def _listen(self) -> None:
        async for signed in self._announcements:
            message = _announcement(signed)
            self._announced[message.policy_root] = signed
            self._news.set()
            self._news = trio.Event()
            if len(self._announced) > 64:
                self._announced.pop(min(self._announced, key=lambda root: self.step_of(root) or 0))
            if message.step > self.newest_step:
                self.newest_step = message.step
                self._wanted.set()

    async def _keep_newest(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            newest = max(self._announced.values(), key=lambda signed: _announcement(signed).step)
            if not await self._obtain(newest):
                await trio.sleep(RETRY_PAUSE)
                self._wanted.set()

    async def _obtain(self, signed: Signed) -> bool:
        """Fetch, verify and shelve one policy; False if that failed and may be tried again."""
        message = _announcement(signed)
        async with self._lock:
            if self._shelf.by_root(message.policy_root):
                return True
            try:
                policy = await self._fetch(message, self._sources(signed.author))
            except IntellectError as error:
                log.info("policy.fetch_failed", step=message.step, why=error.why)
                return False
            self._shelf.put(policy)
            log.info("policy.held", step=policy.step, root=policy.root.hex()[:16])
            return True

    async def _fetch(self, message: PolicyAnnounced, sources: Sequence[Address]) -> HeldPolicy:
        limit = min(message.manifest_size, MAX_MANIFEST_BYTES)
        path = await self._blobs.fetch(message.manifest_root, sources, max_size=limit, timeout=FETCH_TIMEOUT)
        manifest = decode_manifest(await trio.to_thread.run_sync(path.read_bytes))
        self._check(manifest, message)
        image = await self._blobs.fetch(
            manifest.image_root, sources, max_size=manifest.image_size, timeout=FETCH_TIMEOUT
        )
        await trio.to_thread.run_sync(verify_file, manifest, image)
        return HeldPolicy(message.step, message.policy_root, image, manifest)

    def _check(self, manifest: PolicyManifest, message: PolicyAnnounced) -> None:
        if (manifest.run_root, manifest.step, manifest.policy_root) != (
            self._run_root,
            message.step,
            message.policy_root,
        ):
            raise MalformedPolicy("wrong policy manifest", "it is not the one that was announced")
        if manifest.image_size > self._max_image:
            raise MalformedPolicy("wrong policy manifest", f"an image of {manifest.image_size} bytes is too large")


def _announcement(signed: Signed) -> PolicyAnnounced:
    assert isinstance(signed.message, PolicyAnnounced)  # noqa: S101 - the subscription's type
    return signed.message
