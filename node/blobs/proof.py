"""Whether complete blobs still are what their names say: what a disk changed is forgotten, told and counted.

A blob of an earlier start is hashed at its first use in this one, and now and then when nobody asks. When that was last
is the time of its list's file.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import structlog
import trio

from node.blobs import files
from node.blobs.files import NotWhole, disk_errors
from protocol.blobs import BlobInfo

log = structlog.get_logger(__name__)
Pace = Callable[[int], Awaitable[object]]
"""Waits for as long as so many bytes may take."""


class BlobProofs:
    """folder: of the blobs; complete: those that are there; info: the list of one; evict: forgets one."""

    def __init__(
        self,
        folder: Path,
        complete: Mapping[bytes, int],
        info: Callable[[bytes], BlobInfo | None],
        evict: Callable[[bytes], None],
        limiter: trio.CapacityLimiter,
    ) -> None:
        self.damaged = 0
        """Complete blobs that were not what their names say."""
        self.unproven: set[bytes] = set()
        """Complete blobs of an earlier start that were not hashed in this one."""
        self._folder = folder
        self.sizes = complete
        """Bytes of each blob that is there."""
        self._info = info
        self._evict = evict
        self._limiter = limiter
        self._followers: list[Callable[[bytes, int], object]] = []

    async def whole(self, root: bytes) -> bool:
        """Whether a complete blob is here and is what its name says. Raises StoreFailed."""
        if root in self.unproven:
            await self.prove(root)
        return root in self.sizes

    async def prove(self, root: bytes, pace: Pace | None = None) -> None:
        """Compare a complete blob with its name. pace: makes it slow, and every byte is read from the disk. Raises
        StoreFailed."""
        path, info, place = self._folder / root.hex(), self._info(root), 0
        try:
            if info is None:
                raise NotWhole("its piece list is another")
            # Bytes that are compared between two looks at whether that is still wanted.
            count = 1 if pace is not None else max(1, (64 * 1024**2) // info.piece_size)
            while place < max(1, len(info.pieces)):
                check = partial(files.check_pieces, path, info, place, count, afresh=pace is not None)
                size = await trio.to_thread.run_sync(check, limiter=self._limiter)
                if pace is not None:
                    await pace(size)
                place += count
        except NotWhole as error:
            self.lose(root, str(error))
        else:
            self.proved(root)

    def proved(self, root: bytes) -> None:
        """All of a complete blob was just compared with its name, by whoever says so."""
        self.unproven.discard(root)
        if root in self.sizes:
            with disk_errors():
                os.utime(files.info_path(self._folder / root.hex()))

    def proven_at(self) -> dict[bytes, float]:
        """Each complete blob, and when it was compared with its name last, in Unix seconds. Blocking."""
        found: dict[bytes, float] = {}
        for root in list(self.sizes):
            try:
                found[root] = files.info_path(self._folder / root.hex()).stat().st_mtime
            except OSError:
                found[root] = 0.0  # looked at first: either it is gone by then, or it is damaged
        return found

    def follow(self, follower: Callable[[bytes, int], object]) -> None:
        """follower: told of each complete blob that was damaged, and is gone: root and bytes."""
        self._followers.append(follower)

    def lose(self, root: bytes, why: str) -> None:
        """A complete blob is damaged: forget and tell. One that was forgotten before is no news."""
        size = self.sizes.get(root)
        if size is not None:
            self._evict(root)
            self.damage(root, why)
            for follower in self._followers:
                follower(root, size)

    def damage(self, root: bytes, why: str) -> None:
        self.damaged += 1
        log.warning("blob.damaged_on_this_disk", root=root.hex(), why=why, then="forgotten, and fetched again")
