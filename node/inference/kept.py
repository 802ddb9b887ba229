"""The policies that an engine's process keeps: the last ones that were loaded, and those that a job is at work with.

Jobs and loads come from several threads.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from node.inference.engine import Weights
from node.inference.errors import EngineError
from node.inference.freshness import PolicyImage


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
