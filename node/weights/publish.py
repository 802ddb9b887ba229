"""Publish a policy: image and manifest become blobs, the announcement is journaled, then said."""

from pathlib import Path
from typing import Protocol

import structlog
import trio

from node.journal import Journal
from node.swarm.board import Board
from node.weights.keeper import HeldPolicy, manifest_of
from protocol.blobs import BlobInfo
from protocol.messages import PolicyAnnounced
from protocol.policy import encode_manifest

log = structlog.get_logger()


class Store(Protocol):
    """The part of node.network's blob store that publishing needs."""

    async def add(self, source: Path | bytes) -> BlobInfo: ...
    def path(self, root: bytes) -> Path: ...


class Publisher:
    """Makes a step of the model known to the swarm, once."""

    def __init__(self, store: Store, board: Board, journal: Journal, run_root: bytes, pool: int) -> None:
        self._store = store
        self._board = board
        self._journal = journal
        self._run_root = run_root
        self._pool = pool

    async def publish(self, step: int, image: Path) -> HeldPolicy:
        """Announce the canonical image of `step`. After a restart the journaled announcement is repeated as it was."""
        info = await self._store.add(image)
        data = await trio.to_thread.run_sync(image.read_bytes)
        manifest = await trio.to_thread.run_sync(manifest_of, data, info, self._run_root, step)
        encoded = encode_manifest(manifest)
        blob = await self._store.add(encoded)
        slot = step.to_bytes(8, "big")
        raw = await self._journal.do(self._journal.said, "policy", slot)
        if raw is None:
            raw = self._board.sealed(
                PolicyAnnounced(
                    pool=self._pool,
                    step=step,
                    policy_root=manifest.policy_root,
                    manifest_root=blob.root,
                    manifest_size=len(encoded),
                )
            )
            await self._journal.do(self._journal.say, "policy", slot, raw)
        await self._board.post_raw(raw)
        log.info("policy.published", step=step, root=manifest.policy_root.hex()[:16], bytes=info.size)
        return HeldPolicy(step, manifest.policy_root, self._store.path(info.root), manifest)
