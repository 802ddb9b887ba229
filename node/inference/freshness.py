"""The bytes of a loaded policy, for freshness challenges: mapped, not copied, there for as long as it is kept."""

import mmap
from pathlib import Path

from node.inference.errors import EngineError
from protocol import freshness

_HEADER = 8


class PolicyImage:
    """A canonical policy image (safetensors). Raises EngineError if the file cannot be read."""

    def __init__(self, path: str) -> None:
        try:
            with Path(path).open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise EngineError("the policy's file cannot be read", str(error), "check the disk") from None
        self._start = _HEADER + int.from_bytes(self._map[:_HEADER], "little")
        if self._start > len(self._map):
            raise EngineError("the policy's file cannot be read", "its header is longer than it", "fetch it again")

    def answer(self, key: bytes) -> str:
        """64 hex digits over the leaves that `key` chooses of the tensors' bytes."""
        return freshness.answer(key, len(self._map) - self._start, self._read)

    def close(self) -> None:
        self._map.close()

    def _read(self, offset: int, length: int) -> bytes:
        return self._map[self._start + offset : self._start + offset + length]
