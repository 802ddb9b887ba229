"""What everybody else sees of blobs: fetch by root, add by content."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from protocol.blobs import BlobInfo
from protocol.identity import Address


class Blobs(Protocol):
    """Blobs by root, ours and other people's."""

    async def fetch(
        self, root: bytes, sources: Sequence[Address], *, max_size: int, timeout: float, priority: int = 0
    ) -> Path:
        """The file. It may make room for others' at any moment, except within `holding`."""
        ...

    def arrived(self, root: bytes, /) -> int: ...
    def holding(self, roots: Iterable[bytes], /) -> AbstractContextManager[object]: ...
    async def add(self, source: Path | bytes, *, synced: bool = True) -> BlobInfo:
        """A blob of our own. synced: it outlives a power cut, as what nobody else has must."""
        ...
