"""What the quota and the disk have room for, and what goes first where they have none.

The least recently used blobs that nobody pinned make room for new ones, and after them unfinished ones that nobody is
working on: every byte of the quota is either in use or can be had again.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from node.blobs.errors import StoreFull

log = structlog.get_logger(__name__)


class Room:
    """quota: bytes for all blobs together; folder: of those that are not complete; evict: forgets one."""

    def __init__(self, folder: Path, quota: int, evict: Callable[[bytes], None]) -> None:
        self.quota = quota
        self.complete: dict[bytes, int] = {}
        """Bytes of each, the least recently used first."""
        self.partial: dict[bytes, int] = {}
        """Bytes that each will have, the oldest first."""
        self._folder = folder
        self._evict = evict
        self._arriving: dict[Path, tuple[int, bool]] = {}
        """Blobs of our own on their way in: bytes, and whether the disk holds them already."""
        self._open: dict[bytes, int] = {}
        """Partial blobs that somebody is working on."""
        self._pins: dict[bytes, int] = {}

    @property
    def used(self) -> int:
        """Bytes held by complete blobs and reserved for others."""
        arriving = sum(size for size, _ in self._arriving.values())
        return sum(self.complete.values()) + sum(self.partial.values()) + arriving

    def pin(self, root: bytes) -> None:
        """Keep a blob (present or to come) from eviction, once more; each pin needs its unpin."""
        self._pins[root] = self._pins.get(root, 0) + 1

    def unpin(self, root: bytes) -> None:
        count = self._pins.pop(root, 0) - 1
        if count > 0:
            self._pins[root] = count

    @contextmanager
    def holding(self, roots: Iterable[bytes], /) -> Iterator[None]:
        """Pins these blobs, present or to come, until the block ends: what is fetched within can be read within."""
        roots = tuple(roots)
        for root in roots:
            self.pin(root)
        try:
            yield
        finally:
            for root in roots:
                self.unpin(root)

    def is_open(self, root: bytes) -> bool:
        return root in self._open

    def opened(self, root: bytes) -> None:
        """Somebody works on a partial blob."""
        self._open[root] = self._open.get(root, 0) + 1

    def closed(self, root: bytes) -> None:
        self._open[root] -= 1
        if not self._open[root]:
            del self._open[root]

    @contextmanager
    def arriving(self, root: bytes, size: int, *, on_disk: bool = False) -> Iterator[Path]:
        """Room for `size` bytes and the name of a file to put them in, until the blob is in its place."""
        self.make(root, size, on_disk=on_disk)
        # A name of its own: the same blob may be on its way in twice, and the first to arrive is the one that stays.
        temporary = self._folder / f"{os.urandom(16).hex()}.new"
        self._arriving[temporary] = size, on_disk
        try:
            yield temporary
        finally:
            del self._arriving[temporary]
            temporary.unlink(missing_ok=True)

    def make(self, root: bytes, size: int, *, on_disk: bool = False) -> None:
        """Evict until `size` more bytes fit the quota and the disk. on_disk: the disk holds them already. Raises
        StoreFull."""
        if size > self.quota:
            raise StoreFull(f"its whole quota is {self.quota} bytes, and {size} are needed")
        # Everything that others rely on is pinned; what can go goes before a fetch is refused.
        while self.used + size > self.quota:
            victim = self._victim()
            if victim is None:
                raise StoreFull(f"{self.used} of {self.quota} bytes are pinned or arriving, {size} more are needed")
            log.info("blob.evicted", root=victim.hex(), size=self.complete.get(victim) or self.partial.get(victim))
            self._evict(victim)
        if on_disk:
            return
        # Sparse partial files have been promised room that the disk still shows as free.
        free = shutil.disk_usage(self._folder).free - self._unwritten()
        if size > free:
            raise StoreFull(f"the disk has {max(0, free)} bytes left, {size} are needed")

    def _victim(self) -> bytes | None:
        """What is missed least: the complete blob used longest ago, else an unfinished one that nobody works on."""
        for root in self.complete:
            if root not in self._pins:
                return root
        return next((root for root in self.partial if root not in self._open), None)

    def _unwritten(self) -> int:
        """Bytes promised to unfinished blobs, and to those on their way in, that the disk does not hold yet."""
        promised = [(self._folder / root.hex(), size) for root, size in self.partial.items()]
        promised += [(path, size) for path, (size, on_disk) in self._arriving.items() if not on_disk]
        return sum(max(0, size - written(path)) for path, size in promised)


def written(path: Path) -> int:
    """Bytes of a file that the disk holds: of one with holes, less than its size."""
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0
