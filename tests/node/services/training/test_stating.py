"""A batch from its parts, at a node whose store has room for little more than these."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.blobs.store import BlobStore
from node.services.training import stating
from protocol.blobs import describe
from protocol.identity import Address

SIZE = 100


class Crowded(BlobStore):
    """With room for these blobs of SIZE bytes and one more; somebody else's comes after each that is fetched."""

    def __init__(self, folder: Path, there: Sequence[bytes]) -> None:
        super().__init__(folder, SIZE * (len(there) + 1))
        self._there = {describe(one).root: one for one in there}
        self._others = 0

    async def crowd(self) -> None:
        """As many as there is room for."""
        for _ in range(self.room.quota // SIZE):
            self._others += 1
            await self.add(self._others.to_bytes(SIZE, "big"))

    async def fetch(self, root: bytes, sources: Sequence[Address], **_: Any) -> Path:
        await self.add(self._there[root])
        path = self.path(root)
        await self.crowd()
        return path


async def test_what_a_batch_is_made_of_stays_in_a_full_store_until_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [bytes([number]) * SIZE for number in range(3)]
    roots = [describe(part).root for part in parts]
    blobs = Crowded(tmp_path, parts)
    context: Any = SimpleNamespace(blobs=blobs, run=SimpleNamespace(spec=None))
    work = SimpleNamespace(blobs=lambda: iter([(root, SIZE, b"") for root in roots]))

    def read_all(spec: Any, composed: Any, file: Callable[[bytes], bytes], *_: Any) -> Any:
        return [file(root) for root in roots]

    monkeypatch.setattr(stating, "materialise", read_all)
    composed: Any = SimpleNamespace(works=[work])
    made: Any = await stating.make(context, composed)
    assert made == parts
    await blobs.crowd()
    assert not any(map(blobs.has, roots))  # the control: they are held no longer than that
