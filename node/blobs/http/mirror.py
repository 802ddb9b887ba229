"""A middle node: follows the policies of HTTP sources and holds the newest few, to be served again.

Newest first, every image checked piece by piece and as a whole against the step and the policy root that its source
lists. Who signed the policy is for the final reader to check: the trainer's announcement is passed on as it is.
"""

import mmap
from collections.abc import Sequence
from pathlib import Path

import structlog
import trio

from node.blobs.errors import SourceFailed, StoreFull
from node.blobs.http.fetch import HttpBlobs, fetch_listing
from node.blobs.http.server import ServedPolicy
from node.blobs.http.sources import HttpSource, PolicyRow
from node.blobs.store import BlobStore
from node.bounded_dict import BoundedDict
from node.changes import every
from node.network.errors import NetworkError
from protocol.blobs import MAX_BLOB_SIZE, BlobInfo
from protocol.policy import MalformedPolicy, decode_image, describe_blob, describe_tensors, policy_root

log = structlog.get_logger(__name__)

MAX_REFUSED = 1024


class Mirror:
    """A service. keep: policies held; every: seconds between looks at the sources."""

    def __init__(self, store: BlobStore, sources: Sequence[HttpSource], *, keep: int = 5, every: float = 5.0) -> None:
        self._store = store
        self._sources = tuple(sources)
        self._keep = keep
        self._every = every
        self._http = HttpBlobs(store)
        self._held: dict[int, ServedPolicy] = {}
        # Bounded: a source may list as many bad ones as it likes.
        self._refused = BoundedDict[tuple[int, str, str], None](MAX_REFUSED)

    def policies(self) -> tuple[ServedPolicy, ...]:
        """What is held now, oldest first."""
        return tuple(self._held[step] for step in sorted(self._held))

    @property
    def refused(self) -> int:
        """Policies that were not what their source said."""
        return len(self._refused)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow until cancelled."""
        task_status.started()
        await every(self._every, self._round)

    async def _round(self) -> None:
        for row in await self._wanted():
            await self._obtain(row)

    async def _wanted(self) -> list[PolicyRow]:
        """The newest listed policies that are not held, newest first."""
        rows: dict[int, PolicyRow] = {}
        for source in self._sources:
            try:
                rows |= {row.step: row for row in await fetch_listing(source) if _claim(row) not in self._refused}
            except SourceFailed as error:
                log.info("mirror.source_failed", source=source.url, why=error.why)
        newest = sorted(rows, reverse=True)[: self._keep]
        return [rows[step] for step in newest if step not in self._held]

    async def _obtain(self, row: PolicyRow) -> None:
        if len(self._held) >= self._keep and row.step < min(self._held):
            return
        root = bytes.fromhex(row.image_root)
        known = self._store.has(root)  # compared with its root at some time, but not now
        try:
            path = await self._fetch(row, root)
            blob = None if known else self._store.info(root)
            found = await trio.to_thread.run_sync(root_of_image, path, row.step, blob)
        except (SourceFailed, NetworkError) as error:
            log.info("mirror.not_fetched", step=row.step, why=error.why)
            return
        except MalformedPolicy as error:
            self._refuse(row, root, error.why)
            return
        if found.hex() != row.policy_root:
            self._refuse(row, root, "its tensors at this step have another root")
            return
        self._hold(ServedPolicy(row.step, found, root, row.image_size, path, bytes.fromhex(row.announcement)))

    async def _fetch(self, row: PolicyRow, root: bytes) -> Path:
        """The image; in a store that is full, in the place of older policies, of which the newest stays meanwhile."""
        while True:
            try:
                return await self._http.fetch(
                    root,
                    self._sources,
                    # What a source lists is a claim: neither more than that nor more than any blob has.
                    max_size=min(row.image_size, MAX_BLOB_SIZE),
                    # An image may be tens of gigabytes on a slow line; the next one is not looked for meanwhile.
                    timeout=3600.0,
                )
            except StoreFull:
                oldest = min(self._held, default=row.step)
                if len(self._held) < 2 or oldest >= row.step:
                    raise
                self._drop(oldest)

    def _refuse(self, row: PolicyRow, root: bytes, why: str) -> None:
        log.warning("mirror.refused", step=row.step, why=why)
        self._refused[_claim(row)] = None
        self._let_go(root)

    def _hold(self, policy: ServedPolicy) -> None:
        self._held[policy.step] = policy
        self._store.pin(policy.image_root)
        log.info("mirror.held", step=policy.step, root=policy.policy_root.hex()[:16])
        for step in sorted(self._held)[: -self._keep]:
            self._drop(step)

    def _drop(self, step: int) -> None:
        dropped = self._held.pop(step)
        self._store.unpin(dropped.image_root)
        self._let_go(dropped.image_root)

    def _let_go(self, image_root: bytes) -> None:
        """Forget an image, unless a held policy has it: steps with the same weights share one."""
        if all(each.image_root != image_root for each in self._held.values()):
            self._store.evict(image_root)


def _claim(row: PolicyRow) -> tuple[int, str, str]:
    """What is refused when it does not hold; the same policy with another image, from another source, may be good."""
    return row.step, row.policy_root, row.image_root


def root_of_image(path: Path, step: int, blob: BlobInfo | None = None) -> bytes:
    """The policy root of a canonical image at a step. Raises MalformedPolicy. Hashes: call in a thread.

    blob: what the file is, where each of its pieces was compared with that as it was written, just now.
    """
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise MalformedPolicy("bad policy image", "the file is empty")
        image = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # unmapped when the last view of it is gone
    data = memoryview(image)
    return policy_root(step, describe_blob(data, blob) if blob else describe_tensors(decode_image(data)))
