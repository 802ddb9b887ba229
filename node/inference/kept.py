"""The policies that an engine's process keeps: the last ones that were loaded, and those that a job is at work with.

Jobs and loads come from several threads.
"""

import mmap
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from node.inference.engine import Weights
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


@dataclass(frozen=True, slots=True)
class KeptPolicy:
    """weights: as the engine read them; image: the file's bytes, mapped."""

    weights: Weights
    image: PolicyImage


class KeptPolicies:
    """read: a file's weights for the engine; limit: how many are kept besides those in use."""

    def __init__(self, read: Callable[[str], Weights], limit: int) -> None:
        self._read = read
        self._limit = limit
        self._kept: dict[bytes, KeptPolicy] = {}
        self._users: Counter[bytes] = Counter()
        self._lock = threading.Lock()

    def roots(self) -> list[bytes]:
        """Those that are kept, the one that was loaded last at the end."""
        return list(self._kept)

    def get(self, root: bytes) -> KeptPolicy:
        """Raises EngineError for a policy that is not kept."""
        kept = self._kept.get(root)
        if kept is None:
            why = f"{root.hex()[:16]} is not among the last {len(self._kept)}"
            raise EngineError("the policy is not loaded", why, "send LoadPolicy first")
        return kept

    def keep(self, root: bytes, path: str) -> None:
        """Read a policy; the oldest ones that nobody uses are forgotten. Raises EngineError."""
        policy = self._kept.get(root) or KeptPolicy(self._read(path), PolicyImage(path))
        with self._lock:
            self._kept.pop(root, None)
            self._kept[root] = policy
            self._forget()

    @contextmanager
    def in_use(self, root: bytes) -> Iterator[None]:
        """A policy is not forgotten meanwhile, whether it is there already or comes later."""
        with self._lock:
            self._users[root] += 1
        try:
            yield
        finally:
            with self._lock:
                self._users[root] -= 1
                self._forget()

    def close(self) -> None:
        for policy in self._kept.values():
            policy.image.close()
        self._kept.clear()

    def _forget(self) -> None:
        self._users += Counter()  # drops those that nobody uses
        idle = [root for root in self._kept if not self._users[root]]
        for root in idle[: max(0, len(self._kept) - self._limit)]:
            self._kept.pop(root).image.close()
